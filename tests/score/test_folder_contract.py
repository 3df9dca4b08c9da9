"""The folder of scores that engines read: parts whole or absent, a manifest, `_SUCCESS` last."""

import errno
import json
import os
import shutil
import tempfile
import threading
from hashlib import sha256
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.dataset as pa_dataset
import pyarrow.parquet as pq
import pytest

from mmoe.datasets.files.resolve import resolve_files
from mmoe.run.store import AddressStore, LocalStore
from mmoe.score import folder, score_files
from mmoe.score.provenance import PartRecord
from tests.runs import Listens
from tests.score.listing import WHOLE, contents, names, parts

SIZES = (50, 0, 70, 30)


@pytest.fixture(name="log")
def _log(funnel_table, tmp_path):
    folder, first = tmp_path / "log", 0
    folder.mkdir()
    for number, size in enumerate(SIZES):
        pq.write_table(funnel_table[first : first + size], folder / f"{number}.parquet")
        first += size
    return folder


def test_the_manifest_says_what_the_folder_holds(run, log, tmp_path):
    out = tmp_path / "out"
    score_files(run, log, out, keep=["row"])
    assert names(out) == [*(f"0000{n}-{n}.parquet" for n in range(4)), *WHOLE]
    assert (out / "_SUCCESS").read_bytes() == b""
    manifest = json.loads((out / "_manifest.json").read_text())
    assert manifest["rows"] == sum(SIZES)
    assert manifest["columns"] == {"row": "int64", "pred_click": "float", "pred_buy": "float"}
    assert manifest["scored_by"]["--keep"] == "row"
    assert [one["name"] for one in manifest["inputs"]] == [
        str(log / f"{n}.parquet") for n in range(4)
    ]
    for part, size in zip(manifest["parts"], SIZES, strict=True):
        content = (out / part["name"]).read_bytes()
        assert (part["bytes"], part["sha256"]) == (len(content), sha256(content).hexdigest())
        assert part["rows"] == size
        assert part["input"]["bytes"] == Path(part["input"]["name"]).stat().st_size
    # Names that begin with an underscore are no data to Arrow
    assert pa_dataset.dataset(out).count_rows() == sum(SIZES)


def test_overwriting_leaves_what_is_there_until_all_is_new(run, log, tmp_path, funnel_table):
    out = tmp_path / "out"
    score_files(run, log, out)
    before = contents(out)
    pq.write_table(funnel_table[:5].drop_columns("price"), log / "3.parquet")
    with pytest.raises(ValueError, match=r"3\.parquet: there is no column 'price'"):
        score_files(run, log, out, mode="overwrite", keep=["row"])
    assert {n: c for n, c in contents(out).items() if not n.startswith("_staging/")} == before
    pq.write_table(funnel_table[:5], log / "3.parquet")
    told = Listens()
    score_files(run, log, out, mode="overwrite", keep=["row"], resume=True, reporter=told)
    assert told.lines[0] == f"5 rows scored into {out}; 3 of 4 files were there already"
    assert pq.read_table(out / "00000-0.parquet").column_names[0] == "row"
    score_files(run, log, tmp_path / "new", keep=["row"])
    assert contents(out) == contents(tmp_path / "new")


def test_what_was_begun_otherwise_is_not_gone_on_with(run, log, tmp_path, funnel_table):
    out = tmp_path / "out"
    pq.write_table(funnel_table[:5].drop_columns("price"), log / "3.parquet")
    with pytest.raises(ValueError, match=r"3\.parquet: there is no column 'price'"):
        score_files(run, log, out)
    with pytest.raises(ValueError, match="holds scores that were begun already; choose another"):
        score_files(run, log, out)
    pq.write_table(funnel_table[:5], log / "3.parquet")
    with pytest.raises(ValueError, match=r"00000-0.parquet in .* was scored with --keep none, and"):
        score_files(run, log, out, resume=True, keep=["row"])
    with pytest.raises(
        ValueError, match=r"begun with 00000-0.parquet, which belongs to none of th"
    ):
        score_files(run, log / "3.parquet", out, resume=True)
    assert score_files(run, log, out, mode="overwrite", keep=["row"]) == 125
    assert names(out)[-3:] == WHOLE


