"""The gates' networks."""

import pytest
import torch

from mmoe.mixture import CosineGate
from mmoe.mixture.gates.learned import GateLogits

B, D, G, E = 7, 5, 3, 4


@pytest.mark.parametrize("output_bias", [False, True])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shared", [True, False])
def test_gate_mlp_equals_its_formula(shared, training, output_bias):
    torch.manual_seed(0)
    logits = GateLogits(D, G, E, hidden=[6, 3], output_bias=output_bias).train(training)
    with torch.no_grad():
        for bias in logits.biases:
            bias.normal_()
    inputs = [torch.randn(B, D)] * G if shared else [torch.randn(B, D) for _ in range(G)]
    out = logits(inputs)
    for g, x in enumerate(inputs):
        h = torch.relu(x @ logits.weights[0][g].T + logits.biases[0][g])
        h = torch.relu(h @ logits.weights[1][g].T + logits.biases[1][g])
        expected = h @ logits.weights[2][g].T
        if output_bias:
            expected = expected + logits.biases[2][g]
        torch.testing.assert_close(out[:, g], expected)


def test_gates_start_nearly_even():
    torch.manual_seed(0)
    weights = GateLogits(64, 2, 8)([torch.randn(500, 64)] * 2).softmax(-1)
    torch.testing.assert_close(weights.mean(0), torch.full((2, 8), 1 / 8), atol=0.02, rtol=0)
    assert weights.std() > 0.01


@pytest.mark.parametrize(
    ("sizes", "hidden", "message"),
    [
        ((0, 2, 4), [], "input_dim: expected 1 or more, got 0"),
        ((5, 0, 4), [], "num_gates: expected 1 or more, got 0"),
        ((5, 2, 0), [], "num_experts: expected 1 or more, got 0"),
        ((5, 2, 4), [3, 0], r"hidden\[1\]: expected 1 or more, got 0"),
    ],
)
def test_wrong_settings(sizes, hidden, message):
    with pytest.raises(ValueError, match=message):
        GateLogits(*sizes, hidden=hidden)


def test_wrong_inputs():
    logits = GateLogits(D, 2, E)
    with pytest.raises(ValueError, match=r"inputs: expected 2 tensors, one per gate, got 1"):
        logits([torch.zeros(3, D)])
    with pytest.raises(ValueError, match=r"inputs\[1\]: expected shape \[rows, 5\], got \[3, 4\]"):
        logits([torch.zeros(3, D), torch.zeros(3, 4)])


@pytest.mark.parametrize("hidden", [(), (6,)])
def test_shared_weights_are_added_to_each_gates_own_and_learn_from_all(hidden):
    torch.manual_seed(0)
    logits = GateLogits(5, num_gates=3, num_experts=4, hidden=hidden, shared=True)
    own = GateLogits(5, num_gates=3, num_experts=4, hidden=hidden)
    x_BD, grad_BGE = torch.randn(7, 5), torch.randn(7, 3, 4)
    assert not logits.weights[-1].any() and logits.shared_ED.any()
    torch.nn.init.normal_(logits.weights[-1])
    own.load_state_dict(logits.state_dict(), strict=False)
    with torch.no_grad():
        own.weights[-1].add_(logits.shared_ED)
    for each in (logits, own):
        (each([x_BD] * 3) * grad_BGE).sum().backward()

    torch.testing.assert_close(logits([x_BD] * 3), own([x_BD] * 3))
    torch.testing.assert_close(logits.weights[-1].grad, own.weights[-1].grad)
    torch.testing.assert_close(logits.shared_ED.grad, own.weights[-1].grad.sum(0))


def test_a_gate_without_such_weights_shares_none():
    with pytest.raises(ValueError, match="shared_logits: expected False of CosineGate"):
        CosineGate(5, 3, 4, k=2, shared_logits=True)
