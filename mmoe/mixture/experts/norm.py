"""Normalisation inside a pool of experts: each has its own scale, shift and statistics.

With the sums over an expert's rows that it takes, and the reverse: its value for each of its rows.
"""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmoe import ops
from mmoe.mixture.dispatcher import ONE_RANK, RankSums


def per_row(values_EH: Tensor, offsets_E1: Tensor, rows: int) -> Tensor:
    """Gives every row the values of its expert, `[rows, H]`; 0 past the last offset.

    Example:
        >>> import torch
        >>> offsets = torch.tensor([0, 2, 3], dtype=torch.int32)
        >>> per_row(torch.tensor([[1.0], [5.0]]), offsets, rows=3).flatten().tolist()
        [1.0, 1.0, 5.0]
    """
    # Not indexing, whose gradient a GPU adds up in any order: here it is a sum in a fixed one
    return ops.grouped_mm(values_EH.new_ones(rows, 1), offsets_E1, values_EH.unsqueeze(1))


def segment_sum(y_PH: Tensor, offsets_E1: Tensor) -> Tensor:
    """Adds up each expert's rows in a fixed order, `[E, H]`.

    Args:
        y_PH: float32 or float64.
        offsets_E1: int32; rows past the last offset are not read.

    Returns:
        The sums; 0 for an expert without rows.

    Example:
        >>> import torch
        >>> offsets = torch.tensor([0, 2, 2], dtype=torch.int32)
        >>> segment_sum(torch.tensor([[1.0], [2.0], [9.0]]), offsets).flatten().tolist()
        [3.0, 0.0]
    """
    return _SegmentSum.apply(y_PH, offsets_E1)


class _SegmentSum(torch.autograd.Function):
    """The sum over an expert's rows is the gradient of its bias."""

    @staticmethod
    def forward(ctx: Any, y_PH: Tensor, offsets_E1: Tensor) -> Tensor:
        ctx.save_for_backward(offsets_E1)
        ctx.rows = y_PH.shape[0]
        y_PH = y_PH.contiguous()
        ones_P1 = y_PH.new_ones(y_PH.shape[0], 1)
        weight_E1H = y_PH.new_zeros(offsets_E1.shape[0] - 1, 1, y_PH.shape[1])
        empty = y_PH.new_empty(0)
        # Of a product `x W[e] + b[e]` with y as the result's gradient, that of b[e] is the sum
        gradients = torch.ops.mmoe.grouped_mm_backward(
            y_PH, ones_P1, offsets_E1, weight_E1H, y_PH, empty, "none", False, False, True
        )
        return gradients[2]

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        (offsets_E1,) = ctx.saved_tensors
        (grad_EH,) = grad_outputs
        return per_row(grad_EH, offsets_E1, ctx.rows), None


ExpertNorm = Literal["layer", "batch"]


class ExpertLayerNorm(nn.Module):
    """Layer normalisation of each row, then its expert's own scale and shift.

    `y ← (y − mean(y)) / √(var(y) + ε) · weight[e] + bias[e]`

    Args:
        num_experts: E.
        width: H.
        eps: ε.

    Source: Ba et al., "Layer normalization" (arXiv 1607.06450), equation 3.
    """

    def __init__(self, num_experts: int, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(num_experts, width))
        self.bias = nn.Parameter(torch.zeros(num_experts, width))
        self.eps = eps

    def forward(self, y_PH: Tensor, offsets_E1: Tensor) -> Tensor:
        """Normalises rows in the order of a plan, in their dtype."""
        z_PH = y_PH.to(ops.accumulate_dtype(y_PH.dtype))
        z_PH = F.layer_norm(z_PH, z_PH.shape[1:], eps=self.eps)
        return _affine(z_PH, self.weight, self.bias, offsets_E1).to(y_PH.dtype)


