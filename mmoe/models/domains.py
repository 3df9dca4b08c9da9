"""`NetworkDomains`: which domains a network knows, and which tasks there are in each."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mmoe.mixture.inputs import Inputs


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

    def of(self, x: Tensor | Inputs, domains_B: Tensor) -> Inputs:
        """Sorts the rows of a batch by their domain."""
        return Inputs.of(x).in_domains(domains_B, len(self.names))

    def read(
        self, rows: Inputs, sources: Sequence[Tensor | Inputs], gate_names: Sequence[str]
    ) -> list[Inputs]:
        """Returns sources of a level, which say what the rows ask of its gates.

        Args:
            rows: With their domains.
            sources: What the level reads of them.
            gate_names: A task's, or another one for a gate that is asked everywhere.
        """
        asked_BG = self._asked(rows, gate_names)
        return [rows.asking(x, asked_BG, self.own_gates) for x in sources]

    def _asked(self, rows: Inputs, gate_names: Sequence[str]) -> Tensor | None:
        """The gates of tasks that exist, and shared ones."""
        if self.asked_NT is None:
            return None
        assert rows.domains_B is not None, "rows have domains"
        asked_BT = self.asked_NT[rows.domains_B.long()]
        everywhere_B = torch.ones_like(asked_BT[:, 0])
        columns = [
            # Of two gates called alike the first one is the task's
            asked_BT[:, self.tasks.index(name)]
            if name in self.tasks and name not in gate_names[:g]
            else everywhere_B
            for g, name in enumerate(gate_names)
        ]
        return torch.stack(columns, dim=1)
