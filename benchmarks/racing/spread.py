"""The layer over ranks: the bytes that it sends, the fewest that it could, its times in every mode.

`python -m benchmarks.racing.spread NOTHING` is a rank, which answers commands (see `Ranks`).
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.racing.child import answer_commands, private_stdout
from benchmarks.racing.harness import rotated, time_on_all_ranks
from benchmarks.racing.hosts import host_bandwidth
from benchmarks.racing.layers import (
    Contestant,
    GivenLogits,
    Values,
    Workload,
    check_equal,
    contestant,
    correlated_logits,
    draw,
    leaf,
    linear_gate,
    our_experts,
    ours,
    skewed_logits,
)
from mmoe.mixture import MultiGateMixture, Pool, PoolTraits
from mmoe.parallel import (
    AdaptiveMode,
    AllToAllDispatcher,
    ExpertPlacement,
    Mode,
    better_placement,
    ensure_process_group,
    rank,
    world_size,
)
from mmoe.parallel.launch.launcher import launched_rank

# The fewest bytes that a layer with experts on other ranks can send, told from the picks alone

PICK_BYTES = 4  # which gate and which expert
WEIGHT_BYTES = 4


@dataclass(frozen=True)
class LinkCounts:
    """What one rank wants of another."""

    rows: int  # Distinct samples with a pick there
    picks: int  # Of all gates
    pairs: int  # Distinct (sample, expert there)
    sums: int  # Distinct (sample, gate)

    def bytes(self, row_bytes: int, output_bytes: int) -> int:
        """Of forward and backward pass together, both directions.

        Forward: each row once, with its picks; back comes the smaller of a row for each pair and a
        sum for each gate, for which the weights have to go out as well. Backward: the gradients of
        all of these but the picks.

        Args:
            row_bytes: Of what an expert reads.
            output_bytes: Of what it returns.
        """
        back = min(self.pairs * output_bytes, self.sums * output_bytes + self.picks * WEIGHT_BYTES)
        return 2 * (self.rows * row_bytes + back) + self.picks * PICK_BYTES


def count_link(picks_BGK: Tensor, first: int, last: int) -> LinkCounts:
    """What the samples of one rank want of whoever holds experts `first` to `last` − 1."""
    there_BGK = (picks_BGK >= first) & (picks_BGK < last)
    chosen_BE = torch.zeros(len(picks_BGK), last - first + 1, dtype=torch.bool)
    places_BX = torch.where(there_BGK, picks_BGK - first, last - first).flatten(1).long()
    chosen_BE.scatter_(1, places_BX, True)
    return LinkCounts(
        rows=int(there_BGK.flatten(1).any(1).sum()),
        picks=int(there_BGK.sum()),
        pairs=int(chosen_BE[:, :-1].sum()),
        sums=int(there_BGK.any(2).sum()),
    )


def fewest_bytes(
    picks_BGK: Tensor, work: Workload, placement: ExpertPlacement, number: int, per_host: int = 1
) -> dict[str, Any]:
    """Of this rank's links to other hosts; what these send back counts here, the sum is the same.

    Beside it: the same with a message for each gate, and with a row for each pick.
    """
    widths = (work.D * number, work.output_dim * number)
    found = {"bound": 0, "per_gate": 0, "per_pick": 0, "links": []}
    for host in range(world_size() // per_host):
        members = range(host * per_host, (host + 1) * per_host)
        held = [expert for member in members for expert in placement.on(member)]
        if rank() in members or not held:
            continue
        span = (held[0], held[-1] + 1)
        link = count_link(picks_BGK, *span)
        found["links"].append(asdict(link))
        found["bound"] += link.bytes(*widths)
        by_gate = [count_link(gate_B1K, *span) for gate_B1K in picks_BGK.split(1, dim=1)]
        found["per_gate"] += sum(gate.bytes(*widths) for gate in by_gate)
        found["per_pick"] += 2 * link.picks * sum(widths)
    return found


# Bytes that the collectives of a rank send, counted below all of ours, beside the told ones


class Traffic(TorchDispatchMode):
    """Counts what all-to-alls of any group send to other hosts, in forward and backward passes.

    It looks at the operators that `torch.distributed` itself calls, so it knows nothing of who
    calls them, and misses nothing that somebody sends in another way.
    """

    def __init__(self, per_host: int = 1) -> None:
        super().__init__()
        self.per_host, self.bytes = per_host, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            self.bytes += _sent(func._schema.name, args, self.per_host)
        return func(*args, **(kwargs or {}))


def _sent(name: str, args: Any, per_host: int) -> int:
    """Bytes for other hosts."""
    if name != "c10d::alltoall_base_":
        raise ValueError(f"expected all-to-alls alone, whose bytes can be counted, got {name}")
    message, sizes = args[1], args[4]
    assert isinstance(message, Tensor)
    members = dist.get_process_group_ranks(dist.ProcessGroup.unbox(args[2]))
    rows = sizes or [len(message) // len(members)] * len(members)
    here = dist.get_rank() // per_host
    away = sum(n for n, member in zip(rows, members, strict=True) if member // per_host != here)
    return away * message[:1].numel() * message.element_size()


def sums_of(told: str, answers: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Bytes over all ranks: as told, as counted, and the fewest that there can be."""
    total = {key: sum(answer[key] for answer in answers) for key in ("told", "counted", "bound")}
    if total["told"] != total["counted"]:
        raise ValueError(
            f"{told}: expected the {total['counted']:,} bytes that were sent, got {total['told']:,}"
        )
    return total


