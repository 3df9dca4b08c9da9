"""What every operator computes, in plain PyTorch: the specification, written to be read.

Letters: B samples, G gates, E experts, K picks of a gate, D input width, H hidden width, O output
width, R routed pairs (distinct sample and expert), P = B * min(G * K, E) the most R can be.

No function here but `grouped_mm` reads a value back to the host, and none has a shape that depends
on values, so they also serve as the operators on devices that have no kernel.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def _accumulate(tensor: Tensor) -> Tensor:
    """Sums are taken in float32, or in float64 where the input is."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def topk_gate(
    logits_BGE: Tensor, visibility_GE: Tensor, k: int, softmax_after: bool = True
) -> tuple[Tensor, Tensor]:
    """Pick each gate's k largest logits among the experts it sees, and weigh them by softmax.

    Args:
        logits_BGE: Float. Equal logits: the expert with the lower number wins.
        visibility_GE: Bool; a gate never picks an expert it does not see.
        k: Picks a gate makes; K = min(k, E).
        softmax_after: Softmax over the picks (they sum to 1) instead of over all visible experts.

    Returns:
        weights_BGK (float32 or float64) and experts_BGK (int32). A gate that sees fewer than K
        experts has picks of -1 with weight 0.
    """
    logits_BGE = _accumulate(logits_BGE).masked_fill(~visibility_GE, -torch.inf)
    k = min(k, logits_BGE.shape[-1])
    sorted_BGE, order_BGE = logits_BGE.sort(dim=-1, descending=True, stable=True)
    experts_BGK, unseen_BGK = order_BGE[..., :k], (sorted_BGE == -torch.inf)[..., :k]
    if softmax_after:
        weights_BGK = sorted_BGE[..., :k].softmax(-1)
    else:
        weights_BGK = logits_BGE.softmax(-1).gather(-1, experts_BGK)
    # where, not times: a gate that sees nothing has NaN weights, which times 0 stay NaN.
    weights_BGK = torch.where(unseen_BGK, 0.0, weights_BGK)
    return weights_BGK, experts_BGK.masked_fill(unseen_BGK, -1).to(torch.int32)


def route_plan(experts_BGK: Tensor, num_experts: int) -> tuple[Tensor, Tensor, Tensor]:
    """Number the distinct (sample, expert) pairs, expert by expert and by sample inside one.

    Args:
        experts_BGK: int32, each in [0, E), or -1 for a pick that is not used.
        num_experts: E.

    Returns:
        rows_P: int32, the sample of every pair; -1 past the last pair.
        offsets_E1: int32, expert e owns the pairs from offsets[e] up to offsets[e + 1].
        slots_BGK: int32, the pair that serves a pick; -1 for an unused one.
    """
    B, G, K = experts_BGK.shape
    P = B * min(G * K, num_experts)
    device = experts_BGK.device
    used_BGK = experts_BGK >= 0
    samples_BGK = torch.arange(B, device=device).view(B, 1, 1).expand(B, G, K)
    # Column B takes what unused picks write, and is cut off.
    wanted_EB = torch.zeros(num_experts, B + 1, dtype=torch.bool, device=device)
    columns_BGK = torch.where(used_BGK, samples_BGK, B)
    wanted_EB[experts_BGK.clamp(min=0).long(), columns_BGK] = True
    wanted_EB = wanted_EB[:, :B]

    numbers_EB = (wanted_EB.flatten().cumsum(0) - 1).view(num_experts, B)
    ends_E = wanted_EB.sum(1).cumsum(0)
    offsets_E1 = torch.cat([ends_E.new_zeros(1), ends_E]).to(torch.int32)

    # Entry P takes what pairs nobody wants write, and is cut off.
    rows_P = torch.full((P + 1,), -1, dtype=torch.int32, device=device)
    samples_EB = torch.arange(B, device=device, dtype=torch.int32).expand(num_experts, B)
    rows_P = rows_P.scatter(
        0, torch.where(wanted_EB, numbers_EB, P).flatten(), samples_EB.flatten()
    )
    rows_P[P] = -1

    if B == 0:
        return rows_P[:P].clone(), offsets_E1, torch.empty_like(experts_BGK)
    slots_BGK = numbers_EB[experts_BGK.clamp(min=0).long(), samples_BGK]
    slots_BGK = torch.where(used_BGK, slots_BGK, -1).to(torch.int32)
    return rows_P[:P].clone(), offsets_E1, slots_BGK


def permute(x_BD: Tensor, rows_P: Tensor) -> Tensor:
    """Gather the rows of a plan: x_PD[i] = x_BD[rows_P[i]], and 0 where rows_P[i] is -1."""
    padded = torch.cat([x_BD, x_BD.new_zeros(1, x_BD.shape[1])])
    return padded.index_select(0, torch.where(rows_P >= 0, rows_P, x_BD.shape[0]).long())


def unpermute(y_PD: Tensor, rows_P: Tensor, num_samples: int) -> Tensor:
    """Add the rows of a plan up per sample, in the order of the pairs; the adjoint of `permute`."""
    targets_P = torch.where(rows_P >= 0, rows_P, num_samples).long()
    sums = _accumulate(y_PD).new_zeros(num_samples + 1, y_PD.shape[1])
    return sums.index_add(0, targets_P, _accumulate(y_PD))[:num_samples].to(y_PD.dtype)


