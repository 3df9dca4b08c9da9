"""Which rank holds which experts."""

import pytest

from mmoe.parallel import ExpertPlacement


@pytest.mark.parametrize(
    ("num_experts", "num_ranks", "held"),
    [(8, 4, [2, 2, 2, 2]), (7, 3, [3, 2, 2]), (3, 5, [1, 1, 1, 0, 0]), (1, 1, [1]), (5, 2, [3, 2])],
)
def test_even(num_experts, num_ranks, held):
    placement = ExpertPlacement.even(num_experts, num_ranks)
    assert list(map(len, placement.experts)) == held
    assert placement.order == tuple(range(num_experts))
    assert (placement.num_experts, placement.num_ranks) == (num_experts, num_ranks)


def test_who_holds_what():
    placement = ExpertPlacement(((4, 1), (), (0, 3, 2)))
    assert placement.ranks == (2, 0, 2, 2, 0)
    assert placement.places == (0, 1, 2, 1, 0)
    for expert in range(5):
        assert placement.on(placement.rank_of(expert))[placement.places[expert]] == expert


@pytest.mark.parametrize(
    ("experts", "message"),
    [
        ((), "experts: expected at least one expert"),
        (((), ()), "experts: expected at least one expert"),
        (
            ((0, 1), (1,)),
            r"experts: expected every expert once, got expert 1 on rank\(s\) \[0, 1\]",
        ),
        (((0, 0),), r"experts: expected every expert once, got expert 0 on rank\(s\) \[0\]"),
        (((0,), (2,)), r"experts: expected the numbers 0 to 1 for 2 experts, got \[0, 2\]"),
        (((0, -1),), r"experts: expected the numbers 0 to 1 for 2 experts, got \[-1, 0\]"),
    ],
)
def test_what_is_no_placement(experts, message):
    with pytest.raises(ValueError, match=message):
        ExpertPlacement(experts)


@pytest.mark.parametrize(("sizes", "name"), [((0, 2), "num_experts"), ((2, 0), "num_ranks")])
def test_no_experts_or_no_ranks(sizes, name):
    with pytest.raises(ValueError, match=f"{name}: expected 1 or more, got 0"):
        ExpertPlacement.even(*sizes)


def test_slices_are_placed_as_experts_are():
    placement = ExpertPlacement.even(2, 4, slices=2)
    assert placement.experts == ((0,), (1,), (2,), (3,)) and placement.slices == 2
    assert placement.num_experts == 4
    with pytest.raises(ValueError, match="slices: expected a number that divides the 3 that ranks"):
        ExpertPlacement(((0, 1), (2,)), slices=2)
    with pytest.raises(ValueError, match="slices: expected 1 or more, got 0"):
        ExpertPlacement.even(2, 4, slices=0)
