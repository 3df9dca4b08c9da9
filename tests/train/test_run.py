"""Whole runs on a small log: files, seeds, resuming, early stopping, errors."""

import json
import math
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest
import torch
import yaml

from mmoe.checkpoint.folder import CheckpointFolder
from mmoe.config import config_from_dict, set_values
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.rows.splits import Splits
from mmoe.run import RunDirectory
from mmoe.score import load_predictor
from mmoe.train import train_run
from tests.runs import Listens


def test_files_and_metrics_of_a_run(train):
    finished = train("run")
    folder = finished.directory.path
    assert sorted(path.name for path in folder.iterdir()) == [
        "checkpoint",
        "columns.json",
        "config.yaml",
        "curves.json",
        "data.json",
        "history.json",
        "metrics.json",
        "mmoe.json",
        "predictions.json",
        "tensorboard",
        "vocabulary",
    ]
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics == finished.metrics
    assert set(metrics) == {
        "tasks", "validation", "train", "seed", "split_seed", "versions",
    }  # fmt: skip
    assert {"auc", "gauc", "logloss", "ne", "calibration", "ece", "rows", "positives",
            "oracle_auc"} <= set(metrics["tasks"]["click"])  # fmt: skip
    assert metrics["tasks"]["click"]["rows"] == 500
    assert metrics["tasks"]["buy"]["rows"] == metrics["tasks"]["click"]["positives"]
    assert set(metrics["train"]) == {"rows", "seconds", "rows_per_second", "epochs", "ranks"}
    assert metrics["tasks"]["click"]["auc"] > 0.6, "it learns"
    history = json.loads((folder / "history.json").read_text())
    losses = [entry["loss"]["click"] for entry in history["epochs"]]
    assert losses[-1] < losses[0]
    assert sum(entry["best"] for entry in history["epochs"]) == 1
    assert list((folder / "tensorboard").iterdir())
    plain = {".safetensors", ".json", ".yaml", ".parquet"}
    for path in folder.rglob("*"):
        assert path.is_dir() or path.suffix in plain or "tfevents" in path.name, "no pickle"
    again = train("run", resume=True)
    assert (again.metrics["tasks"], again.metrics["train"]) == (metrics["tasks"], metrics["train"])
    with pytest.raises(ValueError, match=r"was trained with another config \(model.num_experts: 3"):
        train("run", "model.num_experts=4", resume=True)


def test_same_seed_same_bits_alone_or_at_a_time(
    train, tmp_path, weights, assert_same, funnel_table
):
    """Dropout draws from torch's global generator, which another thread or a callback uses too."""
    seeds = {"one": "seed=3", "two": "seed=4"}
    before, hook = torch.get_rng_state(), sys.excepthook
    for name, seed in seeds.items():
        run = train(f"{name} alone", seed).directory
    load_predictor(run)[0].predict(funnel_table[:9])
    assert torch.equal(torch.get_rng_state(), before) and sys.excepthook is hook
    one, other = (weights(tmp_path / f"{name} alone") for name in seeds)
    assert any(not torch.equal(one[name], other[name]) for name in one)
    both_at_an_epoch = Barrier(2)

    def meet(*_) -> None:
        both_at_an_epoch.wait(60)
        torch.rand(7)

    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(train, name, seed, on_epoch=meet) for name, seed in seeds.items()]
        assert all(run.result() for run in runs)
    for name in seeds:
        assert_same(tmp_path / f"{name} alone", tmp_path / name)


@pytest.mark.parametrize("after", [3, 13])
def test_resume_continues_bit_identically(train, tmp_path, after, assert_same, dies_after):
    """Before the first checkpoint, and in the second epoch."""
    settings = (
        "training.epochs=2",
        "training.checkpoint_every_steps=5",
        "training.ema_decay=0.9",
        "training.optimizer.schedule=cosine",
    )
    whole = train("whole", *settings)
    with pytest.raises(KeyboardInterrupt):
        train("broken", *settings, reporter=dies_after(after))
    assert not (tmp_path / "broken" / "metrics.json").exists()
    resumed = train("broken", *settings, resume=True)
    assert_same(tmp_path / "whole", tmp_path / "broken")
    assert resumed.metrics["tasks"] == whole.metrics["tasks"]
    mine, theirs = (
        [{k: v for k, v in entry.items() if "second" not in k} for entry in history["epochs"]]
        for history in (
            json.loads((tmp_path / name / "history.json").read_text())
            for name in ("whole", "broken")
        )
    )
    assert mine == theirs
    folder = CheckpointFolder(tmp_path / "whole" / "checkpoint")
    raw = {k.removeprefix("raw."): v for k, v in folder.training().items() if k.startswith("raw.")}
    scored = folder.model("latest")  # the average
    assert any(not torch.equal(scored[f"network.{name}"], raw[name]) for name in raw)


