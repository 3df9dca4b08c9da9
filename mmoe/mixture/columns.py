"""Columns of an input: those that a part of a mixture reads; the request's and the row's."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

Run = tuple[int, int, int]  # where it begins in the part, where in the whole, and how long it is


class ColumnChoice(nn.Module):
    """Takes some columns of rows, in an order of its own.

    Args:
        columns: Their numbers; None: rows come back as they are.

    Example:
        >>> import torch
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
        # By identity: gates that read one tensor still read one, and share a product
        # (`gate_products`)
        taken = {id(x_RD): x_RD for x_RD in inputs}
        chosen = {key: self(x_RD) for key, x_RD in taken.items()}
        return [chosen[id(x_RD)] for x_RD in inputs]


class RequestColumns(nn.Module):
    """Takes inputs, and weights that read them, apart into the request's part and the row's.

    Args:
        of_request: Numbers of the request's columns, in the order of its part.
        width: D, of the whole; the row's columns are the others, in the order of `of_row`.
        of_row: Numbers of the row's columns, in the order of its part; default: as in the whole.

    Attributes:
        runs: Of both parts, which columns of theirs are neighbours in the whole too.

    Raises:
        ValueError: Together they are not all columns, each once.

    Example:
        >>> import torch
        >>> columns = RequestColumns([0, 2], 4)
        >>> of_request, of_row = columns.split(torch.tensor([[1.0, 2.0, 3.0, 4.0]]), dim=1)
        >>> of_request.tolist(), of_row.tolist()
        ([[1.0, 3.0]], [[2.0, 4.0]])
        >>> columns.join(of_request, of_row).tolist()
        [[1.0, 2.0, 3.0, 4.0]]
    """

    order_D: Tensor
    inverse_D: Tensor

    def __init__(
        self, of_request: Sequence[int], width: int, of_row: Sequence[int] | None = None
    ) -> None:
        super().__init__()
        shared = set(of_request)
        of_row = [d for d in range(width) if d not in shared] if of_row is None else of_row
        order = [*of_request, *of_row]
        if sorted(order) != list(range(width)):
            raise ValueError(
                f"of_request: expected some of the columns 0 to {width - 1}, each once, and the "
                f"others in of_row, got {list(of_request)} and {list(of_row)}"
            )
        self.of_request, self.of_row = tuple(of_request), tuple(of_row)
        self.runs = _runs(self.of_request), _runs(self.of_row)
        # Settings, not state: they come back with the constructor's arguments
        order_D = torch.tensor(order, dtype=torch.int64)
        self.register_buffer("order_D", order_D, persistent=False)
        self.register_buffer("inverse_D", order_D.argsort(), persistent=False)

    @property
    def width(self) -> int:
        """Returns D."""
        return len(self.order_D)

    def split(self, x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        """Takes a tensor of D entries in a dimension apart: the request's, the row's."""
        return _Split.apply(x, self, dim)

    def join(self, x_NP: Tensor, x_NR: Tensor) -> Tensor:
        """Puts the two parts of N rows back where they were: `[N, D]`."""
        return _Join.apply(x_NP, x_NR, self)

    def extra_repr(self) -> str:
        """Returns what `print` shows."""
        return f"request={len(self.of_request)}, row={len(self.of_row)}"

    @property
    def _places(self) -> tuple[Tensor, Tensor]:
        first, second = self.order_D.split([len(self.of_request), len(self.of_row)])
        return first, second


class _Split(torch.autograd.Function):
    """The gradient is one pass; that of two selections would be two buffers of zeros, added."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, columns: RequestColumns, dim: int) -> tuple[Tensor, Tensor]:
        ctx.columns, ctx.dim = columns, dim
        of_request, of_row = columns._places
        return x.index_select(dim, of_request), x.index_select(dim, of_row)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        first, second = grads
        joined = torch.cat([first, second], dim=ctx.dim)
        return joined.index_select(ctx.dim, ctx.columns.inverse_D), None, None


class _Join(torch.autograd.Function):
    """Likewise; run by run of neighbouring columns, which takes half as long as one by one."""

    @staticmethod
    def forward(ctx: Any, x_NP: Tensor, x_NR: Tensor, columns: RequestColumns) -> Tensor:
        ctx.columns = columns
        out_ND = x_NR.new_empty(len(x_NR), columns.width)
        for x_NX, runs in zip((x_NP, x_NR), columns.runs, strict=True):
            for own, whole, width in runs:
                out_ND[:, whole : whole + width] = x_NX[:, own : own + width]
        return out_ND

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        (grad_ND,) = grads
        parts = []
        for runs in ctx.columns.runs:
            taken = [grad_ND[:, whole : whole + width] for _, whole, width in runs]
            parts.append(torch.cat(taken, dim=1) if taken else grad_ND[:, :0])
        return parts[0], parts[1], None


def _runs(places: Sequence[int]) -> list[Run]:
    """Neighbouring columns of a part that are neighbours in the whole."""
    runs: list[Run] = []
    for own, whole in enumerate(places):
        start, first, width = runs[-1] if runs else (0, -1, 0)
        if runs and whole == first + width:
            runs[-1] = start, first, width + 1
        else:
            runs.append((own, whole, 1))
    return runs
