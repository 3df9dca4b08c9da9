"""What a command reads, what a run is made of and what is not ours: nothing writes over it."""

import os
from hashlib import sha256
from pathlib import Path

import fsspec
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from mmoe.config import config_from_dict
from mmoe.datasets.files.data_file import DataFile
from mmoe.datasets.files.resolve import resolve_files
from mmoe.datasets.rows.splits import Splits
from mmoe.run.atomic_files import check_parents, temporary_beside
from mmoe.run.store import check_not_of_run, local_path
from mmoe.score import score_files
from mmoe.score.provenance import print_of
from mmoe.train import train_run
from tests.score.listing import WHOLE

DEAD = 2**22 + 1  # beyond Linux's largest process


@pytest.fixture(scope="module", name="run")
def _run(funnel_config, funnel_table, tmp_path_factory):
    raw = {**funnel_config, "training": {**funnel_config["training"], "epochs": 1}}
    parts = (funnel_table[:600], funnel_table[600:800], funnel_table[800:1000])
    splits = Splits(train=parts[0], validation=parts[1], test=parts[2], origin="log")
    folder = tmp_path_factory.mktemp("run") / "run"
    return train_run(config_from_dict(raw), folder, splits=splits).directory


@pytest.fixture
def log(funnel_table, tmp_path):
    """A folder of two files whose names are those of scores."""
    (tmp_path / "log").mkdir()
    for n in range(2):
        rows = funnel_table[20 * n : 20 * n + 20]
        pq.write_table(rows, tmp_path / "log" / f"0000{n}-day.parquet")
    return tmp_path / "log"


