"""One rank of a gloo world that compares copied and sliced experts with one process; run by tests.

Every rank computes each case with the others, and one of them alone on the batch of all. What a
rank finds is its report.
"""

import warnings
from dataclasses import dataclass
from functools import partial
from typing import Literal
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn

from mmoe.mixture import (
    ExpertPool,
    MLPExperts,
    MultiGateMixture,
    SoftmaxGate,
    TopKGate,
    cut_into_slices,
)
from mmoe.mixture.experts.sliced import cut_tensor
from mmoe.parallel import AllToAllDispatcher, Mode
from mmoe.parallel.experts.wire import PendingRows
from tests.parallel import world
from tests.ranks import shared_out

D, G = 6, 3
ALL = "all"


@dataclass(frozen=True)
class Case:
    pool: str = "mlp"
    shadowed: tuple[int, ...] | Literal["all"] = ALL
    num_experts: int = 5
    gate: str = "top-2"
    rows: tuple[int, ...] = (8, 8, 8, 8)
    dtype: str = "float64"
    slices: int = 1
    sources: int = 1
    mixed: bool = False  # experts are dealt out in no order, rank 0 gets none
    autocast: bool = False
    overlap: bool = False


CASES = {
    "all": Case(),
    "all, overlapped": Case(overlap=True),
    "all, dense": Case(gate="dense"),
    "all, uneven rows": Case(rows=(7, 0, 1, 12)),
    "all, no rows": Case(rows=(0, 0, 0, 0)),
    "all, mixed": Case(mixed=True),
    "all, E < W": Case(num_experts=1, gate="dense"),
    "all, sources": Case(sources=2),
    "all, layer norm": Case("layer"),
    "all, fp32": Case(dtype="float32"),
    "all, autocast": Case(dtype="float32", autocast=True),
    "all, bf16": Case(dtype="bfloat16"),
    "all, named": Case(shadowed=(4, 2, 0, 1, 3)),
    "one": Case(shadowed=(0,)),
    "one, overlapped": Case(shadowed=(0,), overlap=True),
    "one of the last": Case(shadowed=(4,), rows=(0, 9, 0, 2)),
    "one, dense": Case(shadowed=(1,), gate="dense"),
    "one, mixed": Case(shadowed=(3,), mixed=True),
    "one, sources": Case(shadowed=(3,), sources=2),
    "two": Case(shadowed=(4, 1), rows=(3, 0, 5, 1)),
    "two, autocast": Case(shadowed=(4, 1), dtype="float32", autocast=True, overlap=True),
    "only one, E < W": Case(shadowed=(0,), num_experts=1, gate="dense"),
    "modules": Case("modules"),
    "modules, one": Case("modules", shadowed=(2,)),
    "modules, E < W": Case("modules", num_experts=1, gate="dense"),
    "stacked": Case("stacked"),
    "stacked, two": Case("stacked", shadowed=(0, 4), overlap=True),
    "stacked, mixed": Case("stacked", mixed=True),
    "unlike": Case("unlike"),
    "of unknown kind": Case("unknown", mixed=True),
    "batch norm": Case("batch", shadowed=(1,)),
    "slices": Case("sliced", (), num_experts=2, slices=4, gate="dense"),
    "slices, top-2": Case("sliced", (), slices=2, rows=(3, 0, 5, 1)),
    "slices, overlapped": Case("sliced", (), num_experts=2, slices=2, overlap=True),
    "slices, SwiGLU": Case("sliced swiglu", (), num_experts=2, slices=2, mixed=True),
    "slices, bf16": Case("sliced", (), num_experts=2, slices=4, dtype="bfloat16"),
    "slices, all": Case("sliced", num_experts=2, slices=4),
    "slices, all, mixed": Case("sliced swiglu", num_experts=3, slices=2, mixed=True),
    "slices, one": Case("sliced", (1,), num_experts=2, slices=4, sources=2),
}
FALL_BACK = ("unlike", "of unknown kind", "batch norm")


class Scaled(nn.Module):
    """A module with parameters on two levels, a setting and a buffer."""

    output_dim = D

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(D, 4), nn.GELU(), nn.Linear(4, D), nn.LayerNorm(D))
        self.factor = 2.0
        self.register_buffer("shift", torch.randn(D))

    def forward(self, x):
        return self.body(x) * self.factor + self.shift


