"""Specification of every operator in plain PyTorch, written to be read.

Letters: B samples, G gates, E experts, K picks of a gate, D input width, H hidden width, O output
width, R routed pairs (distinct sample and expert), P = B * min(G * K, E) the most R can be.

No function here but `grouped_mm` reads a value back from a GPU, and none has a shape that depends
on values, so they also serve as the operators on devices that have no kernel.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from mmoe.ops._checks import check_bounds, check_indices, check_no_nan, check_samples, check_visible


def _accumulate(tensor: Tensor) -> Tensor:
    """Sums are taken in float32, or in float64 where the input is."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _gate_logits(logits_BGE: Tensor, visibility_GE: Tensor) -> Tensor:
    """Gives the logits to pick by: -inf for what a gate does not see, a large number for +inf."""
    # With +inf itself, softmax would take inf from inf.
    logits_BGE = _accumulate(logits_BGE)
    logits_BGE = logits_BGE.clamp(max=torch.finfo(logits_BGE.dtype).max)
    return logits_BGE.masked_fill(~visibility_GE, -torch.inf)


def topk_gate(
    logits_BGE: Tensor, visibility_GE: Tensor, k: int, softmax_after: bool = True
) -> tuple[Tensor, Tensor]:
    """Picks each gate's k largest logits among the experts it sees, and weighs them by softmax.

    Args:
        logits_BGE: Float. Equal logits: the expert with the lower number wins. -inf counts as not
            seen, +inf takes all the weight (several share it). NaN among visible experts is refused
            on the CPU; on a GPU it makes all weights of that gate and row NaN.
        visibility_GE: Bool; a gate never picks an expert it does not see.
        k: Picks a gate makes; K = min(k, E). On the CPU more than a gate sees is refused.
        softmax_after: Softmax over the picks (they sum to 1) instead of over all visible experts.

    Returns:
        weights_BGK (float32 or float64) and experts_BGK (int32), best first. A row with fewer
        than K visible logits above -inf has picks of -1 with weight 0.
    """
    check_visible(visibility_GE, k)
    logits_BGE = _gate_logits(logits_BGE, visibility_GE)
    check_no_nan(logits_BGE)
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


def topk_gate_backward(
    grad_BGK: Tensor,
    logits_BGE: Tensor,
    visibility_GE: Tensor,
    experts_BGK: Tensor,
    softmax_after: bool,
) -> Tensor:
    """Gives the gradient of `topk_gate`'s weights for logits_BGE, in the logits' dtype.

    With p the softmax over the picks (after) or over all visible experts (before), and grad[e] the
    weight's gradient of a picked expert, 0 of the others:

    grad_logits[e] = p[e] * (grad[e] - sum over all e' of p[e'] * grad[e'])
    """
    E = logits_BGE.shape[-1]
    check_indices("experts_BGK", "experts", experts_BGK, E)
    # Column E takes what unused picks write, and is cut off.
    targets_BGK = torch.where(experts_BGK >= 0, experts_BGK, E).long()
    grad_BGE = grad_BGK.new_zeros(*logits_BGE.shape[:-1], E + 1)
    picked_BGE = grad_BGE.bool().scatter(-1, targets_BGK, True)[..., :E]
    grad_BGE = grad_BGE.scatter_add(-1, targets_BGK, grad_BGK)[..., :E]
    masked_BGE = _gate_logits(logits_BGE, visibility_GE)
    if softmax_after:
        masked_BGE = masked_BGE.masked_fill(~picked_BGE, -torch.inf)
    p_BGE = torch.where(masked_BGE == -torch.inf, 0.0, masked_BGE.softmax(-1))
    grad_BGE = p_BGE * (grad_BGE - (p_BGE * grad_BGE).sum(-1, keepdim=True))
    return grad_BGE.to(logits_BGE.dtype)


