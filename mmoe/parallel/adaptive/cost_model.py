"""Cost model: a call's seconds in each mode, by bytes, products and measured rates.

Seconds are of forward and backward pass together, and all ranks have as many rows. An exchange
takes what its busiest link takes; chunks hide the links behind the products, but not what a rank's
own core does for every byte. The numbers need not be right, only rank the modes: the best few are
timed (`AdaptiveMode`).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

from mmoe.mixture.execution import rates_of
from mmoe.parallel.adaptive.link_rates import LinkRates
from mmoe.parallel.experts.mode import Mode
from mmoe.parallel.experts.placement import ExpertPlacement
from mmoe.parallel.hosts import Hosts

PICK_BYTES = 4
# Products: forward, and for the gradients of rows and of weights
_PASSES = 3
# Forward and backward each read and write what is packed, gathered or mixed
_COPIES = 4


@dataclass(frozen=True, kw_only=True)
class Call:
    """Call of a mixture, the same on all ranks.

    Attributes:
        rows: B, of each rank.
        picks: G and K.
        pairs_per_row: How many distinct experts all gates pick for a row, on average.
        widths: D and O.
        parameters: Of one expert.
        number_bytes: Of a number of a row on the wire.
        parameter_bytes: Of a parameter.
        loads: Share of all (row, expert) pairs that is each expert's, by expert.
        placement: Who holds which expert.
        hosts: How the ranks lie.
        device_type: Where experts compute.

    Raises:
        ValueError: As many loads as experts are wanted.
    """

    rows: float
    picks: tuple[int, int]
    pairs_per_row: float
    widths: tuple[int, int]
    parameters: float
    number_bytes: int = 4
    parameter_bytes: int = 4
    loads: tuple[float, ...]
    placement: ExpertPlacement
    hosts: Hosts
    device_type: str = "cpu"

    def __post_init__(self) -> None:
        if len(self.loads) != self.placement.num_experts:
            raise ValueError(
                f"loads: expected one for each of the {self.placement.num_experts} experts of the "
                f"placement, got {len(self.loads)}"
            )

    @cached_property
    def by_load(self) -> list[int]:
        """Orders all experts, the most wanted first."""
        # Equal ones by number: all ranks have to name the same experts
        return sorted(range(len(self.loads)), key=lambda e: (-self.loads[e], e))

    def shares(self, shadowed: Collection[int]) -> list[float]:
        """Share of all pairs that is computed for others on each rank: not the shadowed ones'."""
        return [
            sum(self.loads[e] for e in own if e not in shadowed) for own in self.placement.experts
        ]


@dataclass(frozen=True)
class ExchangeCost:
    """Forward and backward of one direction of a road.

    Attributes:
        link: Seconds of the busiest link.
        core: Seconds of the busiest core.
        latency: Seconds in which nothing is carried.
    """

    link: float = 0.0
    core: float = 0.0
    latency: float = 0.0

    @property
    def alone(self) -> float:
        """Seconds where nothing else goes on: the core works while the link does."""
        return self.latency + max(self.link, self.core)

    def __add__(self, other: "ExchangeCost") -> "ExchangeCost":
        return ExchangeCost(
            self.link + other.link, self.core + other.core, self.latency + other.latency
        )


