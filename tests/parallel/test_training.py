"""Training over ranks equals one process: a world of 4 gloo ranks.

The ranks run `dense_world.py`, all cases in one world, and report what they found.
"""

import pytest


@pytest.fixture(scope="module")
def world(run_ranks):
    """What every rank found: `[rank]["cases"][case][key]`."""
    return run_ranks("parallel.dense_world", 4)


@pytest.fixture
def cases(world):
    """`[rank][case][key]`."""
    return [rank["cases"] for rank in world]


def tolerance(case, what):
    if "bf16" in case:
        return 3e-2
    squares = 2 if what == "moments" else 1  # of gradients have twice their error
    return squares * (1e-6 if "fp32" in case else 1e-12)


@pytest.mark.parametrize("what", ["losses", "outputs", "inputs", "weights", "average", "moments"])
def test_ranks_equal_one_process(cases, what):
    """After two steps; errors relative to the length, on the rank where they are most."""
    # What bf16 rounds differently moves a pick now and then, and the gradients with it
    compared = [case for case in cases[0] if "bf16" not in case or what in ("losses", "outputs")]
    worst = {case: max(rank[case][what] for rank in cases) for case in compared}
    wrong = {case: error for case, error in worst.items() if not error <= tolerance(case, what)}
    assert wrong == {}


@pytest.mark.parametrize("what", ["repeats", "alike", "held"])
def test_it_repeats_ranks_have_the_same_bits_and_the_whole_network(cases, what):
    """What every rank has is alike; the pieces of all ranks are the whole."""
    assert [case for rank in cases for case in rank if not rank[case][what]] == []


def test_experts_are_spread_where_it_was_asked(cases):
    """Rank 0 holds an expert of every pool; `auto` spreads those of gates that pick."""
    for case, found in cases[0].items():
        if "replicated" in case:
            assert not found["spread"], case
        elif "spread" in case or case == "auto":
            assert found["spread"], case


def test_a_loss_that_is_no_number_ends_the_step_on_every_rank(world):
    assert all(rank["diverged"] == world[0]["diverged"] for rank in world)
    label, embedding, weight = world[0]["diverged"]
    assert label.startswith(
        "training step 1: the loss of task click is nan; likeliest cause: a label of task click is "
        "nan in this step"
    )
    for said, whose in ((embedding, "the embedding tables"), (weight, "levels.0.mixture.gate")):
        assert said.startswith(
            "training step 1: the loss cannot be computed: an embedding, a number or a weight is "
            "NaN or infinite; likeliest cause: weights were NaN or infinite before this step, the "
            f"first of this process ({whose}"
        )