def make_pool(case):
    """The whole pool, drawn from one seed."""
    torch.manual_seed(1)
    E = case.num_experts
    if case.pool == "modules":
        pool = ExpertPool([Scaled() for _ in range(E)])
    elif case.pool == "stacked":
        pool = ExpertPool([Scaled() for _ in range(E)], stacked=True)
    elif case.pool == "unlike":
        pool = ExpertPool([nn.Sequential(nn.Linear(D, D), nn.ReLU()) for _ in range(E - 1)])
        pool.output_dim = D
        pool.append(nn.Sequential(nn.Linear(D, D), nn.Tanh()))
    else:
        norm = case.pool if case.pool in ("batch", "layer") else None
        activation = "swiglu" if "swiglu" in case.pool else "gelu"
        last = None if "sliced" in case.pool else "same"
        pool = MLPExperts(E, D, [8, D], activation=activation, output_activation=last, norm=norm)
        for bias in pool.biases:
            nn.init.normal_(bias)
    return pool.to(getattr(torch, case.dtype))


def make_part(case, experts):
    """This rank's part: converted after it was taken, as a network is."""
    pool = make_pool(case).float()
    pool = cut_into_slices(pool, case.slices) if case.slices > 1 else pool
    part = pool.part(experts)
    if case.pool == "unknown" and not experts:
        part = ExpertPool([], D)
    return part.to(getattr(torch, case.dtype))


def make_layer(case, pool, dispatcher=None):
    torch.manual_seed(0)
    E = case.num_experts
    gate = SoftmaxGate(D, G, E) if case.gate == "dense" else TopKGate(D, G, E, k=2)
    return MultiGateMixture(
        D,
        G,
        pool,
        gate=gate.to(getattr(torch, case.dtype)),
        expert_source=[e % case.sources for e in range(E)],
        gate_source=[g % case.sources for g in range(G)],
        execution="grouped",
        dispatcher=dispatcher,
    )


def make_placement(case, world_size):
    return world.make_placement(case, world_size, case.slices)


def make_batch(case, rows):
    torch.manual_seed(2)
    dtype = getattr(torch, case.dtype)
    x = [torch.randn(rows, D, dtype=dtype) for _ in range(case.sources)]
    return x, torch.randn(rows, G, D, dtype=dtype)


def step(case, layer, x, factors):
    """Outputs, and the gradients of inputs, experts and gates."""
    x = [source.clone().requires_grad_() for source in x]
    layer.zero_grad(set_to_none=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=case.autocast):
        out = layer(x if len(x) > 1 else x[0]).out_BGO
    (out * factors).sum().backward()
    return out.detach(), [source.grad for source in x], of_experts(layer), of_gates(layer)


def of_experts(layer):
    if isinstance(layer.experts, ExpertPool) and not layer.experts.is_stacked:
        return [[p.grad.clone() for p in expert.parameters()] for expert in layer.experts]
    held = layer.experts.named_parameters() if len(layer.experts) else ()
    return {name: p.grad.clone() for name, p in held}


def of_gates(layer):
    return [p.grad.clone() for p in layer.gate.parameters()]


def of_one_process(case, grads, experts):
    """What the gradients of these experts are, of those of all."""
    if case.slices > 1:
        pool = cut_into_slices(make_pool(case), case.slices)
        grads = {name: cut_tensor(pool, name, grad) for name, grad in grads.items()}
    if isinstance(grads, list):
        return [grads[e] for e in experts]
    return {name: grad[list(experts)] for name, grad in grads.items()} if experts else {}


def leaves(tree):
    if isinstance(tree, torch.Tensor):
        return [tree]
    return [
        leaf
        for part in (tree.values() if isinstance(tree, dict) else tree)
        for leaf in leaves(part)
    ]


def error(ours, theirs):
    """The largest difference, over the largest number."""
    return world.worst(leaves(ours), leaves(theirs))


def alone(case, world_size):
    """Of one process: outputs, gradients, and scores on the batch of all."""
    x, factors = make_batch(case, sum(case.rows[:world_size]))
    single = make_layer(case, make_pool(case))
    found = step(case, single, x, factors)
    single.eval()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=case.autocast):
        return *found, single(x if len(x) > 1 else x[0]).out_BGO


