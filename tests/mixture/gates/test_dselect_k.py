"""DSelect-k gates: the formula, exact zeros, convergence, pools of any size."""

import math

import pytest
import torch

from mmoe.mixture import DSelectKGate
from mmoe.mixture.gates.dselect_k import ENTROPY_EPSILON, selectors

D, G = 5, 2


def everything(num_experts: int) -> torch.Tensor:
    return torch.ones(G, num_experts, dtype=torch.bool)


def smooth_step(z: float, gamma: float) -> float:
    """The paper's S, with its own polynomial."""
    if abs(z) >= gamma / 2:
        return float(z > 0)
    return -2 / gamma**3 * z**3 + 3 / (2 * gamma) * z + 0.5


def single_expert(z_M: list[float], number: int, gamma: float) -> float:
    """What one selector gives to the expert with this number."""
    product = 1.0
    for m, z in enumerate(z_M):
        s = smooth_step(z, gamma)
        product *= s if number >> m & 1 else 1 - s
    return product


def static_gate(num_experts: int, k: int, spread: float, **settings) -> DSelectKGate:
    torch.manual_seed(0)
    gate = DSelectKGate(None, G, num_experts, k=k, **settings).double()
    torch.nn.init.normal_(gate.codes_GKM, std=spread)
    torch.nn.init.normal_(gate.choice_GK)
    return gate


def weights_of(gate: DSelectKGate, visibility: torch.Tensor, rows: int = 3) -> torch.Tensor:
    x = torch.zeros(rows, D, dtype=torch.float64)
    return gate([x] * G, visibility).weights


@pytest.mark.parametrize("num_experts", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("spread", [0.2, 1.0])
def test_static_gates_against_a_loop(num_experts, spread):
    gate = static_gate(num_experts, k=min(2, num_experts), spread=spread, gamma=0.8)
    weights = weights_of(gate, everything(num_experts))
    for g in range(G):
        shares = gate.choice_GK[g].softmax(-1).tolist()
        for e in range(num_experts):
            expected = sum(
                share * single_expert(z.tolist(), e, 0.8)
                for share, z in zip(shares, gate.codes_GKM[g], strict=True)
            )
            assert weights[:, g, e].tolist() == pytest.approx([expected] * 3, abs=1e-12)


def test_gates_per_sample_against_a_loop():
    torch.manual_seed(0)
    gate = DSelectKGate(D, G, 4, k=2, temperature=0.5).double()
    torch.nn.init.normal_(gate.logits.weights[0], std=0.1)
    torch.nn.init.normal_(gate.logits.biases[0], std=0.1)
    x = torch.randn(20, D, dtype=torch.float64)
    weights = gate([x] * G, everything(4)).weights
    outputs = torch.einsum("bd,gnd->bgn", x, gate.logits.weights[0]) + gate.logits.biases[0]
    outputs = outputs / 0.5
    for b in range(20):
        for g in range(G):
            z, shares = (
                outputs[b, g, :4].view(2, 2).tolist(),
                outputs[b, g, 4:].softmax(-1).tolist(),
            )
            for e in range(4):
                expected = sum(shares[j] * single_expert(z[j], e, 1.0) for j in range(2))
                assert float(weights[b, g, e].detach()) == pytest.approx(expected, abs=1e-12)


def test_a_gate_numbers_the_experts_it_sees():
    """With four of six visible there is no useless code: weights add up to 1 whatever z is."""
    visible = torch.tensor([[1, 0, 1, 1, 0, 1], [0, 0, 0, 1, 0, 0]]).bool()
    gate = static_gate(6, k=2, spread=0.3)
    weights = weights_of(gate, visible)
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, G, dtype=torch.float64))
    assert (weights[:, ~visible] == 0).all()
    assert (weights[:, 0, visible[0]] > 0).all()
    assert (weights[:, 1, 3] == 1).all(), "there is only one to choose"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_are_never_negative_however_near_the_edge(dtype):
    edge = torch.linspace(-0.501, -0.499, 2_001, dtype=dtype)
    for codes in (edge, -edge):
        values = selectors(codes.view(-1, 1, 1, 1).expand(-1, G, 1, 1), everything(2))
        assert (values >= 0).all()
        assert (values[:600] == 0).any(-1).all(), "beyond the edge zeros are exact"


