"""One rank of a gloo world that compares experts over ranks with one process; run by the tests.

Every rank computes each case with the others, and one of them alone on the batch of all. What a
rank finds is its report: for each case the largest errors, and what was sent.
"""

import random
from dataclasses import dataclass, replace
from functools import partial
from unittest import mock

import torch
import torch.distributed as dist

from mmoe.mixture import ExpertPool, GateOutput, MLPExperts, MultiGateMixture, SoftmaxGate, TopKGate
from mmoe.parallel import AllToAllDispatcher, ExpertPlacement, Mode
from mmoe.parallel.experts.mode import ROWS_TRAVEL
from mmoe.parallel.experts.wire import PendingRows, Wire
from tests.ranks import shared_out

# What is sent: gates, experts, rows of ranks

D, G = 16, 3  # experts return the width that they read, so that layers can be stacked


@dataclass(frozen=True)
class Case:
    gate: str = "top-2"
    num_experts: int = 6
    rows: tuple[int, ...] = (8, 8, 8, 8)
    pool: str = "mlp"
    dtype: str = "float64"
    way_back: str = "auto"
    wire_dtype: str | None = None
    sources: int = 1
    mixed: bool = False  # experts are dealt out in no order, one rank gets none
    input_grad: bool = True
    gate_grad: bool = True
    sees_all: bool = True  # else gate g does not see expert g
    levels: int = 1
    autocast: bool = False
    overlap: bool = False  # own rows are computed while others travel
    mode: Mode = ROWS_TRAVEL


CASES = {
    "top-1": Case("top-1"),
    "top-2": Case(),
    "top-2, fp32": Case(dtype="float32"),
    "top-2, bf16 wire": Case(dtype="float32", wire_dtype="bfloat16"),
    # The most that a row can ask for is more sums than what this one asks for is pairs
    "first two, bf16 wire": Case("first two", 12, dtype="float32", wire_dtype="bfloat16"),
    "top-2, pairs": Case(way_back="pairs"),
    "top-2, sums": Case(way_back="sums"),
    "dense": Case("dense"),
    "dense of 14": Case("dense", 14),
    "dense of 14, pairs": Case("dense", 14, way_back="pairs"),
    "dense of 14, sums": Case("dense", 14, way_back="sums"),
    "first two": Case("first two"),
    "any picks": Case("any"),
    "any picks, sums": Case("any", num_experts=3, way_back="sums"),
    "visibility": Case(sees_all=False),
    "visibility, dense": Case("dense", 10, sees_all=False),
    "batch norm": Case(pool="batch"),
    "autocast": Case(dtype="float32", autocast=True),
    "two levels": Case(levels=2, rows=(5, 0, 3, 9)),
    "two levels of sources, E < W": Case("dense", 1, levels=2, sources=2, rows=(2, 4, 3, 0)),
    "modules": Case(pool="modules"),
    "modules, E < W": Case(pool="modules", num_experts=1, gate="dense"),
    "E < W": Case("dense", num_experts=1),
    "uneven experts": Case(num_experts=7),
    "mixed experts": Case(num_experts=5, mixed=True),
    "uneven rows": Case(rows=(7, 2, 1, 30)),
    "a rank without rows": Case(rows=(5, 0, 3, 0)),
    "one rank with rows": Case("dense", rows=(0, 6, 0, 0)),
    "no rows": Case(rows=(0, 0, 0, 0)),
    "sources": Case(sources=3, num_experts=5),
    "sources, sums": Case(sources=3, num_experts=5, way_back="sums"),
    "sources, uneven": Case("dense", sources=2, num_experts=4, rows=(3, 0, 5, 1), mixed=True),
    "inputs without gradient": Case(input_grad=False),
    # A rank without experts has nothing then that needs a gradient, and yet its part to do.
    "experts alone, E < W": Case("dense", num_experts=1, input_grad=False, gate_grad=False),
}


def drawn(seed):
    """A case that nobody thought of."""
    chance = random.Random(seed)
    return Case(
        chance.choice(["any", "any", "top-1", "dense"]),
        num_experts=chance.randint(1, 9),
        rows=tuple(chance.choice([0, 1, 2, 5, 20]) for _ in range(4)),
        way_back=chance.choice(["auto", "auto", "pairs", "sums"]),
        sources=chance.randint(1, 3),
        mixed=chance.random() < 0.5,
        levels=chance.randint(1, 2),
        overlap=chance.random() < 0.5,
    )


