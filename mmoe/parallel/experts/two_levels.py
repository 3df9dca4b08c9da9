"""`TwoLevels`: rows cross to another host once, and fan out inside it."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from mmoe.mixture.pytrees import Tree
from mmoe.parallel.experts.exchange import Departure, Exchange, Handle, Piece, Terms
from mmoe.parallel.experts.placement import ExpertPlacement
from mmoe.parallel.experts.relay import gates_inside, relayed
from mmoe.parallel.experts.rows import Arrived
from mmoe.parallel.experts.steps import Steps
from mmoe.parallel.experts.wire import Traffic, Wire
from mmoe.parallel.hosts import Hosts


class HostsHandle(NamedTuple):
    """What the way back over two levels needs of a batch.

    Attributes:
        across: Of the exchange between hosts.
        inside: Of that inside this one; None: it has no experts.
        cells_Z: Where in the outputs inside lies what goes back across.
    """

    across: Handle
    inside: Handle | None
    cells_Z: Tensor

    @property
    def arrived(self) -> Arrived:
        """What came for the experts of this rank."""
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
    """

    # Those of `outward`, the experts and `homeward`, one after another
    num_steps = 5

    def __init__(self, placement: ExpertPlacement, hosts: Hosts, traffic: Traffic) -> None:
        across = Wire(hosts.peers, traffic=traffic)
        across.hosts = range(hosts.count)
        inside = Wire(hosts.inside, traffic=traffic)
        of_hosts = [[placement.on(r) for r in hosts.ranks_on(h)] for h in range(hosts.count)]
        self._across = Exchange(
            wire=across,
            placement=ExpertPlacement(tuple(sum(host, ()) for host in of_hosts)),
            relays=True,
        )
        here = of_hosts[across.rank]
        # Their numbers on the host go up from rank to rank
        self._num_experts = sum(map(len, here))
        bounds = pairwise(accumulate(map(len, here), initial=0))
        ranges = [tuple(range(first, last)) for first, last in bounds]
        self._inside = (
            Exchange(wire=inside, placement=ExpertPlacement(tuple(ranges)))
            if self._num_experts
            else None
        )

    def prepare(self, pieces: Sequence[Piece], terms: Terms) -> list[Departure]:
        """Plans what goes to which host; one exchange of sizes serves all pieces."""
        # A sum over a host and one over its ranks round otherwise: scores do not take turns
        costs = terms.costs._replace(by_batch=torch.is_grad_enabled())
        return self._across.prepare(pieces, terms._replace(costs=costs))

    def outward(self, leaving: Departure) -> Steps[HostsHandle]:
        """Sends the rows across, and what comes on to the ranks of this host."""
        across = yield from self._across.outward(leaving)
        if self._inside is None:
            yield
            return HostsHandle(across, None, torch.empty(0))
        rows, costs = leaving.terms
        plan, cells_Z = relayed(across, costs, self._num_experts)
        costs = costs._replace(
            by_batch=rows.wire == rows.dtype or torch.is_grad_enabled(),
            picks=gates_inside(costs, self._num_experts),
            bound=plan.bound,
        )
        piece = Piece([across.arrived.x_RD], plan)
        (on,) = self._inside.prepare([piece], Terms(rows, costs))
        inside = yield from self._inside.outward(on)
        return HostsHandle(across, inside, cells_Z)

    def homeward(self, y: Tree, handle: HostsHandle) -> Steps[Tensor]:
        """Adds up inside the host, sends that back across, and mixes what comes for each gate."""
        across, inside, cells_Z = handle
        if self._inside is None or inside is None:
            yield
            return (yield from self._across.homeward(y, across))
        out_NCO = yield from self._inside.homeward(y, inside)
        back_ZO = out_NCO.flatten(0, 1).index_select(0, cells_Z)
        wire = across.crossing.rows.wire
        return (yield from self._across.bring_back(back_ZO.to(wire), across))
