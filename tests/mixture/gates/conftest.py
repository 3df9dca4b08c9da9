"""Every gate there is, with settings that leave no part of it idle."""

from types import SimpleNamespace

import pytest
import torch

from mmoe.mixture import (
    CosineGate,
    DSelectKGate,
    FixedGate,
    GShardGate,
    NoisyTopKGate,
    Selection,
    SigmoidGate,
    SoftmaxGate,
    StaticGate,
    SwitchGate,
    TopKGate,
)

D, G, E = 13, 3, 6
VISIBILITY = torch.tensor(
    [
        [True, True, True, True, False, True],
        [True, False, True, True, True, True],
        [False, True, True, True, True, False],
    ]
)
JOINT = Selection(shared_k=2, private_k=1)
BUDGET = Selection(private_k=2, budget=4)
CAPPED = Selection(shared_k=1, private_k=2, budget=4, votes=[1, 1, 0])
ONE_AND_ONE = Selection(shared_k=1, private_k=1)
GATES = {
    "softmax": lambda **options: SoftmaxGate(D, G, E, **options),
    "softmax_mlp": lambda **options: SoftmaxGate(D, G, E, hidden=[7], **options),
    "top_k": lambda **options: TopKGate(D, G, E, k=2, **options),
    "top_k_before": lambda **options: TopKGate(D, G, E, k=4, softmax="before", **options),
    "joint": lambda **options: TopKGate(D, G, E, k=3, selection=JOINT, **options),
    "joint_before": lambda **options: CosineGate(
        D, G, E, k=3, projection_dim=9, softmax="before", selection=JOINT, **options
    ),
    "budget": lambda **options: NoisyTopKGate(D, G, E, k=2, selection=BUDGET, **options),
    "joint_budget": lambda **options: SigmoidGate(D, G, E, k=3, selection=CAPPED, **options),
    "always": lambda **options: TopKGate(D, G, E, k=2, always=2, shared_logits=True, **options),
    "always_joint": lambda **options: SigmoidGate(
        D, G, E, k=2, always=1, routed_start=0.5, selection=ONE_AND_ONE, **options
    ),
    "noisy_top_k": lambda **options: NoisyTopKGate(D, G, E, k=2, **options),
    "switch": lambda **options: SwitchGate(D, G, E, jitter=0.2, **options),
    "gshard": lambda **options: GShardGate(D, G, E, **options),
    "cosine": lambda **options: CosineGate(D, G, E, k=2, projection_dim=9, **options),
    "sigmoid": lambda **options: SigmoidGate(D, G, E, k=2, **options),
    "dselect_k": lambda **options: DSelectKGate(D, G, E, k=3, gamma=0.2, **options),
    "dselect_k_static": lambda **options: DSelectKGate(None, G, E, k=2, **options),
    "static": lambda **options: StaticGate(G, E, **options),
    "static_k": lambda **options: StaticGate(G, E, k=2, **options),
    "fixed": lambda **options: FixedGate(torch.arange(1.0, 1 + G * E).view(G, E)),
}
OPTIONS = {"temperature": 1.5, "dropout": 0.3, "z_loss": 0.1, "balance_loss": 0.2}


@pytest.fixture(params=list(GATES))
def gate(request) -> SimpleNamespace:
    """One gate: its `name`, `make(**options)`, and an instance with all options, `module`."""
    make = GATES[request.param]
    torch.manual_seed(0)
    return SimpleNamespace(name=request.param, make=make, module=make(**OPTIONS))


@pytest.fixture
def visibility() -> torch.Tensor:
    """Which of the gates sees which expert."""
    return VISIBILITY.clone()


@pytest.fixture
def rows():
    """`rows(n)` → n random rows for every gate, the same for all of them."""

    def draw(n: int, seed: int = 1) -> list[torch.Tensor]:
        return [torch.randn(n, D, generator=torch.Generator().manual_seed(seed))] * G

    return draw