# This rank's part of a layer that lies on all ranks


class FreeExperts(Pool):
    """Experts that cost nothing: each returns its rows as they are."""

    def __init__(self, num_experts: int, width: int) -> None:
        super().__init__()
        self.num_experts, self.output_dim = num_experts, width

    @property
    def traits(self) -> PoolTraits:
        return PoolTraits(static_shapes=True)

    def __len__(self) -> int:
        return self.num_experts

    def dense(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        return [inputs[0]] * self.num_experts

    def grouped(self, rows: Tensor, offsets_E1: Tensor) -> Tensor:
        return rows


@dataclass(frozen=True)
class Part:
    """Layers over the same experts, which share one input, and their training step."""

    layers: Sequence[MultiGateMixture]  # One for each given gate module
    step: Contestant  # Of all of them
    values: Values  # Experts that are everybody's; rows that are this rank's own

    @property
    def dispatcher(self) -> AllToAllDispatcher:
        dispatcher = self.layers[0].dispatcher
        assert isinstance(dispatcher, AllToAllDispatcher)
        return dispatcher

    @classmethod
    def of(
        cls,
        work: Workload,  # Sizes, B for each rank
        gates: Callable[[Values], Sequence[nn.Module]],  # What makes the gate modules of the values
        *,
        free: bool = False,  # Whether experts cost nothing, where D = O
        placement: ExpertPlacement | None = None,  # Who holds which expert; None: evenly
        wire: torch.dtype | None = None,  # What rows travel in
    ) -> "Part":
        """Draws and spreads it."""
        placement = placement or ExpertPlacement.even(work.E, world_size())
        everybody = draw(replace(work, B=1))
        own = draw(replace(work, E=1), seed=1 + rank())
        values = replace(everybody, x_BD=own.x_BD, grad_BGO=own.grad_BGO)
        held = placement.on(rank())
        pool = FreeExperts(len(held), work.output_dim)
        experts = pool if free else our_experts(work, values).part(held)
        layers, widths = [], []
        for gate in gates(values):
            given = isinstance(gate, GivenLogits)
            widths.append(gate.logits_BGE.shape[1] if given else work.G)
            dispatcher = AllToAllDispatcher(placement, wire_dtype=wire)
            layer = MultiGateMixture(work.D, widths[-1], experts, gate=gate, dispatcher=dispatcher)
            layers.append(layer.train())
        x_BD, grads = leaf(values.x_BD), values.grad_BGO.split(widths, dim=1)
        step = contestant(lambda: [layer(x_BD).out_BGO for layer in layers], grads, x_BD, layers)
        return cls(layers, step, values)


def own_rows(work: Workload, drawn: Callable[[Workload], Tensor]) -> Tensor:
    whole = drawn(replace(work, B=work.B * world_size()))
    return whole[rank() * work.B : (rank() + 1) * work.B]


def _work(sizes: Mapping[str, Any]) -> Workload:
    return Workload(**{**sizes, "hidden": tuple(sizes["hidden"])})


# Jobs of `benchmarks.parallel`: bytes, dispatches, growth

WIRES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def count_bytes(*, sizes: Mapping[str, Any], shared: float, wire: str) -> dict[str, Any]:
    """Forward and backward pass of one batch: bytes counted twice, and the fewest there can be."""
    work = _work(sizes)
    logits_BGE = own_rows(work, lambda whole: correlated_logits(whole, shared))
    if work.k is None:
        part = Part.of(work, lambda values: [linear_gate(work, values)], wire=WIRES[wire])
        picks_BGK = torch.arange(work.E).expand(work.B, work.G, -1)
    else:
        given = GivenLogits(logits_BGE, work.k)
        part = Part.of(work, lambda _: [given], wire=WIRES[wire])
        picks_BGK = logits_BGE.topk(work.k, dim=-1).indices
    part.step.step()  # ranks tell each other their hosts on first use
    sent = part.dispatcher.wire
    before = sent.bytes_sent
    with Traffic() as traffic:
        part.step.step()
    placement = ExpertPlacement.even(work.E, world_size())
    fewest = fewest_bytes(picks_BGK, work, placement, WIRES[wire].itemsize)
    return {"told": sent.bytes_sent - before, "counted": traffic.bytes, **fewest}


def race_dispatches(*, seconds: float, shared: float, **sizes: Any) -> dict[str, Any]:
    work = _work(sizes)
    assert work.k is not None
    k, logits_BGE = work.k, own_rows(work, lambda whole: correlated_logits(whole, shared))

    def step(logits: Sequence[Tensor]) -> Contestant:
        return Part.of(work, lambda _: [GivenLogits(one_BGE, k) for one_BGE in logits]).step

    steps = {"one": step([logits_BGE]), "each": step(logits_BGE.split(1, dim=1))}
    check_equal("gates over ranks", steps, work.tolerance)
    return {"seconds": race({who: step.step for who, step in steps.items()}, seconds)}


def race_growth(*, seconds: float, **sizes: Any) -> dict[str, Any]:
    """A layer on the first rank alone, beside one of W times the experts and rows on all."""
    work = _work(sizes)
    assert work.k is not None
    large, k = replace(work, E=work.E * world_size()), work.k
    logits_BGE = own_rows(large, lambda whole: correlated_logits(whole, 0.0))
    many = Part.of(large, lambda _: [GivenLogits(logits_BGE, k)]).step
    one = ours(work, draw(work), gate=GivenLogits(correlated_logits(work, 0.0), k))
    calls = {"many": many.step, "one": one.step if rank() == 0 else lambda: None}
    return {"seconds": race(calls, seconds)}


# Jobs of `benchmarks.network`: layers of a setting, in one mode or another

OVERLAP_ROWS = 1024  # the dispatcher's own
MUCH = 100.0  # beside all logits that are drawn
# More than any batch has: own rows wait for the others, strictly one after another
NEVER = 2**40
FLOAT_BYTES = 4


@dataclass(frozen=True)
class Setting:
    """A layer, a world and the links between its hosts."""

    hosts: int
    per_host: int  # Ranks of each
    batch: int  # Rows of each rank
    experts: int  # E, spread evenly
    k: int  # Picks of each gate
    gates: int  # G, which pick independently of each other
    widths: tuple[int, ...]  # D, then the experts' layers, the last of which is O
    gbits: float  # Rate of a host's link, in Gbit/s
    skew: float = 0.0  # 0: even loads; else first picks follow `rank ** -skew`

    @property
    def name(self) -> str:
        widths = "-".join(map(str, self.widths))
        skew = f", skew {self.skew:g}" if self.skew else ""
        return (
            f"{self.hosts}×{self.per_host}, B {self.batch}, E {self.experts} ({widths}), "
            f"G {self.gates}, K {self.k}, {self.gbits:g} Gbit/s{skew}"
        )

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> "Setting":
        return cls(**{**raw, "widths": tuple(raw["widths"])})

    @property
    def ranks(self) -> int:
        return self.hosts * self.per_host

    @property
    def work(self) -> Workload:
        D, *hidden = self.widths
        return Workload(
            B=self.batch, D=D, hidden=tuple(hidden), E=self.experts, G=self.gates, k=self.k
        )


class RankLayer:
    """This rank's part of a setting's layer."""

    def __init__(
        self,
        setting: Setting,  # Sizes
        *,
        free: bool = False,  # Whether experts cost nothing, where D = O
        shared: float = 0.0,  # Of the logits of gates, see `correlated_logits`
        hot: float = 0.0,  # Share of all rows whose gates want expert 0 most
        uneven: float = 0.5,
        placement: ExpertPlacement | None = None,  # Who holds which expert; None: evenly
    ) -> None:
        self.setting, self.free, self.work = setting, free, setting.work
        self.placement = placement or ExpertPlacement.even(setting.experts, world_size())

        def logits(whole: Workload) -> Tensor:
            drawn = (
                skewed_logits(whole, setting.skew)
                if setting.skew
                else correlated_logits(whole, shared)
            )
            of_hundred_B, half = torch.arange(len(drawn)) % 100, whole.E // 2
            if hot:
                drawn[of_hundred_B < 100 * hot, :, 0] += MUCH
            if uneven != 0.5:
                first_B = of_hundred_B < 100 * uneven
                drawn[first_B, :, :half] += MUCH
                drawn[~first_B, :, half:] += MUCH
            return drawn

        self.logits_BGE = own_rows(self.work, logits)
        gate = GivenLogits(self.logits_BGE, setting.k)
        self.part = Part.of(self.work, lambda _: [gate], free=free, placement=self.placement)

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> "RankLayer":
        return cls(Setting.of(raw["setting"]), **{k: v for k, v in raw.items() if k != "setting"})

    @property
    def picks_BGK(self) -> Tensor:
        return self.logits_BGE.topk(self.setting.k, dim=-1).indices

    def as_contestant(
        self,
        *,
        overlaps: bool | None = None,
        shadowed: Sequence[int] | str = (),  # Experts, or `all`
        adaptive: AdaptiveMode | None = None,  # What chooses the mode; None: it is fixed
        **others: Any,
    ) -> Contestant:
        """The layer in one mode, as JSON has it."""
        shadowed = shadowed if isinstance(shadowed, str) else tuple(shadowed)
        mode: Any = adaptive or Mode(shadowed=shadowed, **others)

        def forward() -> Sequence[Tensor]:
            dispatcher = self.part.dispatcher
            dispatcher.mode = mode
            dispatcher.overlap_rows = {None: OVERLAP_ROWS, True: 0, False: NEVER}[overlaps]
            return self.part.step.forward()

        return replace(self.part.step, forward=forward)


def count_host_bytes(*, layer: Mapping[str, Any]) -> dict[str, Any]:
    """Forward and backward pass of one batch over two levels: bytes of this rank to other hosts.

    Returns as the dispatcher tells, as counted, and the fewest: of each other host the distinct
    rows and the smaller way back, whose sizes are not counted.
    """
    counted = RankLayer.of(layer)
    per_host = counted.setting.per_host
    run = counted.as_contestant(hierarchical=True)
    run.step()  # groups of ranks meet on first use
    traffic = counted.part.dispatcher.wire.traffic
    before = traffic.bytes_between_hosts
    with Traffic(per_host) as between:
        run.step()
    told, work = traffic.bytes_between_hosts - before, counted.work
    fewest = fewest_bytes(counted.picks_BGK, work, counted.placement, FLOAT_BYTES, per_host)
    return {"told": told, "counted": between.bytes, "bound": fewest["bound"]}


# Contestants that take so many times as long as the fastest are timed once
HOPELESS = 3.0
FEWEST, MOST = 5, 40


def race_modes(
    *,
    layer: Mapping[str, Any],  # Of `RankLayer`
    hows: Mapping[str, Mapping[str, Any]],
    seconds: float,  # Of the race
    drop_slow: bool = False,  # Whether those that are slow beyond hope run once only
) -> dict[str, Any]:
    """Times one layer in several modes that take turns.

    Returns seconds of every contestant, the same on all ranks; what was chosen, and why.
    """
    raced = RankLayer.of(layer)
    # More calls than any race has: what was chosen stays
    adaptive = AdaptiveMode(first=(0,), every=NEVER)
    contestants = {}
    for name, how in hows.items():
        automatic = bool(how.get("auto"))
        contestants[name] = raced.as_contestant(**({"adaptive": adaptive} if automatic else how))
        while automatic and not adaptive.history:
            time_on_all_ranks(contestants[name].step)
    if not raced.free:
        check_equal(raced.setting.name, contestants, raced.work.tolerance)
    took = race({name: c.step for name, c in contestants.items()}, seconds, drop_slow)
    chosen = [
        {"mode": {**asdict(c.mode), "overlaps": None}, "why": c.why} for c in adaptive.history
    ]
    return {"seconds": took, "chosen": chosen}


def race_placements(*, layer: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """Times a layer whose experts lie evenly beside one in which they were placed by their loads.

    Returns seconds of both; how uneven the loads of ranks were, and are.
    """
    even = RankLayer.of(layer)
    loads_E = torch.bincount(even.picks_BGK.flatten(), minlength=even.setting.experts)
    dist.all_reduce(loads_E)
    better = better_placement(even.placement, loads_E.tolist())
    if better is None:
        raise ValueError(f"placement: expected one better than {even.placement}, got none")
    placed = RankLayer.of({**layer, "placement": better.placement})
    calls = {name: of.as_contestant() for name, of in (("even", even), ("placed", placed))}
    outs = [call.run()[0].detach() for call in calls.values()]
    torch.testing.assert_close(*outs, rtol=even.work.tolerance, atol=even.work.tolerance)
    took = race({name: call.step for name, call in calls.items()}, seconds)
    return {"seconds": took, "before": better.before, "after": better.after}


def race(
    calls: Mapping[str, Callable[[], object]], seconds: float, drop_slow: bool = False
) -> dict[str, list[float]]:
    """Seconds of calls that take turns; all ranks agree on them, and on how many there are."""
    first: dict[str, float] = {}
    for _ in range(1 if drop_slow else 2):  # the first call of all warms up
        first = {name: time_on_all_ranks(call) for name, call in calls.items()}
    slowest = HOPELESS * min(first.values()) if drop_slow else float("inf")
    hopeful = [name for name, took in first.items() if took < slowest]
    rounds = int(seconds / max(sum(first[name] for name in hopeful), 1e-6))
    found = {name: [] if name in hopeful else [took] for name, took in first.items()}
    for turn in range(max(FEWEST, min(MOST, rounds))):
        for name in rotated(hopeful, turn):
            found[name].append(time_on_all_ranks(calls[name]))
    return found


# A rank

# Seconds that it waits for another; a race of layers takes less
PATIENCE = 240
JOBS: dict[str, Callable[..., dict[str, Any]]] = {
    "bytes": count_bytes, "dispatches": race_dispatches, "growth": race_growth,
    "bandwidth": host_bandwidth, "modes": race_modes, "placements": race_placements,
    "host_bytes": count_host_bytes,
}  # fmt: skip


def main() -> None:
    answers = private_stdout()
    torch.set_num_threads(1)
    # A core for each rank, in turn; ranks of all hosts share those of this machine. Before any
    # other thread starts: those that do later keep to it as well
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[launched_rank() % len(cores)]})
    ensure_process_group(PATIENCE)
    answer_commands(JOBS, answers)


if __name__ == "__main__":
    main()
