"""`Hosts`: how ranks lie on hosts, and the groups of ranks inside and across them."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

import torch.distributed as dist

from mmoe.parallel.launch.launcher import local_ranks
from mmoe.parallel.launch.process_group import patience_of, require_group
from mmoe.parallel.object_collectives import from_all


@dataclass(frozen=True, kw_only=True)
class Hosts:
    """Hosts of so many ranks each, neighbours together.

    Two hosts of two ranks: what crosses goes to the peer, the rank of the same local number there.

        host 0: rank 0   rank 1          `inside` of rank 1: ranks 0 and 1
                  │        │
        host 1: rank 2   rank 3          `peers` of rank 1: ranks 1 and 3

    Attributes:
        num_ranks: W, of the group.
        size: Ranks on each host.
        group: The ranks; None: all.

    Raises:
        ValueError: A size that does not divide the number of ranks.

    Example:
        >>> from mmoe.parallel import Hosts
        >>> hosts = Hosts(num_ranks=4, size=2)
        >>> [hosts.of(rank) for rank in range(4)], hosts.ranks_on(1), hosts.peers_of(1)
        ([0, 0, 1, 1], [2, 3], [1, 3])
    """

    num_ranks: int
    size: int
    group: dist.ProcessGroup | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.size < 1 or self.num_ranks % self.size:
            divisors = [n for n in range(1, self.num_ranks + 1) if self.num_ranks % n == 0]
            raise ValueError(
                f"host_size: expected hosts of equal size, so one of {divisors} for "
                f"{self.num_ranks} ranks, got {self.size}; start as many ranks on every host "
                "(torchrun --nproc-per-node), or set host_size to one of them"
            )

    @classmethod
    def of_group(
        cls, group: dist.ProcessGroup | None = None, *, host_size: int | None = None
    ) -> "Hosts":
        """Makes the hosts of a group; all its ranks must call it.

        Args:
            group: The ranks; default: all.
            host_size: Ranks on each host; default: what the launcher says (`LOCAL_WORLD_SIZE`).
                Where that does not give hosts of equal size, all ranks count as one host, and a
                warning says so.

        Returns:
            The hosts; the same on every rank.

        Raises:
            ValueError: No process group, or a `host_size` that does not divide its ranks.

        Example:
            >>> from mmoe.parallel import Hosts, ensure_process_group
            >>> ensure_process_group()
            >>> Hosts.of_group(host_size=1)
            Hosts(num_ranks=1, size=1)
        """
        require_group("hosts")
        ranks = dist.get_world_size(group)
        if host_size is not None:
            return cls(num_ranks=ranks, size=host_size, group=group)
        # With the rank among all: the group may have some of a host's ranks alone
        said = from_all((dist.get_rank(), local_ranks(default=0)), group)
        size = _equal_size(said)
        if size is None:
            warnings.warn(
                f"LOCAL_WORLD_SIZE: hosts of different size ({sorted({n for _, n in said})}) for "
                f"{ranks} ranks; they count as one host, and rows go straight to every rank; "
                "start as many ranks on every host, or give host_size",
                stacklevel=2,
            )
        return cls(num_ranks=ranks, size=size or ranks, group=group)

    @property
    def count(self) -> int:
        """Number of hosts."""
        return self.num_ranks // self.size

    @property
    def are_levels(self) -> bool:
        """Returns whether two levels differ from one: several hosts of several ranks each."""
        return 1 < self.size < self.num_ranks

    def of(self, rank: int) -> int:
        """Returns the host of a rank."""
        return rank // self.size

    def ranks_on(self, host: int) -> list[int]:
        """Returns the ranks on a host."""
        return list(range(host * self.size, (host + 1) * self.size))

    def peers_of(self, rank: int) -> list[int]:
        """Returns the ranks of a rank's local number, one on every host."""
        return list(range(rank % self.size, self.num_ranks, self.size))

    @cached_property
    def inside(self) -> dist.ProcessGroup:
        """The ranks of this rank's host; made on first use, which they all must reach."""
        return self._new_group(self.ranks_on(self.of(dist.get_rank(self.group))))

    @cached_property
    def peers(self) -> dist.ProcessGroup:
        """This rank's peers; made on first use, which they all must reach."""
        return self._new_group(self.peers_of(dist.get_rank(self.group)))

    @cached_property
    def down(self) -> dist.ProcessGroup | None:
        """Second group of all ranks, for what goes to lower ones (`Wire.down`), as `peers_down`."""
        return self._group_down(list(range(self.num_ranks)))

    @cached_property
    def peers_down(self) -> dist.ProcessGroup | None:
        """This rank's peers once more, likewise; None: on one host, or not with gloo."""
        return self._group_down(self.peers_of(dist.get_rank(self.group)))

    def _group_down(self, ranks: list[int]) -> dist.ProcessGroup | None:
        # With gloo a large message holds up the one that comes over the same connection; a group
        # for each direction was 1.35 times as fast on 2 × 2 ranks at 1 Gbit/s. NCCL has connections
        # for both anyhow
        if self.count == 1 or dist.get_backend(self.group) != "gloo":
            return None
        return self._new_group(ranks)

    def _new_group(self, ranks: list[int]) -> dist.ProcessGroup:
        if self.group is not None:
            ranks = [dist.get_global_rank(self.group, rank) for rank in ranks]
        # Only its own ranks meet: groups of other hosts are none of theirs
        made = dist.new_group(
            ranks, timeout=patience_of(self.group), use_local_synchronization=True
        )
        return cast(dist.ProcessGroup, made)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Hosts":
        """Copies share the groups, which cannot be copied."""
        return self


def _equal_size(said: Sequence[tuple[int, int]]) -> int | None:
    """Ranks of the group on each host, by (rank of all, ranks on its host); None: it differs.

    A launcher that says nothing (0) has started one host.
    """
    sizes = {local for _, local in said}
    if sizes == {0}:
        return len(said)
    if len(sizes) > 1:
        return None
    hosts = [rank // local for rank, local in said]
    size = hosts.count(hosts[0])
    expected = [hosts[i - i % size] for i in range(len(hosts))]
    equal = len(hosts) == size * len(set(hosts)) and hosts == expected
    return size if equal else None