def tree(folder: Path) -> dict[str, str]:
    """Every file below, with its content."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(f.relative_to(folder)): sha256(f.read_bytes()).hexdigest() for f in files}


def _outputs(log: Path) -> dict[str, tuple[object, Path]]:
    """Inputs, and places that hold them under some name."""
    first = log / "00000-day.parquet"
    (log.parent / "symbolic").symlink_to(log)
    (log.parent / "link.parquet").symlink_to(first)
    (log.parent / "hard.parquet").hardlink_to(first)
    (log.parent / "scores").mkdir()
    (log.parent / "scores" / "00000-x.parquet").hardlink_to(first)
    return {
        "folder": (log, log),
        "glob": (log / "*.parquet", log),
        "one of it": (log / "00001-day.parquet", log),
        "dots": (log, log / ".." / "log"),
        "symbolic": (log, log.parent / "symbolic"),
        "through a link": (log.parent / "symbolic", log),
        "address": (f"file://{log}", log),
        "inside": (log, log / "scores"),
        "around": (log, log.parent),
        "hard link in a folder": (log, log.parent / "scores"),
        "file": (first, first),
        "file of a folder": (log, first),
        "file by link": (first, log.parent / "link.parquet"),
        "file by hard link": (log, log.parent / "hard.parquet"),
        "file of an address": (f"file://{log}/*.parquet", first),
        "file by dots": (log, log / ".." / "log" / "00001-day.parquet"),
    }


def test_no_input_is_written_over(run, log, mmoe):
    for what, (source, output) in _outputs(log).items():
        before = tree(log.parent)
        for flags in (["--overwrite"], ["--resume"]):
            code, _, err = mmoe("score", run.path, "--input", source, "--output", output, *flags)
            assert (code, err.count("\n")) == (2, 1), (what, flags)
            assert tree(log.parent) == before, (what, flags)
        assert "Traceback" not in err


def test_one_file_of_scores_does_not_join_the_rows(run, log):
    before = tree(log)
    with pytest.raises(ValueError, match=r"scores.parquet: lies in --input .* name a file outside"):
        score_files(run, log, log / "scores.parquet")
    assert tree(log) == before


def test_scores_that_are_scored_again_are_inputs_too(run, log, tmp_path):
    out = tmp_path / "out"
    keep = ["user", "item", "price", "tags"]
    score_files(run, log, out, keep=keep)
    before = tree(tmp_path)
    with pytest.raises(ValueError, match=r"out: holds 00000-.*, which --input .*out reads"):
        score_files(run, out, out, mode="overwrite")
    assert tree(tmp_path) == before


def test_foreign_files_stay_whatever_they_are_called(run, log, funnel_table, tmp_path):
    out = tmp_path / "out"
    for name, foreign in (
        (".notes.tmp", b"mine"),
        (".00000-x.parquet.77.tmp", b"mine"),
        ("00000-x.parquet", (log / "00000-day.parquet").read_bytes()),
        ("00001-x.parquet", b"no Parquet"),
    ):
        out.mkdir()
        (out / name).write_bytes(foreign)
        (out / _temporary(DEAD, "00000-day.parquet")).write_text("half")
        before = tree(out)
        with pytest.raises(ValueError, match=r"which no scoring wrote; name a new folder"):
            score_files(run, log, out, mode="overwrite")
        assert tree(out) == before, "nothing goes before the refusal"
        for path in out.iterdir():
            path.unlink()
        out.rmdir()


def _temporary(process: int, name: str) -> str:
    mine = temporary_beside(Path(name)).name
    return mine.replace(f"-{os.getpid()}.tmp", f"-{process}.tmp")


def test_only_what_dead_processes_began_is_removed(run, log, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    dead, alive = _temporary(DEAD, "00001-day.parquet"), _temporary(os.getppid(), "00009-x.parquet")
    elsewhere = ".00000-x.parquet.mmoe-00000000-1.tmp"
    for name in (dead, alive, elsewhere):
        (out / name).write_text("half")
    score_files(run, log, out)
    names = ["00000-00000-day.parquet", "00001-00001-day.parquet"]
    assert sorted(tree(out)) == sorted([alive, elsewhere, *names, *WHOLE])

    beside = [tmp_path / _temporary(DEAD, f"{name}.parquet") for name in ("one", "two")]
    for path in beside:
        path.write_text("half")
    score_files(run, log, tmp_path / "one.parquet")
    assert [path.exists() for path in beside] == [False, True]


def test_old_scores_go_when_the_new_ones_are_complete(run, log, funnel_table, tmp_path):
    out = tmp_path / "out"
    score_files(run, log, out)
    before = tree(out)
    pa_csv.write_csv(funnel_table.select(["user"])[:5], log / "00002-day.csv")
    (log / "00002-day.csv").rename(log / "00002-day.parquet")
    with pytest.raises(ValueError, match=r"00002-day.parquet"):
        score_files(run, log, out, mode="overwrite")
    after = {name: found for name, found in tree(out).items() if not name.startswith("_staging")}
    assert after == before

    (log / "00002-day.parquet").unlink()
    (log / "00000-day.parquet").unlink()
    score_files(run, log, out, mode="overwrite")
    assert sorted(tree(out)) == ["00000-00001-day.parquet", *WHOLE]


def test_no_file_of_the_run_is_written_over(run, log, tmp_path, mmoe):
    before = tree(run.path)
    model = next(run.checkpoint.glob("step-*/model.safetensors"))
    (tmp_path / "linked.safetensors").symlink_to(model)
    (tmp_path / "linked.html").hardlink_to(run.metrics_file)
    vocabulary = next(run.vocabulary.glob("*.parquet"))
    score = ["score", run.path, "--input", log, "--overwrite", "--output"]
    for arguments in (
        ["unshard", run.path, "--overwrite", "--output", model],
        ["unshard", run.path, "--overwrite", "--output", tmp_path / "linked.safetensors"],
        ["unshard", run.path, "--output", model.with_name("model-joined.safetensors")],
        [*score, vocabulary],
        [*score, run.vocabulary / "new.parquet"],
        [*score, run.checkpoint / "scores"],
        [*score, run.path],
        ["report", run.path, "--overwrite", "--output", run.metrics_file],
        ["report", run.path, "--overwrite", "--output", tmp_path / "linked.html"],
        ["report", run.path, "--overwrite", "--output", model],
    ):
        code, _, err = mmoe(*arguments)
        assert (code, err.count("\n")) == (2, 1), arguments
        assert tree(run.path) == before, arguments
    assert mmoe(*score, run.path / "scores.parquet", "--quiet")[0] == 0, "a place beside is no harm"
    (run.path / "scores.parquet").unlink()
    check_not_of_run(tmp_path / "new.parquet", run)


def test_addresses(run, log, tmp_path, mmoe):
    assert local_path(DataFile("a/b.csv")) == Path("a/b.csv")
    assert local_path(DataFile(f"simplecache::file://{log}/x.csv")) == log / "x.csv"
    assert local_path(DataFile("memory://x.csv")) is None
    code, _, err = mmoe("score", run.path, "--input", log, "--output", f"file://{log}")
    assert (code, "log: holds 00000-day.parquet, which --input" in err) == (2, True)
    with pytest.raises(ValueError, match="is an address; name a file or folder of this machine"):
        check_parents(Path(f"file://{tmp_path}/x"))


def test_a_resume_notices_other_rows_under_the_same_name(run, log, funnel_table, tmp_path):
    out = tmp_path / "out"
    score_files(run, log, out)
    pq.write_table(funnel_table[50:70], log / "00000-day.parquet")
    with pytest.raises(ValueError, match=r"scored with the input 00000-day.parquet of .* and now"):
        score_files(run, log, out, resume=True)
    score_files(run, log, out, mode="overwrite")
    assert score_files(run, log, out, resume=True) == 0


def test_an_address_with_brackets_is_one_input():
    memory = fsspec.filesystem("memory")
    for name, content in (("part 1.csv", b"a\n1\n"), ("part [1].csv", b"a\n2\n")):
        memory.pipe(f"/brackets/{name}", content)
    one, two = (print_of(file) for file in resolve_files("memory://brackets"))
    assert (one.name, one.size) == ("part 1.csv", 4)
    assert (two.name, two.size) == ("part [1].csv", 4)
    assert one.digest != two.digest
