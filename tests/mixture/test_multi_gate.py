"""MultiGateMixture against the formula, against separate layers, dense against grouped."""

import pytest
import torch
from torch import nn

from mmoe.mixture import (
    MLP,
    FixedGate,
    GateOutput,
    MultiGateMixture,
    SoftmaxGate,
    TopKGate,
    mlp_experts,
)

B, D, H, G, E, K = 9, 6, 5, 3, 4, 2
VISIBILITY = [[True, True, True, False], [True, False, True, True], [False, True, True, False]]


def make_gate(kind: str, *, gates: int = G, hidden: tuple[int, ...] = ()) -> nn.Module:
    if kind == "softmax":
        return SoftmaxGate(D, gates, E, hidden=hidden)
    return TopKGate(D, gates, E, k=K, hidden=hidden, softmax=kind.removeprefix("top_k_"))


def make_experts(pool: str = "mlp"):
    if pool == "mlp":
        return mlp_experts(E, D, [7, H], activation="gelu")
    return [MLP(D, [7, H], activation="gelu") if e % 2 else nn.Linear(D, H) for e in range(E)]


def run_expert(experts, e, x):
    """Expert e of a pool of MLPs, layer by layer."""
    for weight, bias in zip(experts.weights, experts.biases, strict=True):
        z = x @ weight[e] + bias[e]
        x = torch.relu(z) if experts.activation == "relu" else torch.nn.functional.gelu(z)
    return x


def make_layer(kind: str = "softmax", execution: str = "dense", seed: int = 0, **settings):
    torch.manual_seed(seed)
    hidden = settings.pop("hidden", ())
    experts = make_experts(settings.pop("pool", "mlp"))
    gate = make_gate(kind, hidden=hidden)
    layer = MultiGateMixture(D, G, experts, gate=gate, execution=execution, **settings)
    return layer.double()


def gradients(layer: nn.Module, x: torch.Tensor, seed: int = 1):
    """Output, gradient of x and of every parameter, for a random weighting of the outputs."""
    layer.zero_grad()
    x = x.clone().requires_grad_()
    out = layer(x).out_BGO
    torch.manual_seed(seed)
    (out * torch.randn(out.shape, dtype=out.dtype)).sum().backward()
    return out, x.grad, {name: p.grad for name, p in layer.named_parameters()}


KINDS = ["softmax", "top_k_after", "top_k_before"]


def test_equals_the_formula_of_the_mmoe_paper():
    torch.manual_seed(0)
    layer = MultiGateMixture(D, G, mlp_experts(E, D, [7, H]))
    x = torch.randn(B, D)
    out = layer(x, return_gates=True)
    for g in range(G):
        w_BE = torch.softmax(x @ layer.gate.logits.weights[0][g].T, dim=1)
        mixed = torch.zeros(B, H)
        for e in range(E):
            mixed += w_BE[:, e : e + 1] * run_expert(layer.experts, e, x)
        torch.testing.assert_close(out.out_BGO[:, g], mixed)
        torch.testing.assert_close(out.gate_weights_BGE[:, g], w_BE)


@pytest.mark.parametrize("kind", ["softmax", "top_k_after"])
def test_sources_reach_their_experts_and_gates(kind):
    expert_source, gate_source = [2, 0, 0, 1], [1, 2, 0]
    sources = {"expert_source": expert_source, "gate_source": gate_source}
    x = torch.randn(B, 3, D, dtype=torch.float64)
    dense = make_layer(kind, "dense", **sources)
    grouped = make_layer(kind, "grouped", **sources)
    torch.testing.assert_close(gradients(dense, x), gradients(grouped, x))
    torch.testing.assert_close(dense(x).out_BGO, dense([x[:, s] for s in range(3)]).out_BGO)

    weights_BGE = dense(x, return_gates=True).gate_weights_BGE
    for g, s in enumerate(gate_source):
        logits_BE = x[:, s] @ dense.gate.logits.weights[0][g].T
        if kind != "softmax":
            threshold = logits_BE.topk(K).values[:, -1:]
            logits_BE = logits_BE.masked_fill(logits_BE < threshold, -torch.inf)
        torch.testing.assert_close(weights_BGE[:, g], logits_BE.softmax(-1))
    y = [run_expert(dense.experts, e, x[:, s]) for e, s in enumerate(expert_source)]
    y_BEO = torch.stack(y, 1)
    torch.testing.assert_close(dense(x).out_BGO, weights_BGE @ y_BEO)