def grouped_mm(
    x_PD: Tensor,
    offsets_E1: Tensor,
    weights: Sequence[Tensor],
    bias_EH: Tensor | None = None,
    activation: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Send each expert's rows through its own layer: y = activation(x @ W[e] + b[e]).

    Args:
        x_PD: Rows in the order of a plan.
        offsets_E1: int32, expert e owns the rows from offsets[e] up to offsets[e + 1].
        weights: One contiguous [D, H] per expert (of a stacked tensor: `W.unbind(0)`, since an
            index in a loop gives every expert a gradient of full size).
        bias_EH: Optional, one row per expert.
        activation: Optional, applied to the result.

    Returns:
        y_PH; rows past the last offset are 0.
    """
    bounds = offsets_E1.tolist()
    biases = [None] * len(weights) if bias_EH is None else bias_EH.unbind(0)
    parts = []
    for expert, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        y = x_PD[bounds[expert] : bounds[expert + 1]] @ weight
        y = y if bias is None else y + bias
        parts.append(y if activation is None else activation(y))
    parts.append(x_PD.new_zeros(x_PD.shape[0] - bounds[-1], weights[0].shape[1]))
    return torch.cat(parts)


def _picked(y_PO: Tensor, slots_BGK: Tensor) -> Tensor:
    """Give the expert output behind every pick, [B, G, K, O]; zeros behind an unused one."""
    y_PO = _accumulate(y_PO)
    # Index -1 is the last row: the zeros appended here.
    return torch.cat([y_PO, y_PO.new_zeros(1, y_PO.shape[1])])[slots_BGK.long()]


def gated_combine(y_PO: Tensor, slots_BGK: Tensor, weights_BGK: Tensor) -> Tensor:
    """Mix routed expert outputs for every gate, each pick by its slot.

    out[b, g] = sum over k with slots[b, g, k] >= 0 of weights[b, g, k] * y[slots[b, g, k]]

    Args:
        y_PO: Expert outputs in the order of a plan.
        slots_BGK: int32, -1 for an unused pick, which adds nothing whatever its weight.
        weights_BGK: float32 (float64 where y is).

    Returns:
        out_BGO in y's dtype.
    """
    used_weights_BGK = torch.where(slots_BGK >= 0, weights_BGK, 0)
    out_BGO = (used_weights_BGK.unsqueeze(-1) * _picked(y_PO, slots_BGK)).sum(2)
    return out_BGO.to(y_PO.dtype)


def gated_combine_backward(
    grad_BGO: Tensor, y_PO: Tensor, slots_BGK: Tensor, weights_BGK: Tensor
) -> tuple[Tensor, Tensor]:
    """Give the gradients of `gated_combine` for y_PO (its dtype) and weights_BGK (their dtype)."""
    P, O = y_PO.shape  # noqa: E741
    used_BGK = slots_BGK >= 0
    grad_BGKO = _accumulate(grad_BGO).unsqueeze(2).expand(*slots_BGK.shape, O)
    grad_weights_BGK = (grad_BGKO * _picked(y_PO, slots_BGK)).sum(-1)
    grad_weights_BGK = torch.where(used_BGK, grad_weights_BGK, 0)

    shares_BGKO = torch.where(used_BGK, weights_BGK, 0).unsqueeze(-1) * grad_BGKO
    targets = torch.where(used_BGK, slots_BGK, P).flatten().long()
    grad_y_PO = shares_BGKO.new_zeros(P + 1, O).index_add(0, targets, shares_BGKO.flatten(0, 2))
    return grad_y_PO[:P].to(y_PO.dtype), grad_weights_BGK.to(weights_BGK.dtype)


def _stacked(y: Sequence[Tensor]) -> Tensor:
    """Turn either form of the expert outputs into y_EBO, for sums."""
    return _accumulate(y[0] if y[0].dim() == 3 else torch.stack(list(y)))


def dense_combine(y: Sequence[Tensor], weights_BGE: Tensor) -> Tensor:
    """Mix the outputs of all experts: out[b, g] = sum over e of weights[b, g, e] * y[e][b].

    Args:
        y: E tensors [B, O], or one tensor [E, B, O] in a list.
        weights_BGE: float32 (float64 where y is).

    Returns:
        out_BGO in y's dtype.
    """
    return torch.einsum("ebo,bge->bgo", _stacked(y), weights_BGE).to(y[0].dtype)


def dense_combine_backward(
    grad_BGO: Tensor, y: Sequence[Tensor], weights_BGE: Tensor
) -> tuple[list[Tensor], Tensor]:
    """Give the gradients of `dense_combine` for y (same form, same dtype) and weights_BGE."""
    grad_BGO = _accumulate(grad_BGO)
    grad_y_EBO = torch.einsum("bgo,bge->ebo", grad_BGO, weights_BGE).to(y[0].dtype)
    grad_weights_BGE = torch.einsum("bgo,ebo->bge", grad_BGO, _stacked(y))
    grad_y_EBO = grad_y_EBO.contiguous()
    grad_y = [grad_y_EBO] if y[0].dim() == 3 else [part.clone() for part in grad_y_EBO.unbind(0)]
    return grad_y, grad_weights_BGE.to(weights_BGE.dtype).contiguous()
