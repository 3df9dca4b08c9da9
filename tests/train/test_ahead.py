"""Steps whose successor's ids are under way: the bits of steps that begin with their own.

Two ranks run `ahead_world.py`, all cases in one world, and report what they found.
"""

import pytest

from mmoe.config import ParallelConfig

# A world that hangs is ended after so many seconds.
PATIENCE = 200


@pytest.fixture(scope="module", name="reports")
def _reports(run_ranks):
    """What each of two ranks found."""
    return run_ranks("train/ahead_world.py", 2, PATIENCE)


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


@pytest.mark.parametrize(("given", "word"), [(False, "off"), ("off", "off"), ("auto", "auto")])
def test_yaml_reads_a_bare_off_as_false(given, word):
    assert ParallelConfig.model_validate({"pipeline": given}).pipeline == word


def test_another_word_is_refused():
    with pytest.raises(ValueError, match="'auto' or 'off'"):
        ParallelConfig.model_validate({"pipeline": "on"})
