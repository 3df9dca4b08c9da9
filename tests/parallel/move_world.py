"""One rank of a gloo world whose experts change ranks in the middle of training; run by the tests.

What it finds is its report. Training is that of `dense_world.py`.
"""

import random
import warnings
from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.distributed as dist

from mmoe.checkpoint.folder import CheckpointFolder
from mmoe.checkpoint.resume_state import flatten_optimizer
from mmoe.checkpoint.saver import CheckpointSaver
from mmoe.mixture import ExpertPool, MLPExperts, MultiGateMixture, SoftmaxGate, TopKGate
from mmoe.parallel import (
    AllToAllDispatcher,
    CannotMove,
    ExpertPlacement,
    Mode,
    count_loads,
    move_experts,
    rebalance_experts,
    spread_layout,
)
from mmoe.parallel.experts.shards import mixtures_of
from mmoe.train.step import ONE_PROCESS, StepRanks
from tests.parallel import shadow_world
from tests.parallel.dense_world import (
    ODD,
    ODD_AND_OTHERS,
    STEPS,
    TOP_1,
    TOP_2,
    Case,
    cut,
    held,
    make_batches,
    make_config,
    make_state,
    worst,
)
from tests.ranks import PATIENCE, one_group, shared_out
from tests.runs import train_step

CASES = {
    "equal MLPs": Case(TOP_2, "spread", {"num_experts": 8}),
    "equal MLPs, fp32": Case(TOP_2, "spread", {"num_experts": 8}, dtype="float32"),
    "uneven": Case(TOP_1, "spread", {"num_experts": 7}),
    "E < W": Case({}, "spread", {"num_experts": 3}),
    "PLE": Case(TOP_2, "spread", {"kind": "ple", "task_experts": 2, "shared_experts": 3}),
    "batch norm": Case(TOP_2, "spread", {"expert": {"norm": "batch", "hidden": [8, 6]}}),
    "somebody's, stacked": Case(TOP_2, "spread", {"expert": {"kind": "cross"}}),
    "modules that differ": Case(TOP_2, "spread", {**ODD, "num_experts": 6}),
    "several kinds": Case(TOP_2, "spread", ODD_AND_OTHERS),
    "two groups": Case(TOP_2, "spread", {"num_experts": 8}, parallel={"replicas": 2}),
    "two groups of modules": Case(
        TOP_2, "spread", {**ODD, "num_experts": 6}, parallel={"replicas": 2}
    ),
    "decay of matrices": Case(
        TOP_2,
        "spread",
        ODD,
        {"optimizer": {"kind": "adamw", "weight_decay": 0.1, "weight_decay_on": "matrices"}},
    ),
}


class Mover:
    """Deals experts out anew; each rank gets as many as it had, or any number, none included."""

    def __init__(self, seed, *, evenly):
        self.chance, self.moved, self.evenly = random.Random(seed), 0, evenly

    def __call__(self, state):
        networks = [state.ranker.network, state.average.module]
        for _, _, dispatcher in mixtures_of(networks[0]):
            old = dispatcher.placement
            ranks = list(old.ranks)
            while ranks == list(old.ranks) and (len(set(ranks)) > 1 or not self.evenly):
                if self.evenly:
                    self.chance.shuffle(ranks)
                else:
                    ranks = [self.chance.randrange(old.num_ranks) for _ in ranks]
            new = ExpertPlacement(
                tuple(
                    tuple(e for e, rank in enumerate(ranks) if rank == r)
                    for r in range(old.num_ranks)
                )
            )
            self.moved += new != old
            move_experts(networks, dispatcher, new, state.optimizer)
        state._placed_anew()


def train(case, config, rank, between=None, steps=range(STEPS), state=None):
    """Some steps, with something between them."""
    rows = sum(map(sum, case.rows))
    state = state or make_state(case, config, rows, over_ranks=rank is not None)
    ranks = ONE_PROCESS if rank is None else StepRanks.of(state.ranker.network, PATIENCE)
    losses = []
    for step in steps:
        losses.append(train_step(state, make_batches(case, step, rank), config, 100, ranks))
        if between is not None:
            between(state)
            ranks.find_gradients()
    return state, losses


def alone(case):
    state, losses = train(case, make_config(case), None)
    network, average = state.ranker.network, state.average.module
    moments = flatten_optimizer(state.optimizer, network)
    return losses, network.state_dict(), average.state_dict(), moments


