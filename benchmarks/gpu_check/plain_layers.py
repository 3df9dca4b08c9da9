"""The mixture as one writes it in plain torch today: batched products, `F.grouped_mm`."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class _Experts(nn.Module):
    """Weights of all experts and of linear gates."""

    def __init__(self, width: int, hidden: Sequence[int], experts: int, gates: int) -> None:
        super().__init__()
        shapes = list(zip((width, *hidden), hidden, strict=False))
        self.weights = nn.ParameterList(
            nn.Parameter(torch.randn(experts, a, b) * (2 / a) ** 0.5) for a, b in shapes
        )
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(experts, b)) for _, b in shapes)
        self.gate = nn.Linear(width, gates * experts, bias=False)
        self.experts, self.gates = experts, gates

    def logits(self, x_BD: Tensor) -> Tensor:
        """`[B, gates, experts]`, in fp32."""
        with torch.autocast(x_BD.device.type, enabled=False):
            return self.gate(x_BD.float()).view(len(x_BD), self.gates, self.experts)


class DenseLayer(_Experts):
    """Every expert on all rows, by batched products; softmax gates."""

    def forward(self, x_BD: Tensor) -> Tensor:
        """`x_BD` → `out_BGO`."""
        y_EBH = x_BD.to(torch.bfloat16).expand(self.experts, -1, -1)
        for weight_EDH, bias_EH in zip(self.weights, self.biases, strict=True):
            y_EBH = torch.baddbmm(bias_EH.unsqueeze(1), y_EBH, weight_EDH).relu()
        weights_BGE = self.logits(x_BD).softmax(-1).to(y_EBH.dtype)
        return torch.bmm(weights_BGE, y_EBH.transpose(0, 1))


class DenseGroupedLayer(_Experts):
    """Every expert on all rows, by `F.grouped_mm` of a copy of the rows for each; softmax gates."""

    def forward(self, x_BD: Tensor) -> Tensor:
        """`x_BD` → `out_BGO`."""
        y_EBH = _padded(x_BD.to(torch.bfloat16)).expand(self.experts, -1, -1).contiguous()
        for weight_EDH, bias_EH in zip(self.weights, self.biases, strict=True):
            weight_EDH = _padded(weight_EDH.to(torch.bfloat16), dim=1)
            y_EBH = F.grouped_mm(y_EBH, weight_EDH)
            y_EBH = (y_EBH + bias_EH.to(y_EBH.dtype).unsqueeze(1)).relu()
        weights_BGE = self.logits(x_BD).softmax(-1).to(y_EBH.dtype)
        return torch.bmm(weights_BGE, y_EBH.transpose(0, 1))


class GroupedLayer(_Experts):
    """Sort the picks of all gates by expert, gather, `F.grouped_mm`, weigh, add.

    Args:
        width: Of rows.
        hidden: Widths of an expert's layers.
        experts: How many.
        gates: How many.
        k: Picks of each gate.
    """

    def __init__(self, width: int, hidden: Sequence[int], experts: int, gates: int, k: int) -> None:
        super().__init__(width, hidden, experts, gates)
        self.k = k

    def forward(self, x_BD: Tensor) -> Tensor:
        """`x_BD` → `out_BGO`."""
        B, G = len(x_BD), self.gates
        top_BGK, experts_BGK = self.logits(x_BD).topk(self.k, dim=-1)
        picks = experts_BGK.flatten()
        order = picks.argsort(stable=True)
        bounds = torch.arange(self.experts, device=picks.device)
        ends_E = torch.searchsorted(picks[order], bounds, right=True).to(torch.int32)
        y = _padded(x_BD.to(torch.bfloat16)).index_select(0, order // (G * self.k))
        for weight_EDH, bias_EH in zip(self.weights, self.biases, strict=True):
            weight_EDH = _padded(weight_EDH.to(torch.bfloat16), dim=1)
            y = F.grouped_mm(y, weight_EDH, offs=ends_E)
            y = (y + bias_EH.to(y.dtype)[picks[order]]).relu()
        y = y * top_BGK.softmax(-1).flatten()[order].unsqueeze(-1).to(y.dtype)
        out = y.new_zeros(B * G, y.shape[1]).index_add(0, order // self.k, y)
        return out.view(B, G, -1)


def _padded(tensor: Tensor, dim: int = -1) -> Tensor:
    """With zeros up to whole packs of 16 bytes, which the grouped product asks for."""
    more = -tensor.shape[dim] % 8
    if more == 0:
        return tensor
    return F.pad(tensor, (0, more) if dim == -1 else (0, 0, 0, more))
