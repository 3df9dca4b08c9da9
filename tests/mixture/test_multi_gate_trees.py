"""MultiGateMixture over experts that read and return tuples and dicts, against a slow form.

The cases of FastMoE's mimo test (dicts in, dicts out, float64 leaves, a gate that reads the same),
with several gates, and experts of different classes.
"""

import pytest
import torch
from torch import nn

from mmoe.mixture import GateOutput, MultiGateMixture, TopKGate

B, D, G, E, K = 11, 6, 3, 4, 2


class Encoder(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.table = nn.Embedding(5, 4, dtype=torch.float64)
        self.linear = nn.Linear(D, 4, dtype=torch.float64)
        self.scale = nn.Parameter(torch.tensor(float(scale), dtype=torch.float64))

    def forward(self, batch):
        hidden = self.linear(batch["dense"]) * self.scale + self.table(batch["ids"])
        steps = torch.einsum("nsd,nh->nsh", batch["steps"], hidden)
        return {"score": hidden.sum(1), "states": (hidden, steps)}


class Bilinear(nn.Module):
    """Another class with the same structure in and out."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(D, 4, dtype=torch.float64))

    def forward(self, batch):
        hidden = torch.tanh(batch["dense"] @ self.weight)
        steps = batch["steps"].sum(2, keepdim=True) * hidden[:, None]
        return {"score": hidden[:, 0], "states": (hidden, steps)}


class ReadsDict(nn.Module):
    """A gate over the dense part of a dict."""

    def __init__(self):
        super().__init__()
        self.inner = TopKGate(D, G, E, k=K).double()
        self.k = K

    def forward(self, inputs, visibility_GE):
        return self.inner([batch["dense"] for batch in inputs], visibility_GE)


def make_experts():
    torch.manual_seed(0)
    return [Encoder(1), Bilinear(), Encoder(2), Bilinear()]


def make_batch(seed=0):
    torch.manual_seed(seed)
    dense = torch.randn(B, D, dtype=torch.float64, requires_grad=True)
    steps = torch.randn(B, 2, 3, dtype=torch.float64, requires_grad=True)
    return {"dense": dense, "ids": torch.randint(0, 5, (B,)), "steps": steps}


def flat(output):
    return [output["score"], *output["states"]]


def loss_of(leaves):
    torch.manual_seed(1)
    return sum((leaf * torch.randn(leaf.shape, dtype=leaf.dtype)).sum() for leaf in leaves)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("execution", ["dense", "grouped", "auto"])
def test_dicts_in_and_out_equal_one_expert_at_a_time(execution, training):
    experts, batch = make_experts(), make_batch()
    layer = MultiGateMixture(None, G, experts, gate=ReadsDict(), execution=execution)
    layer.train(training)
    result = layer(batch, return_gates=True)
    leaves = flat(result.out_BGO)
    assert [tuple(leaf.shape) for leaf in leaves] == [(B, G), (B, G, 4), (B, G, 2, 4)]

    weights = result.gate_weights_BGE
    each = [flat(expert(batch)) for expert in experts]
    slow = [
        torch.einsum("bge,be...->bg...", weights, torch.stack(parts, 1))
        for parts in zip(*each, strict=True)
    ]
    torch.testing.assert_close(leaves, slow)
    inputs = [batch["dense"], batch["steps"], *layer.parameters()]
    grads = torch.autograd.grad(loss_of(leaves), inputs, retain_graph=True)
    torch.testing.assert_close(grads, torch.autograd.grad(loss_of(slow), inputs))


@pytest.mark.parametrize("execution", ["dense", "grouped"])
def test_several_sources_of_one_structure_and_a_plain_one_for_the_gates(execution):
    experts, first, second = make_experts(), make_batch(0), make_batch(1)
    x = torch.randn(B, D, dtype=torch.float64)
    gate = TopKGate(D, G, E, k=K).double()
    layer = MultiGateMixture(
        None, G, experts, gate=gate, execution=execution,
        expert_source=[0, 2, 2, 0], gate_source=[1] * G,
    )  # fmt: skip
    result = layer([first, x, second], return_gates=True)
    each = [
        flat(expert((first, second)[s])) for expert, s in zip(experts, [0, 1, 1, 0], strict=True)
    ]
    for leaf, parts in zip(flat(result.out_BGO), zip(*each, strict=True), strict=True):
        stacked = torch.stack(parts, 1)
        slow = torch.einsum("bge,be...->bg...", result.gate_weights_BGE, stacked)
        torch.testing.assert_close(leaf, slow)


class PicksNothing(nn.Module):
    def forward(self, inputs, visibility_GE):
        rows = len(inputs[0]["dense"])
        experts = torch.full((rows, G, 1), -1, dtype=torch.int32)
        return GateOutput(torch.ones(rows, G, 1, dtype=torch.float64), experts, {})


@pytest.mark.parametrize("execution", ["dense", "grouped", "auto"])
def test_rows_that_nobody_picked_come_out_as_zeros(execution):
    layer = MultiGateMixture(None, G, make_experts(), gate=PicksNothing(), execution=execution)
    leaves = flat(layer(make_batch()).out_BGO)
    assert all((leaf == 0).all() for leaf in leaves)
    loss_of(leaves).backward()
    assert all((p.grad == 0).all() for p in layer.parameters())