def test_partitions_are_replaced_one_by_one(run, funnel_table, tmp_path):
    log, out = tmp_path / "log", tmp_path / "out"

    def write(day, rows):
        (log / f"day={day}").mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, log / f"day={day}" / "part.parquet")

    write(1, funnel_table[:10])
    write(2, funnel_table[10:30])
    score_files(run, log, out)
    first = (out / "day=1/00000-part.parquet").read_bytes()
    write(2, funnel_table[30:70])
    write(3, funnel_table[70:75])
    (log / "day=1" / "part.parquet").unlink()
    score_files(run, log, out, mode="overwrite-partitions")
    assert parts(out) == ["day=1/00000-part.parquet", "day=2/00000-part.parquet",
                          "day=3/00001-part.parquet"]  # fmt: skip
    assert (out / "day=1/00000-part.parquet").read_bytes() == first
    manifest = json.loads((out / "_manifest.json").read_text())
    assert manifest["rows"] == 55
    assert sorted(part["name"] for part in manifest["parts"]) == parts(out)
    assert pa_dataset.dataset(out, partitioning="hive").count_rows() == 55
    with pytest.raises(
        ValueError, match=r"overwrite-partitions with --output .*: that is one file"
    ):
        score_files(run, log, tmp_path / "s.parquet", mode="overwrite-partitions")


@pytest.fixture(name="elsewhere")
def _elsewhere(tmp_path):
    """A folder for links to lead to: on another disk, where there is one."""
    memory = Path("/dev/shm")
    place = memory if memory.is_dir() and os.access(memory, os.W_OK) else tmp_path
    with tempfile.TemporaryDirectory(dir=place) as folder:
        yield Path(folder) / "elsewhere"


@pytest.mark.parametrize("linked", ["day=1", "day=2", "_staging", "_rejected"])
def test_folders_that_are_links_to_another_disk(run, funnel_table, tmp_path, elsewhere, linked):
    """Scores go through the link; a partition without rows now keeps its link, and no file."""
    log, out = tmp_path / "log", tmp_path / "out"
    for day in (1, 2):
        (log / f"day={day}").mkdir(parents=True)
        pq.write_table(funnel_table[:day], log / f"day={day}" / "part.parquet")
    score_files(run, log, out)
    if (out / linked).exists():
        shutil.move(out / linked, elsewhere)
    else:
        elsewhere.mkdir()
    (out / linked).symlink_to(elsewhere)
    shutil.rmtree(log / "day=1")
    pq.write_table(funnel_table[:5], log / "day=2" / "part.parquet")
    assert score_files(run, log, out, mode="overwrite") == 5
    assert (out / "_SUCCESS").exists()
    assert (out / linked).is_symlink() and elsewhere.is_dir()
    kept = ["00000-part.parquet"] if linked == "day=2" else []
    assert [path.name for path in elsewhere.iterdir()] == kept
    files = [path.relative_to(out).as_posix() for path in out.glob("day=*/*")]
    assert files == ["day=2/00000-part.parquet"]
    assert pq.read_metadata(out / files[0]).num_rows == 5


def test_an_input_that_changes_while_it_is_read(run, log, funnel_table, tmp_path, monkeypatch):
    looked = folder.print_of

    def look_then_change(file):
        found = looked(file)
        other = tmp_path / f"other-{threading.get_ident()}.parquet"
        pq.write_table(funnel_table[:60], other)
        other.replace(log / file.name)
        return found

    monkeypatch.setattr(folder, "print_of", look_then_change)
    with pytest.raises(ValueError, match=r"0.parquet: was written to while it was read; its score"):
        score_files(run, log, tmp_path / "out")
    assert parts(tmp_path / "out") == []


def test_a_manifest_that_is_none_is_named(run, log, tmp_path):
    out = tmp_path / "out"
    score_files(run, log, out)
    for text, message in (
        ("{", "Invalid JSON"),
        ('{"rows": -1}', "rows: "),
        ('{"version": 9,', "In"),
    ):
        (out / "_manifest.json").write_text(text)
        with pytest.raises(ValueError, match=rf"_manifest.json: is damaged \({message}"):
            score_files(run, log, out, resume=True)