@pytest.mark.parametrize("execution", ["dense", "grouped"])
@pytest.mark.parametrize("kind", ["softmax", "top_k"])
def test_gradcheck_through_the_whole_layer(kind, execution):
    torch.manual_seed(0)
    gate = SoftmaxGate(3, 2, 3) if kind == "softmax" else TopKGate(3, 2, 3, k=2)
    experts = mlp_experts(3, 3, [2, 2], activation="gelu")
    visibility = [[True, True, False], [True, True, True]]
    layer = MultiGateMixture(
        3, 2, experts, gate=gate, visibility=visibility, execution=execution
    ).double()
    x = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
    parameters = dict(layer.named_parameters())

    def run(x, *values):
        named = dict(zip(parameters, values, strict=True))
        return torch.func.functional_call(layer, named, (x,)).out_BGO

    assert torch.autograd.gradcheck(run, (x, *parameters.values()))


@pytest.mark.parametrize("execution", ["dense", "grouped"])
@pytest.mark.parametrize("kind", KINDS)
def test_invisible_experts_get_exactly_no_weight_and_no_gradient(kind, execution):
    layer = make_layer(kind, execution, visibility=VISIBILITY)
    x = torch.randn(B, D, dtype=torch.float64)
    result = layer(x, return_gates=True)
    hidden_GE = ~torch.tensor(VISIBILITY)
    assert (result.gate_weights_BGE[:, hidden_GE] == 0).all()
    assert (result.gate_weights_BGE.sum(-1) > 0).all()
    result.out_BGO[:, 2].sum().backward()
    for parameter in layer.experts.parameters():
        for e in range(E):
            assert (parameter.grad[e] != 0).any() == VISIBILITY[2][e]
    grad_GED = layer.gate.logits.weights[0].grad
    assert (grad_GED[hidden_GE] == 0).all()
    assert (grad_GED[2] != 0).any()


def test_experts_without_rows_get_zero_gradients_when_grouped():
    """As when dense: an optimizer with momentum must not tell the two apart."""
    layer = make_layer("top_k_after", "grouped")
    with torch.no_grad():
        layer.gate.logits.weights[0][:, 3] = -100.0
    _, _, grads = gradients(layer, torch.rand(B, D, dtype=torch.float64))
    assert (grads["experts.weights.0"][3] == 0).all()
    assert (grads["experts.weights.0"][0] != 0).any()


class StaticGate(nn.Module):
    """A user's gate: picks experts 0 and g, whatever it reads, and wants them even."""

    def forward(self, inputs, visibility_GE):
        rows = len(inputs[0])
        experts = torch.tensor([[0, 1], [0, -1], [0, 2]], dtype=torch.int32).expand(rows, -1, -1)
        weights = torch.tensor([[0.5, 0.5], [1.0, 9.0], [0.25, 0.75]]).expand(rows, -1, -1)
        return GateOutput(weights, experts, {"evenness": inputs[1].sum() * 0.5})


@pytest.mark.parametrize("execution", ["dense", "grouped"])
def test_a_users_own_gate_and_different_expert_classes(execution):
    torch.manual_seed(0)
    normed = nn.Sequential(nn.LayerNorm(D), nn.Linear(D, H))
    experts = [nn.Linear(D, H), normed, MLP(D, [3, H], activation="silu")]
    layer = MultiGateMixture(D, G, experts, gate=StaticGate(), execution=execution)
    x = torch.randn(B, D)
    result = layer(x)
    y = [expert(x) for expert in experts]
    expected = [0.5 * y[0] + 0.5 * y[1], y[0], 0.25 * y[0] + 0.75 * y[2]]
    torch.testing.assert_close(result.out_BGO, torch.stack(expected, 1))
    torch.testing.assert_close(result.auxiliary_losses, {"evenness": x.sum() * 0.5})
    assert result.gate_weights_BGE is None


def test_dropout_only_while_training():
    torch.manual_seed(0)
    layer = MultiGateMixture(D, 1, mlp_experts(2, D, [50], dropout=0.5))
    x = torch.randn(B, D)
    assert not torch.equal(layer(x).out_BGO, layer(x).out_BGO)
    layer.eval()
    assert torch.equal(layer(x).out_BGO, layer(x).out_BGO)


def test_fixed_gate_over_a_pool():
    layer = MultiGateMixture(D, 2, mlp_experts(2, D, [H]), gate=FixedGate(torch.eye(2)))
    x = torch.randn(B, D)
    expected = torch.stack([run_expert(layer.experts, e, x) for e in range(2)], 1)
    torch.testing.assert_close(layer(x).out_BGO, expected)
