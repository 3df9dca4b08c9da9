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
@pytest.mark.parametrize("what", ["losses", "bits", "rows"])
def test_steps_are_the_same_to_the_bit(reports, what):
    """Even, uneven and empty batches, two to a step; `rows`: tables are looked up again after."""
    wrong = {case for report in reports for case, found in report["cases"].items()}
    wrong = {case for case in wrong if not all(r["cases"][case][what] for r in reports)}
    assert wrong == set()


@pytest.mark.torchrec
def test_ids_leave_a_step_ahead(reports):
    """Their numbers before the step before goes forward, they themselves before it goes back."""
    rest = ["done", "backward", "done", "update", "done"]
    step = ["ids", "forward", "done", "ids", "backward", "done", "update", "done"]
    first = ["ids", "ids"]  # of the first step itself
    for report in reports:
        assert report["cases"]["whole tables"]["told"] == [*first, *step * 5, "forward", *rest]


@pytest.mark.torchrec
def test_all_ranks_end_where_one_diverges(reports):
    """With ids under way, of which nothing is left."""
    for rank, report in enumerate(reports):
        found = report["diverged"]
        assert found["error"].startswith("training step 3: the loss cannot be computed")
        assert found["as_before"]
        assert found["rows"] == (3, 4)[rank]


@pytest.mark.torchrec
def test_an_error_of_a_step_is_no_end_of_the_epoch(reports):
    told = ["a training step raised StopIteration", "StopIteration"]
    assert [report["stopped"] for report in reports] == [told, told]


@pytest.mark.torchrec
def test_managed_ids_do_not_leave_ahead(reports):
    assert all(report["not_managed"] for report in reports)


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


@pytest.mark.parametrize(("given", "word"), [(False, "off"), ("off", "off"), ("auto", "auto")])
def test_yaml_reads_a_bare_off_as_false(given, word):
    assert ParallelConfig.model_validate({"pipeline": given}).pipeline == word


def test_another_word_is_refused():
    with pytest.raises(ValueError, match="'auto' or 'off'"):
        ParallelConfig.model_validate({"pipeline": "on"})
