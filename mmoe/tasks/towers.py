"""One head per task: a tower over its mixture, and a logit."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mmoe.config.experts import Activation
from mmoe.mixture.axes import Entry, Names, Part, named
from mmoe.mixture.multi_gate import Unmixed
from mmoe.tasks.alike import logits_of_towers, logits_of_unmixed
from mmoe.tasks.tower import Tower

__all__ = ["LogitColumns", "TaskTowers", "Tower"]


class LogitColumns(NamedTuple):
    """Where the logits of towers stand side by side.

    Attributes:
        first: Of each tower, its first column.
        of_rows: Of each tower, the columns that differ from row to row: not its constants.
        width: Columns of all together.
    """

    first: list[int]
    of_rows: list[list[int]]
    width: int

    @property
    def is_plain(self) -> bool:
        """Whether each tower has one column."""
        return self.width == len(self.first)


class TaskTowers(nn.ModuleList):
    """Towers of T tasks; arguments are those of `Tower`.

    Those of one form are computed together (`mmoe.tasks.alike`).

    Example:
        >>> import torch
        >>> from mmoe.tasks import TaskTowers
        >>> h_BO = torch.zeros(4, 16)
        >>> TaskTowers(2, 16, [8])([h_BO, h_BO]).shape
        torch.Size([4, 2])
    """

    def __init__(
        self,
        num_tasks: int,
        input_dim: int,
        hidden: Sequence[int],
        *,
        activation: Activation = "relu",
        dropout: float = 0.0,
    ) -> None:
        super().__init__(
            Tower(input_dim, hidden, activation=activation, dropout=dropout)
            for _ in range(num_tasks)
        )

    @classmethod
    def of(cls, towers: Iterable[nn.Module]) -> "TaskTowers":
        """Makes them of modules of any class that map `h_BO` to `logit_B`, one per task."""
        made = cls(0, 1, [])
        made.extend(towers)
        return made

    def named_parts(self, names: Names) -> list[Part]:
        """Says whose each tower is."""
        return [
            Part(str(t), (Entry("tasks", named(names, "tasks", t)),), names)
            for t in range(len(self))
        ]

    @property
    def columns(self) -> "LogitColumns":
        """Where the logits of each tower stand."""
        first, linear, width = [], [], 0
        for tower in self:
            own = tower.num_logits if isinstance(tower, Tower) else 1
            more = tower.constants_J if isinstance(tower, Tower) else None
            first.append(width)
            linear.append(list(range(width, width + own)))
            width += own + (0 if more is None else len(more))
        return LogitColumns(first, linear, width)

    def spread(self, added_XR: Tensor, *, one_a_task: bool = False, beside: float = 0.0) -> Tensor:
        """Puts numbers of logits where these stand.

        Args:
            added_XR: A column for each of `columns.of_rows`, in their order.
            one_a_task: There is one column a task instead, for its first logit.
            beside: What others get.

        Returns:
            As many columns as `forward` returns.
        """
        columns = self.columns
        if columns.is_plain:
            return added_XR
        own = [column for of_task in columns.of_rows for column in of_task]
        places_R = torch.tensor(columns.first if one_a_task else own)
        wide_XL = added_XR.new_full((*added_XR.shape[:-1], columns.width), beside)
        return wide_XL.index_copy(-1, places_R.to(added_XR.device, non_blocking=True), added_XR)

    def forward(self, inputs: Sequence[Tensor] | Tensor | Unmixed) -> Tensor:
        """Computes `logits_BT` from T inputs `h_BO`, one per task; all columns of each.

        Args:
            inputs: T tensors, or one `h_BTO`, which is read without a copy where the rows of a task
                lie side by side in memory; or what the mixes of T gates are made of.
        """
        if isinstance(inputs, Unmixed):
            logits_BT = logits_of_unmixed(list(self), inputs)
            if logits_BT is not None:
                return logits_BT
            inputs = inputs.mixes()
        given = inputs.shape[1] if isinstance(inputs, Tensor) else len(inputs)
        if given != len(self):
            raise ValueError(f"inputs: expected {len(self)} tensors, one per task, got {given}")
        return self.joined(logits_of_towers(list(self), inputs))

    def joined(self, logits: Sequence[Tensor]) -> Tensor:
        """Puts what each tower gave side by side, `logits_BT`."""
        if all(each.dim() == 1 for each in logits):
            return torch.stack(list(logits), dim=1)
        return torch.cat([each[:, None] if each.dim() == 1 else each for each in logits], dim=1)