class CallParts:
    """The parts of a call.

    Args:
        call: Sizes and loads.
        rates: What sending and computing cost.
    """

    def __init__(self, call: Call, rates: LinkRates) -> None:
        self.call, self.rates = call, rates
        self.device = rates_of(call.device_type)

    def products(self, shares: Sequence[float], num_experts: int, rows: float) -> float:
        """Seconds of the busiest rank: products, and gathering what they read."""
        call = self.call
        pairs = max(shares) * rows * call.pairs_per_row
        # On average half a block of rows of every expert is wasted
        wasted = num_experts * self.device.rows_per_block / 2 if pairs else 0.0
        flops = 2 * _PASSES * (pairs + wasted) * call.parameters
        copied = _COPIES * pairs * sum(call.widths) * call.number_bytes
        return flops / self.rates.flops_per_second + copied * self.device.seconds_per_byte

    def one_level(self, shares: Sequence[float]) -> tuple[ExchangeCost, ExchangeCost]:
        """Rows out, and outputs back, each straight to its rank."""
        each = [self._volumes(share) for share in shares]
        return self._straight([out for out, _ in each]), self._straight([back for _, back in each])

    def two_levels(self, shares: Sequence[float]) -> tuple[ExchangeCost, ExchangeCost]:
        """Rows out, and outputs back, once to every host and on inside it."""
        hosts = self.call.hosts
        of_hosts = [sum(shares[r] for r in hosts.ranks_on(h)) for h in range(hosts.count)]
        across = [self._volumes(share) for share in of_hosts]
        inside = [self._volumes(share) for share in shares]
        out, back = (
            self._across([volume[way] for volume in across])
            + self._inside([volume[way] for volume in inside])
            for way in (0, 1)
        )
        return out, back

    def weights(self, shadowed: Collection[int]) -> ExchangeCost:
        """Weights of shadowed experts to all ranks, and their gradients back."""
        call = self.call
        size = call.parameters * call.parameter_bytes
        held = [size * sum(e in shadowed for e in own) for own in call.placement.experts]
        # What leaves a rank goes to all others: as if all of them asked it for so many rows
        sent = self._straight(held)
        copied = _COPIES * sum(held) * self.device.seconds_per_byte
        return sent + ExchangeCost(0.0, copied, 0.0)

    def _volumes(self, share: float) -> tuple[float, float]:
        """Bytes of a rank's batch that go to a place with a share of the pairs, and come back."""
        call, (gates, k) = self.call, self.call.picks
        (width, output), number = call.widths, call.number_bytes
        share = min(share, 1.0)
        pairs = call.rows * call.pairs_per_row * share
        # A row goes to a place once, if any of its pairs is there; so does a gate's sum come back
        rows = call.rows * (1 - (1 - share) ** call.pairs_per_row)
        sums = call.rows * gates * (1 - (1 - share) ** k)
        picks = call.rows * gates * k * share
        return rows * width * number + picks * PICK_BYTES, min(pairs, sums) * output * number

    def _straight(self, to: Sequence[float]) -> ExchangeCost:
        """Prices an exchange of so many bytes of every rank with each other, once each way."""
        hosts, total = self.call.hosts, sum(to)
        ranks, size = hosts.num_ranks, hosts.size
        of_hosts = [sum(to[r] for r in hosts.ranks_on(h)) for h in range(hosts.count)]
        # A link carries both directions at once: the fuller one counts
        between = max(max(size * (total - of), (ranks - size) * of) for of in of_hosts)
        inside = max(max(of_hosts[hosts.of(r)] - own, (size - 1) * own) for r, own in enumerate(to))
        # What a rank sends and what it gets, both of which pass through its core
        handled = max(total - own + (ranks - 1) * own for own in to)
        return self._exchange(between, inside, handled)

    def _across(self, to: Sequence[float]) -> ExchangeCost:
        """Prices an exchange of so many bytes of every rank with its peer on each other host."""
        hosts, total = self.call.hosts, sum(to)
        between = max(hosts.size * max(total - own, (hosts.count - 1) * own) for own in to)
        handled = max(total - own + (hosts.count - 1) * own for own in to)
        return self._exchange(between, 0.0, handled)

    def _inside(self, to: Sequence[float]) -> ExchangeCost:
        """Prices passing on, inside a host, what came from peers and a rank's own rows."""
        hosts = self.call.hosts
        inside = handled = 0.0
        for host in range(hosts.count):
            own = [to[r] for r in hosts.ranks_on(host)]
            leaves = [hosts.count * (sum(own) - one) for one in own]
            comes = [hosts.count * (hosts.size - 1) * one for one in own]
            inside = max(inside, *leaves, *comes)
            handled = max(handled, *(a + b for a, b in zip(leaves, comes, strict=True)))
        return self._exchange(0.0, inside, handled)

    def _exchange(self, between: float, inside: float, handled: float) -> ExchangeCost:
        """Forward and backward: once each, the second in the other direction."""
        rates = self.rates
        link = max(between / rates.bytes_per_second_between, inside / rates.bytes_per_second_inside)
        core = handled * rates.core_seconds_per_byte
        return ExchangeCost(2 * link, 2 * core, 2 * rates.latency)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Cost of a call by its parts, in seconds.

    Attributes:
        seconds: The whole call.
        link_seconds: In which the busiest link carries bytes.
        core_seconds: Of the busiest rank: products, copies, and sending.
    """

    seconds: float
    link_seconds: float
    core_seconds: float


def predict(mode: Mode, call: Call, rates: LinkRates) -> Cost:
    """Predicts what a call takes in a mode.

    Args:
        mode: How rows and weights travel.
        call: Sizes and loads.
        rates: What sending and computing cost.

    Returns:
        Seconds, forward and backward.

    Example:
        >>> from mmoe.parallel import ExpertPlacement, Hosts, LinkRates, Mode
        >>> from mmoe.parallel.adaptive.cost_model import Call
        >>> rates = LinkRates(
        ...     latency=1e-4,
        ...     bytes_per_second_inside=2e9,
        ...     bytes_per_second_between=125e6,
        ...     core_seconds_per_byte=5e-10,
        ...     flops_per_second=1e11,
        ... )
        >>> call = Call(
        ...     rows=8192,
        ...     picks=(2, 1),
        ...     pairs_per_row=2,
        ...     widths=(128, 64),
        ...     parameters=128 * 64,
        ...     loads=(0.25,) * 4,
        ...     placement=ExpertPlacement.even(4, 2),
        ...     hosts=Hosts(num_ranks=2, size=1),
        ... )
        >>> rows_travel, weights = Mode(), Mode(shadowed="all")
        >>> predict(weights, call, rates).seconds < predict(rows_travel, call, rates).seconds
        True
    """
    held = range(len(call.loads)) if mode.shadowed == "all" else mode.shadowed
    shadowed = frozenset(held)
    parts = CallParts(call, rates)
    copied = parts.weights(shadowed) if shadowed else ExchangeCost()
    by_copies = parts.products([sum(call.loads[e] for e in shadowed)], len(shadowed), call.rows)
    if len(shadowed) == len(call.loads):
        core = by_copies + copied.core
        seconds = copied.alone + by_copies
        return Cost(seconds=seconds, link_seconds=copied.link, core_seconds=core)
    shares, chunks = call.shares(shadowed), mode.chunks
    levels = mode.hierarchical and call.hosts.are_levels
    out, back = parts.two_levels(shares) if levels else parts.one_level(shares)
    most = max(map(len, call.placement.experts)) * chunks
    here = parts.products(shares, most, call.rows * call.hosts.num_ranks)
    sizes = 2 * rates.latency * (2 if levels else 1)
    seconds = sizes + _pipelined(out, back, here, chunks)
    # Weights share the link with the rows, and the core with what it computes meanwhile
    seconds += max(copied.link - (0 if chunks > 1 else here), copied.core, 0.0) + by_copies
    return Cost(
        seconds=seconds,
        link_seconds=out.link + back.link + copied.link,
        core_seconds=out.core + back.core + copied.core + here + by_copies,
    )


def candidates(
    call: Call,
    rates: LinkRates,
    *,
    chunks: Sequence[int] = (1, 2, 4),
    shadows: bool = True,
    some: bool = True,
) -> list[tuple[Mode, Cost]]:
    """Ranks modes, the cheapest first.

    Of each way for rows to travel (one level or two, so many chunks) there are those in which no
    expert, every expert, and the cheapest number of the most wanted ones are shadowed.

    Args:
        call: Sizes and loads.
        rates: What sending and computing cost.
        chunks: Into how many a batch may be cut.
        shadows: Whether experts can be shadowed.
        some: Whether some of them can be, the others not.

    Returns:
        Modes and what they are predicted to take.

    Source: He et al., "FasterMoE" (PPoPP 2022), section 4.1, for shadowing experts in the order of
        their loads while that is predicted to be faster.
    """
    roads = _roads(call, chunks)
    modes = [*roads, Mode(shadowed="all")] if shadows else roads
    found = [(mode, predict(mode, call, rates)) for mode in modes]
    for road in roads if shadows and some and len(call.loads) > 1 else []:
        hot = [_with_hot(road, call, count) for count in _counts(call)]
        found.append(min(((mode, predict(mode, call, rates)) for mode in hot), key=_seconds))
    return sorted(found, key=_seconds)


def _seconds(ranked: tuple[Mode, Cost]) -> float:
    return ranked[1].seconds


def _roads(call: Call, chunks: Sequence[int]) -> list[Mode]:
    levels = (False, True) if call.hosts.are_levels else (False,)
    return [
        Mode(hierarchical=level, chunks=n) for level in levels for n in chunks if n <= call.rows
    ]


def _counts(call: Call) -> list[int]:
    """Numbers of hot experts to look at: all small ones, and ever fewer of the larger ones."""
    counts, count = [], 1
    while count < len(call.loads):
        counts.append(count)
        # By a quarter: near the best number costs change little, and each one is a prediction
        count = max(count + 1, count * 5 // 4)
    return counts


def _with_hot(road: Mode, call: Call, count: int) -> Mode:
    hot = tuple(sorted(call.by_load[:count]))
    return Mode(hierarchical=road.hierarchical, chunks=road.chunks, shadowed=hot)


def _pipelined(out: ExchangeCost, back: ExchangeCost, products: float, chunks: int) -> float:
    """Seconds of rows out, products and outputs back, in so many chunks."""
    if chunks == 1:
        return out.alone + products + back.alone
    # The first chunk's way out and the last one's way back have no product to hide under
    ends = (out.link + back.link) / chunks
    hidden = (out.link + back.link) * (1 - 1 / chunks)
    busy = products + out.core + back.core
    return ends + max(hidden, busy) + (out.latency + back.latency) * chunks