@pytest.mark.parametrize("where", ["local", "memory"])
def test_a_call_that_dies_while_it_publishes_is_finished(run, log, tmp_path, monkeypatch, where):
    out = str(tmp_path / "out") if where == "local" else f"memory://{tmp_path.name}/dies"
    kind = LocalStore if where == "local" else AddressStore
    score_files(run, log, tmp_path / "whole")
    wanted = contents(tmp_path / "whole")
    for method, calls in (("move", 1), ("move", 3), ("write", 5), ("write", 6)):
        if fsspec.url_to_fs(out)[0].exists(out):
            fsspec.url_to_fs(out)[0].rm(out, recursive=True)
        made, original = [], getattr(kind, method)

        def dying(store, *arguments, made=made, original=original, calls=calls):
            made.append(arguments)
            if len(made) == calls:
                raise KeyboardInterrupt
            return original(store, *arguments)

        with monkeypatch.context() as patch:
            patch.setattr(kind, method, dying)
            with pytest.raises(KeyboardInterrupt):
                score_files(run, log, out)
        assert not fsspec.url_to_fs(out)[0].exists(f"{out}/_SUCCESS")
        assert score_files(run, log, out, resume=True) == 0
        if where == "local":
            assert contents(tmp_path / "out") == wanted
        else:
            filesystem, root = fsspec.url_to_fs(out)
            found = {path[len(root) + 1 :]: filesystem.cat(path) for path in filesystem.find(root)}
            assert found == wanted


def test_scores_at_an_address(run, log, tmp_path):
    out = f"memory://{tmp_path.name}/scores"
    assert score_files(run, log, out, keep=["row"]) == 150
    filesystem, root = fsspec.url_to_fs(out)
    score_files(run, log, tmp_path / "here", keep=["row"])
    here = contents(tmp_path / "here")
    found = {path[len(root) + 1 :]: filesystem.cat(path) for path in filesystem.find(root)}
    assert found == here
    with pytest.raises(ValueError, match="holds scores already; choose another folder"):
        score_files(run, log, out)
    filesystem.rm(f"{root}/00002-2.parquet")
    assert score_files(run, log, out, keep=["row"], resume=True) == 70
    filesystem.pipe(f"{root}/notes.txt", b"mine")
    with pytest.raises(ValueError, match=r"holds notes.txt, which no scoring wrote"):
        score_files(run, log, out, mode="overwrite")
    one = f"memory://{tmp_path.name}/one.parquet"
    assert score_files(run, log, one) == 150
    with pytest.raises(ValueError, match=r"one.parquet: exists already; choose another name"):
        score_files(run, log, one)
    assert score_files(run, log, one, mode="overwrite") == 150
    assert pq.read_table(fsspec.open(one).open()).num_rows == 150


def test_partitions_that_no_manifest_names_stay(run, funnel_table, tmp_path):
    log, out = tmp_path / "log", tmp_path / "out"
    for day in (1, 2):
        (log / f"day={day}").mkdir(parents=True)
        pq.write_table(funnel_table[day * 10 : day * 20], log / f"day={day}" / "part.parquet")
    score_files(run, log, out, keep=["row"])
    whole = contents(out)
    (out / "_manifest.json").unlink()
    one = log / "day=2" / "part.parquet"
    with pytest.raises(
        ValueError, match=r"day=1/00000-part.parquet, which stays in .*, has the co"
    ):
        score_files(run, one, out, mode="overwrite-partitions")
    score_files(run, one, out, mode="overwrite-partitions", keep=["row"])
    assert contents(out)["day=1/00000-part.parquet"] == whole["day=1/00000-part.parquet"]
    manifest = json.loads((out / "_manifest.json").read_text())
    assert [(part["name"], part["rows"]) for part in manifest["parts"]] == [
        ("day=2/00000-part.parquet", 20),
        ("day=1/00000-part.parquet", 10),
    ]
    (out / "_manifest.json").write_text("{")
    with pytest.raises(ValueError, match=r"_manifest.json: is damaged"):
        score_files(run, one, out, mode="overwrite-partitions", keep=["row"])


