"""The operators together, by way of their public functions and gradients: device against CPU."""

import copy
from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from mmoe.mixture import MultiGateMixture, SoftmaxGate, TopKGate, mlp_experts
from mmoe.mixture.experts.mlp import ExpertActivation

B, D, G, E = 200, 21, 3, 6
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-10}


def _layer(
    gate: nn.Module, execution: Literal["dense", "grouped"], activation: ExpertActivation
) -> MultiGateMixture:
    experts = mlp_experts(E, D, [40, 17], activation=activation)
    return MultiGateMixture(D, G, experts, gate=gate, execution=execution)


LAYERS: Mapping[str, Callable[[], MultiGateMixture]] = {
    "mixture-dense": lambda: _layer(SoftmaxGate(D, G, E), "dense", "silu"),
    "mixture-grouped": lambda: _layer(TopKGate(D, G, E, k=2), "grouped", "gelu"),
}


def check(name: str, device: str) -> str:
    """A training step of a whole layer on both devices, in each type.

    Raises:
        ValueError: Where one differs.
    """
    for dtype, tolerance in TOLERANCE.items():
        torch.manual_seed(0)
        layer = LAYERS[name]().to(dtype)
        x_BD = torch.randn(B, D, dtype=dtype)
        found = _step(copy.deepcopy(layer).to(device), x_BD.to(device))
        for number, (ours, theirs) in enumerate(zip(found, _step(layer, x_BD), strict=True)):
            allowed = tolerance * max(1e-3, float(theirs.abs().max()))
            difference = float((ours.cpu() - theirs).abs().max())
            if not difference <= allowed:
                raise ValueError(
                    f"{name}, {dtype}, result {number}: expected within {allowed:.3g} of the "
                    f"CPU's, got {difference:.3g} apart"
                )
    return f"{name}: as on the CPU"


def _step(layer: MultiGateMixture, x_BD: Tensor) -> list[Tensor]:
    """The output and all gradients."""
    x_BD = x_BD.requires_grad_()
    out_BGO = layer(x_BD).out_BGO
    leaves = [x_BD, *layer.parameters()]
    grads = torch.autograd.grad(out_BGO.square().mean(), leaves, allow_unused=True)
    return [out_BGO.detach(), *(grad for grad in grads if grad is not None)]