def test_zeros_are_unused_picks():
    gate = static_gate(8, k=2, spread=3.0)
    x = torch.zeros(3, D, dtype=torch.float64)
    weights, experts, _ = gate([x] * G, everything(8))
    assert torch.equal(experts >= 0, weights > 0)
    assert 0 < int((experts >= 0).sum(-1).max()) < 8
    numbers = torch.arange(8, dtype=torch.int32).expand_as(experts)
    assert torch.equal(experts[experts >= 0], numbers[experts >= 0])


@pytest.mark.parametrize("num_experts", [4, 5])
def test_both_losses(num_experts):
    gate = static_gate(num_experts, k=2, spread=0.2, entropy_loss=0.3, code_loss=0.7)
    losses = gate([torch.zeros(9, D, dtype=torch.float64)] * G, everything(num_experts))[2]
    entropy = wasted = 0.0
    for g in range(G):
        for z in gate.codes_GKM[g].tolist():
            r = [single_expert(z, e, 1.0) for e in range(num_experts)]
            entropy -= sum(p * math.log(p + ENTROPY_EPSILON) for p in r) / G
            wasted += (1 / sum(r) - 1) / G
    assert float(losses["entropy_loss"].detach()) == pytest.approx(0.3 * entropy)
    assert float(losses["code_loss"].detach()) == pytest.approx(0.7 * wasted, abs=1e-12)
    assert (wasted > 0.1) == (num_experts == 5)


def test_a_row_with_no_expert_at_all_has_a_finite_loss():
    gate = static_gate(5, k=1, spread=0.1)
    with torch.no_grad():
        gate.codes_GKM.fill_(9.0)  # code 7, which stands for nobody
    output = gate([torch.zeros(2, D, dtype=torch.float64)] * G, everything(5))
    assert (output.experts == -1).all()
    losses = sum(output.auxiliary_losses.values())
    losses.backward()
    assert losses.isfinite()
    assert gate.codes_GKM.grad.isfinite().all()


@pytest.mark.parametrize("reach", [0.0, 0.01, 0.049, 0.05, 0.2])
def test_the_loss_for_codes_goes_on_as_its_tangent_below_a_twentieth(reach):
    """1 / r has the slope −400 at r = 0.05, where the loss is 19."""
    gate = DSelectKGate(None, 1, 3, k=1, entropy_loss=0.0, code_loss=1.0).double()
    with torch.no_grad():
        # Highest bit on: codes 2 and 3, of which 2 exists and gets what the lowest bit leaves.
        gate.codes_GKM.copy_(torch.tensor([[[inverse_step(1 - reach), 9.0]]]))
    seen = torch.ones(1, 3, dtype=torch.bool)
    (loss,) = gate([torch.zeros(2, D, dtype=torch.float64)], seen)[2].values()
    expected = 1 / reach - 1 if reach >= 0.05 else 19 + 400 * (0.05 - reach)
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-6)


def inverse_step(share: float) -> float:
    """The z at which the smooth step of width 1 is this share, by bisection."""
    low, high = -0.5, 0.5
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if smooth_step(middle, 1.0) < share else (low, middle)
    return high


@pytest.mark.parametrize("input_dim", [None, D])
def test_gradients(input_dim):
    torch.manual_seed(0)
    options = {"z_loss": 0.1, "balance_loss": 0.1, "code_loss": 0.1}
    gate = DSelectKGate(input_dim, G, 5, k=2, **options).double()
    visible = torch.tensor([[1, 1, 0, 1, 1], [1, 1, 1, 1, 1]]).bool()
    for parameter in gate.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    x = torch.randn(3, D, dtype=torch.float64)

    def outputs(*_):
        output = gate([x] * G, visible)
        return output.weights, *output.auxiliary_losses.values()

    assert torch.autograd.gradcheck(outputs, tuple(gate.parameters()))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"k": 5}, "k: expected 1 to 4"),
        ({"k": 2, "gamma": 0.0}, "gamma: expected a number above 0, got 0"),
        ({"k": 2, "entropy_loss": -1.0}, "entropy_loss: expected a finite number of 0 or more"),
        ({"k": 2, "code_loss": float("nan")}, "code_loss: expected a finite number"),
        ({"k": 2, "hidden": [4]}, r"hidden: expected \[\] for a gate without input, got \[4\]"),
    ],
)
def test_wrong_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        DSelectKGate(None, G, 4, **settings)
    with pytest.raises(ValueError, match="num_gates: expected 1 or more, got 0"):
        DSelectKGate(None, 0, 4, k=2)