def run(case, rank, world_size, single, *, evenly):
    config = make_config(case)
    expected, weights, average, expected_moments = single
    mover = Mover(0, evenly=evenly)
    state, losses = train(case, config, rank, mover)
    weights_held = list(state.ranker.network.parameters())
    again, losses_again = state, losses
    if not evenly:  # as many experts on each rank is one of any numbers
        again, losses_again = train(case, config, rank, Mover(0, evenly=evenly))
    network = state.ranker.network
    tensors, moments = network.state_dict(), flatten_optimizer(state.optimizer, network)
    sizes = [sorted(len(g["params"]) for g in s.optimizer.param_groups) for s in (state, again)]
    return {
        "moved": mover.moved,
        "weights": worst(network, tensors, weights),
        "average": worst(network, state.average.module.state_dict(), average),
        "moments": worst(network, moments, expected_moments),
        "has_moments": len(moments) == 3 * len(weights_held),
        "losses": max(
            abs(a - b)
            for one, two in zip(losses, expected, strict=True)
            for a, b in zip(one.losses, two.losses, strict=True)
        ),
        "repeats": losses == losses_again
        and sizes[0] == sizes[1]
        and all(map(torch.equal, tensors.values(), again.ranker.network.state_dict().values())),
        "held": held(network, world_size),
    }


def rebalances(rank, world_size, folder):
    """Loads are skewed; after a step experts move, a checkpoint is written and goes on."""
    case = replace(CASES["several kinds"], rows=((40,) * world_size,))
    config = make_config(case)

    def skewed(over_ranks):
        state = make_state(case, config, sum(map(sum, case.rows)), over_ranks)
        for network in (state.ranker.network, state.average.module):
            for level in network.levels:
                # The first experts, which lie together, are the favourites
                for weight in level.mixture.gate.logits.parameters():
                    weight.data[:, :2] *= 30
        return state

    found = {"gains": []}

    def between(state):
        before = [d.loads.counts_E.clone() for _, _, d in mixtures_of(state.ranker.network)]
        dist.all_reduce(before[0])
        better = state.rebalance()
        found["gains"] += [balance.gain for balance in better.values()]
        found["counted"] = int(before[0].sum())

    state = skewed(over_ranks=True)
    count_loads(state.ranker.network)
    state.layout = spread_layout(state.ranker.network)
    train(case, config, rank, between, range(2), state)
    single = skewed(over_ranks=False)
    train(case, config, None, None, range(2), single)
    network = state.ranker.network
    found["weights"] = worst(network, network.state_dict(), single.ranker.network.state_dict())
    # Some of an epoch more, then a checkpoint; a new process places experts as they were
    train(case, config, rank, None, range(2, 3), state)
    save(state, folder)
    train(case, config, rank, between, range(3, 5), state)
    restored = skewed(over_ranks=True)
    count_loads(restored.ranker.network)
    restored.layout = spread_layout(restored.ranker.network)
    restore(restored, folder)
    train(case, config, rank, between, range(3, 5), restored)
    ours, theirs = state.ranker.network.state_dict(), restored.ranker.network.state_dict()
    found["goes_on"] = ours.keys() == theirs.keys() and all(
        torch.equal(ours[name], theirs[name]) for name in ours
    )
    found["placed"] = [str(d.placement) for _, _, d in mixtures_of(state.ranker.network)] == [
        str(d.placement) for _, _, d in mixtures_of(restored.ranker.network)
    ]
    return found


def save(state, folder):
    fake_tables(state)
    with CheckpointSaver(CheckpointFolder(folder)) as saver:
        state.save(saver, best=True)


def restore(state, folder):
    fake_tables(state)
    state.restore(CheckpointFolder(folder))


def fake_tables(state):
    """The rows of `dense_world.py` are all on every rank."""
    tables = state.ranker.tables
    tables.table_shards = lambda: {"rows": tables.rows_ND.data}
    tables.optimizer_shards = dict


def shadowed(rank, world_size):
    """All experts leave rank 0, and their weights then travel to all ranks, it included."""
    found = {}
    for pool in ("mlp", "stacked", "modules", "sliced"):
        layer, case = layer_of(pool, rank, world_size)
        x, factors = shadow_world.make_batch(case, 8 + rank)
        expected = shadow_world.step(case, layer, x, factors)[:2]
        there = shadow_world.make_placement(replace(case, mixed=True), world_size)
        move_experts([layer], layer.dispatcher, there)
        layer.dispatcher.mode = Mode(shadowed="all")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            out = shadow_world.step(case, layer, x, factors)[:2]
        found[pool] = {
            "error": shadow_world.error(out, expected),
            "warnings": [str(warning.message) for warning in caught],
            "mode": str(layer.dispatcher.mode_used),
            "held": len(layer.experts),
        }
    return found


