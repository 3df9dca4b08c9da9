"""Scores that are not as expected are put aside, and what was published stays as it was."""

import json
from pathlib import Path

import fsspec
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from mmoe.errors import Rejected
from mmoe.score import folder, score_files
from tests.runs import Listens
from tests.score.listing import WHOLE, contents, names
from tests.score.nights import FAILS, HOLDS, changed


def test_scores_that_are_not_as_expected_are_put_aside(run, night, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(Rejected, match=r"1 of 2 expectations do not hold: rows > 1e6 \(1000\)"):
        score_files(run, night, out, rows_per_file=512, expect=FAILS + HOLDS)
    aside = ["00000-night-00000.parquet", "00000-night-00001.parquet"]
    assert names(out) == ["_rejected"]
    assert {f"_rejected/{name}" for name in aside} < set(contents(out))
    reason = json.loads((out / "_rejected" / "_summary.json").read_text())
    assert [one["holds"] for one in reason["expectations"]] == [False, True]
    assert reason["passed"] is False

    told = Listens()
    assert (
        score_files(run, night, out, rows_per_file=512, expect=HOLDS, resume=True, reporter=told)
        == 0
    )
    assert told.lines[0].endswith("2 of 2 files were in it already") or "2 of 2" in told.lines[0]
    assert names(out) == [*aside, *WHOLE]
    score_files(run, night, tmp_path / "new", rows_per_file=512, expect=HOLDS)
    assert contents(out) == contents(tmp_path / "new")


@pytest.mark.parametrize("where", ["local", "memory"])
def test_what_was_published_stays_as_it_was(run, night, funnel_table, tmp_path, where):
    out = tmp_path / "out" if where == "local" else "memory://guard/out"
    score_files(run, night, out)
    before = _files(out)
    broken = changed(funnel_table, tmp_path / "night.parquet", price=lambda x: pc.multiply(x, 1e3))
    for _ in range(2):  # the second takes the place of the first
        with pytest.raises(Rejected):
            score_files(run, broken, out, mode="overwrite", expect=["usual"])
        after = _files(out)
        aside = {n for n in after if n.startswith("_rejected/")}
        assert aside == {
            f"_rejected/{n}"
            for n in ("00000-night.parquet", "00000-night.parquet.json", "_summary.json")
        }
        assert {n: after[n] for n in after if n not in aside} == before
    score_files(run, night, out, mode="overwrite", expect=["usual"])
    assert _files(out).keys() == before.keys()


def _files(out):
    if isinstance(out, Path):
        return contents(out)
    files, root = fsspec.url_to_fs(out)
    return {path[len(root) + 1 :]: files.cat_file(path) for path in files.find(root)}


def test_a_call_that_dies_while_it_puts_aside_is_finished(run, night, tmp_path, monkeypatch):
    out, asked = tmp_path / "out", {"rows_per_file": 512, "expect": FAILS}
    move, moved = folder.FolderJob.reject, []

    class _Dies:
        def __init__(self, store):
            self.store = store

        def __getattr__(self, name):
            return getattr(self.store, name)

        def move(self, name, to):
            if len(moved) == 2:
                raise KeyboardInterrupt
            moved.append(name)
            self.store.move(name, to)

    def reject(job, summary):
        object.__setattr__(job, "store", _Dies(job.store))
        move(job, summary)

    monkeypatch.setattr(folder.FolderJob, "reject", reject)
    with pytest.raises(KeyboardInterrupt):
        score_files(run, night, out, **asked)
    monkeypatch.undo()
    assert score_files(run, night, out, resume=True, rows_per_file=512) == 0
    score_files(run, night, tmp_path / "new", rows_per_file=512)
    assert contents(out) == contents(tmp_path / "new")


def test_one_file_is_put_aside_too(run, night, tmp_path):
    out = tmp_path / "scores.parquet"
    score_files(run, night, out)
    before = out.read_bytes()
    with pytest.raises(Rejected, match=r"scores lie in .*/_rejected/scores\.parquet; what was at"):
        score_files(run, night, out, mode="overwrite", expect=FAILS)
    assert out.read_bytes() == before
    aside = tmp_path / "_rejected" / "scores.parquet"
    assert pq.read_table(aside).num_rows == 1000
    assert json.loads(pq.read_metadata(aside).metadata[b"mmoe.summary"])["passed"] is False
    score_files(run, night, out, mode="overwrite", expect=HOLDS)
    assert not aside.exists()


def test_a_complete_folder_is_judged_too(run, night, tmp_path):
    out = tmp_path / "out"
    score_files(run, night, out)
    before = contents(out)
    with pytest.raises(Rejected, match="was published before, and 1 of 1 expectations do not hold"):
        score_files(run, night, out, resume=True, expect=FAILS)
    assert contents(out) == before
    assert score_files(run, night, out, resume=True, expect=HOLDS) == 0


@pytest.mark.parametrize("moment", ["before its record", "while it is taken back"])
def test_a_kill_between_a_part_and_its_record(run, night, funnel_table, tmp_path, moment):
    """Over the folder of another night, whose parts have the same names."""
    out, other = tmp_path / "out", tmp_path / "other" / "night.parquet"
    other.parent.mkdir()
    pq.write_table(funnel_table[:1000], other)
    score_files(run, other, out)
    with pytest.raises(Rejected):
        score_files(run, night, out, mode="overwrite", expect=FAILS)
    (out / "_staging").mkdir()
    part = out / "_rejected" / "00000-night.parquet"
    if moment == "before its record":
        part.rename(out / "_staging" / part.name)
        part.with_name(f"{part.name}.json").unlink()
    else:
        part.with_name(f"{part.name}.json").rename(out / "_staging" / f"{part.name}.json")
    score_files(run, night, out, mode="overwrite", resume=True)
    score_files(run, night, tmp_path / "new")
    assert contents(out) == contents(tmp_path / "new")


def test_what_died_while_it_was_published_is_put_aside_whole(run, night, funnel_table, tmp_path):
    out, other = tmp_path / "out", tmp_path / "other" / "night.parquet"
    other.parent.mkdir()
    pq.write_table(funnel_table[:1000], other)
    asked = {"mode": "overwrite", "rows_per_file": 512}
    score_files(run, other, out, **asked)
    with pytest.raises(Rejected):
        score_files(run, night, out, expect=FAILS, **asked)
    (out / "_rejected").rename(out / "_staging")  # as a call that dies after its first move
    (out / "_staging" / "_summary.json").unlink()
    (out / "_SUCCESS").unlink()
    name = "00000-night-00000.parquet"
    (out / "_staging" / name).replace(out / name)
    with pytest.raises(Rejected, match="had been replaced in part, by a call that died"):
        score_files(run, night, out, expect=FAILS, resume=True, **asked)
    assert {f"_rejected/{name}", f"_rejected/{name}.json"} < contents(out).keys()
    score_files(run, night, out, resume=True, **asked)
    score_files(run, night, tmp_path / "new", rows_per_file=512)
    assert contents(out) == contents(tmp_path / "new")


def test_rejected_scores_of_other_rows_are_scored_again(run, night, funnel_table, tmp_path):
    out = tmp_path / "out"
    broken = changed(funnel_table, tmp_path / "night.parquet", price=lambda x: pc.multiply(x, 1e3))
    with pytest.raises(Rejected):
        score_files(run, broken, out, expect=["usual"])
    assert score_files(run, night, out, expect=["usual"], resume=True) == 1000
    assert names(out) == ["00000-night.parquet", *WHOLE]
