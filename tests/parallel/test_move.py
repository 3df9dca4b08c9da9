"""Experts that change ranks between steps change no number; a world of 4 gloo ranks."""

import random

import pytest

from mmoe.parallel import ExpertPlacement, better_placement


@pytest.fixture(scope="module")
def world(run_ranks):
    return run_ranks("parallel.move_world", 4)


@pytest.mark.parametrize("what", ["losses", "weights", "average", "moments"])
def test_moving_experts_changes_no_number(world, what):
    """Against one process, on which nothing moves."""
    for case in world[0]["cases"]:
        worst = max(rank["cases"][case][what] for rank in world)
        assert worst <= (2e-6 if "fp32" in case else 2e-12), case


def test_it_repeats_to_the_bit_and_nothing_is_lost(world):
    for rank in world:
        for case, found in rank["cases"].items():
            assert found["moved"] >= 2, case
            assert found["repeats"] and found["held"] and found["has_moments"], case


def test_skewed_loads_are_balanced_and_training_goes_on(world):
    """Also from a checkpoint that was written in the middle of an epoch, to the bit."""
    for rank in world:
        found = rank["rebalanced"]
        assert found["gains"] and max(found["gains"]) > 1.05
        assert found["gains"] == world[0]["rebalanced"]["gains"]
        assert found["counted"] > 0
        assert found["weights"] <= 1e-12
        assert found["placed"] and found["goes_on"]


def test_what_is_refused_is_said_on_all_ranks(world):
    first = world[0]["said"]
    for number, found in enumerate(rank["said"] for rank in world):
        assert found["unchanged"]
        assert found["names"].startswith(f"{number}.linear.")
        assert [found[what] for what in ("width", "fails", "pickle")] == [
            first[what] for what in ("width", "fails", "pickle")
        ]
    assert "got 3 numbers on rank 0 and 2 on rank 1" in first["width"]
    assert "on rank 1 RuntimeError: mat1 and mat2" in first["fails"]
    assert "CannotMove: experts of rank 0 cannot be sent to another" in first["pickle"]


def test_pools_of_ranks_that_are_no_parts_of_one_are_refused(world):
    for number, found in enumerate(rank["said"] for rank in world):
        unlike = (number - (number + 1) % len(world)) % 2  # what came is of the next rank
        expected = "expected those of other ranks to be of one kind with this one's"
        assert (expected if unlike else "nothing") in found["unlike"], number


def test_weights_travel_to_a_rank_that_experts_have_left(world):
    for number, rank in enumerate(world):
        for pool, found in rank["shadowed"].items():
            assert found["warnings"] == [], pool
            assert found["mode"] == "weights travel", pool
            assert found["error"] <= 1e-12, pool
            assert (found["held"] == 0) == (number == 0), pool


def test_slices_change_ranks_as_experts_do(world):
    for rank in world:
        found = rank["slices"]
        assert len(found["counted"]) == 8 and max(found["counted"]) > 0
        assert found["moved"] == world[0]["slices"]["moved"] and found["moved"][0] > 0
        assert found["error"] <= 1e-12


def test_few_moves_are_made_where_they_are_enough():
    better = better_placement(ExpertPlacement.even(8, 2), [8, 8, 8, 8, 2, 2, 2, 2])
    assert better is not None
    assert len(better.moved) == 4 and better.after == 1.0
    assert better.before == pytest.approx(1.6)


def test_nothing_is_moved_for_little():
    even = ExpertPlacement.even(6, 3)
    assert better_placement(even, [1, 1, 1, 1, 1, 1.1]) is None
    assert better_placement(even, [0] * 6) is None
    assert better_placement(even, [9, 0, 0, 0, 0, 0]) is None, "one expert is all of it"
    assert better_placement(ExpertPlacement.even(2, 3), [5, 1]) is None


def test_no_rank_needs_much_more_memory_than_the_fullest_one_today():
    even = ExpertPlacement.even(4, 2)
    assert better_placement(even, [5, 5, 1, 1], [1, 1, 2, 1]) is not None
    assert better_placement(even, [5, 5, 1, 1], [2, 1, 2, 1]) is not None
    assert better_placement(even, [5, 5, 1, 1], [2, 2, 1, 3]) is None
    with pytest.raises(ValueError, match="loads_E: expected one for each of 4 experts, got 2"):
        better_placement(even, [1, 2])


@pytest.mark.parametrize("seed", range(8))
def test_no_rank_gets_more_experts_and_the_busiest_less(seed):
    chance = random.Random(seed)
    E, W = chance.randint(4, 40), chance.randint(2, 6)
    even = ExpertPlacement.even(E, W)
    loads = [chance.expovariate(1) for _ in range(E)]
    better = better_placement(even, loads, least_gain=1.0)
    assert better is not None
    assert list(map(len, better.placement.experts)) == list(map(len, even.experts))
    least = max(max(loads), sum(loads) / W)
    busiest = max(sum(loads[e] for e in own) for own in better.placement.experts)
    assert busiest == pytest.approx(better.after * sum(loads) / W)
    if E > 3 * W:
        assert busiest < 1.2 * least
