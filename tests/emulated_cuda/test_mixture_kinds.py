"""Every kind of gate, of execution and of experts on CUDA's kernels: the CPU's numbers.

Activations, norms, autocast and graphs are in tests/mixture/test_cuda.py.
"""

import copy
import itertools

import pytest
import torch
from torch import nn

from mmoe.mixture import (
    Capacity,
    CosineGate,
    DSelectKGate,
    ExpertPool,
    FixedGate,
    GShardGate,
    MixedExperts,
    MultiGateMixture,
    NoisyTopKGate,
    Selection,
    SigmoidGate,
    SoftmaxGate,
    StaticGate,
    SwitchGate,
    TopKGate,
    mlp_experts,
)

pytestmark = pytest.mark.gpu
if not torch.cuda.is_available():  # one line in the report instead of a hundred
    pytest.skip("no CUDA device", allow_module_level=True)

B, D, G, E, WIDTH = 70, 13, 3, 5, 11
GATES = {
    "softmax": lambda: SoftmaxGate(D, G, E),
    "top-k": lambda: TopKGate(D, G, E, k=2),
    "top-k, softmax before": lambda: TopKGate(D, G, E, k=2, softmax="before"),
    "joint": lambda: TopKGate(D, G, E, k=2, selection=Selection(shared_k=1, private_k=1)),
    "budget": lambda: SigmoidGate(D, G, E, k=2, selection=Selection(private_k=2, budget=3)),
    "noisy top-k": lambda: NoisyTopKGate(D, G, E, k=2),
    "cosine": lambda: CosineGate(D, G, E, k=2),
    "switch": lambda: SwitchGate(D, G, E),
    "gshard": lambda: GShardGate(D, G, E),
    "sigmoid": lambda: SigmoidGate(D, G, E, k=2),
    "dselect-k": lambda: DSelectKGate(D, G, E, k=2),
    "static": lambda: StaticGate(G, E),
    "static, k": lambda: StaticGate(G, E, k=2),
    "fixed": lambda: FixedGate(torch.rand(G, E)),
}
DRAWN = ("noisy top-k", "gshard")  # while training, each device in its own way


def one_expert():
    return nn.Sequential(nn.Linear(D, 9), nn.SiLU(), nn.Linear(9, WIDTH))


def modules(number):
    return ExpertPool([one_expert() for _ in range(number)], WIDTH)


EXPERTS = {
    "mlp": lambda: mlp_experts(E, D, [17, WIDTH], activation="gelu"),
    "modules": lambda: modules(E),
    "stacked": lambda: ExpertPool([one_expert() for _ in range(E)], stacked=True),
    "mixed": lambda: MixedExperts([mlp_experts(3, D, [WIDTH]), modules(2)]),
}


def mixture(gate, execution, experts):
    torch.manual_seed(0)
    capacity = Capacity(1.25) if execution == "padded" else None
    settings = {"gate": GATES[gate](), "execution": execution, "capacity": capacity}
    layer = MultiGateMixture(D, G, EXPERTS[experts](), **settings)
    return layer.eval() if gate in DRAWN else layer


def step(layer, x_BD):
    """The output, all gradients, and what a training step has counted."""
    x_BD = x_BD.detach().requires_grad_()
    result = layer(x_BD)
    loss = result.out_BGO.square().mean() + sum(result.auxiliary_losses.values())
    leaves = [x_BD, *layer.parameters()]
    grads = torch.autograd.grad(loss, leaves, allow_unused=True)
    found = [result.out_BGO.detach(), *(grad for grad in grads if grad is not None)]
    return found, None if result.dropped is None else int(result.dropped)


@pytest.mark.parametrize(
    ("gate", "execution", "experts"),
    list(itertools.product(GATES, ("dense", "grouped", "padded"), EXPERTS)),
)
def test_equals_cpu(gate, execution, experts):
    compare(gate, execution, experts, 1e-5)


@pytest.mark.parametrize(
    ("execution", "experts"), list(itertools.product(("dense", "grouped", "padded"), EXPERTS))
)
def test_equals_cpu_under_autocast(execution, experts):
    compare("top-k", execution, experts, 5e-2, autocast=True)


def compare(gate, execution, experts, tolerance, autocast=False):
    layer = mixture(gate, execution, experts)
    on_gpu = copy.deepcopy(layer).cuda()
    x_BD = torch.randn(B, D, generator=torch.Generator().manual_seed(1))

    with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
        found, dropped = step(on_gpu, x_BD.cuda())
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        wanted, dropped_on_cpu = step(layer, x_BD)
    assert dropped == dropped_on_cpu
    assert len(found) == len(wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.dtype == theirs.dtype
        step_size = tolerance * max(1e-3, float(theirs.abs().max()))
        torch.testing.assert_close(ours.cpu(), theirs, rtol=0, atol=step_size)
