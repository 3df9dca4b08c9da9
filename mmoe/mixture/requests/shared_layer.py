"""`shared_layer`: a layer of every expert, whose part of the request is computed once a request."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mmoe import ops
from mmoe.mixture.batch_invariant import activate
from mmoe.mixture.pytrees import cast_for_autocast
from mmoe.mixture.requests.rows import RequestRows
from mmoe.ops.repeat_rows import Owners, sum_by_owner


def shared_layer(
    rows: RequestRows,
    weight_EDH: Tensor,
    bias_EH: Tensor,
    activation: ops.FusedActivation,
    *,
    training: bool,
) -> list[Tensor]:
    """Sends rows through a layer: `act(x_q W_q + x_b W_b + bias)`, with `x_q W_q` once a request.

    The weights' gradients, and that of the request's columns, are products of as many rows as there
    are requests: what the rows of each want is added up before.

    Args:
        rows: B rows of Q requests.
        weight_EDH: Reads all columns.
        bias_EH: In its type.
        activation: As of `ops.dense_mm`.
        training: Else a row's bits depend on the row alone, on the CPU.

    Returns:
        E tensors `y_BH`.

    Example:
        >>> import torch
        >>> from mmoe.mixture.requests.columns import RequestColumns
        >>> from mmoe.ops.repeat_rows import Owners
        >>> rows = RequestRows(
        ...     x_QP=torch.ones(1, 2), x_BR=torch.ones(3, 1),
        ...     owners=Owners(torch.zeros(3).long(), 1), columns=RequestColumns([0, 1], 3))
        >>> ones = torch.ones(2, 3, 4), torch.zeros(2, 4)
        >>> [y_BH.shape for y_BH in shared_layer(rows, *ones, "relu", training=True)]
        [torch.Size([3, 4]), torch.Size([3, 4])]
    """
    of_request, of_row = rows.columns.split(weight_EDH, dim=1)
    y_Q = rows.once(lambda x_QP: ops.dense_mm(cast_for_autocast(x_QP), of_request))
    y_B = ops.dense_mm(cast_for_autocast(rows.x_BR), of_row, bias_EH)
    if activation in ("none", "relu"):
        return list(_AddShared.apply(rows.owners, activation == "relu", len(y_B), *y_B, *y_Q))  # type: ignore[arg-type]  # untyped in torch
    summed = _AddShared.apply(rows.owners, False, len(y_B), *y_B, *y_Q)
    return [activate(y_BH, activation, training=training) for y_BH in summed]  # type: ignore[union-attr]  # untyped in torch


class _AddShared(torch.autograd.Function):
    """`relu(y_B + y_Q[owner])`, in one buffer; the gradient of y_Q is added up per request."""

    @staticmethod
    def forward(
        ctx: Any, owners: Owners, relu: bool, count: int, *parts: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.owners, ctx.relu = owners, relu
        found = []
        for of_rows, of_requests in zip(parts[:count], parts[count:], strict=True):
            y_BH = of_requests.index_select(0, owners.of_B).add_(of_rows)
            found.append(y_BH.relu_() if relu else y_BH)
        ctx.save_for_backward(*(found if relu else ()))
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *grad: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        of_rows: Sequence[Tensor] = grad
        if ctx.relu:
            pairs = zip(grad, ctx.saved_tensors, strict=True)
            of_rows = [torch.ops.aten.threshold_backward(g_BH, y_BH, 0) for g_BH, y_BH in pairs]
        return None, None, None, *of_rows, *(sum_by_owner(g_BH, ctx.owners) for g_BH in of_rows)