# Where gates pick, and how outputs come back, is the same whether own rows are computed meanwhile
ALIKE = ("fp32", ", pairs", ", sums", "first two", "visibility", "uneven experts", "sources")
CASES |= {
    f"{name}, overlapped": replace(case, overlap=True)
    for name, case in CASES.items()
    if not name.endswith(ALIKE)
}
CASES |= {f"drawn {seed}": drawn(seed) for seed in range(6)}
# What two ranks compute too
ON_TWO = (
    "top-2", "dense", "dense of 14", "dense of 14, pairs", "dense of 14, sums", "E < W, overlapped",
    "dense of 14, overlapped", "mixed experts", "uneven rows", "a rank without rows", "batch norm",
    "two levels", "sources, uneven", "modules, E < W", "drawn 0", "drawn 1", "drawn 2",
)  # fmt: skip


# How it is computed


class AnyPicks(torch.nn.Module):
    """Gates whose picks are told by a row's digits: unused ones and repeated ones among them."""

    def __init__(self, num_experts):
        super().__init__()
        self.num_experts, self.linear = num_experts, torch.nn.Linear(D, 4)

    def forward(self, inputs, visibility_GE):
        x_BGD = torch.stack(list(inputs), 1)
        places_BGK = (x_BGD[:, :, :4].detach() * 1e3).long() + torch.arange(G).unsqueeze(1)
        experts_BGK = places_BGK % (self.num_experts + 1) - 1
        return GateOutput(self.linear(x_BGD).sigmoid(), experts_BGK.to(torch.int32))


class OnlyFirst(torch.nn.Module):
    """Top-2 gates that never pick an expert beyond the first two."""

    k = 2

    def __init__(self, num_experts):
        super().__init__()
        self.gate = TopKGate(D, G, num_experts, k=2)

    def forward(self, inputs, visibility_GE):
        return self.gate(inputs, visibility_GE & (torch.arange(visibility_GE.shape[1]) < 2))


def make_gate(case):
    torch.manual_seed(0)
    E = case.num_experts
    match case.gate:
        case "dense":
            gate = SoftmaxGate(D, G, E)
        case "first two":
            gate = OnlyFirst(E)
        case "any":
            gate = AnyPicks(E)
        case top:
            gate = TopKGate(D, G, E, k=int(top[-1]))
    return gate.to(getattr(torch, case.dtype)).requires_grad_(case.gate_grad)


def make_pool(case):
    torch.manual_seed(1)
    if case.pool == "modules":
        pool = ExpertPool([torch.nn.Linear(D, D) for _ in range(case.num_experts)])
    else:
        norm = "batch" if case.pool == "batch" else None
        pool = MLPExperts(case.num_experts, D, [7, D], activation="gelu", norm=norm)
        for bias in pool.biases:
            torch.nn.init.normal_(bias)
    return pool.to(getattr(torch, case.dtype))


def make_placement(case, world_size, slices=1):
    even = ExpertPlacement.even(case.num_experts, world_size, slices)
    if not case.mixed:
        return even
    ranks = [[] for _ in range(world_size)]
    for place, expert in enumerate(reversed(range(even.num_experts))):
        ranks[1 + place % (world_size - 1)].append(expert)
    return ExpertPlacement(tuple(map(tuple, ranks)), slices)


class Network(torch.nn.Module):
    """Mixtures on top of each other: a level reads the mean over the gates below."""

    def __init__(self, case, make_dispatcher=None, experts=None):
        super().__init__()
        self.case = case
        self.levels = torch.nn.ModuleList(
            MultiGateMixture(
                D,
                G,
                make_pool(case) if make_dispatcher is None else make_pool(case).part(experts),
                gate=make_gate(case),
                visibility=None if case.sees_all else ~torch.eye(G, case.num_experts).bool(),
                expert_source=[e % case.sources for e in range(case.num_experts)],
                gate_source=[g % case.sources for g in range(G)],
                execution="grouped",
                dispatcher=None if make_dispatcher is None else make_dispatcher(),
            )
            for _ in range(case.levels)
        )

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.case.autocast):
            for level in self.levels:
                out_BGD = level(x if len(x) > 1 else x[0]).out_BGO
                x = [out_BGD.mean(1)] * len(x)
        return out_BGD


