"""A search: its first trial, pruning, the clock, resuming, what it writes, errors."""

import json
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
import yaml

from mmoe.config import config_from_dict, load_config, set_values
from mmoe.run.console import SilentReporter
from mmoe.train import Interrupted, train_run
from mmoe.tune import TuneSettings, tune_config


@pytest.fixture(name="small")
def _small(funnel_table, funnel_config, tmp_path):
    path = tmp_path / "log.parquet"
    pq.write_table(funnel_table[:1500], path)
    return set_values(funnel_config, [f"data.path={path}", "model.expert.hidden=[8]"])


@pytest.fixture(name="tune")
def _tune(small, tmp_path):
    pytest.importorskip("optuna", reason="needs the extra tune")

    def run(trials, *overrides, minutes=15, **keywords):
        config = config_from_dict(set_values(small, overrides))
        settings = TuneSettings(trials=trials, minutes=minutes)
        return tune_config(config, tmp_path / "out", settings, **keywords)

    return run


def test_without_optuna_it_says_what_to_install(mmoe, small, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    config, out = tmp_path / "config.yaml", tmp_path / "out"
    config.write_text(yaml.safe_dump(small))
    code, _, err = mmoe("tune", config, "--out", out)
    assert code == 2
    assert len(err.splitlines()) == 1
    assert "pip install 'mmoe[tune]'" in err
    assert not out.exists()


def test_the_config_itself_comes_first_and_the_best_one_trains_as_it_is(tune, tmp_path):
    result = tune(4)
    out = tmp_path / "out"
    first, best = result["trials"][0], result["best"]
    assert (first["changed"], first["state"], first["epochs"]) == ({}, "finished", 3)
    assert len(result["trials"]) == 4
    assert best["value"] == max(trial["value"] for trial in result["trials"])
    assert {trial["state"] for trial in result["trials"]} <= {"finished", "pruned"}
    for trial in result["trials"]:
        assert (trial["state"] == "pruned") == (trial["epochs"] < 3)
    assert json.loads((out / "tune.json").read_text()) == result
    assert sorted(path.name for path in out.iterdir() if not path.name.startswith(".")) == [
        "best.yaml",
        "mmoe.json",
        "plan.json",
        "trials.journal",
        "tune.json",
    ]
    train_run(load_config(out / "best.yaml"), tmp_path / "best")
    history = json.loads((tmp_path / "best" / "history.json").read_text())
    judged = [*history["epochs"][: best["epochs"]], history.get("start", history["epochs"][0])]
    assert max(entry["monitor"] for entry in judged) == best["value"]


def test_a_trial_that_training_makes_worse_is_worth_what_it_began_with(tune, tmp_path, monkeypatch):
    """And ends where its run would, which would then look at the test split."""
    monkeypatch.setattr("mmoe.tune.search.remove_trial", lambda folder: None)
    monkeypatch.setattr("mmoe.train.fit.predict_rows", None)
    worse = ("training.optimizer.learning_rate=3", "training.embedding_optimizer.learning_rate=9")
    [trial] = tune(1, "model.wide=true", "training.patience=1", *worse)["trials"]
    [history] = (tmp_path / "out").glob("trials/*/history.json")
    start = json.loads(history.read_text())["start"]
    assert start["best"]
    assert (trial["value"], trial["epochs"], trial["state"]) == (start["monitor"], 1, "finished")


class _Told(SilentReporter):
    """Calls a function with the note of each step."""

    def __init__(self, tell):
        self.tell = tell

    def track(self, *_, **__):
        return nullcontext(SimpleNamespace(advance=lambda _, note="": self.tell(note)))


def _dies_after(steps):
    """Ctrl-C after so many steps of training, as a killed process stops there."""
    left = [steps]

    def tell(note):
        left[0] -= "epoch" in note
        if left[0] < 0:
            raise KeyboardInterrupt

    return _Told(tell)


def _clock(monkeypatch, word):
    """A clock that stands still until an epoch begins."""
    now = [0.0]
    monkeypatch.setattr("mmoe.tune.search.time.monotonic", lambda: now[0])
    return _Told(lambda note: now.__setitem__(0, 1000.0 if f"epoch {word}" in note else now[0]))


def test_it_goes_on_where_it_was_killed(tune, tmp_path):
    with pytest.raises(Interrupted):
        tune(2, reporter=_dies_after(7))  # five steps are an epoch
    out = tmp_path / "out"
    assert not (out / "tune.json").exists()
    (trial,) = (out / "trials").iterdir()
    assert len(json.loads((trial / "history.json").read_text())["epochs"]) == 1
    with pytest.raises(ValueError, match="exists already"):
        tune(2)
    result = tune(2, resume=True)
    assert [trial["changed"] == {} for trial in result["trials"]] == [True, False]
    assert result["trials"][0]["epochs"] == 3
    assert not (out / "trials").exists()
    more = tune(3, resume=True)
    assert more["trials"][:2] == result["trials"]
    assert len(more["trials"]) == 3
    with pytest.raises(ValueError, match=r"begun with another config \(training.epochs"):
        tune(3, "training.epochs=4", resume=True)


def test_time_that_is_up_ends_a_trial_and_counts_what_it_reached(tune, monkeypatch):
    # In the second epoch of the config itself
    result = tune(5, reporter=_clock(monkeypatch, "2/3"))
    assert [(t["state"], t["epochs"]) for t in result["trials"]] == [("out of time", 1)]
    assert result["best"]["trial"] == 1


def test_time_that_is_up_before_the_first_epoch_is_an_error_that_can_be_mended(tune, monkeypatch):
    with pytest.raises(ValueError, match=r"--minutes: .*give more --minutes and say --resume"):
        tune(5, reporter=_clock(monkeypatch, "1/3"))
    monkeypatch.undo()
    assert tune(1, resume=True)["trials"][0]["state"] == "finished"


def test_a_trial_that_diverges_is_passed_over(tune):
    result = tune(2, "training.optimizer.learning_rate=1e30", "training.epochs=1")
    assert result["trials"][0]["state"] == "diverged"
    assert len(result["trials"]) == 2


def test_a_damaged_journal_is_named(tune, tmp_path):
    tune(1, "training.epochs=1")
    journal = tmp_path / "out" / "trials.journal"
    journal.write_text("no JSON\n" + journal.read_text())
    with pytest.raises(ValueError, match=r"trials.journal: is damaged"):
        tune(2, "training.epochs=1", resume=True)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [("--trials", 0, "--trials: expected 1 or more"), ("--minutes", 0, "--minutes: expected more")],
)
def test_wrong_settings_are_one_line(mmoe, small, tmp_path, option, value, message):
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(small))
    code, _, err = mmoe("tune", config, option, value, "--out", tmp_path / "out")
    assert code == 2
    assert message in err
    assert not (tmp_path / "out").exists()


def test_the_command_prints_a_table_and_what_to_do_next(mmoe, small, tmp_path):
    pytest.importorskip("optuna", reason="needs the extra tune")
    config, out = tmp_path / "config.yaml", tmp_path / "out"
    config.write_text(yaml.safe_dump(small))
    arguments = ["tune", config, "--trials", 2, "--out", out, "--set", "training.epochs=1"]
    code, printed, err = mmoe(*arguments)
    assert code == 0, err
    assert "validation mean.auc" in printed
    assert "the config itself" in printed
    assert printed.splitlines()[-1] == f"next: mmoe train {out / 'best.yaml'}"
    assert "trial 2: mean.auc 0." in err
    code, printed, err = mmoe(*arguments, "--resume", "--json", "--quiet")
    assert (code, err) == (0, "")
    assert json.loads(printed) == json.loads((out / "tune.json").read_text())
