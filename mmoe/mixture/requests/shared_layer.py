"""`shared_layer`: a layer of every expert, whose part of the request is computed once a request."""

from collections.abc import Sequence

from torch import Tensor

from mmoe import ops
from mmoe.mixture.pytrees import cast_for_autocast
from mmoe.mixture.requests.rows import RequestRows


def shared_layer(
    rows: RequestRows,
    weight_EDH: Tensor,
    bias_EH: Tensor | None,
    activation: ops.FusedActivation,
) -> list[Tensor]:
    """Sends rows through a layer: `act(x_q W_q + x_b W_b + bias)`, with `x_q W_q` once a request.

    The weights' gradients, and that of the request's columns, are products of as many rows as there
    are requests: what the rows of each want is added up before.

    Args:
        rows: B rows of Q requests.
        weight_EDH: Reads all columns.
        bias_EH: In its type; None: there is none.
        activation: As of `ops.dense_mm`.

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
        >>> [y_BH.shape for y_BH in shared_layer(rows, *ones, "relu")]
        [torch.Size([3, 4]), torch.Size([3, 4])]
    """
    x_BR, of_row, shared = _apart(rows, weight_EDH)
    return ops.shared_mm(x_BR, of_row, bias_EH, shared, rows.owners, activation)


def shared_layers(
    rows: RequestRows,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    activation: ops.FusedActivation,
    output_activation: ops.FusedActivation,
) -> list[Tensor]:
    """Sends rows through `shared_layer`, and what it gives through further layers.

    Args:
        rows: B rows of Q requests.
        weights: Of each layer; the first reads all columns.
        biases: Of each layer; none: layers have none.
        activation: As of `ops.dense_mlp`.
        output_activation: Likewise.

    Returns:
        E tensors `y_BO`.
    """
    x_BR, of_row, shared = _apart(rows, weights[0])
    return ops.dense_mlp(
        x_BR,
        [of_row, *weights[1:]],
        biases,
        activation,
        output_activation,
        shared=shared,
        owners=rows.owners,
    )


def _apart(rows: RequestRows, weight_EDH: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Rows, the weight of their columns, and the product of the request's, once a request."""
    of_request, of_row = rows.columns.split(weight_EDH, dim=1)
    shared = rows.once(lambda x_QP: ops.dense_mm(cast_for_autocast(x_QP), of_request))
    return cast_for_autocast(rows.x_BR), of_row, [y_QH[: rows.owners.count] for y_QH in shared]