def make_batch(case, rows):
    """Inputs of all ranks, `[S][rows, D]`, and what the loss multiplies the outputs with."""
    torch.manual_seed(2)
    dtype = getattr(torch, case.dtype)
    x = [torch.randn(rows, D, dtype=dtype) for _ in range(case.sources)]
    return x, torch.randn(rows, G, D, dtype=dtype)


def step(network, x, factors, input_grad):
    """Outputs, and the gradients of parameters and inputs."""
    x = [source.clone().requires_grad_(input_grad) for source in x]
    network.zero_grad(set_to_none=True)
    out = network(x)
    (out * factors).sum().backward()
    return out.detach(), [source.grad for source in x if input_grad]


def error(ours, theirs):
    """The largest difference, over the largest number."""
    if not theirs.numel():
        return 0.0 if ours.shape == theirs.shape else float("inf")
    assert ours.shape == theirs.shape, (ours.shape, theirs.shape)
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1))


def worst(ours, theirs):
    return max((error(a, b) for a, b in zip(ours, theirs, strict=True)), default=0.0)


def of_experts(network, experts=None):
    """What belongs to experts, gradients and statistics: of these of a whole pool, or of all."""
    found = []
    for level in network.levels:
        pool = level.experts
        if isinstance(pool, ExpertPool):
            found += [p.grad for e in experts or range(len(pool)) for p in pool[e].parameters()]
        else:
            of_all = [*(p.grad for p in pool.parameters()), *pool.buffers()]
            found += of_all if experts is None else [t[list(experts)] for t in of_all]
    return found


def of_gates(network):
    gates = (p for level in network.levels for p in level.gate.parameters())
    return [p.grad for p in gates if p.requires_grad]


def bound(case, placement, picks_BGK, rank, number_bytes, weight_bytes, to=None):
    """The fewest bytes that this rank can send in a forward pass, told from everybody's picks.

    To all ranks, or to those given.

    Sizes; a row for each distinct (sample, source, rank) with its picks; and, for each rank that it
    computes for, the smaller way back, of which the weights of sums are sent by the other rank.
    """
    total, held = 0, {e: r for r, own in enumerate(placement.experts) for e in own}

    def link(there, sender):
        rows, pairs, sums, picks = set(), set(), set(), 0
        for b, gates in enumerate(picks_BGK[sender]):
            for g, gate in enumerate(gates):
                for e in gate:
                    if e >= 0 and held[e] == there:
                        row = (b, e % case.sources)
                        rows.add(row)
                        pairs.add((b, e))
                        sums.add((row, g))
                        picks += 1
        ways = {
            "pairs": (len(pairs) * D * number_bytes, 0),
            "sums": (len(sums) * D * number_bytes, picks * weight_bytes),
        }
        way = case.way_back
        if way == "auto":
            way = "sums" if sum(ways["sums"]) < sum(ways["pairs"]) else "pairs"
        back, weights = ways[way]
        return len(rows) * D * number_bytes + picks * 4 + weights, back

    for other in range(placement.num_ranks) if to is None else to:
        if other != rank:
            total += 32 + link(other, rank)[0] + link(rank, other)[1]
    return total


def alone(case, world_size):
    """Outputs and gradients of one process, those of the experts by the rank that has them."""
    placement, single = make_placement(case, world_size), Network(case)
    out, of_inputs = step(single, *make_batch(case, sum(case.rows[:world_size])), case.input_grad)
    held = [placement.on(rank) for rank in range(world_size)]
    of_ranks = [of_experts(single, experts) if experts else [] for experts in held]
    return out, of_inputs, of_ranks, of_gates(single)


def of_one(case):
    """What of a case is the same to one process: not how rows and results travel."""
    return replace(case, way_back="auto", wire_dtype=None, overlap=False, mode=ROWS_TRAVEL)


