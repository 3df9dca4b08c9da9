"""Cost model: a call's seconds in each mode, by bytes, products and measured rates.

Seconds are of forward and backward pass together, and all ranks have as many rows. An exchange
takes what its busiest link takes; chunks hide the links behind the products, but not what a rank's
own core does for every byte. The numbers need not be right, only rank the modes: the best few are
timed (`AdaptiveMode`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mmoe.parallel.adaptive.call_costs import Call, CallParts, ExchangeCost
from mmoe.parallel.adaptive.link_rates import LinkRates
from mmoe.parallel.experts.mode import Mode


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
        >>> from mmoe.parallel.adaptive.call_costs import Call
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
