"""`dense_mlp`: every expert's layers, one behind the other, on all rows."""

from collections.abc import Sequence

import torch
from torch import Tensor

from mmoe.ops._checks import check_dims, check_shape
from mmoe.ops._library import define
from mmoe.ops.dense_mm import check_rows, dense_mm
from mmoe.ops.grouped_mm import FusedActivation, check_layer
from mmoe.ops.repeat_rows import Owners
from mmoe.ops.shared_mm import check_shared, shared_mm


def dense_mlp(
    x: Tensor | Sequence[Tensor],
    weights: Sequence[Tensor],
    biases: Sequence[Tensor] = (),
    activation: FusedActivation = "relu",
    output_activation: FusedActivation = "none",
    *,
    shared: Sequence[Tensor] = (),
    owners: Owners | None = None,
) -> list[Tensor]:
    """Sends all rows through the layers of every expert: `dense_mm` for each, to the same bits.

    h[e] ← activation(h[e] @ W_l[e] + b_l[e]), from h[e] = x[e] on, layer l = 1 … L

    On the CPU, where no gradient is asked for, a few rows at a time go through all layers of an
    expert, so that what lies between two layers stays in the processor's cache.

    Args:
        x: One tensor [B, D] for all experts, or E of them, a list or one x_EBD; float32, bfloat16
            or float64.
        weights: Of each layer weight_EDH, in x's dtype, or float32 beside bfloat16 rows.
        biases: Of each layer bias_EH, in the dtype of its weight; none: layers have none.
        activation: Of all layers but the last: none, relu, gelu (the exact one) or silu.
        output_activation: Of the last.
        shared: What the rows' owners have of the first product already, as of `shared_mm`, which
            is the first layer then; x is one tensor.
        owners: Which of the owners each row belongs to.

    Returns:
        E tensors y_BO in x's dtype.

    Raises:
        ValueError: Shapes, dtypes or devices that do not fit, an unknown activation.

    Example:
        >>> import torch
        >>> from mmoe.ops import dense_mlp
        >>> weights = [torch.ones(4, 3, 5), -torch.ones(4, 5, 2)]
        >>> y = dense_mlp(torch.ones(2, 3), weights)
        >>> len(y), y[0].tolist()
        (4, [[-15.0, -15.0], [-15.0, -15.0]])

    Source: Ma et al., "Modeling task relationships in multi-task learning with multi-gate
        mixture-of-experts" (KDD 2018), equation 6: the expert networks f_i(x).
    """
    if not weights:
        raise ValueError("weights: expected those of one layer or more, got none")
    if biases and len(biases) != len(weights):
        raise ValueError(
            f"biases: expected none or {len(weights)}, one for each layer, got {len(biases)}"
        )
    of_layer = [biases[layer] if biases else None for layer in range(len(weights))]
    activations: list[FusedActivation] = [activation for _ in weights]
    activations[-1] = output_activation
    tensors = check_rows(x, weights[0], of_layer[0], activations[0])
    _check_others(tensors[0], weights, of_layer, activations)
    if owners is not None:
        if len(tensors) != 1:
            raise ValueError(f"x: expected one tensor beside owners, got {len(tensors)}")
        check_shared(tensors[0], weights[0], shared, owners)
    elif shared:
        raise ValueError("owners: expected with shared rows, got None")
    learns = any(tensor.requires_grad for tensor in (*tensors, *weights, *biases, *shared))
    if tensors[0].device.type == "cpu" and not (learns and torch.is_grad_enabled()):
        owners_B = None if owners is None else owners.of_B.int()
        return torch.ops.mmoe.dense_mlp(
            tensors, list(weights), list(biases), activation, output_activation, shared, owners_B
        )
    y: Tensor | Sequence[Tensor] = x
    layers = list(zip(weights, of_layer, activations, strict=True))
    if owners is not None:
        y = shared_mm(tensors[0], *layers[0][:2], shared, owners, layers[0][2])
        layers = layers[1:]
    for layer in layers:
        y = dense_mm(y, *layer)
    return list(y)


def _check_others(
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    activations: Sequence[FusedActivation],
) -> None:
    """Refuses layers behind the first that do not fit the one before."""
    for layer in range(1, len(weights)):
        weight_EDH, before = weights[layer], weights[layer - 1]
        check_dims(f"weights[{layer}]", weight_EDH, "EDH")
        expected = [before.shape[0], before.shape[2], weight_EDH.shape[2]]
        check_shape(f"weights[{layer}]", weight_EDH, expected, f"weights[{layer - 1}]")
        rows = x.new_empty(0, before.shape[2])
        check_layer(rows, weight_EDH, biases[layer], activations[layer], name="x")


def _fake(
    x: Sequence[Tensor],
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    activation: str,
    output_activation: str,
    shared: Sequence[Tensor],
    owners_B: Tensor | None,
) -> list[Tensor]:
    E, _, H = weights[-1].shape
    return [x[0].new_empty(x[0].shape[-2], H) for _ in range(E)]


define(
    "dense_mlp(Tensor[] x, Tensor[] weights, Tensor[] biases, str activation,"
    " str output_activation, Tensor[] shared, Tensor? owners_B) -> Tensor[]",
    _fake,
)
