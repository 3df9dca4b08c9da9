"""Optimizers, the schedule, and the average of the dense weights."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from mmoe.config import OptimizerConfig


def build_optimizer(network: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    """Adam, or AdamW (decoupled decay), over the dense parameters, one fused kernel a step."""
    kinds = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    return kinds[config.kind](
        network.parameters(),
        lr=config.learning_rate,
        weight_decay=config.weight_decay,
        fused=True,
    )


def learning_rate_factor(schedule: str, step: int, total_steps: int) -> float:
    """What both learning rates are multiplied with at `step` (0-based).

    constant: 1; cosine: `(1 + cos(π · step / total_steps)) / 2` (Loshchilov & Hutter 2017, SGDR).
    """
    if schedule == "constant":
        return 1.0
    return 0.5 * (1.0 + math.cos(math.pi * min(step / max(total_steps, 1), 1.0)))


def build_average(network: nn.Module, decay: float | None) -> AveragedModel | None:
    """An exponential moving average of the dense weights: `a ← decay · a + (1 - decay) · w`."""
    if decay is None:
        return None
    return AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=True)


def flatten_optimizer(optimizer: torch.optim.Optimizer, network: nn.Module) -> dict[str, Tensor]:
    """The optimizer's moments as plain tensors, `PARAMETER/MOMENT`."""
    names = [name for name, _ in network.named_parameters()]
    return {
        f"{names[index]}/{key}": torch.as_tensor(value)
        for index, moments in optimizer.state_dict()["state"].items()
        for key, value in moments.items()
    }


def unflatten_optimizer(
    optimizer: torch.optim.Optimizer, network: nn.Module, tensors: Mapping[str, Tensor]
) -> None:
    """Puts back what `flatten_optimizer` took."""
    names = [name for name, _ in network.named_parameters()]
    state: dict[int, dict[str, Tensor]] = {}
    for full_name, tensor in tensors.items():
        name, _, key = full_name.rpartition("/")
        state.setdefault(names.index(name), {})[key] = tensor
    content = optimizer.state_dict()
    content["state"] = state
    optimizer.load_state_dict(content)
