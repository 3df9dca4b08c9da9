"""A log whose files are rotated, edited or put into another order is noticed."""

import json
import shutil
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mmoe.config import config_from_dict
from mmoe.datasets.rows.splits import Splits
from mmoe.run import RunDirectory
from mmoe.train import WarmStart, evaluate_run, train_run
from mmoe.train.loop import Trainer
from tests.ranks import launch
from tests.runs import Dies, Listens

FILES, ROWS = 4, 150


def _noise(seed):
    """Rows that can be learnt by heart, and nothing else."""
    rng = np.random.default_rng(seed)
    return pa.table(
        {
            "row": rng.integers(0, 2**60, ROWS),
            "user": rng.integers(0, 90, ROWS),
            "day": np.sort(rng.integers(0, 3, ROWS)) + 3 * seed,
            "click": rng.integers(0, 2, ROWS),
            "rare": (np.arange(ROWS) == 70).astype(int),
        }
    )


@pytest.fixture(name="pristine", scope="module")
def _pristine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("noise") / "log"
    folder.mkdir()
    for n in range(FILES):
        pq.write_table(_noise(n), folder / f"part-{n}.parquet")
    shutil.copytree(folder, folder.with_name("copy"))
    return folder


@pytest.fixture(name="log")
def _log(pristine):
    """A test may change it."""
    yield pristine
    shutil.rmtree(pristine, ignore_errors=True)
    shutil.copytree(pristine.with_name("copy"), pristine)


@pytest.fixture(name="config", scope="module")
def _config(pristine):
    def make(split=None, epochs=1, how="memory", **data):
        raw = {
            "name": "noise",
            "data": {"path": str(pristine), "split": split or {}, "input": how, **data},
            "features": [{"kind": "categorical", "name": "row", "dim": 16}],
            "tasks": [
                {"name": "click", "label": "click"},
                {"name": "rare", "label": "rare", "weight": 0},
            ],
            "model": {"num_experts": 2, "expert": {"hidden": [8]}, "tower": {"hidden": [4]}},
            "training": {
                "epochs": epochs,
                "batch_size": 64,
                "monitor": "rare.auc",  # of one class where it validates: the last epoch is kept
                "embedding_backend": "plain",
                "checkpoint_every_steps": 3,
                "embedding_optimizer": {"learning_rate": 1.0},
                "optimizer": {"learning_rate": 0.01},
            },
        }
        return config_from_dict(raw)

    return make


@pytest.fixture(name="runs", scope="module")
def _runs(config, pristine):
    """For each way to read: a finished run, and one that was killed; not to be written to."""
    folder = pristine.parent
    for how in ("memory", "stream"):
        train_run(config(epochs=4, how=how), folder / f"done-{how}")
        with pytest.raises(KeyboardInterrupt):
            train_run(config(epochs=2, how=how), folder / f"dead-{how}", reporter=Dies(10))
    return folder


def _remove(log):
    (log / "part-1.parquet").unlink()


def _add(log):
    pq.write_table(_noise(FILES), log / f"part-{FILES}.parquet")


def _rotate(log):
    (log / "part-0.parquet").unlink()
    _add(log)


def _change(log):
    pq.write_table(_noise(7), log / "part-2.parquet")


def _reorder(log):
    """The rows of one file; as many, of the same values."""
    table = pq.read_table(log / "part-2.parquet")
    pq.write_table(table.take(np.arange(ROWS)[::-1]), log / "part-2.parquet")


def _swap(log):
    (log / "part-0.parquet").rename(log / "x")
    (log / "part-3.parquet").rename(log / "part-0.parquet")
    (log / "x").rename(log / "part-3.parquet")


HARMS = {
    "removed": (_remove, "part-1.parquet was removed"),
    "added": (_add, "part-4.parquet was added"),
    "rotated": (_rotate, "part-0.parquet was removed, part-4.parquet was added"),
    "changed": (_change, "part-2.parquet was changed ("),
    "rows in another order": (_reorder, "part-2.parquet was changed ("),
    "files in another order": (_swap, "part-0.parquet now holds what part-3.parquet held"),
}
# None of them leaves a row of training out of the test split for sure
LEAKS = "rows are split by their number, so test rows may have been trained on"


def _evaluated(run, **keywords):
    listener = Listens()
    result = evaluate_run(RunDirectory.open(run), reporter=listener, **keywords)
    # Few positive rows and alarms are no words about their data
    said = [line for line in listener.lines if " auc rests on " not in line]
    return result, " ".join(line for line in said if not line.startswith("alarm: "))


def test_rows_learnt_by_heart_are_not_evaluated_without_a_word(mmoe, runs, log):
    run = runs / "done-memory"
    assert RunDirectory.open(run).metrics()["tasks"]["click"]["auc"] < 0.6
    _rotate(log)
    code, out, err = mmoe("evaluate", run)
    assert code == 0
    assert f"warning: {LEAKS}" in err
    assert f"in {log}: part-0.parquet was removed, part-4.parquet was added" in err
    assert "test split, its data changed since training" in out
    code, out, err = mmoe("evaluate", run, "--json", "--quiet")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["tasks"]["click"]["auc"] > 0.85, "most of them were trained on"
    assert found["data_changed"] == ["part-0.parquet was removed", "part-4.parquet was added"]
    code, out, err = mmoe("evaluate", run, "--changed-data")
    assert code == 0 and LEAKS not in err
    assert "its data changed" not in out


