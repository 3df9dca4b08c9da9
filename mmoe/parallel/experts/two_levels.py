"""`TwoLevels`: rows cross to another host once, and fan out inside it.

Rows that came go on inside the host with the picks that they came with, and their outputs come back
as pairs or as sums over one rank. Across go pairs as they are, and sums over the whole host.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from mmoe import ops
from mmoe.mixture import DispatchPlan, Tree
from mmoe.ops import ReturnPlan
from mmoe.parallel.experts.async_exchange import Steps, at_once
from mmoe.parallel.experts.exchange import (
    Arrived,
    Crossing,
    Departure,
    Exchange,
    Handle,
    Piece,
    Terms,
)
from mmoe.parallel.experts.placement import ExpertPlacement
from mmoe.parallel.experts.wire import Traffic, Wire
from mmoe.parallel.hosts import Hosts


class WayHome(NamedTuple):
    """Plan that `pack_returns` makes for the Z rows that came back inside the host.

    Attributes:
        back: Where each row that came back, or each sum of them, lies in what goes back across.
        slots_NGK: The rows that came back which a gate adds up, int32; −1 = none.
        weights_NGK: And how much of each.
    """

    back: ReturnPlan
    slots_NGK: Tensor
    weights_NGK: Tensor


class HostsHandle(NamedTuple):
    """State of a batch that the way back over two levels needs.

    Attributes:
        across: Of the exchange between hosts.
        inside: Of that inside this one; None: it has no experts.
        home: What of that goes back across, likewise.
    """

    across: Handle
    inside: Handle | None = None
    home: WayHome | None = None

    @property
    def arrived(self) -> Arrived:
        """Rows that came for the experts of this rank."""
        return (self.inside or self.across).arrived


class TwoLevels:
    """Sends each row once to each *host* that has experts for it, and on to the ranks there.

    Two hosts of two ranks; sample a of rank 0 has picks on ranks 2 and 3:

                 across, to the peer         inside
        rank 0 ──────── a ────────▶ rank 2 ── a ──▶ rank 2, rank 3
               ◀─ sums or pairs ───        ◀─ sums or pairs ──

    Across go each distinct (sample, source, host), and back the smaller of pairs and of sums taken
    over the whole host. A host's own rows go inside alone.

    Args:
        placement: Who holds which expert.
        hosts: How the ranks lie; several hosts of several ranks each.
        traffic: Where both levels count.

    Attributes:
        across: Between this rank and its peers; its placement is that of hosts.
        inside: Between the ranks of this host; None: it has no experts.
    """

    # Those of `outward`, the experts and `homeward`, one after another
    num_steps = 5

    def __init__(self, placement: ExpertPlacement, hosts: Hosts, traffic: Traffic) -> None:
        across = Wire(hosts.peers, traffic=traffic)
        across.hosts, across.down = range(hosts.count), hosts.peers_down
        inside = Wire(hosts.inside, traffic=traffic)
        of_hosts = [[placement.on(r) for r in hosts.ranks_on(h)] for h in range(hosts.count)]
        self.across = Exchange(
            wire=across,
            placement=ExpertPlacement(tuple(sum(host, ()) for host in of_hosts)),
            relays=True,
        )
        here = of_hosts[across.rank]
        ranks = [rank for rank, own in enumerate(here) for _ in own]
        self._ranks_E = torch.tensor(ranks, dtype=torch.int64)
        # Their numbers on the host go up from rank to rank
        bounds = pairwise(accumulate(map(len, here), initial=0))
        ranges = [tuple(range(first, last)) for first, last in bounds]
        self.inside = (
            Exchange(wire=inside, placement=ExpertPlacement(tuple(ranges))) if ranks else None
        )

    def prepare(self, pieces: Sequence[Piece], terms: Terms) -> list[Departure]:
        """Plans what goes to which host; one exchange of sizes serves all pieces."""
        # Sums of sums round otherwise than sums of pairs: scores do not take turns
        costs = terms.costs._replace(by_batch=torch.is_grad_enabled())
        return self.across.prepare(pieces, terms._replace(costs=costs))

    def outward(self, leaving: Departure) -> Steps[HostsHandle]:
        """Sends the rows across, and what comes on to the ranks of this host."""
        across = yield from self.across.outward(leaving)
        if self.inside is None:
            yield
            return HostsHandle(across)
        (on,) = self._pass_on(across, leaving.terms)
        steps = self.inside.outward(on)
        next(steps)
        # Under way: time to plan
        home = _way_home(across, on.crossing, self._ranks_E.to(across.weights_BGK.device))
        yield
        return HostsHandle(across, at_once(steps), home)

    def _pass_on(self, across: Handle, terms: Terms) -> list[Departure]:
        """Plans how rows that came go on, with the picks that they came with."""
        assert self.inside is not None, "nothing comes to a host without experts"
        arrived, costs, experts = across.arrived, terms.costs, len(self._ranks_E)
        plan = DispatchPlan(
            experts_BGK=arrived.picks_NGK,
            weights_BGK=arrived.weights_NGK,
            num_experts=experts,
            expert_source=(0,) * experts,  # a row that came is of one source
            output_dim=costs.output_dim,
            most_pairs=costs.bound,
        )
        terms = terms._replace(costs=costs._replace(bound=plan.bound))
        # Pairs that go on across as pairs must come back to this rank as such
        as_pairs = not all(across.crossing.theirs.sums)
        return self.inside.prepare([Piece([arrived.x_RD], plan)], terms, as_pairs=as_pairs)

    def homeward(self, y: Tree, handle: HostsHandle) -> Steps[Tensor]:
        """Adds up inside the host, sends that back across, and mixes what comes for each gate."""
        across, inside, home = handle
        if self.inside is None or inside is None or home is None:
            yield
            return (yield from self.across.homeward(y, across))
        came_ZO = yield from self.inside.send_back(self.inside.pack(y, inside), inside)
        rows, theirs = across.crossing.rows, across.crossing.theirs
        back_ZO = ops.pack_returns(
            came_ZO.to(rows.dtype),
            home.weights_NGK,
            home.back,
            home.slots_NGK,
            sum(theirs.back),
            rows.wire,
        )
        back_ZO = yield from self.across.send_back(back_ZO, across)
        return self.across.mix(back_ZO, across)


def _way_home(across: Handle, inside: Crossing, ranks_E: Tensor) -> WayHome:
    """Plans which rows that come back inside the host go back across hosts.

    Where pairs go back across, pairs come back here.
    """
    arrived, theirs = across.arrived, across.crossing.theirs
    picks_NGK, routes = arrived.picks_NGK, arrived.routes
    back = ops.return_plan(routes, theirs.table(picks_NGK.device))
    places_NGK, as_sums_NGK = _places(picks_NGK, inside, ranks_E)
    num_rows = sum(inside.ours.back)
    # One place more, of picks whose outputs go back in a sum; and the pair that unused picks read
    back_Z = picks_NGK.new_full((num_rows + 1,), -1)
    back_R1 = torch.cat([back.back_R, back_Z[:1]])
    back_of_pick_X = back_R1[routes.slots_BGK.flatten().long()]
    at_X = torch.where(back_of_pick_X >= 0, places_NGK.flatten(), num_rows)
    back_Z[at_X] = back_of_pick_X
    summed_NG1 = back.back_NG.unsqueeze(2) >= 0
    slots_NGK = torch.where(summed_NG1, places_NGK, -1)
    weights_NGK = arrived.weights_NGK
    if any(inside.ours.sums):
        # A sum serves all of its picks at once: the first of them takes it, as it is
        again_NGK = _again(slots_NGK, num_rows) & as_sums_NGK
        slots_NGK = slots_NGK.masked_fill(again_NGK, -1)
        weights_NGK = weights_NGK.masked_fill(as_sums_NGK, 1)
    return WayHome(ReturnPlan(back_Z[:-1], back.back_NG), slots_NGK.to(torch.int32), weights_NGK)


def _places(picks_NGK: Tensor, inside: Crossing, ranks_E: Tensor) -> tuple[Tensor, Tensor]:
    """Returns each pick's row in what comes back (−1: unused), and whether that is a sum."""
    ours, out = inside.ours, inside.out
    rank_NGK = ranks_E[picks_NGK.clamp(min=0).long()]
    _, _, _, pairs_W, sums_W, back_W = ours.table(picks_NGK.device)[:-1].unbind(1)
    as_sums_NGK = torch.tensor(ours.sums, device=picks_NGK.device)[rank_NGK]
    places_NGK = torch.where(
        as_sums_NGK,
        out.sums_BGK + (back_W - sums_W)[rank_NGK],
        out.pairs_BGK + (back_W - pairs_W)[rank_NGK],
    )
    return places_NGK.masked_fill(picks_NGK < 0, -1), as_sums_NGK


def _again(slots_NGK: Tensor, num_rows: int) -> Tensor:
    """Marks picks whose row an earlier pick has."""
    slots_X = torch.where(slots_NGK < 0, num_rows, slots_NGK).flatten()
    numbers_X = torch.arange(len(slots_X), device=slots_X.device)
    first_Z = numbers_X.new_full((num_rows + 1,), len(slots_X))
    first_Z = first_Z.scatter_reduce(0, slots_X, numbers_X, "amin")
    return (first_Z[slots_X] < numbers_X).view(slots_NGK.shape)
