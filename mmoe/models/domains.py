"""`NetworkDomains`: which domains a network knows, and which tasks there are in each."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mmoe.mixture.asking import RowAsks
from mmoe.mixture.domains import RowDomains


class NetworkDomains(nn.Module):
    """Which domains a network knows, and which tasks there are in each.

    Args:
        names: Of the M domains.
        tasks: Names, in the order of the towers.
        asked: Bool [M + 1, T], the tasks that exist; last in other domains. None: all do.
        own_gates: Whether each domain has gates of its own.
    """

    asked_NT: Tensor | None

    def __init__(
        self,
        names: Sequence[str],
        tasks: Sequence[str],
        asked: Tensor | None = None,
        *,
        own_gates: bool = True,
    ) -> None:
        super().__init__()
        self.names, self.tasks, self.own_gates = tuple(names), tuple(tasks), own_gates
        # A setting, not state: it comes back with the config and the encoder
        self.register_buffer("asked_NT", asked, persistent=False)

    def of(self, codes_B: Tensor) -> RowDomains:
        """Sorts the rows of a batch by their domain."""
        return RowDomains.of(codes_B, len(self.names))

    def asks(self, domains: RowDomains, gate_names: Sequence[str]) -> RowAsks:
        """Returns what the rows ask of the gates of a level: of tasks that exist, and shared ones.

        Args:
            domains: Of the rows.
            gate_names: A task's, or another one for a gate that is asked everywhere.
        """
        of_gates = domains if self.own_gates else None
        if self.asked_NT is None:
            return RowAsks(domains=of_gates)
        asked_BT = self.asked_NT[domains.codes_B.long()]
        everywhere_B = torch.ones_like(asked_BT[:, 0])
        columns = [
            # Of two gates called alike the first one is the task's
            asked_BT[:, self.tasks.index(name)]
            if name in self.tasks and name not in gate_names[:g]
            else everywhere_B
            for g, name in enumerate(gate_names)
        ]
        return RowAsks(torch.stack(columns, dim=1), of_gates)