@pytest.mark.parametrize("harm", HARMS)
def test_changed_files_are_named(config, runs, log, harm):
    how = "memory" if harm in ("rotated", "changed") else "stream"
    change, words = HARMS[harm]
    change(log)
    dead = runs / f"dead-{how}"
    with pytest.raises(ValueError, match=r"the data has changed since the run beg") as raised:
        train_run(config(epochs=2, how=how), dead, resume=True)
    assert str(raised.value).startswith(f"{dead}: the data")
    assert words in str(raised.value)
    assert "--changed-data" in str(raised.value)
    assert not (dead / "metrics.json").exists()
    result, said = _evaluated(runs / f"done-{how}")
    assert words in said
    assert LEAKS in said
    assert words in ", ".join(result["data_changed"])


def test_a_resume_with_changed_data_on_purpose(config, runs, log, tmp_path, assert_same):
    how = "stream"
    run, listener = shutil.copytree(runs / f"dead-{how}", tmp_path / "run"), Listens()
    _remove(log)
    keywords = {"resume": True, "changed_data": True, "reporter": listener}
    with pytest.raises(KeyboardInterrupt):  # before a checkpoint; what was asked for stays so
        train_run(config(epochs=2, how=how), run, resume=True, changed_data=True, reporter=Dies(0))
    again = shutil.copytree(run, tmp_path / "again")
    train_run(config(epochs=2, how=how), again, resume=True)
    shutil.rmtree(run)
    shutil.copytree(runs / f"dead-{how}", run)
    finished = train_run(config(epochs=2, how=how), run, **keywords)
    assert_same(run, again)
    assert "the data has changed since the run began" in " ".join(listener.lines)
    assert finished.metrics["data_changed"] == ["part-1.parquet was removed"]
    assert finished.metrics["train"]["rows"] == (FILES - 1) * ROWS * 0.8
    assert json.loads((run / "metrics.json").read_text()) == finished.metrics
    # What it was trained on before is not forgotten
    result, said = _evaluated(run)
    assert LEAKS in said
    assert result["data_changed"] == finished.metrics["data_changed"]
    train_run(config(epochs=2, how=how), run, resume=True)  # nothing has changed since


@pytest.mark.parametrize(
    ("split", "words"),
    [
        (
            {"by": "hash", "column": "user"},
            "note: the test split holds other rows than the one of metrics.json, though none that "
            "were trained on, as rows are split by key",
        ),
        (
            {"by": "day", "column": "day", "train_days": [0, 1, 2, 3], "test_days": [4, 5]},
            "note: the test split holds other rows than the one of metrics.json, though none that "
            "were trained on, as days are split",
        ),
        (
            {"by": "time", "column": "day"},
            "warning: the cut between past and future may have moved, so test rows may",
        ),
    ],
    ids=["hash", "day", "time"],
)
def test_what_a_change_means_depends_on_the_split(config, log, tmp_path, split, words):
    train_run(config(split), tmp_path / "run")
    _change(log)
    result, said = _evaluated(tmp_path / "run")
    assert said.startswith(words)
    assert result["data_changed"] == [found for found in result["data_changed"] if found in said]


def test_files_of_their_own_for_every_split(config, log, tmp_path):
    files = {name: str(log / f"part-{n}.parquet") for n, name in enumerate(("train", "test"))}
    train_run(config({"by": "file"}, path=None, **files), tmp_path / "run")
    table = pq.read_table(log / "part-0.parquet")
    pq.write_table(table.slice(0, 120), log / "part-0.parquet")
    assert _evaluated(tmp_path / "run")[1] == "", "the test split is the same"
    _add(log)
    pq.write_table(_noise(9), log / "part-1.parquet")
    assert _evaluated(tmp_path / "run")[1].startswith("note: the test split holds other rows than")
    pq.write_table(table, log / "part-1.parquet")
    said = _evaluated(tmp_path / "run")[1]
    assert said.startswith("warning: the run was trained on rows of part-1.parquet, so test rows")


def test_rows_that_were_trained_on_are_no_new_rows(config, log, tmp_path):
    train_run(config(), tmp_path / "run")
    _add(log)
    pq.write_table(_noise(9), tmp_path / "new.parquet")
    (tmp_path / "copy.parquet").write_bytes((log / "part-2.parquet").read_bytes())
    assert _evaluated(tmp_path / "run", data=tmp_path / "new.parquet")[1] == ""
    result, said = _evaluated(tmp_path / "run", data=tmp_path / "copy.parquet")
    assert "note: the run was trained on rows of copy.parquet" in said
    assert "data_changed" not in result