class ExpertBatchNorm(nn.Module):
    """Batch normalisation in each expert, over the rows that reached it.

    `y ← (y − mean[e]) / √(var[e] + ε) · weight[e] + bias[e]`

    While training, mean and variance are those of the expert's rows in this batch; else, and for an
    expert that got fewer than two rows, the running ones, so that a row's score depends on that row
    alone.

    Args:
        num_experts: E.
        width: H.
        eps: ε.
        momentum: Share of the newest batch in the running statistics.

    Attributes:
        ranks: Sums over the ranks that share a batch, where each has a copy of the experts; then
            the statistics are those of all ranks' rows. Default: there is one rank.

    Source: Ioffe and Szegedy, "Batch normalization" (ICML 2015), algorithms 1 and 2; within an
        expert: Wang et al., "HoME: hierarchy of multi-gate experts" (arXiv 2408.05430).
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(
        self, num_experts: int, width: int, eps: float = 1e-5, momentum: float = 0.1
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(num_experts, width))
        self.bias = nn.Parameter(torch.zeros(num_experts, width))
        self.register_buffer("running_mean", torch.zeros(num_experts, width))
        self.register_buffer("running_var", torch.ones(num_experts, width))
        self.eps, self.momentum = eps, momentum
        self.ranks: RankSums = ONE_RANK

    def forward(self, y_PH: Tensor, offsets_E1: Tensor) -> Tensor:
        """Normalises rows in the order of a plan, in their dtype."""
        # Sums over rows lose digits in a narrow type
        z_PH, rows = y_PH.to(ops.accumulate_dtype(y_PH.dtype)), y_PH.shape[0]
        mean_EH, var_EH = self.running_mean.to(z_PH.dtype), self.running_var.to(z_PH.dtype)
        if self.training:
            mean_EH, var_EH = self._of_batch(z_PH, offsets_E1, mean_EH, var_EH)
        scale_EH = (var_EH + self.eps).rsqrt()
        z_PH = (z_PH - per_row(mean_EH, offsets_E1, rows)) * per_row(scale_EH, offsets_E1, rows)
        return _affine(z_PH, self.weight, self.bias, offsets_E1).to(y_PH.dtype)

    def _of_batch(
        self, z_PH: Tensor, offsets_E1: Tensor, mean_EH: Tensor, var_EH: Tensor
    ) -> tuple[Tensor, Tensor]:
        """This batch's statistics, where there are rows enough; moves the running ones."""
        count_E1 = offsets_E1.diff().unsqueeze(1).to(z_PH.dtype)
        sum_EH, count_E1 = self.ranks.of_rows(segment_sum(z_PH, offsets_E1), count_E1)
        # Its own mean takes all from a single row: whatever it held, 0 would be left
        enough_E1 = count_E1 >= 2
        batch_mean_EH = sum_EH / count_E1.clamp(min=1)
        centred_PH = z_PH - per_row(batch_mean_EH, offsets_E1, z_PH.shape[0])
        # In a second pass: E[y²] − E[y]² loses its digits where the mean is large
        (squares_EH,) = self.ranks.of_rows(segment_sum(centred_PH.square(), offsets_E1))
        batch_var_EH = squares_EH / count_E1.clamp(min=1)
        with torch.no_grad():
            # Running variances are unbiased, as in torch's own layers.
            unbiased_EH = batch_var_EH * count_E1 / (count_E1 - 1).clamp(min=1)
            # 0 of an expert with too few rows, whose running statistics stay
            share_E1 = enough_E1.to(z_PH.dtype) * self.momentum
            self.running_mean.copy_(mean_EH.lerp(batch_mean_EH, share_E1))
            self.running_var.copy_(var_EH.lerp(unbiased_EH, share_E1))
        return (
            torch.where(enough_E1, batch_mean_EH, mean_EH),
            torch.where(enough_E1, batch_var_EH, var_EH),
        )


def share_statistics(experts: nn.Module, ranks: RankSums) -> None:
    """Lets batch normalisations of a pool see the rows of all ranks that have a copy of it."""
    for module in experts.modules():
        if isinstance(module, ExpertBatchNorm):
            module.ranks = ranks


def _affine(z_PH: Tensor, weight_EH: Tensor, bias_EH: Tensor, offsets_E1: Tensor) -> Tensor:
    weight_EH, bias_EH, rows = weight_EH.to(z_PH.dtype), bias_EH.to(z_PH.dtype), z_PH.shape[0]
    # One pass over the rows, not one for the scale and one for the shift
    return torch.addcmul(
        per_row(bias_EH, offsets_E1, rows), z_PH, per_row(weight_EH, offsets_E1, rows)
    )
