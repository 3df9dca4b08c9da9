"""MultiGateMixture against the formula, against separate layers, dense against grouped."""

import copy

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


def make_layer(kind: str = "softmax", execution: str = "dense", seed: int = 0, **settings):
    torch.manual_seed(seed)
    hidden = settings.pop("hidden", ())
    experts = mlp_experts(E, D, [7, H], activation=settings.pop("activation", "gelu"))
    gate = make_gate(kind, hidden=hidden)
    layer = MultiGateMixture(D, G, experts, gate=gate, execution=execution, **settings)
    return layer.double()


def gradients(layer: nn.Module, x: torch.Tensor, seed: int = 1):
    """Output, gradient of x and of every parameter, for a random weighting of the outputs."""
    layer.zero_grad()
    x = x.clone().requires_grad_()
    out = layer(x).out_BGO
    torch.manual_seed(seed)
    (out * torch.randn_like(out)).sum().backward()
    return out, x.grad, {name: p.grad for name, p in layer.named_parameters()}


KINDS = ["softmax", "top_k_after", "top_k_before"]


@pytest.mark.parametrize("execution", ["dense", "grouped"])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_separate_single_gate_layers_that_share_the_experts(kind, execution):
    layer = make_layer(kind, execution)
    singles = []
    for g in range(G):
        single = MultiGateMixture(
            D, 1, layer.experts, gate=make_gate(kind, gates=1).double(), execution=execution
        )
        with torch.no_grad():
            single.gate.logits.weights[0].copy_(layer.gate.logits.weights[0][g : g + 1])
        singles.append(single)
    x = torch.randn(B, D, dtype=torch.float64)
    out, x_grad, grads = gradients(layer, x)

    layer.zero_grad()
    x2 = x.clone().requires_grad_()
    out2 = torch.cat([single(x2).out_BGO for single in singles], dim=1)
    torch.manual_seed(1)
    (out2 * torch.randn_like(out2)).sum().backward()

    torch.testing.assert_close(out, out2)
    torch.testing.assert_close(x_grad, x2.grad)
    for name, p in layer.experts.named_parameters():
        torch.testing.assert_close(grads[f"experts.{name}"], p.grad)
    gate_grads = torch.cat([single.gate.logits.weights[0].grad for single in singles])
    torch.testing.assert_close(grads["gate.logits.weights.0"], gate_grads)


def test_equals_the_formula_of_the_mmoe_paper():
    torch.manual_seed(0)
    layer = MultiGateMixture(D, G, mlp_experts(E, D, [7, H]))
    x = torch.randn(B, D)
    out = layer(x, return_gates=True)
    for g in range(G):
        w_BE = torch.softmax(x @ layer.gate.logits.weights[0][g].T, dim=1)
        mixed = torch.zeros(B, H)
        for e, expert in enumerate(layer.experts):
            first, second = expert.layers
            h = torch.relu(x @ first.weight.T + first.bias)
            mixed += w_BE[:, e : e + 1] * torch.relu(h @ second.weight.T + second.bias)
        torch.testing.assert_close(out.out_BGO[:, g], mixed)
        torch.testing.assert_close(out.gate_weights_BGE[:, g], w_BE)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("hidden", [(), (3,)])
@pytest.mark.parametrize("visibility", [None, VISIBILITY])
@pytest.mark.parametrize("kind", KINDS)
def test_dense_equals_grouped(kind, visibility, hidden, training):
    x = torch.randn(B, D, dtype=torch.float64)
    settings = {"visibility": visibility, "hidden": hidden}
    dense = make_layer(kind, "dense", **settings).train(training)
    grouped = make_layer(kind, "grouped", **settings).train(training)
    torch.testing.assert_close(gradients(dense, x), gradients(grouped, x))
    torch.testing.assert_close(
        dense(x, return_gates=True).gate_weights_BGE,
        grouped(x, return_gates=True).gate_weights_BGE,
    )


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
    y_BEO = torch.stack([dense.experts[e](x[:, s]) for e, s in enumerate(expert_source)], 1)
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
    for e, expert in enumerate(layer.experts):
        for p in expert.parameters():
            assert p.grad is not None
            if not VISIBILITY[2][e]:
                assert (p.grad == 0).all()
    grad_GED = layer.gate.logits.weights[0].grad
    assert (grad_GED[hidden_GE] == 0).all()
    assert (grad_GED[2] != 0).any()


@pytest.mark.parametrize("rows", [0, 1])
@pytest.mark.parametrize("execution", ["dense", "grouped"])
@pytest.mark.parametrize("kind", ["softmax", "top_k_after"])
def test_no_rows_and_one_row(kind, execution, rows):
    layer = make_layer(kind, execution)
    x = torch.randn(B, D, dtype=torch.float64)
    out, x_grad, grads = gradients(layer, x[:rows])
    assert out.shape == (rows, G, H)
    torch.testing.assert_close(out, layer(x).out_BGO[:rows])
    assert x_grad.shape == (rows, D)
    for grad in grads.values():
        assert grad is not None
        assert rows > 0 or (grad == 0).all()


