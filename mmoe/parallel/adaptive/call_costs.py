"""The parts of a call, and what they take: bytes over links, products, copies."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

from mmoe.mixture.execution import rates_of
from mmoe.parallel.adaptive.link_rates import LinkRates
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
