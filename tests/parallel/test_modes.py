"""Two levels and chunks equal one process: a world of two hosts of two ranks, and what is refused.

The ranks run `modes_world.py`, all cases in one world, and report what they found.
"""

import copy

import pytest

from mmoe.parallel import (
    AllToAllDispatcher,
    ExpertPlacement,
    Hosts,
    Mode,
    Traffic,
    ensure_process_group,
)
from tests.parallel.test_all_to_all import tolerance

RANKS = 4


@pytest.fixture(scope="module", name="ranks")
def _ranks(run_ranks):
    """What every rank found."""
    return run_ranks("parallel.modes_world", RANKS)


@pytest.fixture(name="cases")
def _cases(ranks):
    """`[rank][case][key]`."""
    return [rank["cases"] for rank in ranks]


@pytest.mark.parametrize("what", ["output", "inputs", "experts", "gates"])
def test_every_mode_equals_one_process(cases, what):
    """Errors relative to the largest number, on the rank where they are largest."""
    worst = {case: max(rank[case][what] for rank in cases) for case in cases[0]}
    assert {case: error for case, error in worst.items() if not error <= tolerance(case)} == {}


def test_a_step_repeats_to_the_bit(cases):
    assert [case for rank in cases for case in rank if not rank[case]["same_bits"]] == []


def test_bytes_between_hosts_are_the_fewest_possible(cases):
    measured = {
        (rank, case): (found["bytes"], found["bound"])
        for rank, of_rank in enumerate(cases)
        for case, found in of_rank.items()
        if "bytes" in found
    }
    assert {key: pair for key, pair in measured.items() if pair[0] != pair[1]} == {}


@pytest.mark.parametrize(
    ("case", "collectives"),
    [
        ("dense, hierarchical", 19),  # five across, five inside, nine for what never leaves
        ("E < W, hierarchical", 19),
        ("top-1, 2 chunks", 9),  # sizes of all chunks together, then four for each
        ("first two, bf16 wire, hierarchical, 3 chunks", 37),
    ],
)
def test_one_exchange_of_sizes_serves_all_chunks(cases, case, collectives):
    assert cases[0][case]["collectives"] == collectives


def test_a_host_without_experts_exchanges_nothing_inside(cases):
    assert cases[2]["E < W, hierarchical"]["collectives"] == 5


def test_a_chunk_travels_while_another_is_computed(cases):
    """Backward is forward from its end: what was waited for is sent, and the other way round."""
    first = ["send", "send", "own", "wait", "theirs", "send"]
    then = ["wait", "theirs", "send", "wait", "own", "wait"]
    swapped = {"send": "wait", "wait": "send"}
    backward = [swapped.get(word, word) for word in reversed(first + then)]
    for rank in cases:
        assert rank["own rows in 2 chunks"]["order"] == ["send", "wait", *first, *then, *backward]


def test_rows_of_the_host_go_inside_while_others_cross(cases):
    """Half of them while rows cross, the other half while outputs do."""
    sizes, inside = ["send", "wait"], ["send", "wait", "theirs", "send", "wait"]
    forward = [*sizes, "send", *sizes, *inside, "wait", *sizes, *inside, "send", *inside, "wait"]
    for rank in cases:
        order = rank["rows of the host in hierarchical"]["order"]
        assert order[: len(forward)] == forward


def test_modes_may_change_from_call_to_call(ranks):
    assert max(rank["switching"] for rank in ranks) < 1e-12


def test_a_score_does_not_depend_on_the_batch(ranks):
    assert [all(rank["scores"]) for rank in ranks] == [True] * RANKS


def test_two_levels_send_less_between_hosts(ranks):
    """Dense gates ask both ranks of a host for each row, and mix there."""
    for rank in ranks:
        flat, hierarchical = rank["traffic"]["flat"], rank["traffic"]["hierarchical"]
        assert hierarchical["bytes_between_hosts"] < 0.7 * flat["bytes_between_hosts"]
        assert flat["bytes_between_hosts"] < flat["bytes_sent"]
        assert 0 <= flat["seconds_waited"] <= flat["seconds_under_way"]


def test_hosts_are_what_the_launcher_says_where_they_are_of_equal_size(ranks):
    for rank in ranks:
        launched = rank["launched"]
        assert launched["even"] == [2, []]
        assert launched["nothing"] == launched["one"] == [RANKS, []]
        for name in ("uneven", "does not divide"):
            size, (warning,) = launched[name]
            assert size == RANKS
            assert "LOCAL_WORLD_SIZE: hosts of different size" in warning


def test_hosts_of_different_size_are_refused():
    with pytest.raises(ValueError, match=r"host_size: .*one of \[1, 2, 4\] for 4 ranks, got 3; st"):
        Hosts(num_ranks=4, size=3)
    with pytest.raises(ValueError, match=r"host_size: .* got 0"):
        Hosts(num_ranks=4, size=0)


def test_levels_need_several_hosts_of_several_ranks():
    assert [size for size in (1, 2, 4) if Hosts(num_ranks=4, size=size).are_levels] == [2]


def test_hosts_and_placements_of_another_world_are_refused():
    ensure_process_group()
    dispatcher = AllToAllDispatcher(ExpertPlacement.even(3, 1), mode=Mode(hierarchical=True))
    with pytest.raises(ValueError, match=r"hosts: expected those of 1 rank.* got those of 4"):
        dispatcher.hosts = Hosts(num_ranks=4, size=2)
    with pytest.raises(ValueError, match=r"placement: expected one for 1 rank.* one for 2"):
        dispatcher.placement = ExpertPlacement.even(3, 2)
    assert dispatcher.hosts == Hosts(num_ranks=1, size=1)
    assert copy.deepcopy(dispatcher.hosts) is dispatcher.hosts


def test_nothing_sent_is_all_hidden():
    assert Traffic().share_hidden == 1