def joint_select(
    scores_BGE: Tensor,
    visibility_GE: Tensor,
    votes_G: Tensor,
    asked_BG: Tensor | None,
    shared_k: int,
    private_k: int,
    budget: int,
    floor: int,
    largest: bool,
) -> Tensor:
    """Picks experts for the gates of a row together, as `mmoe.ops.joint_select`.

    Args:
        scores_BGE: p, float32 or float64. 0, below, or NaN: never picked.
        visibility_GE: Bool.
        votes_G: Bool. Gates without a vote are given of what the others chose, and more.
        asked_BG: Bool, which gates a row asks for; None: all.
        shared_k: Experts that all gates of a row share.
        private_k: Experts that each gate adds for itself.
        budget: The most experts that those with a vote choose for a row; 0: any number.
        floor: 1: under a budget each gate keeps its first choice; 0: it need not.
        largest: `max` in place of the sum.

    Returns:
        picked_BGE, bool.
    """
    B, G, E = scores_BGE.shape
    wanted_BGE = (scores_BGE > 0) & visibility_GE
    asked_BG = wanted_BGE.new_ones(B, G) if asked_BG is None else asked_BG
    wanted_BGE = wanted_BGE & asked_BG.unsqueeze(2)
    q_BGE = torch.where(wanted_BGE, scores_BGE, 0.0)
    # V: the gates with a vote that a row asks for; all it asks for, where none of them has one
    votes_BG = torch.where((asked_BG & votes_G).any(1, keepdim=True), asked_BG & votes_G, asked_BG)
    voted_BGE = torch.where(votes_BG.unsqueeze(2), q_BGE, 0.0)
    chosen_BE = wanted_BGE.new_zeros(B, E)  # under a budget: the set that all share
    first_BGE = _best(q_BGE)
    if budget and floor:
        for g in range(G):
            chosen_BE = _within(budget, chosen_BE, first_BGE[:, g] & votes_BG[:, g : g + 1])

    # Shared: the shared_k experts of largest Σ_{g ∈ V} p_g[e] (or max) that all of V see
    total_BE = voted_BGE.amax(1) if largest and G else _sum_in_order(voted_BGE)
    seen_BE = (visibility_GE | ~votes_BG.unsqueeze(2)).all(1)
    left_BE = torch.where(seen_BE, total_BE, 0.0)
    shared_BE, chosen_BE = _shared(shared_k, budget, left_BE, chosen_BE)

    # The rest of a budget goes, one by one, to the expert that adds most to
    # Σ_{g ∈ V} (sum of the private_k largest p_g in the set without the shared ones)
    for _ in range(budget if private_k else 0):
        gain_BE = _gain(voted_BGE, chosen_BE & ~shared_BE, private_k)
        chosen_BE = _within(budget, chosen_BE, _best(gain_BE.masked_fill(chosen_BE, 0)))

    open_BGE = ~shared_BE.unsqueeze(1)
    if budget:
        # With floor 1 a gate without a vote may add its first choice to the set for itself
        beyond_BGE = first_BGE & ~votes_BG.unsqueeze(2) & (floor > 0)
        open_BGE = open_BGE & (chosen_BE.unsqueeze(1) | beyond_BGE)
    private_BGE = _private(q_BGE.masked_fill(~open_BGE, 0), private_k)
    return wanted_BGE & (private_BGE | shared_BE.unsqueeze(1))


def _private(own_BGE: Tensor, private_k: int) -> Tensor:
    """Takes for each gate the private_k experts of largest p_g[e] that are left for it."""
    # A stable sort: of equal ones the expert with the lower number wins, as in the kernels
    order_BGK = own_BGE.sort(dim=2, descending=True, stable=True).indices[..., :private_k]
    return torch.zeros_like(own_BGE, dtype=torch.bool).scatter(2, order_BGK, True) & (own_BGE > 0)


def _shared(
    shared_k: int, budget: int, left_BE: Tensor, chosen_BE: Tensor
) -> tuple[Tensor, Tensor]:
    """Adds the experts with the largest votes over all gates to the shared set."""
    shared_BE = torch.zeros_like(chosen_BE)
    for _ in range(shared_k):
        full_B1 = (chosen_BE.sum(1, keepdim=True) >= budget) & (budget > 0)
        best_BE = _best(left_BE.masked_fill(full_B1 & ~chosen_BE, 0))
        shared_BE, left_BE = shared_BE | best_BE, left_BE.masked_fill(best_BE, 0)
        chosen_BE = chosen_BE | best_BE
    return shared_BE, chosen_BE


def _gain(voted_BGE: Tensor, own_BE: Tensor, private_k: int) -> Tensor:
    """Computes what one more expert adds to the `private_k` best that each gate keeps of a set."""
    own_BGE = voted_BGE.masked_fill(~own_BE.unsqueeze(1), 0)
    least_BG1 = own_BGE.topk(min(private_k, own_BE.shape[1]), dim=2).values[:, :, -1:]
    return _sum_in_order((voted_BGE - least_BG1).clamp(min=0))


def _best(values: Tensor) -> Tensor:
    """Marks the first of the largest numbers above 0 along the last dimension."""
    numbers_E = torch.arange(values.shape[-1], device=values.device)
    return (numbers_E == values.argmax(-1, keepdim=True)) & (values > 0)


def _within(budget: int, chosen_BE: Tensor, more_BE: Tensor) -> Tensor:
    """Adds one expert to a set that has room."""
    return chosen_BE | (more_BE & (chosen_BE.sum(1, keepdim=True) < budget))


def _sum_in_order(x_BGE: Tensor) -> Tensor:
    """Adds the gates up one after another, as kernels do: equal sums are equal everywhere."""
    total_BE = x_BGE.new_zeros(x_BGE.shape[0], x_BGE.shape[2])
    for g in range(x_BGE.shape[1]):
        total_BE = total_BE + x_BGE[:, g]
    return total_BE


