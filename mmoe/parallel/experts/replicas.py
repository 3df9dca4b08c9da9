"""`ReplicaGroups`: groups of ranks, each of which holds all experts."""

from collections.abc import Iterable
from datetime import timedelta
from typing import NamedTuple, cast

import torch.distributed as dist

from mmoe.parallel.launch.process_group import COLLECTIVE_SECONDS, rank, world_size


class OwnGroups(NamedTuple):
    """The groups of one rank.

    Attributes:
        place: Of this rank in its group.
        size: M, ranks of a group, which hold all experts together.
        replicas: W / M, how often each expert is there.
        experts: The ranks of its group, between which rows travel.
        gradients: The ranks that hold the same experts as this one, for sums of gradients.
        statistics: The same ranks, for what layers sum up on the way.
    """

    place: int
    size: int
    replicas: int
    experts: dist.ProcessGroup | None
    gradients: dist.ProcessGroup | None
    statistics: dist.ProcessGroup | None


class ReplicaGroups:
    """Divides the W ranks into W / M groups of M neighbours, each with all experts.

        W = 4, M = 2      group 0: ranks 0, 1      group 1: ranks 2, 3
        experts 0, 1      rank 0   ◀── gradients added up ──▶   rank 2
        experts 2, 3      rank 1   ◀── gradients added up ──▶   rank 3

    Rows travel inside a group only. M = W: each expert is there once; M = 1: every rank has all.

    Args:
        timeout_seconds: After which a rank that waits for another gives up.

    Example:
        >>> from mmoe.parallel import ReplicaGroups, ensure_process_group
        >>> ensure_process_group()
        >>> groups = ReplicaGroups().of_size(1)
        >>> groups.place, groups.size, groups.replicas
        (0, 1, 1)

    Source: He et al., "FastMoE" (arXiv 2103.13262), for groups of workers that share experts out.
    """

    def __init__(self, timeout_seconds: int = COLLECTIVE_SECONDS) -> None:
        self._patience = timedelta(seconds=timeout_seconds)
        self._found: dict[int, OwnGroups] = {}

    def of_size(self, size: int) -> OwnGroups:
        """Makes the groups, or returns those of before; all ranks together.

        Args:
            size: M.

        Raises:
            ValueError: It does not divide the number of ranks.
        """
        ranks = world_size()
        if size < 1 or ranks % size:
            raise ValueError(
                f"size: expected a number that divides the {ranks} rank(s) into groups, got {size}"
            )
        if size not in self._found:
            self._found[size] = self._make(size, ranks // size)
        return self._found[size]

    def _make(self, size: int, replicas: int) -> OwnGroups:
        place = rank() % size
        if replicas == 1:
            return OwnGroups(place, size, 1, None, None, None)
        # Every rank makes all groups, in one order
        experts = self._own(range(g * size, (g + 1) * size) for g in range(replicas))
        alike = [range(p, size * replicas, size) for p in range(size)]
        # Two groups of the same ranks: layers sum up statistics while sums of gradients are under
        # way
        return OwnGroups(place, size, replicas, experts, self._own(alike), self._own(alike))

    def _own(self, groups: Iterable[range]) -> dist.ProcessGroup | None:
        own = None
        for ranks in groups:
            group = dist.new_group(list(ranks), timeout=self._patience)
            if rank() in ranks:
                own = cast(dist.ProcessGroup, group)
        return own
