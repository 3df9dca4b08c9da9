"""Gates under torch.compile: one graph, the same numbers."""

import pytest
import torch

# The others differ too little from one of these, or those in test_multi_gate.py, for the time it
# takes.
TRACED = ["noisy_top_k", "gshard", "cosine", "sigmoid", "dselect_k", "static_k"]


def assert_close(first, second):
    assert first.auxiliary_losses.keys() == second.auxiliary_losses.keys()
    torch.testing.assert_close(first.weights, second.weights)
    torch.testing.assert_close(first.auxiliary_losses, second.auxiliary_losses)
    if first.experts is not None:
        assert torch.equal(first.experts, second.experts)


@pytest.mark.parametrize("gate", TRACED, indirect=True)
def test_training(gate, rows, visibility):
    """Losses, dropout and noise included; aot_eager draws the same random numbers as eager."""
    module = gate.module.train()
    torch._dynamo.reset()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    torch.manual_seed(3)
    expected = module(rows(30), visibility)
    counted = getattr(module, "load_GE", torch.zeros(0)).clone()
    torch.manual_seed(3)
    got = compiled(rows(30), visibility)
    assert_close(got, expected)
    if gate.name == "sigmoid":
        assert torch.equal(module.load_GE, 2 * counted)
    totals = (
        output.weights.square().sum() + sum(output.auxiliary_losses.values())
        for output in (got, expected)
    )
    first, second = (torch.autograd.grad(total, list(module.parameters())) for total in totals)
    torch.testing.assert_close(first, second)


@pytest.mark.slow
@pytest.mark.parametrize("gate", ["top_k", "sigmoid", "dselect_k"], indirect=True)
def test_scoring_with_inductor(gate, rows, visibility):
    module = gate.module.eval()
    torch._dynamo.reset()
    compiled = torch.compile(module, fullgraph=True)
    with torch.no_grad():
        assert_close(compiled(rows(30), visibility), module(rows(30), visibility))
