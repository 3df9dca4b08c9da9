"""Checkpoints of one process: in the background, at once, kept, and when they cannot be written."""

import json
import pickle
import threading

import pytest
import torch
from safetensors import SafetensorError

from mmoe.checkpoint import saver as saver_module
from mmoe.checkpoint.folder import CheckpointFolder
from mmoe.checkpoint.saver import CheckpointSaver
from mmoe.errors import Damaged
from mmoe.parallel import Shard


@pytest.fixture
def folder(tmp_path):
    return CheckpointFolder(tmp_path / "checkpoint")


def save(saver, step, *, best=False):
    tensors = {"weight": torch.full((3,), float(step))}
    saver.save(step, tensors, tensors, {"step": step}, best=best)


def steps(folder):
    return sorted(path.name for path in folder.path.glob("*step*"))


@pytest.mark.parametrize("background", [True, False])
def test_the_best_and_the_latest_are_kept(folder, background):
    with CheckpointSaver(folder, keep=2, background=background) as saver:
        for step in range(1, 6):
            save(saver, step, best=step == 2)
    assert steps(folder) == ["step-00000002", "step-00000004", "step-00000005"]
    assert folder.model("best")["weight"][0] == 2
    assert folder.model("latest")["weight"][0] == 5
    assert folder.model("step-00000004")["weight"][0] == 4
    with pytest.raises(ValueError, match=r"no checkpoint 'step-1'; there are latest, best, step-0"):
        folder.model("step-1")


def test_the_empty_shard_of_a_rank_without_experts_is_none_of_a_checkpoint(folder):
    whole = torch.arange(6.0).view(3, 2)
    empty = Shard(whole[:0], (3, 2), (3, 0))
    with CheckpointSaver(folder) as saver:
        saver.save(1, {"weight": [Shard(whole, (3, 2), (0, 0)), empty]}, {}, {}, best=True)
    assert torch.equal(folder.model("best")["weight"], whole)
    held = [Shard(torch.zeros(3, 2), (3, 2), (0, 0)), Shard(torch.zeros(0, 2), (3, 2), (3, 0))]
    folder.tensors("best", "model").load({"weight": held})
    assert torch.equal(held[0].tensor, whole)


def test_fewer_are_kept_when_a_run_goes_on_with_another_setting(folder):
    for keep in (3, 1):
        with CheckpointSaver(folder, keep=keep) as saver:
            for step in range(1, 4):
                save(saver, step + 10 // keep, best=step == 1)
    assert len(steps(folder)) == 2


def test_training_goes_on_while_files_are_written(folder, monkeypatch):
    """What changes meanwhile is not saved; the next save waits for the files."""
    may_write, write = threading.Event(), saver_module.save_file

    def slow(*arguments):
        assert may_write.wait(60)
        write(*arguments)

    monkeypatch.setattr(saver_module, "save_file", slow)
    weight = torch.full((4,), 2.0)
    with CheckpointSaver(folder, keep=2) as saver:
        saver.save(2, {"weight": weight}, {}, {}, best=True)
        weight.fill_(3.0)
        assert not folder.exists()
        may_write.set()
        saver.save(3, {"weight": weight}, {}, {}, best=False)
        weight.zero_()
        assert folder.exists()
    assert folder.model("best")["weight"].tolist() == [2.0] * 4
    assert folder.model("latest")["weight"].tolist() == [3.0] * 4


def disk_full(*_):
    text = "Error while serializing: I/O error: No space left on device (os error 28)"
    raise SafetensorError(text)


def test_a_failure_is_told_at_the_next_save(folder, monkeypatch):
    with CheckpointSaver(folder) as saver:
        save(saver, 1)
        saver.wait()
        with monkeypatch.context() as patch:
            patch.setattr(saver_module, "save_file", disk_full)
            save(saver, 2)
            with pytest.raises(
                OSError, match=r"the checkpoint of step 2: cannot be written: .*No s"
            ):
                save(saver, 3)
        save(saver, 4)
    assert steps(folder) == ["step-00000001", "step-00000004"], "nothing is left of the others"


def test_a_failure_is_told_at_the_end_and_hides_no_other_error(folder, monkeypatch):
    monkeypatch.setattr(saver_module, "save_file", disk_full)

    def train(error=None):
        with CheckpointSaver(folder) as saver:
            save(saver, 1)
            if error is not None:
                raise error

    with pytest.raises(OSError, match=r"the checkpoint of step 1: cannot be written: .*No space"):
        train()
    assert steps(folder) == []
    with pytest.raises(KeyError, match="mine"):
        train(KeyError("mine"))


def test_numbers_that_json_has_not_are_refused_before_anything_is_written(folder):
    with CheckpointSaver(folder) as saver, pytest.raises(ValueError, match="JSON"):
        saver.save(1, {}, {}, {"loss": float("nan")}, best=True)
    assert not folder.path.exists()


def test_an_index_without_kept_ones_is_read(folder):
    """As an error tells how to write one."""
    with CheckpointSaver(folder) as saver:
        save(saver, 1, best=True)
    index = folder.index()
    del index["kept"]
    (folder.path / "index.json").write_text(json.dumps(index))
    with CheckpointSaver(folder, keep=2) as saver:
        save(saver, 2)
    assert folder.index()["kept"] == ["step-00000001", "step-00000002"]


def test_an_error_that_cannot_be_sent_keeps_its_words():
    damaged = Damaged("index.json", "it ends early", "remove it")
    for error in (damaged, OSError(28, "No space left on device")):
        told = pickle.loads(pickle.dumps(saver_module._as_told(error)))
        assert isinstance(told, (OSError, ValueError)) and str(told) == str(error)


def test_what_goes_wrong_here_keeps_its_traceback(tmp_path, monkeypatch):
    def broken(*_):
        raise TypeError("a bug")

    monkeypatch.setattr(saver_module, "save_file", broken)
    saver = CheckpointSaver(CheckpointFolder(tmp_path / "checkpoint"), background=False)
    with pytest.raises(TypeError, match="a bug") as caught:
        saver.save(1, {"a": torch.zeros(1)}, {}, {}, best=True)
    assert "broken" in [entry.name for entry in caught.traceback]