def test_experts_without_rows_get_zero_gradients_when_grouped():
    """As when dense: an optimizer with momentum must not tell the two apart."""
    layer = make_layer("top_k_after", "grouped")
    with torch.no_grad():
        layer.gate.logits.weights[0][:, 3] = -100.0
    _, _, grads = gradients(layer, torch.rand(B, D, dtype=torch.float64))
    assert (grads["experts.3.layers.0.weight"] == 0).all()
    assert (grads["experts.0.layers.0.weight"] != 0).any()


@pytest.mark.parametrize("execution", ["dense", "grouped"])
def test_a_row_does_not_depend_on_its_batch_mates_bit_for_bit(execution):
    torch.manual_seed(0)
    gate = TopKGate(33, 2, 4, k=2)
    layer = MultiGateMixture(
        33, 2, mlp_experts(4, 33, [64, 17]), gate=gate, execution=execution
    ).eval()
    x, others = torch.randn(300, 33), torch.randn(300, 33)
    with torch.no_grad():
        expected = layer(x).out_BGO
        order = torch.randperm(300)
        assert torch.equal(layer(x[order]).out_BGO, expected[order])
        mixed = torch.where((torch.arange(300) % 3 == 0)[:, None], x, others)
        assert torch.equal(layer(mixed).out_BGO[::3], expected[::3])


def test_two_runs_give_the_same_bits():
    layer = make_layer("top_k_after", "grouped").float()
    x = torch.randn(200, D)
    first, second = gradients(layer, x), gradients(layer, x)
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])
    for name, grad in first[2].items():
        assert torch.equal(grad, second[2][name])


@pytest.mark.parametrize("execution", ["dense", "grouped"])
def test_copies_and_state_dicts_compute_the_same(execution):
    layer = make_layer("top_k_after", execution, visibility=VISIBILITY)
    x = torch.randn(B, D, dtype=torch.float64)
    copied = copy.deepcopy(layer)
    fresh = make_layer("top_k_after", execution, seed=7, visibility=VISIBILITY)
    assert not torch.equal(fresh(x).out_BGO, layer(x).out_BGO)
    fresh.load_state_dict(layer.state_dict())
    assert torch.equal(copied(x).out_BGO, layer(x).out_BGO)
    assert torch.equal(fresh(x).out_BGO, layer(x).out_BGO)
    assert set(layer.state_dict()) == {name for name, _ in layer.named_parameters()}


@pytest.mark.parametrize("execution", ["dense", "grouped"])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(mode, execution):
    layer = make_layer("top_k_after", execution)
    x = torch.randn(B, D, dtype=torch.float64)
    expected = layer(x).out_BGO.detach()
    with mode():
        out = layer(x).out_BGO
    assert not out.requires_grad
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("execution", ["dense", "grouped"])
@pytest.mark.parametrize("kind", ["softmax", "top_k_after"])
def test_autocast_narrows_the_experts_but_not_the_gate(kind, execution):
    layer = make_layer(kind, execution).float()
    x = torch.randn(B, D, requires_grad=True)
    exact = layer(x, return_gates=True)
    with torch.autocast("cpu", torch.bfloat16):
        narrow = layer(x, return_gates=True)
    assert narrow.out_BGO.dtype == torch.bfloat16
    assert torch.equal(narrow.gate_weights_BGE, exact.gate_weights_BGE)
    torch.testing.assert_close(narrow.out_BGO.float(), exact.out_BGO, atol=0.05, rtol=0.05)
    narrow.out_BGO.float().sum().backward()
    assert x.grad.dtype == torch.float32
    assert all(p.grad.dtype == torch.float32 for p in layer.parameters())


def test_bfloat16_parameters():
    layer = make_layer("top_k_after", "grouped").bfloat16()
    out = layer(torch.randn(B, D, dtype=torch.bfloat16), return_gates=True)
    assert out.out_BGO.dtype == torch.bfloat16
    assert out.gate_weights_BGE.dtype == torch.float32


@pytest.mark.parametrize("kind", ["softmax", "top_k_after"])
def test_the_dense_path_compiles_without_a_graph_break(kind):
    layer = make_layer(kind, "dense", visibility=VISIBILITY).float()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x = torch.randn(B, D)
    torch.testing.assert_close(gradients(compiled, x)[:2], gradients(layer, x)[:2])


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
    expected = torch.stack([expert(x) for expert in layer.experts], 1)
    torch.testing.assert_close(layer(x).out_BGO, expected)