def test_a_resumed_run_may_reach_experts_another_way(train):
    ways = ["exchange=hierarchical", "chunks=2", "host_size=1", "replicas=1"]
    first = train("run", "training.epochs=1")
    another = [f"parallel.{way}" for way in ways]
    again = train("run", "training.epochs=1", *another, resume=True)
    assert again.metrics["tasks"] == first.metrics["tasks"]


def test_resume_of_a_run_whose_config_leaves_a_default_out(train, tmp_path):
    first = train("run")
    file = tmp_path / "run" / "config.yaml"
    raw = yaml.safe_load(file.read_text())
    del raw["model"]["expert"]["output_activation"]
    file.write_text(yaml.safe_dump(raw, sort_keys=False))
    assert train("run", resume=True).metrics["tasks"] == first.metrics["tasks"]
    with pytest.raises(ValueError, match=r"expert.output_activation: 'same' there, 'none' here"):
        train("run", "model.expert.output_activation=none", resume=True)


def test_resume_notices_other_data(train, funnel_config, funnel_table, tmp_path):
    train("run", "training.epochs=1")
    other = Splits(
        train=funnel_table[:2000],
        validation=funnel_table[3000:3500],
        test=funnel_table[3500:],
        origin="log",
    )
    config = config_from_dict(set_values(funnel_config, ["training.epochs=1"]))
    with pytest.raises(
        ValueError, match=r"other rows \(3,000 then, 2,000 now\).*changed_data=True"
    ):
        train_run(config, tmp_path / "run", splits=other, resume=True)
    (tmp_path / "run" / "data.json").unlink()
    with pytest.raises(ValueError, match=r"was trained on 3,000 rows, but log now has 2,000"):
        train_run(config, tmp_path / "run", splits=other, resume=True)


def test_early_stopping_keeps_the_best_epoch(train, tmp_path):
    finished = train("run", "training.epochs=40", "training.patience=2",
                     "training.optimizer.learning_rate=0.05",
                     "training.monitor=click.logloss")  # fmt: skip
    history = json.loads((tmp_path / "run" / "history.json").read_text())["epochs"]
    values = [entry["monitor"] for entry in history]
    best = int(np.argmin(values))
    assert len(history) == best + 3 < 40
    assert [entry["best"] for entry in history].index(True) == best
    # what scores is the best epoch's model, not the last one's
    assert finished.metrics["validation"]["click"]["logloss"] == pytest.approx(values[best])


@pytest.mark.parametrize(
    "overrides",
    [
        ("model.kind=ple", "model.shared_experts=2", "model.task_experts=1"),
        ("model.kind=shared_bottom", "training.optimizer.kind=adamw", "training.gradient_clip=0.5"),
        ("training.precision=bf16", "model.gate.kind=top_k", "model.execution=grouped"),
    ],
    ids=lambda overrides: overrides[0],
)
def test_other_settings_train(train, overrides):
    finished = train("run", "training.epochs=2", *overrides)
    values = finished.metrics["tasks"]
    assert all(math.isfinite(values[task]["logloss"]) for task in ("click", "buy"))
    assert values["click"]["auc"] > 0.55


def test_any_model_learns_over_the_entire_space_and_esmm_is_one_of_them(train, tmp_path):
    short = ("training.epochs=1", "model.num_experts=2")
    entire = ("tasks.buy.kind=entire_space", *short)
    esmm, same = train("esmm", "model.kind=esmm", *short), train("same", *entire)
    assert esmm.metrics["tasks"] == same.metrics["tasks"]
    models = [
        CheckpointFolder(tmp_path / run / "checkpoint").model("latest") for run in ("esmm", "same")
    ]
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])
    ple = ("model.kind=ple", "tasks.buy.kind=entire_space", "training.epochs=1")
    other = train("ple", *ple).metrics["tasks"]["buy"]
    assert set(other) == set(esmm.metrics["tasks"]["buy"])
    assert other != esmm.metrics["tasks"]["buy"]


def test_a_mean_is_over_the_tasks_that_have_the_metric_and_says_so(train):
    tasks = "[{name: click, label: click}, {name: price, label: price, kind: regression}]"
    said = Listens()
    for number, monitor in enumerate(("mean.logloss", "mean.rmse", "click.auc")):
        settings = [f"tasks={tasks}", f"training.monitor={monitor}", "training.epochs=1"]
        finished = train(f"run{number}", *settings, reporter=said)
        [epoch] = json.loads(finished.directory.history_file.read_text())["epochs"]
        task, metric = [("click", "logloss"), ("price", "rmse"), ("click", "auc")][number]
        assert epoch["monitor"] == epoch["validation"][task][metric]
    assert [line for line in said.lines if line.startswith("the best epoch")] == [
        "the best epoch is chosen by mean.logloss over click; price has no logloss",
        "the best epoch is chosen by mean.rmse over price; click has no rmse",
    ]


