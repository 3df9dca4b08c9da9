"""Whole runs on streamed files: as in memory, resumed to the bit, no thread left behind."""

import json
import threading

import pytest

from mmoe.checkpoint.folder import CheckpointFolder
from mmoe.config import config_from_dict, set_values
from mmoe.datasets.stream.source import StreamSource
from mmoe.run import RunDirectory
from mmoe.train import evaluate_run, train_run
from tests.runs import Listens

STREAM = (
    "data.input=stream",
    "data.streaming.shuffle_buffer_rows=700",
    "data.streaming.chunk_rows=200",
)


@pytest.fixture(name="train")
def _train(funnel_config, log_folder, tmp_path):
    def run(name: str, *overrides: str, resume: bool = False, reporter=None):
        settings = [f"data.path={log_folder}", *STREAM, *overrides]
        config = config_from_dict(set_values(funnel_config, settings))
        return train_run(config, tmp_path / name, resume=resume, reporter=reporter)

    return run


def _no_threads() -> bool:
    return not [t for t in threading.enumerate() if t.name == "mmoe-input"]


def test_a_run_is_evaluated_and_resumed_to_the_bit(
    train, tmp_path, assert_same, dies_after, log_folder
):
    """Before the first checkpoint, and in the middle of the second epoch."""
    settings = ("training.checkpoint_every_steps=5", "training.optimizer.schedule=cosine",
                "training.epochs=2")  # fmt: skip
    whole = train("whole", *settings)
    state = CheckpointFolder(tmp_path / "whole" / "checkpoint").state()
    assert state["train_rows"] == 3200 and len(state["fingerprint"]) == 16
    history = json.loads((tmp_path / "whole" / "history.json").read_text())
    assert history["epochs"][0]["step"] == -(-3200 // 384)
    run = RunDirectory.open(tmp_path / "whole")
    assert evaluate_run(run)["tasks"] == whole.metrics["tasks"]
    assert evaluate_run(run, str(log_folder))["tasks"]["click"]["rows"] == 4000
    for after in (3, 13):
        broken = f"broken after {after}"
        with pytest.raises(KeyboardInterrupt):
            train(broken, *settings, reporter=dies_after(after))
        assert _no_threads(), broken
        steps = CheckpointFolder(tmp_path / broken / "checkpoint")
        assert after < 5 or steps.state()["step"] > 0, broken
        resumed = train(broken, *settings, resume=True)
        assert_same(tmp_path / "whole", tmp_path / broken)
        assert resumed.metrics["tasks"] == whole.metrics["tasks"], broken
        assert _no_threads(), broken


def test_a_run_in_lanes_goes_on_in_as_many(train, tmp_path, assert_same, dies_after):
    settings = ("training.checkpoint_every_steps=5", "training.epochs=2")
    train("whole", *settings, "data.streaming.lanes=3")
    with pytest.raises(KeyboardInterrupt):
        train("broken", *settings, "data.streaming.lanes=3", reporter=dies_after(7))
    with pytest.raises(ValueError, match=r"data\.streaming\.lanes: 3 there, 4 here"):
        train("broken", *settings, "data.streaming.lanes=4", resume=True)
    train("broken", *settings, "data.streaming.lanes=3", resume=True)
    assert_same(tmp_path / "whole", tmp_path / "broken")


def test_a_buffer_for_everything_trains_as_memory_does_and_a_small_one_as_well(
    train, tmp_path, assert_same
):
    streamed = train("stream", "data.streaming.shuffle_buffer_rows=100000", "training.epochs=2")
    held = train("memory", "data.input=memory", "training.epochs=2")
    assert_same(tmp_path / "stream", tmp_path / "memory")
    assert streamed.metrics["tasks"] == held.metrics["tasks"]
    assert streamed.metrics["validation"] == held.metrics["validation"]
    small, held = (
        run.metrics["tasks"]["click"] for run in (train("small", "training.epochs=2"), held)
    )
    assert small["auc"] == pytest.approx(held["auc"], abs=0.05)
    assert small["rows"] == held["rows"]


@pytest.mark.parametrize(("above", "streams"), [(0, True), (1, False)])
def test_auto_goes_by_size(train, above, streams):
    listener = Listens()
    settings = ("data.input=auto", f"data.streaming.above_mb={above}", "training.epochs=1")
    train("run", *settings, reporter=listener)
    assert ("streamed, " in " ".join(listener.lines)) == streams


def test_resume_refuses_other_files(train, log_folder, tmp_path):
    train("run", "training.epochs=1")
    (log_folder / "part-3.parquet").rename(log_folder / "part-9.parquet")
    with pytest.raises(ValueError, match=r"part-3\.parquet was renamed to part-9\.parquet: give"):
        train("run", "training.epochs=1", resume=True)
    (tmp_path / "run" / "data.json").unlink()
    with pytest.raises(ValueError, match=r"the files of .* are not those it was trained on"):
        train("run", "training.epochs=1", resume=True)


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (lambda path: path.unlink(), r"part-2\.parquet: is gone; .*--resume"),
        (lambda path: path.write_bytes(path.read_bytes()[:-100]), r"part-2\.parquet: has .* bytes"),
        (
            lambda path: path.write_bytes(b"X" * path.stat().st_size),
            r"part-2\.parquet.*no Parquet file",
        ),
    ],
    ids=["gone", "shrinks", "overwritten"],
)
def test_files_that_change_while_training(
    train, log_folder, tmp_path, monkeypatch, harm, says, assert_same
):
    """After the survey and the fit, while the first epoch goes on; the run can be resumed."""
    settings = ("training.epochs=1", "training.checkpoint_every_steps=1")
    path, reads = log_folder / "part-2.parquet", []
    read = StreamSource.read

    def harmful(self, piece, columns):
        reads.append(piece)
        if len(reads) == 25:  # 16 for the encoder
            harm(path)
        yield from read(self, piece, columns)

    whole = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(StreamSource, "read", harmful)
        with pytest.raises(ValueError, match=says) as raised:
            train("run", *settings)
    assert "\n" not in str(raised.value)
    assert _no_threads()
    path.write_bytes(whole)
    if "bytes" in says:  # to the bit, whatever the harm
        train("run", *settings, resume=True)
        train("whole", *settings)
        assert_same(tmp_path / "run", tmp_path / "whole")


def test_errors_before_training_leave_no_directory(train, log_folder, tmp_path):
    (log_folder / "part-3.parquet").write_bytes(b"")
    with pytest.raises(ValueError, match=r"part-3\.parquet: is empty"):
        train("run")
    assert not (tmp_path / "run").exists()
