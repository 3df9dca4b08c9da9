"""Shadowed, gathered and sliced experts over ranks equal one process: a world of 4 ranks.

The ranks run `shadow_world.py`, all cases in one world, and report what they found.
"""

import math

import pytest
import torch

from mmoe.mixture import DispatchPlan, FixedGate, MLPExperts, MultiGateMixture, cut_into_slices
from mmoe.parallel import (
    AllToAllDispatcher,
    ExpertPlacement,
    Mode,
    ensure_process_group,
    expert_shards,
)
from tests.parallel.shadow_world import CASES, FALL_BACK, make_placement, make_pool


@pytest.fixture(scope="module")
def world(run_ranks):
    """What every rank found: `[rank][…]`."""
    return run_ranks("parallel.shadow_world", 4)


def tolerance(case):
    if "autocast" in case or "bf16" in case:
        return 3e-2
    return 1e-5 if "fp32" in case else 1e-12


@pytest.mark.parametrize("what", ["output", "inputs", "experts", "gates", "scores", "modes"])
def test_ranks_equal_one_process_in_every_mode(world, what):
    """Errors relative to the largest number, on the rank where they are largest."""
    worst = {case: max(rank["cases"][case][what] for rank in world) for case in CASES}
    assert {case: error for case, error in worst.items() if not error <= tolerance(case)} == {}


def test_a_step_repeats_to_the_bit_in_any_mode_and_parameters_stay_where_they_are(world):
    cases = [(case, found) for rank in world for case, found in rank["cases"].items()]
    assert [case for case, found in cases if not found["same_bits"] or found["moved"]] == []


def test_where_all_are_shadowed_no_row_and_no_size_travels(world):
    """A copy from each rank that holds any, and one exchange of gradients."""
    for case in ("all", "all, overlapped", "all, named", "modules", "slices, all"):
        holders = min(len(world), CASES[case].num_experts * CASES[case].slices)
        assert {rank["cases"][case]["collectives"] for rank in world} == {holders + 1}, case
    assert {rank["cases"]["one"]["collectives"] for rank in world} == {5 + 2}
    assert {rank["cases"]["slices"]["collectives"] for rank in world} == {5}


def test_weights_and_their_gradients_travel_under_the_way_of_rows(world):
    """Sent first and waited for last, forward and backward; sizes are waited for as well."""
    there_and_back = ["send rows", "wait rows"] * 2
    forward = ["send weights", "send rows", "wait rows", *there_and_back, "wait weights"]
    # The gradients of copies are rows of bytes
    backward = ["send rows", *there_and_back, "wait rows"]
    for found in world:
        assert found["order"] == forward + backward


def test_weights_go_out_once_and_gradients_come_back_once(world):
    """float64; each tensor of a message is filled up to 64 bytes."""
    case = CASES["all"]
    held = list(map(len, make_placement(case, len(world)).experts))
    tensors = [weight[0].numel() for weight in make_pool(case).parameters()]
    message = [sum(math.ceil(n * numbers * 8 / 64) * 64 for numbers in tensors) for n in held]
    for rank, found in enumerate(world):
        others = sum(message) - message[rank]
        expected = (len(world) - 1) * message[rank] + others
        assert found["cases"]["all"]["bytes"] == expected


def test_experts_that_cannot_be_joined_fall_back_and_say_so_once(world):
    for rank in world:
        said = {case: found["warnings"] for case, found in rank["cases"].items()}
        assert {case for case, found in said.items() if found} == set(FALL_BACK)
        for case in FALL_BACK:
            (text,) = said[case]
            assert text.startswith("shadowed: expected experts that differ in their weights alone")


def test_training_in_changing_modes_gets_where_one_mode_does(world):
    for rank in world:
        for name in ("mlp", "modules", "sliced"):
            assert max(rank["trained"][name]) <= 1e-9, name


def test_the_bias_that_counts_once_trains_as_one(world):
    """Adam, with decay: that of other slices stays exactly 0."""
    assert {rank["trained"].get("stray bias", 0.0) for rank in world} == {0.0}


def test_an_expert_that_there_is_not_is_refused():
    ensure_process_group()
    dispatcher = AllToAllDispatcher(ExpertPlacement.even(3, 1, slices=2), mode=Mode(shadowed=(3,)))
    pool = cut_into_slices(MLPExperts(3, 4, [2, 4], output_activation=None), 2)
    layer = MultiGateMixture(4, 1, pool, dispatcher=dispatcher)
    with pytest.raises(ValueError, match="shadowed: expected experts from 0 to 2, got 3"):
        layer(torch.zeros(2, 4))


def test_a_function_of_ones_own_computes_rows_that_travel():
    """What calls the dispatcher itself may hand it any function; it has no pool to look at."""
    ensure_process_group()
    dispatcher = AllToAllDispatcher(ExpertPlacement.even(2, 1), mode=Mode(shadowed="all"))
    plan = DispatchPlan(
        experts_BGK=torch.tensor([[[0, 1]]], dtype=torch.int32),
        weights_BGK=torch.ones(1, 1, 2),
        num_experts=2,
        expert_source=(0, 0),
        output_dim=3,
    )
    pool = MLPExperts(2, 3, [3])
    with pytest.warns(UserWarning, match="shadowed: expected .*; their rows travel instead"):
        out_BGO = dispatcher.run(
            [torch.ones(1, 3)], plan, lambda rows, _: torch.cat(pool.dense([rows]))
        )
    assert torch.allclose(out_BGO[0], sum(pool.dense([torch.ones(1, 3)])))


def test_trees_are_refused_in_every_mode():
    ensure_process_group()
    dispatcher = AllToAllDispatcher(ExpertPlacement.even(2, 1), mode=Mode(shadowed="all"))
    layer = MultiGateMixture(
        None, 1, MLPExperts(2, 4, [3]), gate=FixedGate(torch.ones(1, 2)), dispatcher=dispatcher
    )
    with pytest.raises(ValueError, match=r"x: expected \[rows, width\] tensors .* got a dict"):
        layer({"x": torch.zeros(2, 4)})


@pytest.mark.parametrize("activation", ["relu", "swiglu"])
def test_slices_are_saved_in_shards_of_whole_experts(activation):
    """Here as three ranks would hold them, one of them no slice 0."""
    ensure_process_group()
    whole = MLPExperts(3, 4, [6, 4], activation=activation, output_activation=None)
    pool = cut_into_slices(whole, 2)
    dispatcher = AllToAllDispatcher(ExpertPlacement.even(3, 1, slices=2))
    joined = {n: torch.full_like(t, math.nan) for n, t in whole.state_dict().items()}
    for held in ((0, 4), (5, 1), (2, 3)):
        layer = MultiGateMixture(4, 1, pool, dispatcher=dispatcher)
        layer.experts = pool.part(held)
        shards = expert_shards(layer, layer.state_dict())
        assert shards["gate.logits.weights.0"] is not None
        for name, tensor in joined.items():
            for shard in shards[f"experts.{name}"]:
                assert shard.shape == tensor.shape
                assert tensor[shard.region].isnan().all()  # nobody else has it
                tensor[shard.region] = shard.tensor
        moments = expert_shards(layer, {"experts.biases.1/step": torch.tensor(1.0)})
        assert torch.equal(moments["experts.biases.1/step"], torch.tensor(1.0))
    for name, tensor in whole.state_dict().items():
        assert torch.equal(joined[name], tensor), name
