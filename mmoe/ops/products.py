"""Products of experts: on the rows routed to each, on all rows, and layer behind layer.

`grouped_mm` and `gathered_mm` send each expert's rows through its layer, `dense_mm` sends all rows
through every expert's, `shared_mm` too where owners of rows have a part of it already, and
`dense_mlp` sends them through all layers.
"""

from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from mmoe.ops._checks import (
    FLOAT_DTYPES,
    accumulate_dtype,
    check_alike,
    check_device,
    check_dims,
    check_float,
    check_int32,
    check_shape,
)
from mmoe.ops._library import any_needed, define, register_autograd
from mmoe.ops.dispatch import RoutePlan, check_plan
from mmoe.ops.reference import keeps_z
from mmoe.ops.row_sums import Owners

FusedActivation = Literal["none", "relu", "gelu", "silu"]
_ACTIVATIONS = get_args(FusedActivation)


def grouped_mm(
    x_PD: Tensor,
    offsets_E1: Tensor,
    weight_EDH: Tensor,
    bias_EH: Tensor | None = None,
    activation: FusedActivation = "none",
) -> Tensor:
    """Sends each expert's rows through its own layer, bias and activation within the product.

    y[p] = activation(x[p] @ W[e] + b[e]) for offsets[e] ≤ p < offsets[e + 1]

    Sums are taken in float32 (float64 for float64). On the CPU a row's result depends on that row
    alone: not on its place, the other rows or the number of threads.

    Args:
        x_PD: float32, bfloat16 or float64 rows, those of one expert next to each other.
        offsets_E1: int32, rising from 0; rows past the last offset are not read.
        weight_EDH: In x's dtype, or float32 beside bfloat16 rows: it is then rounded while it is
            read, and its gradient is float32.
        bias_EH: The weight's dtype.
        activation: none, relu, gelu (the exact one) or silu.

    Returns:
        y_PH in x's dtype; 0 past the last offset.

    Raises:
        ValueError: Shapes, dtypes or devices that do not fit, an unknown activation; on the CPU
            also offsets that fall, or leave the rows.

    Example:
        >>> import torch
        >>> from mmoe.ops import grouped_mm
        >>> x_PD = torch.tensor([[1.0], [2.0], [3.0]])
        >>> offsets_E1 = torch.tensor([0, 1, 3], dtype=torch.int32)
        >>> grouped_mm(x_PD, offsets_E1, torch.tensor([[[1.0]], [[-10.0]]])).flatten().tolist()
        [1.0, -20.0, -30.0]

    Source: Gale et al., "MegaBlocks: efficient sparse training with mixture-of-experts" (MLSys
        2023), section 4, for the dropless form.
    """
    check_float("x_PD", x_PD, "PD")
    check_layer(x_PD, weight_EDH, bias_EH, activation)
    check_offsets(offsets_E1, x_PD, weight_EDH)
    return torch.ops.mmoe.grouped_mm(x_PD, offsets_E1, weight_EDH, bias_EH, activation)[0]


def check_layer(
    x: Tensor, weight_EDH: Tensor, bias_EH: Tensor | None, activation: str, name: str = "x_PD"
) -> None:
    """Refuses weights that do not fit the rows; shared with `dense_mm`."""
    if activation not in _ACTIVATIONS:
        check_activation(activation)
    check_dims("weight_EDH", weight_EDH, "EDH")
    E, _, H = weight_EDH.shape
    if E < 1:
        raise ValueError("weight_EDH: expected at least one expert, got none")
    check_shape("weight_EDH", weight_EDH, [E, x.shape[-1], H], f"the width of {name}")
    check_device("weight_EDH", weight_EDH, x.device, name)
    if weight_EDH.dtype not in (x.dtype, accumulate_dtype(x.dtype)):
        allowed = " or ".join(
            str(d) for d in FLOAT_DTYPES if d in (x.dtype, accumulate_dtype(x.dtype))
        )
        raise ValueError(
            f"weight_EDH: expected dtype {allowed} beside {name} in {x.dtype}, "
            f"got {weight_EDH.dtype}"
        )
    if bias_EH is not None:
        check_shape("bias_EH", bias_EH, [E, H], "weight_EDH")
        check_device("bias_EH", bias_EH, x.device, name)
        if bias_EH.dtype != weight_EDH.dtype:
            raise ValueError(
                f"bias_EH: expected dtype {weight_EDH.dtype} as weight_EDH, got {bias_EH.dtype}"
            )