def run(case, rank, world_size, single):
    rows = case.rows[:world_size]
    mine = slice(sum(rows[:rank]), sum(rows[: rank + 1]))
    x, factors = make_batch(case, sum(rows))
    own = [source[mine] for source in x], factors[mine]
    placement = make_placement(case, world_size)
    experts = placement.on(rank)
    shadowed = Mode(shadowed=case.shadowed)
    dispatcher = AllToAllDispatcher(
        placement, overlap_rows=0 if case.overlap else 10**6, mode=shadowed
    )
    layer = make_layer(case, make_part(case, experts), dispatcher)
    held = [(p, p.data_ptr()) for p in layer.experts.parameters()]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        out, of_inputs, ours, gates = step(case, layer, *own)
        before, bytes_before = dispatcher.wire.collectives, dispatcher.wire.bytes_sent
        again = step(case, layer, *own)
    found = {
        "warnings": [str(warning.message) for warning in caught],
        "collectives": dispatcher.wire.collectives - before,
        "bytes": dispatcher.wire.bytes_sent - bytes_before,
        "same_bits": all(map(torch.equal, leaves((out, of_inputs, ours, gates)), leaves(again))),
    }
    # The plain road between two shadowed calls
    dispatcher.mode = Mode()
    plain = step(case, layer, *own)
    found["modes"] = error((out, of_inputs, ours), plain[:3])
    dispatcher.mode = shadowed
    once_more = step(case, layer, *own)
    found["same_bits"] &= all(map(torch.equal, leaves(again), leaves(once_more)))
    found["moved"] = not all(
        p is q and p.data_ptr() == place
        for (p, place), q in zip(held, layer.experts.parameters(), strict=True)
    )

    expected, whole, of_all, of_all_gates, scores = single
    found["output"] = error(out, expected[mine])
    found["inputs"] = error(of_inputs, [grad[mine] for grad in whole])
    found["experts"] = error(ours, of_one_process(case, of_all, experts))
    for grad in gates:
        dist.all_reduce(grad)
    found["gates"] = error(gates, of_all_gates)
    if case.pool == "batch":
        # Its running statistics are of more steps than those of one process
        return {**found, "scores": 0.0}
    layer.eval()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=case.autocast):
        read = own[0] if len(x) > 1 else own[0][0]
        found["scores"] = error(layer(read).out_BGO, scores[mine])
    return found


def train(rank, world_size, case, modes):
    """Trains in one mode after another; returns parameters, and what Adam keeps."""
    placement = make_placement(case, world_size)
    dispatcher = AllToAllDispatcher(placement, overlap_rows=0)
    layer = make_layer(case, make_part(case, placement.on(rank)), dispatcher)
    adam = torch.optim.Adam(layer.parameters(), lr=0.01, weight_decay=0.1)
    x, factors = make_batch(case, 8 * world_size)
    for number in range(6):
        dispatcher.mode = Mode(shadowed=modes[number % len(modes)])
        own = slice(8 * rank, 8 * rank + 8)
        step(case, layer, [source[own] + number for source in x], factors[own])
        for parameter in layer.gate.parameters():
            dist.all_reduce(parameter.grad)
        adam.step()
    held = [p for p in layer.parameters() if p.numel()]
    state = [adam.state[p][name] for p in held for name in ("exp_avg", "exp_avg_sq")]
    return [p.detach() for p in held], state, layer


def trained(rank, world_size):
    """How far training in changing modes gets from training in one."""
    modes = [(), ALL, (0,), (1, 0)]
    found = {}
    for name, case in {
        "mlp": Case(),
        "modules": Case("modules"),
        "sliced": Case("sliced", num_experts=2, slices=4),
    }.items():
        plain, plain_state, _ = train(rank, world_size, case, [()])
        ours, state, layer = train(rank, world_size, case, modes)
        found[name] = [error(ours, plain), error(state, plain_state)]
        if name == "sliced" and len(layer.experts):
            rest = layer.experts.number_V % case.slices != 0
            found["stray bias"] = float(layer.experts.biases[1][rest].abs().sum())
    return found


def order(rank, world_size, case):
    """What a step sends and waits for, in turn."""
    placement = make_placement(case, world_size)
    dispatcher = AllToAllDispatcher(
        placement, overlap_rows=10**6, mode=Mode(shadowed=case.shadowed)
    )
    layer = make_layer(case, make_part(case, placement.on(rank)), dispatcher)
    x, factors = make_batch(case, 8)
    step(case, layer, x, factors)
    seen, wire = [], dispatcher.wire
    begin_rows, begin_copies, wait = wire.begin_rows, wire.begin_copies, PendingRows.wait

    def recorded(what, begin):
        def begins(*args):
            seen.append(f"send {what}")
            pending = begin(*args)
            pending.what = what
            return pending

        return begins

    def waits(pending):
        seen.append(f"wait {pending.what}")
        return wait(pending)

    with (
        mock.patch.object(wire, "begin_rows", recorded("rows", begin_rows)),
        mock.patch.object(wire, "begin_copies", recorded("weights", begin_copies)),
        mock.patch.object(PendingRows, "wait", waits),
    ):
        step(case, layer, x, factors)
    return seen


def main(rank, world_size, _):
    singles = shared_out(CASES, partial(alone, world_size=world_size))
    found = {name: run(case, rank, world_size, singles[name]) for name, case in CASES.items()}
    return {
        "cases": found,
        "trained": trained(rank, world_size),
        "order": order(rank, world_size, CASES["one"]),
    }
