"""A dispatcher that chooses its mode: equal to one that does not, and alike on every rank.

The ranks run `adaptive_world.py`, and report what they found.
"""

import re

import pytest

from mmoe.parallel import (
    AdaptiveMode,
    AllToAllDispatcher,
    ExpertPlacement,
    Hosts,
    Mode,
    ensure_process_group,
    measure_links,
)

RANKS = 4
# A world that hangs is ended after so many seconds.
PATIENCE = 200
CASES = ("every mode", "a rank without rows", "by itself", "no room for copies", "E < W")


@pytest.fixture(scope="module", name="ranks")
def _ranks(run_ranks):
    """What every rank found."""
    return run_ranks("parallel.adaptive_world", RANKS)


@pytest.mark.parametrize("case", CASES)
def test_switching_changes_no_number_but_by_rounding(ranks, case):
    assert max(rank[case]["error"] for rank in ranks) < 1e-12


@pytest.mark.parametrize("case", CASES)
def test_all_ranks_choose_alike(ranks, case):
    for what in ("modes", "history"):
        assert all(rank[case][what] == ranks[0][case][what] for rank in ranks)
    assert ranks[0][case]["history"]
    assert ranks[0][case]["stays"]


def test_every_candidate_is_timed_and_one_is_kept(ranks):
    modes, history = ranks[0]["every mode"]["modes"], ranks[0]["every mode"]["history"]
    for part in ("hierarchical=True", "chunks=4", "shadowed='all'"):
        assert any(part in mode for mode in modes), part
    assert any(re.search(r"shadowed=\(\d", mode) for mode in modes)
    step, mode, why = history[0]
    assert modes[step:40] == [mode] * (40 - step)
    assert "ms" in why


def test_weights_that_have_no_room_are_not_copied(ranks):
    modes = ranks[0]["no room for copies"]["modes"]
    assert all("shadowed=()" in mode for mode in modes)
    assert any("hierarchical=True" in mode for mode in modes)


def test_scores_do_not_depend_on_what_was_chosen(ranks):
    assert all(rank[case]["same_scores"] for rank in ranks for case in CASES)


def test_rates_are_the_same_on_every_rank(ranks):
    assert all(rank["rates"] == ranks[0]["rates"] for rank in ranks)
    assert all(value > 0 for value in ranks[0]["rates"].values())


def test_the_mode_may_be_chosen_or_set(ranks):
    assert all(rank["auto"] and rank["fixed"] for rank in ranks)


def test_one_rank_has_nothing_to_choose():
    ensure_process_group()
    dispatcher = AllToAllDispatcher(ExpertPlacement.even(2, 1), mode="auto")
    assert dispatcher.mode == Mode()
    assert measure_links(Hosts.of_group()).bytes_per_second_between > 0


def test_what_is_refused():
    with pytest.raises(ValueError, match="every: expected 1 or more, got 0"):
        AdaptiveMode(every=0)
    ensure_process_group()
    with pytest.raises(ValueError, match="mode: expected a Mode, an AdaptiveMode or 'auto', got"):
        AllToAllDispatcher(ExpertPlacement.even(2, 1), mode="fast")