def run(case, rank, world_size, single, hosts=None, bytes_sent=None):
    """Compares a case with one process.

    Args:
        single: What `alone` found.
        hosts: How the ranks lie.
        bytes_sent: Measures those of a forward pass, and says how few there can be.
    """
    rows = case.rows[:world_size]
    first = sum(rows[:rank])
    mine = slice(first, first + rows[rank])
    x, factors = make_batch(case, sum(rows))
    own = [source[mine] for source in x], factors[mine], case.input_grad
    placement = make_placement(case, world_size)
    experts = placement.on(rank)

    def make_dispatcher():
        wire_dtype = case.wire_dtype and getattr(torch, case.wire_dtype)
        return AllToAllDispatcher(
            placement,
            wire_dtype=wire_dtype,
            overlap_rows=0 if case.overlap else 10**6,
            way_back=case.way_back,
            mode=case.mode,
            hosts=hosts,
        )

    network = Network(case, make_dispatcher, experts)
    out, of_inputs = step(network, *own)
    ours = of_experts(network) if experts else []
    ours = [tensor.clone() for tensor in ours]
    gates = of_gates(network)
    found = {"collectives": network.levels[0].dispatcher.wire.collectives}

    again = step(network, *own)
    repeated = [again[0], *again[1], *of_gates(network)]
    found["same_bits"] = all(map(torch.equal, [out, *of_inputs, *gates], repeated))

    expected, whole, of_ranks, gates_alone = single
    found["output"] = error(out, expected[mine])
    found["inputs"] = worst(of_inputs, [grad[mine] for grad in whole])
    found["experts"] = worst(ours, of_ranks[rank])
    # Every rank has the gates, and a share of their gradients.
    for grad in gates:
        dist.all_reduce(grad)
    found["gates"] = worst(gates, gates_alone)
    if case.mode == ROWS_TRAVEL:
        found["scores"] = evaluated(case, network, own[0])
    if replace(case, mode=ROWS_TRAVEL) == CASES["dense of 14, overlapped"]:
        found["order"] = order(network, *own)
    if case.levels == 1 and not case.autocast:
        found["bytes"], found["bound"] = (bytes_sent or sent)(
            case, network.levels[0], x, placement, rank, rows
        )
    return found


def order(network, x, factors, input_grad):
    """What a step sends, waits for and computes, in turn; by the rows of whom."""
    seen, experts = [], network.levels[0].experts.dense
    begin, wait = Wire.begin_rows, PendingRows.wait

    def sends(wire, *args):
        seen.append("send")
        return begin(wire, *args)

    def waits(flight):
        seen.append("wait")
        return wait(flight)

    def computes(inputs):
        # Half of a rank's own rows are fewer than all rows of another
        whose = "theirs" if len(inputs[0]) > len(factors) // 2 + 1 else "own"
        seen.append(whose)
        y = experts(inputs)
        y[0].register_hook(lambda _: seen.append(whose))
        return y

    with (
        mock.patch.object(Wire, "begin_rows", sends),
        mock.patch.object(PendingRows, "wait", waits),
        mock.patch.object(network.levels[0].experts, "dense", computes),
    ):
        step(network, x, factors, input_grad)
    return seen


def evaluated(case, network, x):
    """Whether scores have the same bits whichever way the outputs come back."""
    if case.wire_dtype:
        return True
    network.eval()
    outs = []
    with torch.no_grad():
        for way in ("pairs", "sums", case.way_back):
            for level in network.levels:
                level.dispatcher.way_back = way
            outs.append(network(x))
    network.train()
    return all(torch.equal(outs[0], out) for out in outs)


def picks_of_all(layer, x, rows):
    """The experts that the gates pick for the rows of each rank, as lists."""
    picks = []
    with torch.no_grad():
        for batch in zip(*(source.split(list(rows)) for source in x), strict=True):
            gate_inputs = [batch[s] for s in layer.gate_source]
            decision = layer.gate(gate_inputs, layer.visibility_GE)
            experts = decision.experts
            if experts is None:
                experts = layer.visible_GV.expand(len(batch[0]), -1, -1)
            picks.append(experts.tolist())
    return picks


def bytes_of(case):
    """Of a number of an output on the wire, and of a weight."""
    wide = 8 if case.dtype == "float64" else 4
    return 2 if case.wire_dtype else wide, wide


def sent(case, layer, x, placement, rank, rows):
    """Bytes of one forward pass, and the fewest there can be."""
    wire, before = layer.dispatcher.wire, layer.dispatcher.wire.bytes_sent
    own = [source.split(list(rows))[rank] for source in x]
    layer(own if len(own) > 1 else own[0])
    picks = picks_of_all(layer, x, rows)
    return wire.bytes_sent - before, bound(case, placement, picks, rank, *bytes_of(case))


def main(rank, world_size, _):
    cases = {name: CASES[name] for name in (CASES if world_size > 2 else ON_TWO)}
    singles = shared_out(cases, partial(alone, world_size=world_size), of_one)
    return {name: run(case, rank, world_size, singles[name]) for name, case in cases.items()}
