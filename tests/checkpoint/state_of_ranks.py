"""A training state whose experts and tables are spread, saved and restored by worlds of any size.

For `checkpoint_world.py`. Numbers are made up, so each rank knows what one process has.
"""

from types import SimpleNamespace
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn

from mmoe.checkpoint.resume_state import flatten_optimizer, unflatten_optimizer
from mmoe.checkpoint.saver import CheckpointSaver
from mmoe.config import OptimizerConfig
from mmoe.parallel.sharded_tensors import Shard
from mmoe.train.optim import build_average, build_optimizer
from mmoe.train.state import Position, TrainingState

SEED = 11
# By the number of ranks: who holds which of five experts, and which of nine rows of the table.
EXPERTS = {1: ((0, 1, 2, 3, 4),), 2: ((4, 0), (1, 2, 3)), 3: ((), (3, 0), (1, 2, 4))}
ROWS = {1: ((0, 9),), 2: ((0, 5), (5, 9)), 3: ((0, 4), (4, 4), (4, 9))}
MOMENTS = ("exp_avg", "exp_avg_sq")
SHAPES = {"experts.0": (5, 4, 3), "experts.1": (5, 3)}


def numbers(name, shape, salt):
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(name) * 100 + salt))


class Network(nn.Module):
    """A gate that every rank has, and its experts."""

    def __init__(self, experts):
        super().__init__()
        self.gate = nn.Linear(4, 5)
        self.experts = nn.ParameterList(
            nn.Parameter(torch.zeros(len(experts), *shape[1:]))
            for shape in SHAPES.values()
            if experts
        )


def make_state(rank, ranks, step):
    """With the numbers of one step; at step 0 there are no moments."""
    experts, (first, last) = EXPERTS[ranks][rank], ROWS[ranks][rank]
    network = Network(experts)
    own = dict(network.named_parameters())

    def part(name, salt):
        whole = numbers(name, SHAPES.get(name, own[name].shape), salt)
        return whole[list(experts)] if name in SHAPES else whole

    optimizer = build_optimizer(network, OptimizerConfig())
    average = build_average(network, 0.9)
    network.load_state_dict({name: part(name, step) for name in own})
    average.module.load_state_dict({name: part(name, step + 10) for name in own})
    average.n_averaged.fill_(step)
    if step:
        moments = {f"{name}/{key}": part(name, len(key)) for name in own for key in MOMENTS}
        steps = {f"{name}/step": torch.tensor(float(step)) for name in own}
        unflatten_optimizer(optimizer, network, {**moments, **steps})
    tables = Tables(first, last, step)
    return TrainingState(
        ranker=cast(
            Any,
            SimpleNamespace(
                network=network,
                tables=tables,
                embeddings=tables,
                wide=None,
                device=torch.device("cpu"),
            ),
        ),
        optimizer=optimizer,
        average=average,
        position=Position(step=step),
        layout={
            name: [
                Shard(own[name][n : n + 1], shape, (expert, *(0,) * (len(shape) - 1)))
                for n, expert in enumerate(experts)
            ]
            for name, shape in SHAPES.items()
            if name in own
        },
    )


class Tables:
    """Rows `first` to `last` of a table and of its accumulator."""

    def __init__(self, first, last, salt):
        self.table = numbers("table", (9, 2), salt)[first:last].clone()
        self.sums = numbers("sums", (9,), salt)[first:last].clone()
        self.first = first

    def table_shards(self):
        return {"item": [Shard(self.table, (9, 2), (self.first, 0))]}

    def optimizer_shards(self):
        return {"item/sum": [Shard(self.sums, (9,), (self.first,))]}


def difference(one, two):
    """Names of tensors in which two states differ."""
    found = []
    for what, mine, theirs in (
        ("raw", one.ranker.network.state_dict(), two.ranker.network.state_dict()),
        ("average", one.average.state_dict(), two.average.state_dict()),
        ("moments", *(flatten_optimizer(s.optimizer, s.ranker.network) for s in (one, two))),
        ("tables", vars(one.ranker.tables), vars(two.ranker.tables)),
    ):
        if mine.keys() != theirs.keys():
            found.append(f"{what}: {mine.keys() ^ theirs.keys()}")
        for name in mine.keys() & theirs.keys():
            if not torch.equal(torch.as_tensor(mine[name]), torch.as_tensor(theirs[name])):
                found.append(f"{what}: {name}")
    return found


def drawn(state):
    with state.draws.drawing():
        return torch.rand(3).tolist()


def save(folder, rank):
    """The random numbers after saving are those after restoring."""
    state = make_state(rank, dist.get_world_size(), 2)
    state.draws.seed(100 + rank)
    with CheckpointSaver(folder) as saver:
        state.save(saver, best=True)
    return {**restore(folder, rank), "after": drawn(state)}


def restore(folder, rank):
    """Into a state that has taken no step."""
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    state = make_state(rank, ranks, 0)
    state.restore(folder, seed=SEED)
    found = {"random": drawn(state), "step": state.position.step}
    found["differs"] = difference(state, make_state(rank, ranks, 2))
    best = make_state(rank, ranks, 0)
    best.restore_best(folder)
    expected = state.average.module.state_dict()
    found["best"] = all(
        torch.equal(tensor, expected[name])
        for name, tensor in best.ranker.network.state_dict().items()
    )
    return found