def route_plan(experts_BGK: Tensor, num_experts: int) -> tuple[Tensor, Tensor, Tensor]:
    """Numbers the distinct (sample, expert) pairs, expert by expert and by sample inside one.

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


def permute(x_BD: Tensor, rows_P: Tensor, slots_BGK: Tensor) -> Tensor:
    """Gathers the rows of a plan: x_PD[p] = x_BD[rows_P[p]], and 0 where rows_P[p] is -1.

    The slots serve the gradient alone, which is `unpermute`.
    """
    check_indices("rows_P", "rows", rows_P, x_BD.shape[0])
    padded = torch.cat([x_BD, x_BD.new_zeros(1, x_BD.shape[1])])
    return padded.index_select(0, torch.where(rows_P >= 0, rows_P, x_BD.shape[0]).long())


def unpermute(y_PD: Tensor, rows_P: Tensor, slots_BGK: Tensor) -> Tensor:
    """Adds up the rows of a plan per sample, each pair once: the adjoint of `permute`.

    y_BD[b] = sum of y_PD[p] over the distinct p >= 0 among slots_BGK[b], in increasing p

    A row that no slot names is never read. rows_P serves the gradient, which is `permute`; a slot
    whose row is another sample's is refused on the CPU.
    """
    check_indices("slots_BGK", "slots", slots_BGK, y_PD.shape[0])
    check_samples(rows_P, slots_BGK)
    slots_BN = slots_BGK.flatten(1).sort(1).values
    # The sample's other gates, or picks, that share a pair: only the first of equals counts.
    again_BN = torch.zeros_like(slots_BN, dtype=torch.bool)
    again_BN[:, 1:] = slots_BN[:, 1:] == slots_BN[:, :-1]
    slots_BN = slots_BN.masked_fill(again_BN, -1)
    return _picked(y_PD, slots_BN.unsqueeze(1)).sum(2).squeeze(1).to(y_PD.dtype)


def _activate(z: Tensor, activation: str) -> Tensor:
    match activation:
        case "relu":
            return z.relu()
        case "gelu":
            return torch.nn.functional.gelu(z)
        case "silu":
            return torch.nn.functional.silu(z)
    return z


def _activation_gradient(grad: Tensor, y: Tensor, z: Tensor, activation: str) -> Tensor:
    """Gives the gradient of z from that of y = activation(z), rounded as the products read it."""
    dtype, grad, y, z = grad.dtype, _accumulate(grad), _accumulate(y), _accumulate(z)
    match activation:
        case "relu":
            grad = torch.where(y <= 0, 0, grad)
        case "gelu":
            grad = torch.ops.aten.gelu_backward(grad, z)
        case "silu":
            grad = torch.ops.aten.silu_backward(grad, z)
    return _accumulate(grad.to(dtype))


def keeps_z(activation: str) -> bool:
    """Says whether the gradient needs what went into the activation: ReLU's can be told from y."""
    return activation in ("gelu", "silu")


def _layer(
    x_ND: Tensor, weight_DH: Tensor, bias_H: Tensor | None, activation: str
) -> tuple[Tensor, Tensor]:
    """Computes one expert's layer on its rows: y_NH and z_NH."""
    z_NH = _accumulate(x_ND) @ _accumulate(weight_DH.to(x_ND.dtype))
    z_NH = z_NH if bias_H is None else z_NH + _accumulate(bias_H)
    return _activate(z_NH, activation).to(x_ND.dtype), z_NH.to(x_ND.dtype)


def grouped_mm(
    x_PD: Tensor, offsets_E1: Tensor, weight_EDH: Tensor, bias_EH: Tensor | None, activation: str
) -> tuple[Tensor, Tensor]:
    """Sends each expert's rows through its own layer: y = activation(z), z = x @ W[e] + b[e].

    Args:
        x_PD: Rows in the order of a plan.
        offsets_E1: int32, expert e owns the rows from offsets[e] up to offsets[e + 1].
        weight_EDH: In x's dtype, or float32 beside bfloat16 rows.
        bias_EH: Optional, the weight's dtype.
        activation: none, relu, gelu (exact) or silu.

    Returns:
        y_PH in x's dtype, 0 past the last offset, and z_PH likewise where the activation's gradient
        needs it (gelu, silu), else an empty tensor.
    """
    bounds = offsets_E1.tolist()
    biases = [None] * len(weight_EDH) if bias_EH is None else bias_EH.unbind(0)
    pairs = [
        _layer(x_PD[bounds[e] : bounds[e + 1]], weight, bias, activation)
        for e, (weight, bias) in enumerate(zip(weight_EDH.unbind(0), biases, strict=True))
    ]
    tail = x_PD.new_zeros(x_PD.shape[0] - bounds[-1], weight_EDH.shape[2])
    y_PH = torch.cat([*(y for y, _ in pairs), tail])
    if not keeps_z(activation):
        return y_PH, x_PD.new_empty(0)
    return y_PH, torch.cat([*(z for _, z in pairs), tail])


