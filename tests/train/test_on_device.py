"""Batches copied ahead, and random states, with CUDA played by stand-ins."""

from contextlib import nullcontext

import pytest
import torch

from mmoe.checkpoint.resume_state import RandomState
from mmoe.datasets.rows.batch import Batch
from mmoe.train.cuda import on_device

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


def batch(number: int) -> Batch:
    none = torch.empty(0, dtype=torch.int64)
    return Batch(
        dense_BF=torch.full((2, 1), float(number)),
        values=none,
        lengths_CB=none.int(),
        labels_BT=None,
        observed_BT=None,
        weights_BT=None,
        num_rows=2,
    )


class Stream:
    """Notes what the training stream waited for."""

    def __init__(self, *_: object) -> None:
        self.waited: list[object] = []

    def wait_event(self, event: object) -> None:
        self.waited.append(event)


class Event:
    def record(self, stream: object) -> None:
        self.stream = stream


@pytest.fixture
def cuda(monkeypatch):
    """Streams that only note; batches go nowhere, and say so."""
    here, held = Stream(), []
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: here)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(Batch, "to", lambda self, device: self)
    monkeypatch.setattr(Batch, "record_stream", lambda self, stream: held.append(stream))
    return here, held


def test_every_batch_is_waited_for_on_the_stream_that_trains(cuda):
    here, held = cuda
    found = [float(b.dense_BF[0, 0]) for b in on_device((batch(n) for n in range(5)), GPU)]

    assert found == [0, 1, 2, 3, 4]
    assert len(here.waited) == 5
    assert all(event.stream is not here for event in here.waited)
    assert held == [here] * 5


def test_an_early_end_closes_what_makes_the_batches(cuda):
    closed = []

    def batches():
        try:
            yield from (batch(n) for n in range(100))
        finally:
            closed.append(True)

    copied = on_device(batches(), GPU)
    next(copied)
    copied.close()

    assert closed == [True]


def test_an_error_of_what_makes_the_batches_is_raised_as_it_is(cuda):
    def batches():
        yield batch(0)
        raise ValueError("part-3.parquet: is damaged")

    with pytest.raises(ValueError, match=r"part-3\.parquet: is damaged"):
        list(on_device(batches(), GPU))


def test_pinned_memory_is_used_for_a_gpu_alone(monkeypatch):
    pinned = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: pinned.append(self) or self)
    assert batch(1).to(CPU).dense_BF.device == CPU
    assert batch(1).to(torch.device("meta")).lengths_CB.device.type == "meta"
    assert pinned == []


def test_random_states_go_on_where_they_were_on_the_same_kind_of_device(monkeypatch):
    states = {GPU: torch.zeros(4, dtype=torch.uint8)}
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: states[device].clone())
    monkeypatch.setattr(
        torch.cuda, "set_rng_state", lambda state, device: states.update({device: state})
    )
    on_cpu, on_gpu = RandomState(CPU, seed=5), RandomState(GPU)
    with RandomState(CPU, seed=5).drawing():
        expected = torch.rand(3)
    states[GPU] = torch.ones(4, dtype=torch.uint8)

    assert RandomState(CPU).restore(on_cpu.states) is None
    resumed = RandomState(CPU)
    note = resumed.restore({**on_gpu.states, **on_cpu.states})
    assert note is not None and note.startswith("note: trained on cuda so far, on cpu from here on")
    with resumed.drawing():
        assert torch.equal(torch.rand(3), expected)
    resumed = RandomState(GPU)
    note = resumed.restore(on_cpu.states)
    assert note is not None and "trained on cpu so far, on cuda from here on" in note
    with resumed.drawing():
        assert torch.equal(torch.rand(3), expected)
        assert states[GPU].sum() == 4
    assert RandomState(GPU).restore(on_gpu.states) is None
    assert resumed.restore(on_gpu.states) is None
    with resumed.drawing():
        assert states[GPU].sum() == 0