def slices_move(rank, world_size):
    """Slices of few experts, of which the first is the favourite, change ranks by their rows."""
    layer, case = layer_of("sliced", rank, world_size)
    x, factors = shadow_world.make_batch(case, 8)
    count_loads(layer)
    expected = shadow_world.step(case, layer, x, factors)[:2]
    counted = layer.dispatcher.loads.counts_E.clone()
    # As if the slices of rank 0 had computed the most
    layer.dispatcher.loads.counts_E[list(layer.dispatcher.placement.on(0))] *= 30
    balances = rebalance_experts(layer)
    return {
        "counted": counted.tolist(),
        "moved": [len(balance.moved) for balance in balances.values()],
        "error": shadow_world.error(shadow_world.step(case, layer, x, factors)[:2], expected),
    }


def layer_of(pool, rank, world_size):
    """A layer whose experts lie on ranks evenly."""
    cut = {"num_experts": 2, "slices": 4} if pool == "sliced" else {}
    case = shadow_world.Case(pool, **cut)
    placement = shadow_world.make_placement(case, world_size)
    part = shadow_world.make_part(case, placement.on(rank))
    return shadow_world.make_layer(case, part, AllToAllDispatcher(placement)), case


class Local(torch.nn.Module):
    """Its class is no name of a module's."""

    def __init__(self):
        super().__init__()
        self.linear, self.f = torch.nn.Linear(4, 3), lambda x: x

    def forward(self, x):
        return self.f(self.linear(x))


def error_of(action):
    try:
        action()
    except ValueError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def of_own_parts(make: Sequence, rank, world_size):
    """A mixture whose ranks made their own experts alone, one each."""
    placement = ExpertPlacement(tuple((r,) for r in range(world_size)))
    pool = ExpertPool([make[rank % len(make)]()], numbers=placement.on(rank))
    torch.manual_seed(0)
    gate = TopKGate(4, 1, world_size, k=1) if world_size > 1 else SoftmaxGate(4, 1, 1)
    return MultiGateMixture(4, 1, pool, gate=gate, dispatcher=AllToAllDispatcher(placement))


def of_unlike_pools(rank, world_size):
    """A mixture of modules on even ranks, and of tensors on the others."""
    placement = ExpertPlacement(tuple((r,) for r in range(world_size)))
    modules = ExpertPool([torch.nn.Linear(4, 3)], numbers=placement.on(rank))
    pool = MLPExperts(1, 4, [3]) if rank % 2 else modules
    return MultiGateMixture(4, 1, pool, dispatcher=AllToAllDispatcher(placement))


def refuses(rank, world_size):
    """What every rank says, the same."""
    x = torch.randn(5, 4)
    wide = of_own_parts([lambda: torch.nn.Linear(4, 3), lambda: torch.nn.Linear(4, 2)],
                        rank, world_size)  # fmt: skip
    told = of_own_parts([torch.nn.Identity, lambda: torch.nn.Linear(3, 4)], rank, world_size)
    local = of_own_parts([Local], rank, world_size)
    found = {"width": error_of(lambda: wide(x)), "fails": error_of(lambda: told(x))}
    out = local(x).out_BGO
    dispatcher = local.dispatcher
    others = ExpertPlacement(tuple(((r + 1) % world_size,) for r in range(world_size)))
    before = list(local.experts.state_dict())
    found["pickle"] = error_of(lambda: move_experts([local], dispatcher, others))
    assert issubclass(CannotMove, ValueError)
    found["unchanged"] = list(local.experts.state_dict()) == before and torch.equal(
        local(x).out_BGO, out
    )
    found["names"] = before[0]
    unlike = of_unlike_pools(rank, world_size)
    found["unlike"] = error_of(lambda: move_experts([unlike], unlike.dispatcher, others))
    return found


def main(rank, world_size, folder):
    cases = cut(CASES, world_size)
    with one_group():
        singles = shared_out(cases, alone)
        moved = {
            f"{name}, {'evenly' if evenly else 'anyhow'}": run(
                case, rank, world_size, singles[name], evenly=evenly
            )
            for name, case in cases.items()
            # As many experts on each rank is one of any numbers
            for evenly in ((True, False) if name == "equal MLPs" else (False,))
        }
    return {
        "cases": moved,
        "said": refuses(rank, world_size),
        "rebalanced": rebalances(rank, world_size, folder / "checkpoint"),
        "shadowed": shadowed(rank, world_size),
        "slices": slices_move(rank, world_size),
    }
