"""`--profile`: the same training, a trace, and parts that add up to the step."""

import json
import time

import pytest
import torch
from torch.profiler import record_function

from mmoe.train.profiling import BACKWARD, INPUT, PAUSE, PREFIX, StepRecorder, part
from tests.runs import Listens

PARTS = ["input", "embeddings", "experts", "gates", "towers", "loss", "optimizer", "other"]


@pytest.fixture(name="train")
def _train(train):
    def run(name: str, *overrides: str, **keywords):
        return train(name, "training.epochs=1", *overrides, **keywords)

    return run


@pytest.mark.parametrize(
    "settings",
    [
        ("model.kind=ple", "model.shared_experts=2", "training.accumulate_batches=2"),
        pytest.param(("training.embedding_backend=torchrec",), marks=pytest.mark.torchrec),
    ],
    ids=str,
)
def test_a_profiled_run_trains_alike_and_its_parts_add_up(train, tmp_path, assert_same, settings):
    settings = ("training.batch_size=64", *settings)
    train("plain", *settings)
    reporter = Listens()
    train("profiled", *settings, profile=True, reporter=reporter)
    assert_same(tmp_path / "plain", tmp_path / "profiled")
    folder = tmp_path / "profiled" / "profile"
    assert sorted(file.name for file in folder.iterdir()) == [
        "table.json",
        "table.txt",
        "trace.json",
    ]
    table = json.loads((folder / "table.json").read_text())
    assert [part["part"] for part in table["parts"]] == PARTS
    assert sum(part["ms"] for part in table["parts"]) == pytest.approx(table["step_ms"])
    times = {part["part"]: part for part in table["parts"]}
    for name in PARTS:
        assert times[name]["forward"] > 0, name
    for name in ("embeddings", "experts", "gates", "towers", "loss"):
        assert times[name]["backward"] > 0, name
    # Nothing that belongs to a part is left to `other`
    assert times["other"]["backward"] < 0.2 * sum(part["backward"] for part in table["parts"])
    assert {"name", "ms", "calls"} == set(table["operators"][0])
    text = (folder / "table.txt").read_text()
    assert text.splitlines() == [line for line in reporter.lines if line in text.splitlines()]


def test_a_short_epoch_is_profiled_as_far_as_it_goes(train, tmp_path):
    reporter = Listens()
    train("run", profile=True, reporter=reporter)
    table = json.loads((tmp_path / "run" / "profile" / "table.json").read_text())
    assert (table["first_step"], table["steps"]) == (3, 6), "8 steps, a third to warm up"
    trace = (tmp_path / "run" / "profile" / "trace.json").read_text()
    steps = [event for event in json.loads(trace)["traceEvents"] if event.get("ph") == "X"]
    names = [event.get("name") for event in steps]
    assert names.count(PREFIX + "step") == names.count(PREFIX + BACKWARD) / 2 == 6
    whole = sum(event["dur"] for event in steps if event.get("name") == PREFIX + "step")
    assert whole / 6 / 1e3 == pytest.approx(table["step_ms"], rel=1e-3)
    assert any("the epoch had only 8 steps left" in line for line in reporter.lines)
    train("one", "training.batch_size=3000", profile=True)
    table = json.loads((tmp_path / "one" / "profile" / "table.json").read_text())
    assert (table["steps"], table["step_ms_without_profiler"]) == (1, None)


def test_a_profile_gives_way_to_the_next_and_files_of_others_stay(train, tmp_path, dies_after):
    settings = ("training.epochs=2", "training.checkpoint_every_steps=1")
    with pytest.raises(KeyboardInterrupt):
        train("run", *settings, profile=True, reporter=dies_after(12))
    run = tmp_path / "run"
    first = (run / "profile" / "table.txt").read_text()
    (run / "profile" / "notes.txt").write_text("mine")
    train("run", *settings, profile=True, resume=True)
    assert (run / "profile" / "table.txt").read_text() != first
    assert (run / "profile" / "notes.txt").read_text() == "mine"
    assert not list(run.rglob(".*"))


def test_what_lies_between_epochs_is_no_part_of_a_step():
    """A benchmark's steps last from one report to the next, validation included."""
    recorder = StepRecorder()
    start = time.perf_counter()
    recorder.begin_step()
    with part(PAUSE), part(INPUT):
        time.sleep(0.2)
    with part(INPUT):
        time.sleep(0.02)
    recorder.end_step()
    whole_ms = 1e3 * (time.perf_counter() - start)
    times = recorder.stop()
    found = {part.part: part.both for part in times.parts}
    assert 20 <= found["input"] <= times.step_ms <= whole_ms - 200


def test_what_encloses_operators_is_none():
    """TorchRec's pipeline marks every step's phases, each with a name of its own."""
    recorder = StepRecorder()
    recorder.begin_step()
    with record_function("## forward 7 ##"):
        torch.ones(3).sum()
    recorder.end_step()
    names = {operator["name"] for operator in recorder.stop().operators}
    assert "aten::sum" in names
    assert not any("forward 7" in name for name in names)
