"""The layer over ranks in every mode, its bytes and its times."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.mixture.layers import (
    Contestant,
    GivenLogits,
    Workload,
    check_equal,
    contestant,
    correlated_logits,
    draw,
    leaf,
    our_experts,
    skewed_logits,
)
from benchmarks.parallel.layers import Traffic, count_link
from benchmarks.racing.harness import rotated, time_on_all_ranks
from mmoe.mixture import MultiGateMixture, Pool, PoolTraits
from mmoe.parallel import (
    AdaptiveMode,
    AllToAllDispatcher,
    ExpertPlacement,
    Mode,
    better_placement,
    rank,
    world_size,
)

# The grid of settings on which modes are compared, fixed before there was a cost model


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A layer, a world and the links between its hosts.

    Attributes:
        hosts: How many.
        per_host: Ranks of each.
        batch: Rows of each rank.
        experts: E, spread evenly.
        k: Picks of each gate.
        gates: G, which pick independently of each other.
        widths: D, then the experts' layers, the last of which is O.
        gbits: Rate of a host's link, in Gbit/s.
        skew: 0: even loads; else first picks follow `rank ** -skew`.
    """

    hosts: int
    per_host: int
    batch: int
    experts: int
    k: int
    gates: int
    widths: tuple[int, ...]
    gbits: float
    skew: float = 0.0

    @property
    def name(self) -> str:
        """In tables."""
        widths = "-".join(map(str, self.widths))
        skew = f", skew {self.skew:g}" if self.skew else ""
        return (
            f"{self.hosts}×{self.per_host}, B {self.batch}, E {self.experts} ({widths}), "
            f"G {self.gates}, K {self.k}, {self.gbits:g} Gbit/s{skew}"
        )

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> "Setting":
        """What `dataclasses.asdict` made, and JSON carried."""
        return cls(**{**raw, "widths": tuple(raw["widths"])})

    @property
    def ranks(self) -> int:
        """W."""
        return self.hosts * self.per_host

    @property
    def work(self) -> Workload:
        """The layer as each rank has it, with its own rows."""
        return Workload(
            B=self.batch,
            D=self.widths[0],
            hidden=self.widths[1:],
            E=self.experts,
            G=self.gates,
            k=self.k,
        )


# hosts, ranks of each, batch, experts, k, gates, widths, Gbit/s, skew
_ROWS: tuple[tuple[int, int, int, int, int, int, tuple[int, ...], float, float], ...] = (
    (2, 1, 256, 4, 1, 1, (64, 64), 0.1, 0.0),
    (2, 1, 256, 64, 2, 2, (256, 128), 0.1, 0.0),
    (2, 1, 1024, 8, 2, 4, (256, 64), 1.0, 0.0),
    (2, 1, 1024, 256, 2, 4, (256, 256), 1.0, 0.0),
    (2, 1, 2048, 16, 1, 1, (512, 256, 128), 3.0, 0.0),
    (2, 1, 2048, 32, 4, 2, (512, 512, 256), 3.0, 1.0),
    (2, 1, 4096, 8, 2, 2, (256, 512, 256), 10.0, 0.0),
    (2, 1, 4096, 64, 2, 1, (128, 128), 0.3, 1.5),
    (2, 1, 8192, 4, 1, 2, (128, 64), 1.0, 0.0),
    (2, 1, 8192, 16, 2, 3, (256, 128, 64), 10.0, 1.0),
    (2, 2, 256, 16, 2, 4, (1024, 256), 1.0, 0.0),
    (2, 2, 256, 128, 4, 2, (512, 256), 0.3, 0.0),
    (2, 2, 512, 64, 2, 4, (256, 256), 0.3, 0.0),
    (2, 2, 1024, 8, 4, 1, (256, 128), 0.3, 0.0),
    (2, 2, 1024, 64, 2, 4, (256, 512, 256), 1.0, 1.0),
    (2, 2, 2048, 256, 4, 1, (256, 128), 1.0, 1.5),
    (2, 2, 2048, 16, 1, 3, (512, 128), 3.0, 0.0),
    (2, 2, 4096, 4, 2, 2, (128, 128, 64), 1.0, 0.0),
    (2, 2, 4096, 32, 3, 1, (256, 256), 10.0, 0.0),
    (4, 1, 256, 8, 1, 2, (512, 512, 128), 1.0, 0.0),
    (4, 1, 512, 32, 2, 1, (1024, 128), 1.0, 1.0),
    (4, 1, 1024, 128, 2, 2, (256, 256), 0.3, 0.0),
    (4, 1, 2048, 16, 2, 4, (128, 64), 0.3, 0.0),
    (4, 1, 4096, 64, 1, 1, (256, 256, 128), 3.0, 1.5),
)
GRID: tuple[Setting, ...] = tuple(
    Setting(
        hosts=hosts,
        per_host=per_host,
        batch=batch,
        experts=experts,
        k=k,
        gates=gates,
        widths=widths,
        gbits=gbits,
        skew=skew,
    )
    for hosts, per_host, batch, experts, k, gates, widths, gbits, skew in _ROWS
)


