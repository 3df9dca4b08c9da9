"""Experts over ranks equal one process: worlds of 2 and 4 gloo ranks, and what is refused.

The ranks run `world.py`, all cases in one world, and report what they found.
"""

import copy

import pytest
import torch
from torch import nn

from mmoe.mixture import ExpertPool, GateOutput, MLPExperts, MultiGateMixture
from mmoe.mixture.checks import find_width
from mmoe.parallel import AllToAllDispatcher, ExpertPlacement, ensure_process_group


@pytest.fixture(scope="module", params=[2, 4], ids=lambda ranks: f"{ranks} ranks")
def world(request, run_ranks):
    """What every rank found: `[rank][case][key]`."""
    return run_ranks("parallel.world", request.param)


def tolerance(case):
    if "autocast" in case or "wire" in case:
        return 2e-2
    return 1e-6 if "fp32" in case else 1e-12


@pytest.mark.parametrize("what", ["output", "inputs", "experts", "gates"])
def test_ranks_equal_one_process(world, what):
    """Errors relative to the largest number, on the rank where they are largest."""
    worst = {case: max(rank[case][what] for rank in world) for case in world[0]}
    assert {case: error for case, error in worst.items() if not error <= tolerance(case)} == {}


def test_the_experts_of_a_rank_see_the_rows_of_one_process_in_its_order(world):
    """So their gradients, sums over all ranks' rows, have the bits of one process."""
    for case in ("top-2", "dense", "uneven rows", "mixed experts"):
        assert [rank[case]["experts"] for rank in world] == [0.0] * len(world)


def test_a_step_repeats_to_the_bit(world):
    assert [case for rank in world for case in rank if not rank[case]["same_bits"]] == []


def test_scores_do_not_depend_on_the_way_back(world):
    assert [case for rank in world for case in rank if not rank[case]["scores"]] == []


def test_every_rank_takes_part_equally_often(world):
    """Sizes, rows, outputs; in the backward pass outputs and rows. Never once per gate."""
    assert {rank[case]["collectives"] for rank in world for case in rank} == {5}


def test_own_rows_are_computed_while_others_travel(world):
    """Forward and backward: whatever is waited for was sent before some experts ran."""
    sizes = ["send", "wait"]
    forward = ["send", "own", "wait", "theirs", "send", "own", "wait"]
    backward = ["send", "own", "wait", "theirs", "send", "own", "wait"]
    for rank in world:
        assert rank["dense of 14, overlapped"]["order"] == sizes + forward + backward


def test_bytes_sent_are_the_fewest_possible(world):
    measured = {
        (rank, case): (found["bytes"], found["bound"])
        for rank, cases in enumerate(world)
        for case, found in cases.items()
        if "bytes" in found
    }
    assert {key: pair for key, pair in measured.items() if pair[0] != pair[1]} == {}


def test_each_link_goes_the_shorter_way(world):
    """Ranks with four of 14 experts send sums to three gates, those with three send pairs."""
    auto, pairs, sums = (
        sum(rank[f"dense of 14{way}"]["bytes"] for rank in world)
        for way in ("", ", pairs", ", sums")
    )
    if len(world) == 4:
        assert auto < min(pairs, sums)
    else:
        assert auto == sums < pairs


@pytest.fixture(scope="module")
def dispatcher():
    ensure_process_group()
    return AllToAllDispatcher(ExpertPlacement.even(num_experts=3, num_ranks=1))


def test_other_settings_are_refused(dispatcher):
    placement = dispatcher.placement
    with pytest.raises(ValueError, match=r"placement: expected one for 1 rank.* one for 2"):
        AllToAllDispatcher(ExpertPlacement.even(3, 2))
    with pytest.raises(ValueError, match=r"wire_dtype: expected a floating.* got torch\.int8"):
        AllToAllDispatcher(placement, wire_dtype=torch.int8)
    with pytest.raises(ValueError, match="way_back: expected one of auto, pairs, sums, got 'all'"):
        AllToAllDispatcher(placement, way_back="all")  # type: ignore[arg-type]


def test_pools_and_gates_of_other_sizes_are_refused(dispatcher):
    with pytest.raises(ValueError, match=r"experts: expected the 3 experts .* got 2; take"):
        MultiGateMixture(4, 1, MLPExperts(2, 4, [3]), dispatcher=dispatcher)
    with pytest.raises(ValueError, match=r"visibility: expected 3 columns.* got 2"):
        MultiGateMixture(
            4, 1, MLPExperts(3, 4, [3]), visibility=[[True] * 2], dispatcher=dispatcher
        )


class Unknown(nn.Module):
    """An expert that does not say how wide its output is."""

    def forward(self, x):
        return x[:, :3]


class Wrong(Unknown):
    output_dim = 2


class Narrow(nn.Module):
    def forward(self, x):
        return x[:, :2]


class Fails(nn.Module):
    def forward(self, x):
        raise KeyError("no such")


@pytest.mark.parametrize(
    ("pool", "message"),
    [
        (ExpertPool([Wrong() for _ in range(3)]), r"on rank 0 .*expected shape \[\d, 2\] from exp"),
        (ExpertPool([Unknown(), Unknown(), Narrow()]), r"got \[1, 2\] from expert 2|\[1, 2\]"),
        (ExpertPool([Fails(), Unknown(), Narrow()]), "on rank 0 KeyError: 'no such"),
    ],
)
def test_experts_whose_outputs_differ_are_refused(dispatcher, pool, message):
    layer = MultiGateMixture(4, 1, pool, dispatcher=dispatcher)
    with pytest.raises(ValueError, match=message):
        layer(torch.zeros(2, 4))


def test_the_width_of_the_output_is_found_by_one_row(dispatcher):
    """Modes, statistics and random numbers stay as they were."""
    norm, dropout = nn.BatchNorm1d(4), nn.Dropout(0.5)
    expert = nn.Sequential(norm, dropout, Unknown())
    norm.eval()
    layer = MultiGateMixture(4, 1, [expert, Unknown(), Unknown()], dispatcher=dispatcher)
    assert layer.output_dim is None
    state = torch.get_rng_state()
    assert find_width(layer.experts, torch.ones(2, 4)) == 3
    assert torch.equal(torch.get_rng_state(), state)
    assert [norm.training, dropout.training, layer.training] == [False, True, True]
    assert int(norm.num_batches_tracked) == 0
    assert layer(torch.zeros(2, 4)).out_BGO.shape == (2, 1, 3)
    assert layer.output_dim == layer.experts.output_dim == 3


def test_trees_do_not_travel(dispatcher):
    class Gate(nn.Module):
        def forward(self, inputs, visibility_GE):
            return GateOutput(torch.ones(2, 1, 3))

    pool = ExpertPool([Unknown() for _ in range(3)], output_dim=3)
    layer = MultiGateMixture(None, 1, pool, gate=Gate(), dispatcher=dispatcher)
    with pytest.raises(ValueError, match=r"x: expected \[rows, width\] tensors .* got a dict"):
        layer({"x": torch.zeros(2, 4)})


def test_copies_of_a_layer_share_the_dispatcher(dispatcher):
    layer = MultiGateMixture(4, 2, MLPExperts(3, 4, [3]), dispatcher=dispatcher)
    copied = copy.deepcopy(layer)
    assert copied.dispatcher is dispatcher
    x = torch.randn(5, 4)
    assert torch.equal(copied(x).out_BGO, layer(x).out_BGO)