def check_activation(activation: str) -> None:
    """Refuses activations that products do not apply; shared with `mixed_towers`."""
    if activation not in _ACTIVATIONS:
        known = ", ".join(_ACTIVATIONS)
        raise ValueError(f"activation: expected one of {known}, got {activation!r}")


def check_offsets(offsets_E1: Tensor, x: Tensor, weight_EDH: Tensor, name: str = "x_PD") -> None:
    """Refuses offsets that do not fit the layer; shared with `gathered_mm`."""
    check_int32("offsets_E1", offsets_E1, ["E + 1"])
    check_device("offsets_E1", offsets_E1, x.device, name)
    check_shape("offsets_E1", offsets_E1, [weight_EDH.shape[0] + 1], "the experts of weight_EDH")


def new_outputs(
    x: Tensor, rows: int | torch.SymInt, weight_EDH: Tensor, activation: str
) -> tuple[Tensor, Tensor]:
    """Returns y and z of a layer without their numbers; shared with `gathered_mm`."""
    y_PH = x.new_empty(rows, weight_EDH.shape[2])
    return y_PH, x.new_empty(y_PH.shape if keeps_z(activation) else 0)


def new_gradients(
    x: Tensor,
    rows: int | torch.SymInt,
    weight_EDH: Tensor,
    need_x: bool,
    need_weight: bool,
    need_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns a layer's gradients without their numbers; shared with `gathered_mm`."""
    E, D, H = weight_EDH.shape
    return (
        x.new_empty((rows, D) if need_x else 0),
        weight_EDH.new_empty((E, D, H) if need_weight else 0),
        weight_EDH.new_empty((E, H) if need_bias else 0),
    )


def _fake_grouped_mm(
    x_PD: Tensor, weight_EDH: Tensor, activation: str, **rest: Any
) -> tuple[Tensor, Tensor]:
    return new_outputs(x_PD, x_PD.shape[0], weight_EDH, activation)


def _fake_grouped_mm_backward(
    x_PD: Tensor, weight_EDH: Tensor, need_x: bool, need_weight: bool, need_bias: bool, **rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return new_gradients(x_PD, x_PD.shape[0], weight_EDH, need_x, need_weight, need_bias)


def _grouped_mm_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x_PD, offsets_E1, weight_EDH, _, activation = inputs
    y_PH, z_PH = output
    ctx.mark_non_differentiable(z_PH)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x_PD, offsets_E1, weight_EDH, y_PH, z_PH)
    ctx.activation = activation


def _grouped_mm_backward(ctx: Any, grad_PH: Tensor | None, _: Any) -> tuple[Any, ...]:
    need_x, _, *need_layer, _ = ctx.needs_input_grad
    if grad_PH is None:
        return (None,) * 5
    grad_x, *of_layer = torch.ops.mmoe.grouped_mm_backward(
        grad_PH, *ctx.saved_tensors, ctx.activation, need_x, *need_layer
    )
    return grad_x, None, *of_layer, None


define(
    "grouped_mm(Tensor x_PD, Tensor offsets_E1, Tensor weight_EDH, Tensor? bias_EH,"
    " str activation) -> (Tensor, Tensor)",
    _fake_grouped_mm,
)
define(
    "grouped_mm_backward(Tensor grad_PH, Tensor x_PD, Tensor offsets_E1, Tensor weight_EDH,"
    " Tensor y_PH, Tensor z_PH, str activation, bool need_x, bool need_weight, bool need_bias)"
    " -> (Tensor, Tensor, Tensor)",
    _fake_grouped_mm_backward,
)
register_autograd("grouped_mm", _grouped_mm_backward, _grouped_mm_context)


def gathered_mm(
    x_BD: Tensor,
    plan: RoutePlan,
    weight_EDH: Tensor,
    bias_EH: Tensor | None = None,
    activation: FusedActivation = "none",
) -> Tensor:
    """Sends the rows of a plan's pairs through their experts' layers, each read where it lies.

    y[p] = activation(x[rows[p]] @ W[e] + b[e]) for offsets[e] ≤ p < offsets[e + 1]

    The numbers of `grouped_mm(permute(x_BD, plan), …)`, which it is on the CPU, where reading in
    place gained nothing. On a GPU the permuted rows are never written to memory, nor kept for the
    gradient. (Where `grouped_mm` takes PyTorch's product, that one reads a copy, which is not
    kept.) The gradient of x adds up a sample's pairs as `unpermute` does.

    Args:
        x_BD: float32, bfloat16 or float64, a row per sample.
        plan: From `route_plan`; cutting rows_P at the number of pairs leaves out the tail. A pair
            of row -1 reads zeros.
        weight_EDH: As `grouped_mm`'s.
        bias_EH: Likewise.
        activation: none, relu, gelu (the exact one) or silu.

    Returns:
        y_PH in x's dtype; 0 past the last offset.

    Raises:
        ValueError: Shapes, dtypes or devices that do not fit, an unknown activation; on the CPU
            also offsets that fall, or leave the rows, and a row outside [-1, B).

    Example:
        >>> import torch
        >>> from mmoe.ops import gathered_mm, route_plan
        >>> picks = torch.tensor([[[0], [2]], [[2], [2]]], dtype=torch.int32)  # 2 samples, 2 gates
        >>> plan = route_plan(picks, num_experts=3)
        >>> weight_EDH = torch.tensor([1.0, 0.0, -10.0]).view(3, 1, 1)
        >>> gathered_mm(torch.tensor([[1.0], [2.0]]), plan, weight_EDH).flatten().tolist()
        [1.0, -10.0, -20.0, 0.0]

    Source: Tan et al., "Scattered mixture-of-experts implementation" (arXiv 2403.08245), section
        3.1, for products that read their rows by number.
    """
    check_plan("x_BD", x_BD, plan)
    check_dims("x_BD", x_BD, "BD")
    check_shape(
        "slots_BGK", plan.slots_BGK, [x_BD.shape[0], *plan.slots_BGK.shape[1:]], "x_BD (B samples)"
    )
    check_layer(x_BD, weight_EDH, bias_EH, activation, name="x_BD")
    check_offsets(plan.offsets_E1, x_BD, weight_EDH, name="x_BD")
    if x_BD.device.type == "cpu":
        # The operator itself, as what `permute` checks is checked
        x_PD = torch.ops.mmoe.permute(x_BD, plan.rows_P, plan.slots_BGK)
        return torch.ops.mmoe.grouped_mm(x_PD, plan.offsets_E1, weight_EDH, bias_EH, activation)[0]
    return torch.ops.mmoe.gathered_mm(x_BD, *plan, weight_EDH, bias_EH, activation)[0]


def _fake_gathered_mm(
    x_BD: Tensor, rows_P: Tensor, weight_EDH: Tensor, activation: str, **rest: Any
) -> tuple[Tensor, Tensor]:
    return new_outputs(x_BD, rows_P.shape[0], weight_EDH, activation)


def _fake_gathered_mm_backward(
    x_BD: Tensor,
    rows_P: Tensor,
    weight_EDH: Tensor,
    need_x: bool,
    need_weight: bool,
    need_bias: bool,
    **rest: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    return new_gradients(x_BD, rows_P.shape[0], weight_EDH, need_x, need_weight, need_bias)


def _gathered_mm_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x_BD, rows_P, offsets_E1, slots_BGK, weight_EDH, _, activation = inputs
    y_PH, z_PH = output
    ctx.mark_non_differentiable(z_PH)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x_BD, rows_P, offsets_E1, weight_EDH, y_PH, z_PH, slots_BGK)
    ctx.activation = activation


def _gathered_mm_backward(ctx: Any, grad_PH: Tensor | None, _: Any) -> tuple[Any, ...]:
    need_x, _, _, _, *need_layer, _ = ctx.needs_input_grad
    if grad_PH is None:
        return (None,) * 7
    *layer, slots_BGK = ctx.saved_tensors
    grad_x_PD, *of_layer = torch.ops.mmoe.gathered_mm_backward(
        grad_PH, *layer, ctx.activation, need_x, *need_layer
    )
    rows_P = layer[1]
    grad_x_BD = torch.ops.mmoe.unpermute(grad_x_PD, rows_P, slots_BGK) if need_x else None
    return grad_x_BD, None, None, None, *of_layer, None


define(
    "gathered_mm(Tensor x_BD, Tensor rows_P, Tensor offsets_E1, Tensor slots_BGK,"
    " Tensor weight_EDH, Tensor? bias_EH, str activation) -> (Tensor, Tensor)",
    _fake_gathered_mm,
)
define(
    "gathered_mm_backward(Tensor grad_PH, Tensor x_BD, Tensor rows_P, Tensor offsets_E1,"
    " Tensor weight_EDH, Tensor y_PH, Tensor z_PH, str activation, bool need_x, bool need_weight,"
    " bool need_bias) -> (Tensor, Tensor, Tensor)",
    _fake_gathered_mm_backward,
)
register_autograd("gathered_mm", _gathered_mm_backward, _gathered_mm_context)


def dense_mm(
    x: Tensor | Sequence[Tensor],
    weight_EDH: Tensor,
    bias_EH: Tensor | None = None,
    activation: FusedActivation = "none",
) -> list[Tensor]:
    """Sends all rows through the layer of every expert, bias and activation within the product.

    y[e] = activation(x[e] @ W[e] + b[e]), where x[e] is x itself if all experts read the same.

    Sums are taken in float32 (float64 for float64); the gradient of a shared x is summed over the
    experts before it is rounded. On the CPU a row's result depends on that row alone.

    Args:
        x: One tensor [B, D] for all experts, or E of them, a list or one x_EBD, whose gradient is
            then one tensor too; float32, bfloat16 or float64.
        weight_EDH: In x's dtype, or float32 beside bfloat16 rows: it is then rounded while it is
            read, and its gradient is float32.
        bias_EH: The weight's dtype.
        activation: none, relu, gelu (the exact one) or silu.

    Returns:
        E tensors y_BH in x's dtype.

    Raises:
        ValueError: Shapes, dtypes or devices that do not fit, an unknown activation.

    Example:
        >>> import torch
        >>> from mmoe.ops import dense_mm
        >>> y = dense_mm(torch.ones(2, 3), torch.ones(4, 3, 5), activation="relu")
        >>> len(y), y[0].shape, float(y[0][0, 0])
        (4, torch.Size([2, 5]), 3.0)

    Source: Ma et al., "Modeling task relationships in multi-task learning with multi-gate
        mixture-of-experts" (KDD 2018), equation 6: the expert networks f_i(x).
    """
    tensors = check_rows(x, weight_EDH, bias_EH, activation)
    return torch.ops.mmoe.dense_mm(tensors, weight_EDH, bias_EH, activation)[0]


def check_rows(
    x: Tensor | Sequence[Tensor], weight_EDH: Tensor, bias_EH: Tensor | None, activation: str
) -> list[Tensor]:
    """Refuses rows that do not fit a layer; returns the operator's list; as in `dense_mlp`."""
    check_dims("weight_EDH", weight_EDH, "EDH")
    tensors = [x] if isinstance(x, Tensor) else list(x)
    E = weight_EDH.shape[0]
    if isinstance(x, Tensor) and x.dim() == 3:
        check_shape("x", x, [E, *x.shape[1:]], "weight_EDH")
        check_float("x", x)
        check_layer(x, weight_EDH, bias_EH, activation, name="x")
        return tensors
    if not tensors or len(tensors) not in (1, E):
        raise ValueError(f"x: expected one tensor or {E}, one per expert, got {len(tensors)}")
    check_float("x[0]", tensors[0], "BD")
    if len(tensors) > 1:
        check_alike("x", tensors)
    check_layer(tensors[0], weight_EDH, bias_EH, activation, name="x[0]")
    return tensors


def _fake_dense_mm(
    x: Sequence[Tensor], weight_EDH: Tensor, activation: str, **rest: Any
) -> tuple[list[Tensor], list[Tensor]]:
    E, _, H = weight_EDH.shape
    y = [x[0].new_empty(x[0].shape[-2], H) for _ in range(E)]
    return y, [torch.empty_like(part) for part in y] if keeps_z(activation) else []


def _fake_dense_mm_backward(
    x: Sequence[Tensor],
    weight_EDH: Tensor,
    need_x: bool,
    need_weight: bool,
    need_bias: bool,
    **rest: Any,
) -> tuple[list[Tensor], Tensor, Tensor]:
    E, D, H = weight_EDH.shape
    return (
        [part.new_empty(part.shape) for part in x] if need_x else [],
        weight_EDH.new_empty((E, D, H) if need_weight else 0),
        weight_EDH.new_empty((E, H) if need_bias else 0),
    )


def _dense_mm_context(
    ctx: Any, inputs: tuple[Any, ...], output: tuple[list[Tensor], list[Tensor]]
) -> None:
    x, weight_EDH, _, activation = inputs
    y, z = output
    ctx.mark_non_differentiable(*z)
    ctx.save_for_backward(weight_EDH, *x, *y, *z)
    ctx.sources, ctx.activation = len(x), activation


def _dense_mm_backward(ctx: Any, grad: list[Tensor], _: Any) -> tuple[Any, ...]:
    weight_EDH, *saved = ctx.saved_tensors
    E, S = len(weight_EDH), ctx.sources
    x, y, z = saved[:S], saved[S : S + E], saved[S + E :]
    x_needs, *need_layer, _ = ctx.needs_input_grad
    need_x = any_needed(x_needs)
    grad_x, *of_layer = torch.ops.mmoe.dense_mm_backward(
        grad, x, weight_EDH, y, z, ctx.activation, need_x, *need_layer
    )
    return grad_x if need_x else [None] * S, *of_layer, None


define(
    "dense_mm(Tensor[] x, Tensor weight_EDH, Tensor? bias_EH, str activation)"
    " -> (Tensor[], Tensor[])",
    _fake_dense_mm,
)
define(
    "dense_mm_backward(Tensor[] grad, Tensor[] x, Tensor weight_EDH, Tensor[] y, Tensor[] z,"
    " str activation, bool need_x, bool need_weight, bool need_bias) -> (Tensor[], Tensor, Tensor)",
    _fake_dense_mm_backward,
)
register_autograd("dense_mm", _dense_mm_backward, _dense_mm_context)


def shared_mm(
    x_BD: Tensor,
    weight_EDH: Tensor,
    bias_EH: Tensor | None,
    shared: Sequence[Tensor],
    owners: Owners,
    activation: FusedActivation = "none",
) -> list[Tensor]:
    """Sends rows through the layer of every expert, and adds what their owners have of it.

    y[e][b] = activation(x[b] @ W[e] + b[e] + shared[e][owner of b])

    So `shared` is the product of columns that all rows of an owner share, computed once for them.
    Its gradient is added up over the rows of each owner in a fixed order. Sums are taken in float32
    (float64 for float64). On the CPU a row's result depends on that row and its owner's alone.

    Args:
        x_BD: float32, bfloat16 or float64.
        weight_EDH: In x's dtype, or float32 beside bfloat16 rows.
        bias_EH: The weight's dtype.
        shared: E tensors [Q, H] in x's dtype.
        owners: Which of the Q owners each row belongs to.
        activation: none, relu, gelu (the exact one) or silu.

    Returns:
        E tensors y_BH in x's dtype.

    Raises:
        ValueError: Shapes, dtypes or devices that do not fit, an unknown activation.

    Example:
        >>> import torch
        >>> from mmoe.ops import shared_mm
        >>> from mmoe.ops.row_sums import Owners
        >>> owners = Owners(torch.tensor([0, 1, 1]), 2)
        >>> shared = [torch.tensor([[10.0], [20.0]])]
        >>> shared_mm(torch.ones(3, 2), torch.ones(1, 2, 1), None, shared, owners)[0].flatten()
        tensor([12., 22., 22.])
    """
    check_float("x_BD", x_BD, "BD")
    check_layer(x_BD, weight_EDH, bias_EH, activation, name="x_BD")
    check_shared(x_BD, weight_EDH, shared, owners)
    learns = torch.is_grad_enabled()
    return torch.ops.mmoe.shared_mm(
        x_BD,
        weight_EDH,
        bias_EH,
        list(shared),
        owners.of_B.int(),
        owners.order_B.int() if learns else None,
        owners.bounds.int() if learns else None,
        activation,
    )[0]


def check_shared(
    x_BD: Tensor, weight_EDH: Tensor, shared: Sequence[Tensor], owners: Owners
) -> None:
    """Refuses what does not fit the rows and their layer; shared with `dense_mlp`."""
    check_dims("x_BD", x_BD, "BD")
    E, _, H = weight_EDH.shape
    if len(shared) != E:
        raise ValueError(f"shared: expected {E} tensors, one per expert, got {len(shared)}")
    for expert, tensor in enumerate(shared):
        check_shape(f"shared[{expert}]", tensor, [owners.count, H], "owners and weight_EDH")
        check_device(f"shared[{expert}]", tensor, x_BD.device, "x_BD")
        if tensor.dtype != x_BD.dtype:
            raise ValueError(
                f"shared[{expert}]: expected dtype {x_BD.dtype} as x_BD, got {tensor.dtype}"
            )
    check_shape("owners", owners.of_B, [x_BD.shape[0]], "x_BD")
    check_device("owners", owners.of_B, x_BD.device, "x_BD")


def _fake_shared_mm(
    x_BD: Tensor, weight_EDH: Tensor, activation: str, **rest: Any
) -> tuple[list[Tensor], list[Tensor]]:
    return _fake_dense_mm([x_BD], weight_EDH, activation)


def _fake_sums(grad: Sequence[Tensor], bounds: Tensor, **rest: Any) -> list[Tensor]:
    return [part.new_empty(bounds.shape[0] - 1, part.shape[1]) for part in grad]


def _shared_mm_context(
    ctx: Any, inputs: tuple[Any, ...], output: tuple[list[Tensor], list[Tensor]]
) -> None:
    x_BD, weight_EDH, _, _, _, order_B, bounds, activation = inputs
    y, z = output
    ctx.mark_non_differentiable(*z)
    ctx.save_for_backward(x_BD, weight_EDH, order_B, bounds, *y, *z)
    ctx.activation = activation


def _shared_mm_backward(ctx: Any, grad: list[Tensor], _: Any) -> tuple[Any, ...]:
    x_BD, weight_EDH, order_B, bounds, *saved = ctx.saved_tensors
    y, z = saved[: len(weight_EDH)], saved[len(weight_EDH) :]
    need_x, *need_layer, shared = ctx.needs_input_grad[:4]
    grad_x, *of_layer = torch.ops.mmoe.dense_mm_backward(
        grad, [x_BD], weight_EDH, y, z, ctx.activation, need_x, *need_layer
    )
    grad_shared: Any = [None] * len(grad)
    if any_needed(shared):
        grad_shared = torch.ops.mmoe.shared_sums(grad, y, z, order_B, bounds, ctx.activation)
    of_x = grad_x[0] if need_x else None
    return of_x, *of_layer, grad_shared, None, None, None, None


define(
    "shared_mm(Tensor x_BD, Tensor weight_EDH, Tensor? bias_EH, Tensor[] shared, Tensor owners_B,"
    " Tensor? order_B, Tensor? bounds, str activation) -> (Tensor[], Tensor[])",
    _fake_shared_mm,
)
define(
    "shared_sums(Tensor[] grad, Tensor[] y, Tensor[] z, Tensor order_B, Tensor bounds,"
    " str activation) -> Tensor[]",
    _fake_sums,
)
register_autograd("shared_mm", _shared_mm_backward, _shared_mm_context)


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
    acts = (activation, output_activation)
    tensors, layers = _checked_layers(x, weights, biases, acts, shared, owners)
    every = (*tensors, *weights, *biases, *shared)
    learns = torch.is_grad_enabled() and any([tensor.requires_grad for tensor in every])
    if tensors[0].device.type == "cpu" and not learns:
        owners_B = None if owners is None else owners.of_B.int()
        return torch.ops.mmoe.dense_mlp(
            tensors, list(weights), list(biases), activation, output_activation, shared, owners_B
        )
    if owners is not None:
        weight_EDH, bias_EH, first = layers.pop(0)
        tensors = shared_mm(tensors[0], weight_EDH, bias_EH, shared, owners, first)
    for layer in layers:
        tensors = torch.ops.mmoe.dense_mm(tensors, *layer)[0]
    return list(tensors)


# Weight, bias and activation
_Layer = tuple[Tensor, Tensor | None, FusedActivation]


def _checked_layers(
    x: Tensor | Sequence[Tensor],
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    activations: tuple[FusedActivation, FusedActivation],
    shared: Sequence[Tensor],
    owners: Owners | None,
) -> tuple[list[Tensor], list[_Layer]]:
    """Refuses layers that do not fit the rows, or the layer before."""
    if not weights:
        raise ValueError("weights: expected those of one layer or more, got none")
    if biases and len(biases) != len(weights):
        raise ValueError(
            f"biases: expected none or {len(weights)}, one for each layer, got {len(biases)}"
        )
    acts: list[FusedActivation] = [activations[0] for _ in weights]
    acts[-1] = activations[1]
    layers = list(zip(weights, biases or [None] * len(weights), acts, strict=True))
    tensors = check_rows(x, *layers[0])
    for layer, (weight_EDH, bias_EH, activation) in enumerate(layers[1:], start=1):
        before = weights[layer - 1]
        check_dims(f"weights[{layer}]", weight_EDH, "EDH")
        expected = [before.shape[0], before.shape[2], weight_EDH.shape[2]]
        check_shape(f"weights[{layer}]", weight_EDH, expected, f"weights[{layer - 1}]")
        rows = tensors[0].new_empty(0, before.shape[2])
        check_layer(rows, weight_EDH, bias_EH, activation, name="x")
    if owners is not None:
        if len(tensors) != 1:
            raise ValueError(f"x: expected one tensor beside owners, got {len(tensors)}")
        check_shared(tensors[0], weights[0], shared, owners)
    elif shared:
        raise ValueError("owners: expected with shared rows, got None")
    return tensors, layers


def _fake_dense_mlp(x: Sequence[Tensor], weights: Sequence[Tensor], **rest: Any) -> list[Tensor]:
    E, _, H = weights[-1].shape
    return [x[0].new_empty(x[0].shape[-2], H) for _ in range(E)]


define(
    "dense_mlp(Tensor[] x, Tensor[] weights, Tensor[] biases, str activation,"
    " str output_activation, Tensor[] shared, Tensor? owners_B) -> Tensor[]",
    _fake_dense_mlp,
)