# Inside a rank: a layer of a setting, and its steps in one mode or another

OVERLAP_ROWS = 1024  # the dispatcher's own
MUCH = 100.0  # beside all logits that are drawn
# More than any batch has: own rows wait for the others, strictly one after another
NEVER = 2**40


class FreeExperts(Pool):
    """Experts that cost nothing: each returns its rows as they are."""

    def __init__(self, num_experts: int, width: int) -> None:
        super().__init__()
        self.num_experts, self.output_dim = num_experts, width

    @property
    def traits(self) -> PoolTraits:
        """They read no sizes."""
        return PoolTraits(static_shapes=True)

    def __len__(self) -> int:
        """How many are here."""
        return self.num_experts

    def dense(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The rows, for each expert."""
        return [inputs[0]] * self.num_experts

    def grouped(self, rows: Tensor, offsets_E1: Tensor) -> Tensor:
        """The rows."""
        return rows


class RankLayer:
    """This rank's part of a layer that lies on all ranks.

    Args:
        setting: Sizes.
        free: Whether experts cost nothing, where D = O.
        shared: Of the logits of gates, see `correlated_logits`.
        hot: Share of all rows whose gates want expert 0 most.
        uneven: Share of all rows whose gates want experts of the first half alone, those of others
            the other half.
        placement: Who holds which expert; None: evenly.
    """

    def __init__(
        self,
        setting: Setting,
        *,
        free: bool = False,
        shared: float = 0.0,
        hot: float = 0.0,
        uneven: float = 0.5,
        placement: ExpertPlacement | None = None,
    ) -> None:
        self.setting, self.free, self.work = setting, free, setting.work
        self.logits_BGE = own_logits(setting, shared, hot, uneven)
        self.placement = placement or ExpertPlacement.even(setting.experts, world_size())
        self.dispatcher = AllToAllDispatcher(self.placement)
        # The weights of experts are everybody's; the rows are each rank's own
        everybody = draw(replace(self.work, B=1))
        own = draw(replace(self.work, E=1), seed=1 + rank())
        held = self.placement.on(rank())
        pool = our_experts(self.work, everybody).part(held)
        self.layer = MultiGateMixture(
            self.work.D,
            self.work.G,
            FreeExperts(len(held), self.work.output_dim) if free else pool,
            gate=GivenLogits(self.logits_BGE, setting.k),
            dispatcher=self.dispatcher,
        ).train()
        x_BD = leaf(own.x_BD)
        self.contestant = contestant(
            lambda: [self.layer(x_BD).out_BGO], [own.grad_BGO], x_BD, [self.layer]
        )

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> "RankLayer":
        """From JSON: sizes as `setting`, and the rest."""
        return cls(Setting.of(raw["setting"]), **{k: v for k, v in raw.items() if k != "setting"})

    def as_contestant(self, how: "How | Choosing") -> Contestant:
        """The layer in a mode."""

        def forward() -> Sequence[Tensor]:
            how.set(self.dispatcher)
            return self.contestant.forward()

        return replace(self.contestant, forward=forward)


class How:
    """How a layer runs, from and to JSON.

    Args:
        overlaps: Whether a rank's own rows are computed while others travel; None: as the
            dispatcher finds best.
        shadowed: Experts, or `all`.
        others: Of the mode.
    """

    def __init__(
        self,
        *,
        overlaps: bool | None = None,
        shadowed: Sequence[int] | str = (),
        **others: Any,
    ) -> None:
        self.overlaps = overlaps
        every = isinstance(shadowed, str)
        self.mode = Mode(shadowed="all" if every else tuple(shadowed), **others)

    @classmethod
    def of(cls, mode: Mode) -> "How":
        """A mode, else as it is by default."""
        return cls(**asdict(mode))

    def as_json(self) -> dict[str, Any]:
        """What makes the same one."""
        return {**asdict(self.mode), "overlaps": self.overlaps}

    def set(self, dispatcher: AllToAllDispatcher) -> None:
        """For the calls to come."""
        dispatcher.mode = self.mode
        dispatcher.overlap_rows = {None: OVERLAP_ROWS, True: 0, False: NEVER}[self.overlaps]


class Choosing:
    """The layer chooses how it runs.

    Args:
        adaptive: By this.
    """

    def __init__(self, adaptive: AdaptiveMode) -> None:
        self.adaptive = adaptive

    def set(self, dispatcher: AllToAllDispatcher) -> None:
        """For the calls to come."""
        dispatcher.mode = self.adaptive
        dispatcher.overlap_rows = OVERLAP_ROWS


def own_logits(setting: Setting, shared: float, hot: float, uneven: float) -> Tensor:
    """`logits_BGE` of this rank's rows, of those that are drawn for all ranks."""
    work, ranks = setting.work, world_size()
    whole: Workload = replace(work, B=work.B * ranks)
    drawn = skewed_logits(whole, setting.skew) if setting.skew else correlated_logits(whole, shared)
    of_hundred_B = torch.arange(len(drawn)) % 100
    if hot:
        drawn[of_hundred_B < 100 * hot, :, 0] += MUCH
    if uneven != 0.5:
        first_B = of_hundred_B < 100 * uneven
        drawn[first_B, :, : work.E // 2] += MUCH
        drawn[~first_B, :, work.E // 2 :] += MUCH
    return drawn[rank() * work.B : (rank() + 1) * work.B]


# What goes between hosts for a layer over two levels, beside the fewest bytes that could

FLOAT_BYTES = 4


def count_host_bytes(*, layer: Mapping[str, Any]) -> dict[str, Any]:
    """Forward and backward pass of one batch over two levels: bytes of this rank to other hosts.

    Args:
        layer: Of `RankLayer`.

    Returns:
        As the dispatcher tells, as counted, and the fewest: of each other host the distinct rows
        and the smaller way back, whose sizes are not counted.
    """
    counted = RankLayer.of(layer)
    per_host = counted.setting.per_host
    run = counted.as_contestant(How(hierarchical=True))
    run.step()  # groups of ranks meet on first use
    traffic = counted.dispatcher.wire.traffic
    before = traffic.bytes_between_hosts
    with Traffic(per_host) as between:
        run.step()
    told = traffic.bytes_between_hosts - before
    return {"told": told, "counted": between.bytes, "bound": _fewest(counted, per_host)}


def _fewest(counted: RankLayer, per_host: int) -> int:
    """Of this rank's rows; what other hosts send back counts here: the sum over ranks is one."""
    work, placement = counted.work, counted.placement
    assert work.k is not None
    picks_BGK = counted.logits_BGE.topk(work.k, dim=-1).indices
    widths = (work.D * FLOAT_BYTES, work.output_dim * FLOAT_BYTES)
    found = 0
    for host in range(world_size() // per_host):
        if host != rank() // per_host:
            held = [
                e for r in range(host * per_host, (host + 1) * per_host) for e in placement.on(r)
            ]
            found += _link(picks_BGK, held[0], held[-1] + 1, widths)
    return found


def _link(picks_BGK: Tensor, first: int, last: int, widths: tuple[int, int]) -> int:
    return count_link(picks_BGK, first, last).bytes(*widths) if last > first else 0


# Inside a rank: layers that take turns, in one mode after another

# Contestants that take so many times as long as the fastest are timed once
HOPELESS = 3.0
FEWEST, MOST = 5, 40
# More calls than any race has: what was chosen stays
NEVER_AGAIN = 2**40


def race_modes(
    *,
    layer: Mapping[str, Any],
    hows: Mapping[str, Mapping[str, Any]],
    seconds: float,
    drop_slow: bool = False,
) -> dict[str, Any]:
    """Times one layer in several modes that take turns.

    Args:
        layer: Of `RankLayer`.
        hows: By the names of contestants; `auto: true` chooses by itself, before the race.
        seconds: Of the race.
        drop_slow: Whether those that are slow beyond hope run once only.

    Returns:
        Seconds of every contestant, the same on all ranks; what was chosen, and why.

    Raises:
        ValueError: Two modes give different numbers.
    """
    raced = RankLayer.of(layer)
    adaptive = AdaptiveMode(first=(0,), every=NEVER_AGAIN)
    contestants = {}
    for name, how in hows.items():
        automatic = bool(how.get("auto"))
        mode = Choosing(adaptive) if automatic else How(**how)
        contestants[name] = raced.as_contestant(mode)
        while automatic and not adaptive.history:
            time_on_all_ranks(contestants[name].step)
    if not raced.free:
        check_equal(raced.setting.name, contestants, raced.work.tolerance)
    took = race({name: c.step for name, c in contestants.items()}, seconds, drop_slow)
    chosen = [{"mode": How.of(c.mode).as_json(), "why": c.why} for c in adaptive.history]
    return {"seconds": took, "chosen": chosen}


def race_placements(*, layer: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """Times a layer whose experts lie evenly beside one in which they were placed by their loads.

    Args:
        layer: Of `RankLayer`.
        seconds: Of the race.

    Returns:
        Seconds of both; how uneven the loads of ranks were, and are.

    Raises:
        ValueError: The layers give different numbers, or no better placement was found.
    """
    even = RankLayer.of(layer)
    picks = even.logits_BGE.topk(even.setting.k, dim=-1).indices
    loads_E = torch.bincount(picks.flatten(), minlength=even.setting.experts)
    dist.all_reduce(loads_E)
    better = better_placement(even.placement, loads_E.tolist())
    if better is None:
        raise ValueError(f"placement: expected one better than {even.placement}, got none")
    placed = RankLayer.of({**layer, "placement": better.placement})
    calls = {name: of.as_contestant(How()) for name, of in (("even", even), ("placed", placed))}
    outs = [call.run()[0].detach() for call in calls.values()]
    torch.testing.assert_close(*outs, rtol=even.work.tolerance, atol=even.work.tolerance)
    took = race({name: call.step for name, call in calls.items()}, seconds, drop_slow=False)
    return {"seconds": took, "before": better.before, "after": better.after}


def race(
    calls: Mapping[str, Callable[[], object]], seconds: float, drop_slow: bool
) -> dict[str, list[float]]:
    """Seconds of calls that take turns; all ranks agree on them, and on how many there are."""
    first = {name: time_on_all_ranks(call) for name, call in calls.items()}
    slowest = HOPELESS * min(first.values()) if drop_slow else float("inf")
    hopeful = [name for name, took in first.items() if took < slowest]
    rounds = int(seconds / max(sum(first[name] for name in hopeful), 1e-6))
    found = {name: [] if name in hopeful else [took] for name, took in first.items()}
    for turn in range(max(FEWEST, min(MOST, rounds))):
        for name in rotated(hopeful, turn):
            found[name].append(time_on_all_ranks(calls[name]))
    return found
