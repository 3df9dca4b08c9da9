"""Steps whose successor's ids are under way: the bits of steps that begin with their own.

Two ranks run `ahead_world.py`, all cases in one world, and report what they found.
"""

import pytest
import torch

from mmoe.config import ParallelConfig
from mmoe.datasets.rows.batch import Batch
from mmoe.train.step import Step


@pytest.fixture(scope="module", name="reports")
def _reports(run_ranks):
    """What each of two ranks found."""
    return run_ranks("train.ahead_world", 2)


@pytest.mark.torchrec
def test_steps_are_the_same_to_the_bit_and_ids_leave_a_step_ahead(reports):
    """Even, uneven and empty batches, two to a step; `rows`: tables are looked up again after.

    Numbers of ids leave before the step before goes forward, they themselves before it goes back.
    """
    rest = ["done", "backward", "done", "update", "done"]
    step = ["ids", "forward", "done", "ids", "backward", "done", "update", "done"]
    first = ["ids", "ids"]  # of the first step itself
    told = ["a training step raised StopIteration", "StopIteration"]
    for report in reports:
        for case, found in report["cases"].items():
            assert found["losses"] and found["bits"] and found["rows"], case
        assert report["cases"]["whole tables"]["told"] == [*first, *step * 5, "forward", *rest]
        assert report["stopped"] == told, "an error of a step is no end of the epoch"
        assert report["not_managed"], "managed ids do not leave ahead"


@pytest.mark.torchrec
def test_all_ranks_end_where_one_diverges(reports):
    """With ids under way, of which nothing is left."""
    for rank, report in enumerate(reports):
        found = report["diverged"]
        assert found["error"].startswith("training step 3: the loss cannot be computed")
        assert found["as_before"]
        assert found["rows"] == (3, 4)[rank]


@pytest.mark.torchrec
def test_whole_runs_end_with_the_same_bits(reports):
    """Also one that was stopped with a step's ids under way: that step is trained after it."""
    for report in reports:
        runs = report["runs"]
        assert (runs["step"], runs["batch"]) == (3, 6)  # of what was trained, not of what was read
        assert runs["off"]
        assert runs["resumed"]
        assert runs["history"]


def _batch(rows):
    return Batch(
        dense_BF=torch.zeros(rows, 2),
        values=torch.arange(2 * rows),
        lengths_CB=torch.ones(2 * rows, dtype=torch.int32),
        labels_BT=torch.zeros(rows, 1),
        observed_BT=torch.ones(rows, 1, dtype=torch.bool),
        weights_BT=torch.ones(rows, 1),
        num_rows=rows,
        id_weights=torch.ones(2 * rows),
    )


@pytest.mark.torchrec
def test_what_a_step_reads_is_kept_for_the_streams_that_read_it(monkeypatch):
    """On a GPU ids leave on a stream of their own."""
    from torchrec import KeyedJaggedTensor

    from mmoe.embeddings.sharded.ids_ahead import _Sent

    kept = []
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, _: kept.append(self))
    batches = [_batch(3), _batch(2)]
    step = Step.of(batches)
    values, lengths, weights = step.ids
    ids = KeyedJaggedTensor(["a", "b"], values, weights, lengths)
    sent = _Sent(step, ids)
    assert sent.to(torch.device("cpu"), non_blocking=True) is sent
    sent.record_stream(None)
    addresses = {tensor.data_ptr() for tensor in kept}
    read = [tensor for batch in batches for tensor in (batch.dense_BF, batch.labels_BT)]
    assert {tensor.data_ptr() for tensor in (*read, values, lengths, weights)} <= addresses


def test_yaml_reads_a_bare_off_as_false_and_another_word_is_refused():
    assert ParallelConfig.model_validate({"pipeline": False}).pipeline == "off"
    with pytest.raises(ValueError, match="'auto' or 'off'"):
        ParallelConfig.model_validate({"pipeline": "on"})
