"""A run in an S3 bucket: moto's server on loopback."""

import shutil
from uuid import uuid4

import fsspec
import pytest

from mmoe.run import open_run
from mmoe.run.mirror import mirrored
from mmoe.score.scorer import ScoreRequest

moto_server = pytest.importorskip("moto.server")
pytest.importorskip("s3fs")


@pytest.fixture(scope="module", name="run")
def _run(funnel_config, train_funnel):
    return train_funnel({**funnel_config, "training": {**funnel_config["training"], "epochs": 1}})


def test_a_run_in_a_bucket(run, bucket, funnel_table, tmp_path, monkeypatch):
    monkeypatch.setenv("MMOE_CACHE", str(tmp_path / "cache"))
    address = f"{bucket}/runs/day=1"
    filesystem, root = fsspec.url_to_fs(address)
    filesystem.put(str(run.path), root, recursive=True)
    opened = open_run(address)
    own = [path.relative_to(opened.path) for path in opened.path.rglob("*") if path.is_file()]
    assert len(own) > 8
    assert all((opened.path / p).read_bytes() == (run.path / p).read_bytes() for p in own)
    assert open_run(address) == opened
    request = ScoreRequest(keep=["row"])
    here, there = (request.load(of).score(funnel_table) for of in (run, opened))
    assert here.equals(there)
    mapped = request.load(opened, mapped=True).score(funnel_table)
    assert mapped.equals(here)
    with filesystem.open(f"{root}/config.yaml", "ab") as file:
        file.write(b"\n# changed\n")
    assert open_run(address) != opened


def test_a_bucket_that_is_not_there(bucket, tmp_path, monkeypatch):
    monkeypatch.setenv("MMOE_CACHE", str(tmp_path / "cache"))
    for address in ("s3://no-such-bucket/run", f"{bucket}/no-such-run"):
        with pytest.raises(ValueError, match=r"^s3://\S+-such-\S+: .*; ") as caught:
            open_run(address)
        assert "\n" not in str(caught.value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    fsspec.filesystem("s3").clear_instance_cache()


def test_what_a_command_writes_goes_to_a_bucket(run, bucket, tmp_path, monkeypatch):
    monkeypatch.setenv("MMOE_CACHE", str(tmp_path / "cache"))
    address = f"{bucket}/runs/new"
    with mirrored(address) as folder:
        shutil.copytree(run.path, folder, dirs_exist_ok=True)
    assert open_run(address).config() == run.config()
    with (
        pytest.raises(ValueError, match=r"holds checkpoint/index\.json already"),
        mirrored(address),
    ):
        pass
    with mirrored(address, resume=True) as folder:
        shutil.rmtree(folder / "tensorboard")
    filesystem, root = fsspec.url_to_fs(address)
    filesystem.invalidate_cache()
    assert not [path for path in filesystem.find(root) if "tensorboard" in path]
    nowhere = f"s3://none-{uuid4().hex}/run"
    with pytest.raises(ValueError, match=f"--out {nowhere}: cannot be"), mirrored(nowhere):
        pytest.fail("nothing is trained for a bucket that is not there")