def test_tables_in_memory_are_remembered(config, log, tmp_path):
    table = pa.concat_tables(_noise(n) for n in range(FILES))
    parts = {"train": table[:400], "validation": table[400:500]}
    splits = Splits(**parts, test=table[500:], origin="log")
    train_run(config(), tmp_path / "run", splits=splits)
    train_run(config(), tmp_path / "run", splits=splits, resume=True)
    column = table["click"].to_numpy().copy()
    column[520] = 1 - column[520]
    edited = table.set_column(3, "click", pa.array(column))
    other = Splits(**parts, test=edited[500:], origin="log")
    with pytest.raises(ValueError, match=r"the test table holds other rows \(100 then, 100 now\)"):
        train_run(config(), tmp_path / "run", splits=other, resume=True)


def test_a_file_that_changes_while_it_is_read(config, log, tmp_path, monkeypatch):
    prepare = sys.modules["mmoe.train.prepare"]
    load = prepare.load_splits

    def slow(*arguments):
        splits = load(*arguments)
        _change(log)
        return splits

    monkeypatch.setattr(prepare, "load_splits", slow)
    with pytest.raises(ValueError, match=r"part-2\.parquet was changed .* while it was read"):
        train_run(config(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_stream_that_changes_after_its_last_row(config, log, tmp_path, monkeypatch):
    _at_the_end_of_training(monkeypatch, lambda: _rotate(log))
    with pytest.raises(ValueError, match=r"part-\d\.parquet was .* while it was read"):
        train_run(config(how="stream"), tmp_path / "run")
    assert not (tmp_path / "run" / "metrics.json").exists()


def test_a_file_that_comes_while_others_are_streamed_is_not_read(
    config, log, tmp_path, monkeypatch
):
    """A log that grows by the hour must not cost a long run its end."""
    first = train_run(config(how="stream"), tmp_path / "first")
    _at_the_end_of_training(monkeypatch, lambda: _add(log))
    grown = train_run(config(how="stream"), tmp_path / "run")
    assert grown.metrics["tasks"] == first.metrics["tasks"]
    assert "part-4.parquet was added" in _evaluated(tmp_path / "run")[1]


def _at_the_end_of_training(monkeypatch, change):
    fit = Trainer.fit

    def then_changes(self):
        fit(self)
        change()

    monkeypatch.setattr(Trainer, "fit", then_changes)


def test_runs_of_earlier_versions_do_not_remember(config, log, tmp_path):
    train_run(config(), tmp_path / "run")
    (tmp_path / "run" / "data.json").unlink()
    _rotate(log)
    result, said = _evaluated(tmp_path / "run")
    assert said.startswith(f"note: {tmp_path / 'run'} does not remember its data")
    assert "data_changed" not in result
    listener = Listens()
    train_run(config(), tmp_path / "run", resume=True, reporter=listener)
    assert any("does not remember its data" in line for line in listener.lines)


def test_a_damaged_memory_is_named(runs, tmp_path):
    run = RunDirectory(shutil.copytree(runs / "done-memory", tmp_path / "run"))
    for content in ("", "{}", '{"data": {"kind": "files", "parts": []}}', "[1]"):
        (run.path / "data.json").write_text(content)
        with pytest.raises(ValueError, match=r"data\.json: is damaged \(.*\); remove it") as raised:
            evaluate_run(run)
        assert "\n" not in str(raised.value)
        assert "validation error" not in str(raised.value)  # but the key


def test_all_ranks_refuse_together(runs, log, tmp_path):
    dead = shutil.copytree(runs / "dead-memory", tmp_path / "dead")
    _rotate(log)
    ended = launch(["train", "--resume", "--out", dead], 2)
    assert [rank.code for rank in ended] == [2, 2]
    (said,) = [rank.err for rank in ended if rank.err]
    assert "dead: the data has changed since the run began" in said
    assert "part-0.parquet was removed" in said


@pytest.mark.parametrize("split", [{}, {"by": "time", "column": "day"}], ids=["random", "time"])
def test_a_warm_start_on_a_log_that_grew(config, log, tmp_path, split):
    """Another split of the same files tests rows that the earlier run was trained on."""
    first, start = tmp_path / "first", WarmStart(tmp_path / "first")
    train_run(config(split), first)
    same, grown, new = Listens(), Listens(), Listens()
    train_run(config(split), tmp_path / "same", warm_start=start, reporter=same)
    for seed in (8, 9):
        pq.write_table(_noise(seed), tmp_path / f"new-{seed}.parquet")
    alone = config(split, path=str(tmp_path / "new-*.parquet"))
    train_run(alone, tmp_path / "new", warm_start=start, reporter=new)
    _add(log)
    train_run(config(split), tmp_path / "grown", warm_start=start, reporter=grown)
    assert not any("trained on rows of" in line for line in (*same.lines, *new.lines))
    words = "the run of the warm start was trained on rows of part-0.parquet, part-1.parquet, "
    assert any(words in line for line in grown.lines) == (not split)
    assert (words in _evaluated(tmp_path / "grown")[1]) == (not split)