def grouped_mm_backward(
    grad_PH: Tensor,
    x_PD: Tensor,
    offsets_E1: Tensor,
    weight_EDH: Tensor,
    y_PH: Tensor,
    z_PH: Tensor,
    activation: str,
    need_x: bool,
    need_weight: bool,
    need_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gives the gradients of `grouped_mm` for x_PD, weight_EDH and bias_EH; 0 in the tail.

    A gradient that is not needed comes back as an empty tensor.
    """
    E, D, H = weight_EDH.shape
    like, bounds = weight_EDH.new_empty(0), offsets_E1.tolist()
    dz_PH = _activation_gradient(
        grad_PH, y_PH, z_PH if keeps_z(activation) else grad_PH, activation
    )
    weight_EDH = weight_EDH.to(x_PD.dtype)
    grad_x = x_PD.new_zeros(x_PD.shape if need_x else 0)
    grad_weight = like.new_zeros((E, D, H) if need_weight else 0)
    grad_bias = like.new_zeros((E, H) if need_bias else 0)
    for e in range(E):
        rows = slice(bounds[e], bounds[e + 1])
        if need_x:
            grad_x[rows] = (dz_PH[rows] @ _accumulate(weight_EDH[e]).t()).to(x_PD.dtype)
        if need_weight:
            grad_weight[e] = _accumulate(x_PD[rows]).t() @ dz_PH[rows]
        if need_bias:
            grad_bias[e] = dz_PH[rows].sum(0)
    return grad_x, grad_weight, grad_bias


def gathered_mm(
    x_BD: Tensor,
    rows_P: Tensor,
    offsets_E1: Tensor,
    slots_BGK: Tensor,
    weight_EDH: Tensor,
    bias_EH: Tensor | None,
    activation: str,
) -> tuple[Tensor, Tensor]:
    """Gives what `grouped_mm` gives for the rows that `permute` gathers.

    The slots serve the gradient of x alone: that of the permuted rows, and then `unpermute`.
    """
    x_PD = permute(x_BD, rows_P, slots_BGK)
    return grouped_mm(x_PD, offsets_E1, weight_EDH, bias_EH, activation)


def gathered_mm_backward(
    grad_PH: Tensor,
    x_BD: Tensor,
    rows_P: Tensor,
    offsets_E1: Tensor,
    weight_EDH: Tensor,
    y_PH: Tensor,
    z_PH: Tensor,
    activation: str,
    need_x: bool,
    need_weight: bool,
    need_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gives the gradients of `gathered_mm` for the permuted rows [P, D], weight_EDH and bias_EH."""
    x_PD = permute(x_BD, rows_P, rows_P.new_empty(0, 0, 0))
    needs = need_x, need_weight, need_bias
    return grouped_mm_backward(
        grad_PH, x_PD, offsets_E1, weight_EDH, y_PH, z_PH, activation, *needs
    )


def grouped_product(like: Tensor, choice: int) -> int:
    """Says which of a GPU's products `grouped_mm` took so far; here there is one alone."""
    return 0


def dense_mm(
    x: Sequence[Tensor], weight_EDH: Tensor, bias_EH: Tensor | None, activation: str
) -> tuple[list[Tensor], list[Tensor]]:
    """Sends all rows through the layer of every expert: y[e] = activation(x[e] @ W[e] + b[e]).

    Args:
        x: One tensor [B, D] that all experts read, or E tensors, or one tensor [E, B, D].
        weight_EDH: In x's dtype, or float32 beside bfloat16 rows.
        bias_EH: Optional, the weight's dtype.
        activation: none, relu, gelu (exact) or silu.

    Returns:
        E tensors y_BH; and E tensors z_BH where the activation's gradient needs them, else none.
    """
    rows = _apart(x)
    rows = rows if len(rows) == len(weight_EDH) else rows * len(weight_EDH)
    biases = [None] * len(weight_EDH) if bias_EH is None else bias_EH.unbind(0)
    pairs = [
        _layer(x_BD, weight, bias, activation)
        for x_BD, weight, bias in zip(rows, weight_EDH.unbind(0), biases, strict=True)
    ]
    return [y for y, _ in pairs], [z for _, z in pairs] if keeps_z(activation) else []


def dense_mlp(
    x: Sequence[Tensor],
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    activation: str,
    output_activation: str,
    shared: Sequence[Tensor] = (),
    owners_B: Tensor | None = None,
) -> list[Tensor]:
    """Sends all rows through the layers of every expert: `dense_mm` for each, rounded in between.

    The first is `shared_mm` where rows have owners.

    Args:
        x: As of `dense_mm`.
        weights: Of each layer weight_EDH.
        biases: Of each layer bias_EH; none: layers have none.
        activation: Of all layers but the last.
        output_activation: Of the last.
        shared: As of `shared_mm`.
        owners_B: Likewise.

    Returns:
        E tensors y_BO.
    """
    y: Sequence[Tensor] = x
    for layer, weight_EDH in enumerate(weights):
        act = output_activation if layer + 1 == len(weights) else activation
        bias_EH = biases[layer] if biases else None
        if layer == 0 and owners_B is not None:
            y = shared_mm(y[0], weight_EDH, bias_EH, shared, owners_B, None, None, act)[0]
        else:
            y = dense_mm(y, weight_EDH, bias_EH, act)[0]
    return list(y)


def dense_mm_backward(
    grad: Sequence[Tensor],
    x: Sequence[Tensor],
    weight_EDH: Tensor,
    y: Sequence[Tensor],
    z: Sequence[Tensor],
    activation: str,
    need_x: bool,
    need_weight: bool,
    need_bias: bool,
) -> tuple[list[Tensor], Tensor, Tensor]:
    """Gives the gradients of `dense_mm`; that of a shared x is the sum over the experts."""
    E, D, H = weight_EDH.shape
    rows = _apart(x)
    shared = len(rows) != E or E == 1
    grad_x = [_accumulate(part).new_zeros(part.shape) for part in rows] if need_x else []
    grad_weight = weight_EDH.new_zeros((E, D, H) if need_weight else 0)
    grad_bias = weight_EDH.new_zeros((E, H) if need_bias else 0)
    for e in range(E):
        kept = z[e] if keeps_z(activation) else grad[e]
        dz_BH = _activation_gradient(grad[e], y[e], kept, activation)
        if need_x:
            weight_DH = _accumulate(weight_EDH[e].to(x[0].dtype))
            grad_x[0 if shared else e] += dz_BH @ weight_DH.t()
        if need_weight:
            grad_weight[e] = _accumulate(rows[0 if shared else e]).t() @ dz_BH
        if need_bias:
            grad_bias[e] = dz_BH.sum(0)
    grad_x = [part.to(x[0].dtype) for part in grad_x]
    return [torch.stack(grad_x)] if need_x and x[0].dim() == 3 else grad_x, grad_weight, grad_bias


def _apart(x: Sequence[Tensor]) -> list[Tensor]:
    """Gives the tensors [B, D] of a list, or of one tensor [E, B, D] in it."""
    return list(x[0].unbind(0)) if x[0].dim() == 3 else list(x)


def shared_mm(
    x_BD: Tensor,
    weight_EDH: Tensor,
    bias_EH: Tensor | None,
    shared: Sequence[Tensor],
    owners_B: Tensor,
    order_B: Tensor | None,
    bounds: Tensor | None,
    activation: str,
) -> tuple[list[Tensor], list[Tensor]]:
    """Adds what a row's owner has: y[e][b] = activation(x[b] @ W[e] + b[e] + shared[e][owners[b]]).

    Args:
        x_BD: Rows.
        weight_EDH: In x's dtype, or float32 beside bfloat16 rows.
        bias_EH: Optional, the weight's dtype.
        shared: E tensors [Q, H] in x's dtype.
        owners_B: int32, 0 … Q − 1.
        order_B: int32, rows by owner; for the gradient alone.
        bounds: int32 [Q + 1], where each owner's rows begin in it, and B; likewise.
        activation: none, relu, gelu (exact) or silu.

    Returns:
        E tensors y_BH; and E tensors z_BH where the activation's gradient needs them, else none.
    """
    biases = [None] * len(weight_EDH) if bias_EH is None else bias_EH.unbind(0)
    y: list[Tensor] = []
    z: list[Tensor] = []
    for weight_DH, bias_H, shared_QH in zip(weight_EDH.unbind(0), biases, shared, strict=True):
        z_BH = _accumulate(x_BD) @ _accumulate(weight_DH.to(x_BD.dtype))
        z_BH = z_BH + _accumulate(shared_QH.index_select(0, owners_B))
        z_BH = z_BH if bias_H is None else z_BH + _accumulate(bias_H)
        y.append(_activate(z_BH, activation).to(x_BD.dtype))
        z.append(z_BH.to(x_BD.dtype))
    return y, z if keeps_z(activation) else []


def shared_sums(
    grad: Sequence[Tensor],
    y: Sequence[Tensor],
    z: Sequence[Tensor],
    order_B: Tensor,
    bounds: Tensor,
    activation: str,
) -> list[Tensor]:
    """Gives the gradient of `shared`: that of z, added up over the rows of each owner in order.

    Args:
        grad: E tensors [B, H], of y.
        y: E tensors.
        z: E tensors where the activation's gradient needs them, else none.
        order_B: int32, rows by owner.
        bounds: int32 [Q + 1], where each owner's rows begin in it, and B.
        activation: As of `shared_mm`.

    Returns:
        E tensors [Q, H] in the dtype of grad.
    """
    sums = []
    for e, grad_BH in enumerate(grad):
        kept = z[e] if keeps_z(activation) else grad_BH
        dz_BH = _activation_gradient(grad_BH, y[e], kept, activation)
        sums.append(sums_by_bounds(dz_BH, order_B, bounds).to(grad_BH.dtype))
    return sums


def sums_by_bounds(x_BH: Tensor, order_B: Tensor, bounds: Tensor) -> Tensor:
    """Adds up the rows that stand between two bounds in an order, one after another, in x's type.

    Args:
        x_BH: Rows.
        order_B: int32 or int64.
        bounds: As of `shared_sums`, of either type.
    """
    if not len(x_BH):
        return x_BH.new_zeros(len(bounds) - 1, x_BH.shape[1])
    order_B, bounds = order_B.long(), bounds.long()
    return torch.nn.functional.embedding_bag(
        order_B, x_BH, bounds, mode="sum", include_last_offset=True
    )


def dense_product(like: Tensor, choice: int) -> int:
    """Sets how a GPU's `dense_mm` writes its products, and says how it did; here is one way."""
    return 0


def gate_mm(x_BD: Tensor, weight_DN: Tensor, bias_N: Tensor | None) -> Tensor:
    """Multiplies rows of any float type in float32 (float64 for float64): y = x @ W + b.

    Args:
        x_BD: Rows.
        weight_DN: float32, or float64 beside float64 rows.
        bias_N: Optional, the weight's dtype.

    Returns:
        y_BN in the weight's dtype.
    """
    y_BN = x_BD.to(weight_DN.dtype) @ weight_DN
    return y_BN if bias_N is None else y_BN + bias_N


def gate_mm_backward(
    grad_BN: Tensor,
    x_BD: Tensor,
    weight_DN: Tensor,
    need_x: bool,
    need_weight: bool,
    need_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gives the gradients of `gate_mm`; an empty tensor where one is not needed."""
    return (
        (grad_BN @ weight_DN.t()).to(x_BD.dtype) if need_x else x_BD.new_empty(0),
        x_BD.to(weight_DN.dtype).t() @ grad_BN if need_weight else weight_DN.new_empty(0),
        grad_BN.sum(0) if need_bias else weight_DN.new_empty(0),
    )


def _picked(y_PO: Tensor, slots_BGK: Tensor) -> Tensor:
    """Gives the expert output behind every pick, [B, G, K, O]; zeros behind an unused one."""
    y_PO = _accumulate(y_PO)
    # Index -1 is the last row: the zeros appended here.
    return torch.cat([y_PO, y_PO.new_zeros(1, y_PO.shape[1])])[slots_BGK.long()]


def gated_combine(y_PO: Tensor, slots_BGK: Tensor, weights_BGK: Tensor) -> Tensor:
    """Mixes routed expert outputs for every gate, each pick by its slot.

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
    """Gives the gradients of `gated_combine` for y_PO (its dtype) and weights_BGK (their dtype)."""
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
    y_EBO = y[0] if y[0].dim() == 3 else torch.stack(list(y))
    if len(y_EBO) == 0:
        raise ValueError("y: expected at least one expert, got none")
    return _accumulate(y_EBO)


def dense_combine(y: Sequence[Tensor], weights_BGE: Tensor) -> Tensor:
    """Mixes the outputs of all experts: out[b, g] = sum over e of weights[b, g, e] * y[e][b].

    Args:
        y: E tensors [B, O], or one tensor [E, B, O] in a list.
        weights_BGE: float32 (float64 where y is).

    Returns:
        out_BGO in y's dtype; in memory a gate's rows lie side by side, [G, B, O].
    """
    out_GBO = torch.einsum("ebo,bge->gbo", _stacked(y), weights_BGE).to(y[0].dtype)
    return out_GBO.contiguous().transpose(0, 1)


def dense_combine_backward(
    grad_BGO: Tensor, y: Sequence[Tensor], weights_BGE: Tensor
) -> tuple[list[Tensor], Tensor]:
    """Gives the gradients of `dense_combine` for y (same form, same dtype) and weights_BGE."""
    grad_BGO = _accumulate(grad_BGO)
    grad_y_EBO = torch.einsum("bgo,bge->ebo", grad_BGO, weights_BGE).to(y[0].dtype)
    grad_weights_BGE = torch.einsum("bgo,ebo->bge", grad_BGO, _stacked(y))
    grad_y_EBO = grad_y_EBO.contiguous()
    grad_y = [grad_y_EBO] if y[0].dim() == 3 else [part.clone() for part in grad_y_EBO.unbind(0)]
    return grad_y, grad_weights_BGE.to(weights_BGE.dtype).contiguous()


def mixed_towers(
    y: Sequence[Tensor],
    weights_BGE: Tensor,
    weight_GOH: Tensor,
    bias_GH: Tensor,
    head_GH: Tensor,
    head_bias_G: Tensor,
    activation: str,
    keep: bool,
) -> tuple[Tensor, list[Tensor]]:
    """Sends every gate's mix through a tower of its own: `dense_combine`, `dense_mm`, logits.

    Args:
        y: As of `dense_combine`.
        weights_BGE: Likewise.
        weight_GOH: In y's dtype, or float32 beside bfloat16 rows.
        bias_GH: The weight's dtype.
        head_GH: float32 (float64 where y is).
        head_bias_G: Likewise.
        activation: none, relu, gelu (exact) or silu.
        keep: Whether a backward pass will follow.

    Returns:
        logits_BG in the head's dtype; and, where they are kept, h_GBH and, where the activation's
        gradient needs it, z_GBH.
    """
    mixes_GBO = dense_combine(y, weights_BGE).transpose(0, 1)
    hidden, z = dense_mm([mixes_GBO], weight_GOH, bias_GH, activation)
    h_GBH = torch.stack(hidden)
    logits_BG = torch.einsum("gbh,gh->bg", _accumulate(h_GBH), head_GH) + head_bias_G
    kept = [h_GBH, torch.stack(z)] if z else [h_GBH]
    return logits_BG.contiguous(), kept if keep else []


def mixed_towers_backward(
    grad_BG: Tensor,
    y: Sequence[Tensor],
    weights_BGE: Tensor,
    weight_GOH: Tensor,
    head_GH: Tensor,
    kept: Sequence[Tensor],
    activation: str,
    need_mixes: bool,
) -> tuple[list[Tensor], Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gives the gradients of `mixed_towers`; those of y and weights_BGE where it `need_mixes`."""
    h_GBH, dtype = kept[0], y[0].dtype
    grad_h_GBH = torch.einsum("bg,gh->gbh", grad_BG, head_GH).to(dtype)
    grad_head_GH = torch.einsum("bg,gbh->gh", grad_BG, _accumulate(h_GBH))
    grad_mixes, grad_weight_GOH, grad_bias_GH = dense_mm_backward(
        list(grad_h_GBH),
        [dense_combine(y, weights_BGE).transpose(0, 1)],
        weight_GOH,
        list(h_GBH),
        list(kept[-1]),
        activation,
        need_x=need_mixes,
        need_weight=True,
        need_bias=True,
    )
    grad_y, grad_weights_BGE = [], weights_BGE.new_zeros(0)
    if need_mixes:
        grad_mixes_BGO = grad_mixes[0].transpose(0, 1)
        grad_y, grad_weights_BGE = dense_combine_backward(grad_mixes_BGO, y, weights_BGE)
    return (
        grad_y,
        grad_weights_BGE,
        grad_weight_GOH,
        grad_bias_GH,
        grad_head_GH.contiguous(),
        grad_BG.sum(0),
    )


def row_softmax(x_RN: Tensor) -> Tensor:
    """Computes the softmax of every row."""
    return x_RN.softmax(-1)


def row_softmax_backward(grad_RN: Tensor, p_RN: Tensor) -> Tensor:
    """Gives the gradient of `row_softmax` from its result."""
    return p_RN * (grad_RN - (p_RN * grad_RN).sum(-1, keepdim=True))


def _row_of_events(offsets_B1: Tensor, events: int) -> Tensor:
    """Gives the row of each event, int64 [V]."""
    check_bounds("offsets_B1", offsets_B1, events)
    places_V = torch.arange(events, device=offsets_B1.device, dtype=offsets_B1.dtype)
    return torch.searchsorted(offsets_B1[1:].contiguous(), places_V, right=True)


def _scales(e_VD: Tensor) -> Tensor:
    """Gives what events are multiplied by so that the mean of their squares is 1, [V, 1]."""
    # Divided by 1 where there is no width
    return (e_VD.square().sum(1, keepdim=True) / max(e_VD.shape[1], 1) + 1e-6).rsqrt()


def _jagged_softmax(scores_V: Tensor, row_V: Tensor, rows: int) -> Tensor:
    """Divides exp(scores) by their sums over each row."""
    most_B = scores_V.new_full((rows,), -torch.inf).scatter_reduce(0, row_V, scores_V, "amax")
    exp_V = (scores_V - most_B[row_V]).exp()
    return exp_V / exp_V.new_zeros(rows).index_add(0, row_V, exp_V)[row_V]


def _deeper(
    h_VH: Tensor, deep_weights: Sequence[Tensor], deep_biases: Sequence[Tensor]
) -> list[Tensor]:
    """Returns the outputs of all layers, the first one's included."""
    layers = [h_VH]
    for weight_HN, bias_N in zip(deep_weights, deep_biases, strict=True):
        layers.append((layers[-1] @ weight_HN + bias_N).relu())
    return layers


def target_attention(
    e_VD: Tensor,
    offsets_B1: Tensor,
    q_BD: Tensor,
    weight_2DH: Tensor,
    bias_BH: Tensor,
    deep_weights: Sequence[Tensor],
    deep_biases: Sequence[Tensor],
    score_N: Tensor,
    score_bias_1: Tensor,
    softmax: bool,
) -> tuple[Tensor, Tensor]:
    """Sums each row's events, weighed by an MLP that sees event, target and their product.

    weights[v] = sum over n of score[n] * h[v, n] + score_bias, for an event v of row b, with
    h[v] = relu([x, x * q[b]] @ weight + bias[b]) and x = e[v] / sqrt(mean of e[v]^2 + 1e-6),
    then h[v] = relu(h[v] @ w + c) for each of the deeper layers;
    out[b] = sum over b's own v of weights[v] * e[v], after a softmax over them where asked for

    Args:
        e_VD: Float.
        offsets_B1: int32, row b owns the events from offsets[b] up to offsets[b + 1].
        q_BD: In the dtype of the events.
        weight_2DH: float32, or float64 beside float64 events, as all that follow.
        bias_BH: One for each row.
        deep_weights: Of the layers after the first one, [H, H'] each.
        deep_biases: Theirs, [H'].
        score_N: Weights of the last layer's numbers.
        score_bias_1: Added to the weights.
        softmax: Weights of a row sum to 1.

    Returns:
        out_BD in the dtype of the events, weights_V in that of the layer.
    """
    row_V = _row_of_events(offsets_B1, len(e_VD))
    wide_VD = _accumulate(e_VD)
    x_VD = wide_VD * _scales(wide_VD)
    z_VH = torch.cat([x_VD, x_VD * _accumulate(q_BD)[row_V]], 1) @ weight_2DH + bias_BH[row_V]
    h_VN = _deeper(z_VH.relu(), deep_weights, deep_biases)[-1]
    weights_V = (h_VN * score_N).sum(1) + score_bias_1
    if softmax:
        weights_V = _jagged_softmax(weights_V, row_V, len(q_BD))
    out_BD = torch.zeros_like(q_BD, dtype=wide_VD.dtype)
    out_BD = out_BD.index_add(0, row_V, weights_V[:, None] * wide_VD)
    return out_BD.to(e_VD.dtype), weights_V


def target_attention_backward(
    grad_BD: Tensor,
    grad_weights_V: Tensor,
    e_VD: Tensor,
    offsets_B1: Tensor,
    q_BD: Tensor,
    weight_2DH: Tensor,
    bias_BH: Tensor,
    deep_weights: Sequence[Tensor],
    deep_biases: Sequence[Tensor],
    score_N: Tensor,
    weights_V: Tensor,
    softmax: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, list[Tensor], list[Tensor], Tensor, Tensor]:
    """Gives the gradients of `target_attention` for all but the offsets, in its order.

    The layers are computed again; weights_V is what `target_attention` returned. With g the
    gradient of a weight before the softmax: p * (g' - sum over the row of p * g') for one, where
    p are the weights and g'[v] = <grad[b], e[v]> + grad_weights[v], else g' itself. An event's own
    gradient comes from the sum, from the layers, and from its scale, whose derivative is
    -scale^3 * e / D.
    """
    (B, D), H = q_BD.shape, weight_2DH.shape[1]
    row_V = _row_of_events(offsets_B1, len(e_VD))
    wide_VD, q_VD = _accumulate(e_VD), _accumulate(q_BD)[row_V]
    grad_VD = _accumulate(grad_BD)[row_V]
    scale_V1 = _scales(wide_VD)
    x_VD = wide_VD * scale_V1
    both_V2D = torch.cat([x_VD, x_VD * q_VD], 1)
    layers = _deeper((both_V2D @ weight_2DH + bias_BH[row_V]).relu(), deep_weights, deep_biases)

    grad_V = (grad_VD * wide_VD).sum(1) + grad_weights_V
    if softmax:
        mean_B = grad_V.new_zeros(B).index_add(0, row_V, weights_V * grad_V)
        grad_V = weights_V * (grad_V - mean_B[row_V])
    grad_z = torch.where(layers[-1] > 0, grad_V[:, None] * score_N, 0)
    grad_deep_weights, grad_deep_biases = [], []
    for h_VH, weight_HN in zip(layers[-2::-1], reversed(deep_weights), strict=True):
        grad_deep_weights.insert(0, h_VH.t() @ grad_z)
        grad_deep_biases.insert(0, grad_z.sum(0))
        grad_z = torch.where(h_VH > 0, grad_z @ weight_HN.t(), 0)
    grad_both_V2D = grad_z @ weight_2DH.t()
    grad_x_VD = grad_both_V2D[:, :D] + grad_both_V2D[:, D:] * q_VD
    grad_scale_V1 = (grad_x_VD * wide_VD).sum(1, keepdim=True)
    grad_e_VD = weights_V[:, None] * grad_VD + grad_x_VD * scale_V1
    grad_e_VD = grad_e_VD - grad_scale_V1 * scale_V1**3 * wide_VD / max(D, 1)

    def summed(rows_VN: Tensor, width: int) -> Tensor:
        return rows_VN.new_zeros(B, width).index_add(0, row_V, rows_VN)

    return (
        grad_e_VD.to(e_VD.dtype),
        summed(grad_both_V2D[:, D:] * x_VD, D).to(q_BD.dtype),
        both_V2D.t() @ grad_z,
        summed(grad_z, H),
        grad_deep_weights,
        grad_deep_biases,
        grad_V @ layers[-1],
        grad_V.sum().view(1),
    )
