"""What people use instead of our layer, written the way they write it."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.mixture.layers import contestant, leaf
from benchmarks.mixture.race import Contestant
from benchmarks.mixture.workloads import Values, Workload


class LoopMixture(nn.Module):
    """The MMoE of recommender libraries: a loop over MLPs, stacked, and a weighted sum per gate.

    The experts' outputs are stacked once and one batched product serves all gates: a few per cent
    ahead of `einsum`, of multiply-and-sum and of one product per gate.
    """

    def __init__(self, work: Workload, values: Values) -> None:
        super().__init__()
        self.experts = linear_experts(work, values)
        self.gates = nn.ModuleList(nn.Linear(work.D, work.E, bias=False) for _ in range(work.G))
        self.to(work.device, work.dtype)
        with torch.no_grad():
            for gate, weight_ED in zip(self.gates, values.gate_GED, strict=True):
                gate.weight.copy_(weight_ED)

    def forward(self, x_BD: Tensor) -> Tensor:
        """`x_BD` → `out_BGO`."""
        y_BEO = torch.stack([expert(x_BD) for expert in self.experts], dim=1)
        weights_BGE = torch.stack([gate(x_BD).softmax(-1) for gate in self.gates], dim=1)
        return torch.bmm(weights_BGE.to(y_BEO.dtype), y_BEO)


class SparseLayer(nn.Module):
    """Linear top-k gate in fp32, softmax over the k; what follows is the subclass's."""

    def __init__(self, work: Workload, values: Values) -> None:
        super().__init__()
        assert work.k is not None
        self.k, self.num_experts = work.k, work.E
        self.gate_ED = nn.Parameter(values.gate_GED[0].clone())

    def pick(self, x_BD: Tensor) -> tuple[Tensor, Tensor]:
        """Weights and experts, `[B, k]`."""
        logits_BE = F.linear(x_BD.float(), self.gate_ED.float())
        top_BK, experts_BK = logits_BE.topk(self.k, dim=-1)
        return top_BK.softmax(-1), experts_BK


class GroupedMMLayer(SparseLayer):
    """Sort the picks by expert, gather, `F.grouped_mm`, weigh, add: no biases.

    Weights lie as in torchtitan, `[E, out, in]`. `index_select` and `index_add` are as fast as
    indexing and as undoing the sort, or faster.
    """

    def __init__(self, work: Workload, values: Values) -> None:
        super().__init__(work, values)
        self.layers = nn.ParameterList(w.mT.contiguous() for w in values.layers)

    def forward(self, x_BD: Tensor) -> Tensor:
        """`x_BD` → `out_BO`."""
        weights_BK, experts_BK = self.pick(x_BD)
        picks = experts_BK.flatten()
        order = picks.argsort(stable=True)
        rows = order // self.k
        ends_E = torch.bincount(picks, minlength=self.num_experts).cumsum(0).to(torch.int32)
        y = x_BD.index_select(0, rows)
        for weight_EOI in self.layers:
            y = F.grouped_mm(y, weight_EOI.mT, offs=ends_E).relu()
        y = y * weights_BK.flatten()[order].unsqueeze(-1).to(y.dtype)
        return y.new_zeros(len(x_BD), y.shape[1]).index_add(0, rows, y)


class MaskLayer(SparseLayer):
    """Every expert on all rows, times its weight, which is zero where it was not picked."""

    def __init__(self, work: Workload, values: Values) -> None:
        super().__init__(work, values)
        self.experts = linear_experts(work, values)

    def forward(self, x_BD: Tensor) -> Tensor:
        """`x_BD` → `out_BO`."""
        weights_BK, experts_BK = self.pick(x_BD)
        out = torch.zeros_like(x_BD[:, :1])
        for e, expert in enumerate(self.experts):
            weight_B = (weights_BK * (experts_BK == e)).sum(-1)
            out = out + expert(x_BD) * weight_B.unsqueeze(-1).to(x_BD.dtype)
        return out


class IndexLayer(SparseLayer):
    """For every expert: find its rows, gather, run, weigh, add (Mixtral as first published)."""

    def __init__(self, work: Workload, values: Values) -> None:
        super().__init__(work, values)
        self.experts = linear_experts(work, values)
        self.output_dim = work.output_dim

    def forward(self, x_BD: Tensor) -> Tensor:
        """`x_BD` → `out_BO`."""
        weights_BK, experts_BK = self.pick(x_BD)
        out_BO = x_BD.new_zeros(len(x_BD), self.output_dim)
        for e, expert in enumerate(self.experts):
            rows, place = torch.where(experts_BK == e)
            y = expert(x_BD[rows]) * weights_BK[rows, place].unsqueeze(-1).to(x_BD.dtype)
            out_BO.index_add_(0, rows, y)
        return out_BO


def linear_experts(work: Workload, values: Values) -> nn.ModuleList:
    """MLPs of `nn.Linear` with the weights of `values` and zero biases."""
    experts = nn.ModuleList()
    for e in range(work.E):
        layers: list[nn.Module] = []
        for weight_EIO in values.layers:
            linear = nn.Linear(weight_EIO.shape[1], weight_EIO.shape[2])
            with torch.no_grad():
                linear.weight.copy_(weight_EIO[e].T)
                nn.init.zeros_(linear.bias)
            layers += [linear, nn.ReLU()]
        experts.append(nn.Sequential(*layers))
    return experts.to(work.device, work.dtype)


def alternative(
    kind: Callable[[Workload, Values], nn.Module],
    work: Workload,
    values: Values,
    *,
    around: Callable[[], AbstractContextManager] = nullcontext,
    outside: Callable[[], AbstractContextManager] = nullcontext,
) -> Contestant:
    """One of the classes above as a contestant."""
    module = kind(work, values).to(work.device)
    x_BD = leaf(values.x_BD)

    def forward() -> list[Tensor]:
        out = module(x_BD)
        return [out if out.dim() == 3 else out.unsqueeze(1)]

    grads = [values.grad_BGO]
    return contestant(forward, grads, x_BD, [module], around=around, outside=outside)
