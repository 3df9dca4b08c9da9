"""`ColumnChoice`: the columns of its input that a part of a mixture reads."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class ColumnChoice(nn.Module):
    """Takes some columns of rows, in an order of its own.

    Args:
        columns: Their numbers; None: rows come back as they are.

    Example:
        >>> import torch
        >>> from mmoe.mixture.columns import ColumnChoice
        >>> x_BD = torch.tensor([[1.0, 2.0, 3.0]])
        >>> [x.tolist() for x in ColumnChoice([2, 0]).of([x_BD, x_BD])]
        [[[3.0, 1.0]], [[3.0, 1.0]]]
    """

    columns_C: Tensor | None

    def __init__(self, columns: Sequence[int] | None) -> None:
        super().__init__()
        # A setting, not state: it comes back with the constructor's arguments
        numbers_C = None if columns is None else torch.tensor(columns, dtype=torch.int64)
        self.register_buffer("columns_C", numbers_C, persistent=False)

    def forward(self, x_RD: Tensor) -> Tensor:
        """Returns the columns of one tensor."""
        return x_RD if self.columns_C is None else x_RD.index_select(1, self.columns_C)

    def of(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Returns those of each; a tensor that comes several times is read once, and stays one."""
        taken = {id(x_RD): x_RD for x_RD in inputs}
        chosen = {key: self(x_RD) for key, x_RD in taken.items()}
        return [chosen[id(x_RD)] for x_RD in inputs]
