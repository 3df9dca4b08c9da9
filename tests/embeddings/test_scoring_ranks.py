"""Tables to score with, shared out among ranks, give what one process looks up.

The ranks run `scoring_world.py`, all cases in one world, and report what they found.
"""

import pytest

RANKS = 3


@pytest.fixture(scope="module")
def world(run_ranks):
    """What every rank found of each case: `[rank][case][key]`."""
    return run_ranks("embeddings.scoring_world", RANKS)


def test_ranks_equal_one_process(world):
    """After even, uneven and empty batches."""
    wrong = {
        case: found["error"]
        for rank in world
        for case, found in rank.items()
        if found["error"] > 1e-5
    }
    assert wrong == {}


def test_sums_of_whole_tables_have_the_bits_of_one_process(world):
    cases = [case for case in world[0] if case.startswith("whole")]
    assert len(cases) == 2
    assert all(rank[case]["same_bits"] for rank in world for case in cases)


def test_lookups_repeat_to_the_bit(world):
    assert all(found["repeats"] for rank in world for found in rank.values())


def test_ranks_hold_every_row_once(world):
    cut = [rank["cut, int8"]["held"] for rank in world]
    assert [held["item"] for held in cut] == [[0, 666], [666, 1333], [1333, 2000]]
    whole = [rank["whole, int8"]["held"] for rank in world]
    for name in whole[0]:
        assert sorted(held[name] for held in whole) == [[0, 0], [0, 0], [0, 200]]
    # Four tables of one size
    assert sorted(sum(rows != [0, 0] for rows in held.values()) for held in whole) == [1, 1, 2]