def test_one_class_in_validation_just_works(funnel_config, funnel_table, tmp_path, capsys):
    clicks = np.flatnonzero(funnel_table["click"].to_numpy() == 1)
    splits = Splits(
        train=funnel_table[:3000],
        validation=funnel_table.take(clicks[:50]),
        test=funnel_table[3500:3501],
        origin="log",
    )
    from mmoe.run.console import ConsoleReporter

    finished = train_run(
        config_from_dict(set_values(funnel_config, ["training.monitor=click.auc"])),
        tmp_path / "run",
        splits=splits,
        reporter=ConsoleReporter(),
    )
    assert finished.metrics["validation"]["click"]["auc"] is None
    assert finished.metrics["tasks"]["click"]["rows"] == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "click.auc cannot be computed on the validation split" in said
    assert "click: auc" in said


def test_a_failed_start_does_not_stand_in_the_way(train, tmp_path, monkeypatch):
    """It diverges, lacks a column, or runs out of memory."""

    def fails(*_: object) -> None:
        raise MemoryError

    with pytest.raises(ValueError, match=r"step \d+: the loss .* or that of the tab"):
        train("run", "training.optimizer.learning_rate=1e30",
              "training.embedding_optimizer.learning_rate=1e30")  # fmt: skip
    with pytest.raises(ValueError, match=r"no column 'clicks'"):
        train("run", "tasks.click.label=clicks")
    with monkeypatch.context() as patch:
        patch.setattr("mmoe.train.step.StepProgram.forward", fails)
        with pytest.raises(MemoryError):
            train("run")
    assert not (tmp_path / "run").exists()
    assert train("run", "training.epochs=1").metrics["train"]["epochs"] == 1


@pytest.mark.parametrize("dies", ["vocabulary", "config"])
def test_resume_after_a_death_while_the_directory_is_made(train, tmp_path, monkeypatch, dies):
    """Nothing is trained yet, but files are there, one of them half-written."""

    def half(path: Path, *_: object) -> None:
        path.mkdir(exist_ok=True)
        (path / "000-user.tmp").write_text("half")
        raise KeyboardInterrupt

    def stray(path: Path, text: str) -> None:
        path.with_name(f".{path.name}.1.tmp").write_text(text[:5])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if dies == "vocabulary":
            patch.setattr(FeatureEncoder, "save", lambda self, path: half(path))
        else:
            patch.setattr("mmoe.train.claim.write_text", stray)
        with pytest.raises(KeyboardInterrupt):
            train("run", "training.epochs=1")
    assert any((tmp_path / "run").iterdir())
    finished = train("run", "training.epochs=1", resume=True)
    assert finished.metrics["train"]["epochs"] == 1
    assert not list((tmp_path / "run").rglob("000-user.tmp"))
    assert not list((tmp_path / "run").rglob(".*"))


def test_what_a_killed_process_had_begun_to_write_goes(train, tmp_path, dies_after):
    """Pointers and JSON that were not moved to their names any more."""
    with pytest.raises(KeyboardInterrupt):
        train("run", "training.checkpoint_every_steps=3", reporter=dies_after(7))
    for stray in (".history.json.1.tmp", "checkpoint/.index.json.1.tmp"):
        (tmp_path / "run" / stray).write_text("half")
    (tmp_path / "run" / ".mine").write_text("kept")
    train("run", "training.checkpoint_every_steps=3", resume=True)
    assert [path.name for path in (tmp_path / "run").rglob(".*")] == [".mine"]


@pytest.mark.parametrize(
    ("file", "content"), [("index.json", "{}"), ("index.json", "no JSON"), ("state.json", "{}")]
)
def test_damaged_checkpoints_are_named(train, tmp_path, file, content):
    train("run", "training.epochs=1")
    (path,) = (tmp_path / "run" / "checkpoint").rglob(file)
    path.write_text(content)
    with pytest.raises(ValueError, match=rf"{file}: is damaged"):
        train("run", "training.epochs=1", resume=True)


def test_a_run_can_be_evaluated_from_another_folder(
    funnel_config, funnel_table, tmp_path, monkeypatch
):
    import pyarrow.parquet as pq

    pq.write_table(funnel_table, tmp_path / "log.parquet")
    monkeypatch.chdir(tmp_path)
    config = config_from_dict(
        set_values(funnel_config, ["data.path=log.parquet", "training.epochs=1"])
    )
    finished = train_run(config, Path("run"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    from mmoe.train import evaluate_run

    run = RunDirectory.open(tmp_path / "run")
    assert evaluate_run(run)["tasks"] == finished.metrics["tasks"]


def test_a_changed_config_is_noticed(train, tmp_path):
    train("run", "training.epochs=1")
    path = tmp_path / "run" / "config.yaml"
    path.write_text(path.read_text().replace("num_experts: 3", "num_experts: 4"))
    with pytest.raises(ValueError, match=r"the config was changed after training|has no tensor"):
        load_predictor(RunDirectory.open(tmp_path / "run"))