def test_two_calls_at_once_are_one_too_many(run, log, tmp_path):
    out = tmp_path / "out"
    store = LocalStore(out)
    store.lock()
    with pytest.raises(ValueError, match="another mmoe score writes into it; wait until it ends"):
        score_files(run, log, out)
    store.unlock()
    assert score_files(run, log, out) == 150
    job = folder.FolderJob(store, {"--keep": "row"}, "overwrite", [], [])
    records = json.loads((out / "_manifest.json").read_text())["parts"]
    with pytest.raises(
        ValueError, match=r"was scored by another call meanwhile \(--keep none, and"
    ):
        job._check([PartRecord.model_validate_json(json.dumps(one)) for one in records])


def test_what_an_address_reads_is_not_written_over(run, log, tmp_path):
    memory, root = fsspec.filesystem("memory"), f"/{tmp_path.name}/in"
    for path in log.iterdir():
        memory.pipe(f"{root}/{path.name}", path.read_bytes())
    source = f"memory:/{root}"
    for output, message in (
        (f"{source}/0.parquet", "holds 0.parquet, which --input .* reads; name another place"),
        (f"{source}/scored", "lies in --input .*, where the scores would be read as rows next"),
        (source, "holds 0.parquet, which --input .* reads"),
    ):
        with pytest.raises(ValueError, match=message):
            score_files(run, source, output, mode="overwrite")
    assert score_files(run, source, f"{source}/_scored") == 150


def test_names_with_brackets_and_no_folder(run, funnel_table, tmp_path, monkeypatch):
    log = tmp_path / "a [1].parquet"
    pq.write_table(funnel_table[:9], log)
    out = f"memory://{tmp_path.name}/ou[1]t"
    assert score_files(run, log, out) == 9
    assert score_files(run, log, out, resume=True) == 0
    assert score_files(run, log, out, mode="overwrite") == 9
    assert score_files(run, log, f"memory://{tmp_path.name}.parquet") == 9
    monkeypatch.chdir(tmp_path)
    assert score_files(run, log, "here.parquet") == 9
    assert pq.read_table(tmp_path / "here.parquet").num_rows == 9


def test_a_glob_finds_nothing_that_waits(run, log, tmp_path):
    out = tmp_path / "out"
    score_files(run, log, out)
    (out / "_staging").mkdir()
    pq.write_table(pa.table({"a": [1]}), out / "_staging" / "x.parquet")
    for pattern in (f"{out}/**/*.parquet", f"{out}/*/*.parquet", f"file://{out}/**/*.parquet"):
        try:
            found = [file.name for file in resolve_files(pattern)]
        except ValueError:
            found = []
        assert "x.parquet" not in found


def test_damaged_records_are_scored_again(run, log, tmp_path, funnel_table):
    out = tmp_path / "out"
    pq.write_table(funnel_table[:5].drop_columns("price"), log / "3.parquet")
    with pytest.raises(ValueError, match=r"3\.parquet: there is no column 'price'"):
        score_files(run, log, out)
    pq.write_table(funnel_table[:5], log / "3.parquet")
    (out / "_staging" / "00000-0.parquet.json").write_text("{")
    assert score_files(run, log, out, resume=True) == 55
    assert score_files(run, log, out, resume=True, mode="overwrite") == 0
    part = out / "00002-2.parquet"
    part.write_bytes(part.read_bytes()[:100])
    assert score_files(run, log, out, resume=True, mode="overwrite") == 70


def test_a_disk_that_is_full_is_named_by_small_files_too(tmp_path, monkeypatch):
    def full(written, path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("mmoe.run.store.put_in_place", full)
    with pytest.raises(ValueError, match=r"_manifest\.json: cannot be written \(No space left"):
        LocalStore(tmp_path).write("_manifest.json", b"{}")
    assert not [*tmp_path.iterdir()]
