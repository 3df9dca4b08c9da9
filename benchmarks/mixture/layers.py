"""Our layer as a contestant, in every setting that the contests need."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from benchmarks.mixture.race import Contestant
from benchmarks.mixture.workloads import Values, Workload
from mmoe.mixture import GateOutput, MLPExperts, MultiGateMixture, SoftmaxGate, TopKGate
from mmoe.ops.gating import topk_gate


class GivenLogits(nn.Module):
    """A gate whose logits are parameters, so that races can say what is routed where."""

    def __init__(self, logits_BGE: Tensor, k: int) -> None:
        super().__init__()
        self.logits_BGE = nn.Parameter(logits_BGE.clone())
        self.k = k

    def forward(self, inputs: Sequence[Tensor], visibility_GE: Tensor) -> GateOutput:
        """The k best, whatever the input."""
        weights_BGK, experts_BGK = topk_gate(self.logits_BGE, visibility_GE, self.k)
        return GateOutput(weights_BGK, experts_BGK, {})


def our_experts(work: Workload, values: Values) -> MLPExperts:
    """Our batched pool with the weights of `values`; biases start at zero."""
    pool = MLPExperts(work.E, work.D, work.hidden).to(work.device, work.dtype)
    with torch.no_grad():
        for weight_EIO, drawn_EIO in zip(pool.weights, values.layers, strict=True):
            weight_EIO.copy_(drawn_EIO)
    return pool


def linear_gate(work: Workload, values: Values) -> nn.Module:
    """Our linear gate, top-k or softmax."""
    sizes = (work.D, work.G, work.E)
    gate = SoftmaxGate(*sizes) if work.k is None else TopKGate(*sizes, k=work.k)
    gate = gate.to(work.device, work.dtype)
    with torch.no_grad():
        gate.logits.weights[0].copy_(values.gate_GED)
    return gate


def our_layer(
    work: Workload, values: Values, gate: nn.Module | None = None, **settings
) -> MultiGateMixture:
    """A mixture in training mode; `settings` are those of `MultiGateMixture`."""
    gate = linear_gate(work, values) if gate is None else gate
    layer = MultiGateMixture(work.D, work.G, our_experts(work, values), gate=gate, **settings)
    return layer.to(work.device).train()


def ours(
    work: Workload,
    values: Values,
    *,
    gate: nn.Module | None = None,
    around: Callable[[], AbstractContextManager] = nullcontext,
    **settings,
) -> Contestant:
    """All gates in one layer."""
    layer = our_layer(work, values, gate, **settings)
    x_BD = leaf(values.x_BD)
    return contestant(
        lambda: [layer(x_BD).out_BGO], [values.grad_BGO], x_BD, [layer], around=around
    )


def one_layer_per_gate(work: Workload, values: Values, logits_BGE: Tensor, k: int) -> Contestant:
    """T passes of our own layer with a single gate, over the same experts."""
    pool = our_experts(work, values)
    layers = []
    for logits_BE in logits_BGE.unbind(1):
        gate = GivenLogits(logits_BE.unsqueeze(1), k)
        layer = MultiGateMixture(work.D, 1, pool, gate=gate)
        layers.append(layer.to(work.device).train())
    x_BD = leaf(values.x_BD)
    return contestant(
        lambda: [layer(x_BD).out_BGO for layer in layers],
        values.grad_BGO.split(1, dim=1),
        x_BD,
        layers,
    )


def leaf(values: Tensor) -> Tensor:
    """A copy that takes a gradient."""
    return values.detach().clone().requires_grad_()


def contestant(
    forward: Callable[[], Sequence[Tensor]],
    grads: Sequence[Tensor],
    x_BD: Tensor,
    modules: Sequence[nn.Module],
    *,
    around: Callable[[], AbstractContextManager] = nullcontext,
    outside: Callable[[], AbstractContextManager] = nullcontext,
) -> Contestant:
    """Every parameter of the modules, once, gets a gradient; biases are not compared."""
    named = {id(p): (name, p) for module in modules for name, p in module.named_parameters()}
    parameters = [p for _, p in named.values()]
    return Contestant(
        forward=forward,
        grads=grads,
        leaves=[x_BD, *parameters],
        weights=[p for name, p in named.values() if "bias" not in name],
        around=around,
        outside=outside,
    )
