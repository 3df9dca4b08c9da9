"""Scores in an S3 bucket: moto's server on loopback, real uploads, some of them killed."""

import time

import fsspec
import pyarrow.parquet as pq
import pytest

from mmoe.run.store import AddressStore
from mmoe.score import score_files
from tests.forked import Forked
from tests.score.listing import contents

moto_server = pytest.importorskip("moto.server")
pytest.importorskip("s3fs")

MIB = 1 << 20


def there(bucket):
    filesystem, root = fsspec.url_to_fs(bucket)
    filesystem.invalidate_cache()
    return {path[len(root) + 1 :]: filesystem.cat(path) for path in filesystem.find(root)}


def test_a_bucket_gets_what_a_folder_gets(run, bucket, funnel_table, tmp_path):
    log = tmp_path / "log"
    for n in range(3):
        (log / f"day={n}").mkdir(parents=True)
        pq.write_table(funnel_table[n * 40 : (n + 1) * 40], log / f"day={n}" / "part.parquet")
    score_files(run, log, tmp_path / "here", keep=["row"])
    assert score_files(run, log, f"{bucket}/night", keep=["row"]) == 120
    assert there(f"{bucket}/night") == contents(tmp_path / "here")
    pq.write_table(funnel_table[:7], log / "day=2" / "part.parquet")
    assert score_files(run, log, f"{bucket}/night", keep=["row"], mode="overwrite-partitions") == 87
    score_files(run, log, tmp_path / "again", keep=["row"])
    assert there(f"{bucket}/night") == contents(tmp_path / "again")
    one = f"{bucket}/one.parquet"
    assert score_files(run, log, one) == 87


_UPLOAD = """
import sys
from pathlib import Path
from mmoe.run.store import AddressStore

store = AddressStore(sys.argv[1])
written = store.begin("_staging/00000-log.parquet")
written.write_bytes(bytes(120 << 20))
print("begun", flush=True)
store.put(written, "_staging/00000-log.parquet")
"""


def test_an_upload_that_is_killed_shows_nothing(bucket):
    """In parts of 50 MiB: some of them are there when the process dies."""
    filesystem, root = fsspec.url_to_fs(bucket)
    going = Forked(["-c", _UPLOAD, bucket])
    going.wait_for("begun")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and going.poll() is None:
        uploads = filesystem.call_s3("list_multipart_uploads", Bucket=root).get("Uploads", [])
        if uploads:
            break
        time.sleep(0.01)
    assert going.poll() is None, "it ended before it could be killed"
    going.kill()
    going.wait(60)
    assert uploads
    assert there(bucket) == {}
    store = AddressStore(bucket)
    written = store.begin("_staging/00000-log.parquet")
    written.write_bytes(bytes(120 * MIB))
    store.put(written, "_staging/00000-log.parquet")
    store.move("_staging/00000-log.parquet", "00000-log.parquet")
    assert store.names() == ["00000-log.parquet"]
    found = store.digest("00000-log.parquet")
    assert found is not None
    assert found[0] == 120 * MIB


def test_a_bucket_that_is_not_there_is_not_made(run, bucket, funnel_table, tmp_path):
    pq.write_table(funnel_table[:5], tmp_path / "log.parquet")
    for output in ("s3://no-such-bucket/night", "s3://no-such-bucket/one.parquet"):
        with pytest.raises(ValueError, match=r"--output s3://no-such.*: cannot be reached \("):
            score_files(run, tmp_path / "log.parquet", output)
    assert not fsspec.filesystem("s3").exists("no-such-bucket")
