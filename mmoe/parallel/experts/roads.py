"""`Roads`: the ways that rows can take between the ranks of a wire, in one level and in two."""

from mmoe.parallel.experts.exchange import Exchange
from mmoe.parallel.experts.mode import Mode
from mmoe.parallel.experts.placement import ExpertPlacement
from mmoe.parallel.experts.two_levels import TwoLevels
from mmoe.parallel.experts.wire import Wire
from mmoe.parallel.hosts import Hosts


class Roads:
    """Makes each road where it is first asked for, which all ranks must reach together.

    Args:
        wire: The ranks.
        placement: Who holds which expert.

    Attributes:
        straight: The road of one level.
    """

    def __init__(self, wire: Wire, placement: ExpertPlacement) -> None:
        self._wire = wire
        self._hosts: Hosts | None = None
        self.place(placement)

    def place(self, placement: ExpertPlacement) -> None:
        """Takes another placement; all ranks together."""
        self._placement = placement
        self.straight = Exchange(wire=self._wire, placement=placement)
        self._over_hosts: TwoLevels | None = None

    @property
    def hosts(self) -> Hosts:
        """How the ranks lie on hosts; asked for on first use."""
        if self._hosts is None:
            self.hosts = Hosts.of_group(self._wire.group)
        assert self._hosts is not None, "just set"
        return self._hosts

    @hosts.setter
    def hosts(self, hosts: Hosts) -> None:
        ranks = self._wire.world_size
        if hosts.num_ranks != ranks:
            raise ValueError(
                f"hosts: expected those of {ranks} rank(s), as the group has, got those of "
                f"{hosts.num_ranks}"
            )
        self._hosts, self._over_hosts = hosts, None
        self._wire.hosts = [hosts.of(rank) for rank in range(ranks)]
        self._wire.down = hosts.down

    @property
    def over_hosts(self) -> TwoLevels:
        """The road of two levels."""
        if self._over_hosts is None:
            self._over_hosts = TwoLevels(self._placement, self.hosts, self._wire.traffic)
        return self._over_hosts

    def of(self, mode: Mode) -> Exchange | TwoLevels:
        """Returns the road of a mode; that of one level where two would be the same."""
        levels = mode.hierarchical and self.hosts.are_levels
        return self.over_hosts if levels else self.straight
