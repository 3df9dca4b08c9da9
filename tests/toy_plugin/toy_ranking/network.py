"""A gate, an expert, a tower and a model, as small as they can be."""

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

import mmoe.register
from mmoe.config import ExpertConfig, GateConfig, PoolModelConfig, TowerConfig
from mmoe.mixture import GateOutput
from mmoe.models.layout import Layout
from mmoe.models.network import Level, MixtureNetwork
from mmoe.models.sections import build_mixture, build_towers


class SharpGateConfig(GateConfig):
    """Weighs experts by the softmax of what is multiplied by its sharpness."""

    kind: Literal["sharp"] = "sharp"
    sharpness: float = Field(default=2.0, gt=0, description="above 1: fewer experts count")


@mmoe.register.gate("sharp", SharpGateConfig)
class SharpGate(nn.Module):
    """`softmax(sharpness · W_g x)`."""

    def __init__(self, input_dim: int, num_gates: int, num_experts: int, *, sharpness: float):
        super().__init__()
        self.sharpness = sharpness
        self.weights_GED = nn.Parameter(0.01 * torch.randn(num_gates, num_experts, input_dim))

    def forward(self, inputs: Sequence[Tensor], visibility_GE: Tensor) -> GateOutput:
        pairs = zip(inputs, self.weights_GED, strict=True)
        logits_BGE = self.sharpness * torch.stack([x @ w.T for x, w in pairs], dim=1).float()
        return GateOutput(logits_BGE.masked_fill(~visibility_GE, -torch.inf).softmax(-1))


class SineExpertConfig(ExpertConfig):
    """A linear layer and a sine."""

    kind: Literal["sine"] = "sine"
    width: int = Field(default=8, ge=1, description="of its output")


@mmoe.register.expert("sine", SineExpertConfig)
class SineExpert(nn.Module):
    """`sin(W x + b)`."""

    def __init__(self, input_dim: int, *, width: int):
        super().__init__()
        self.linear, self.output_dim = nn.Linear(input_dim, width), width

    def forward(self, x_RD: Tensor) -> Tensor:
        return torch.sin(self.linear(x_RD))


class SumTowerConfig(TowerConfig):
    """A weighted sum."""

    kind: Literal["sum"] = "sum"
    bias: bool = Field(default=True, description="a number is added")


@mmoe.register.tower("sum", SumTowerConfig)
class SumTower(nn.Module):
    """`v · h + c`."""

    def __init__(self, input_dim: int, *, bias: bool):
        super().__init__()
        self.linear = nn.Linear(input_dim, 1, bias=bias)

    def forward(self, h_BO: Tensor) -> Tensor:
        return self.linear(h_BO)[:, 0].float()


class TwinConfig(PoolModelConfig):
    """Two gates for all tasks."""

    kind: Literal["twin"] = "twin"
    second: bool = Field(default=True, description="odd tasks read the second gate")


@mmoe.register.model("twin", TwinConfig)
def build_twin(
    model: TwinConfig, input_dim: int, task_names: Sequence[str], layout: Layout
) -> MixtureNetwork:
    """Tasks take turns at two gates over one pool."""
    mixture = build_mixture(model, layout, input_dim, 2, model.num_experts)
    return MixtureNetwork(
        [Level(mixture, ["first", "second"], model.expert_names(task_names))],
        build_towers(model, len(task_names), mixture.output_dim),
        [t % 2 if model.second else 0 for t in range(len(task_names))],
        input_dropout=model.input_dropout,
    )
