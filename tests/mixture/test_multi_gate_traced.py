"""MultiGateMixture under torch.compile and torch.export."""

import pytest
import torch

from mmoe.mixture import Capacity, MultiGateMixture, SoftmaxGate, TopKGate, mlp_experts

B, D, H, G, E, K = 9, 6, 5, 3, 4, 2
VISIBILITY = [[True, True, True, False], [True, False, True, True], [False, True, True, False]]
EXECUTIONS = ["dense", "grouped", "padded", "auto"]


@pytest.fixture(autouse=True)
def fresh_compiler():
    """Every layer here has other settings, and torch stops at eight programs for one function."""
    torch._dynamo.reset()


def make_layer(kind="top_k", execution="grouped", seed=0, experts=None, dropout=0.0, **settings):
    torch.manual_seed(seed)
    experts = experts or mlp_experts(E, D, [7, H], activation="gelu", dropout=dropout)
    gate = SoftmaxGate(D, G, E) if kind == "softmax" else TopKGate(D, G, E, k=K)
    if execution == "padded":
        settings.setdefault("capacity", Capacity(0.6, "probability"))
    return MultiGateMixture(D, G, experts, gate=gate, execution=execution, **settings)


def gradients(layer, x, run=None):
    """Output, gradient of x and of every parameter, for a random weighting of the outputs."""
    layer.zero_grad()
    x = x.clone().requires_grad_()
    out = (layer if run is None else run)(x).out_BGO
    torch.manual_seed(1)
    (out * torch.randn(out.shape, dtype=out.dtype)).sum().backward()
    return out, x.grad, [p.grad for p in layer.parameters()]


@pytest.mark.parametrize(
    ("execution", "kind"),
    [*((execution, "top_k") for execution in EXECUTIONS), ("auto", "softmax")],
)
def test_compiles_without_a_graph_break(execution, kind):
    layer = make_layer(kind, execution, visibility=VISIBILITY)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x = torch.randn(B, D)
    torch.testing.assert_close(gradients(layer, x, compiled), gradients(layer, x))


def test_compiles_with_everything_asked_for_and_any_batch_size():
    layer = make_layer(
        execution="grouped",
        capacity=Capacity(0.5),
        expert_source=[1, 0, 1, 2],
        gate_source=[0, 2, 1],
    )

    def run(x):
        output = layer(x, return_gates=True, return_statistics=True)
        return output._replace(auxiliary_losses={})

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager", dynamic=True)
    for rows in (B, 5):
        x = torch.randn(rows, 3, D)
        torch.testing.assert_close(compiled(x), run(x))


def test_compiles_with_batch_norm_and_its_running_statistics():
    def make():
        torch.manual_seed(0)
        return make_layer(experts=mlp_experts(E, D, [7, H], activation="silu", norm="batch"))

    x, layer, other = torch.randn(B, D), make(), make()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(gradients(layer, x, compiled), gradients(other, x))
    torch.testing.assert_close(dict(layer.named_buffers()), dict(other.named_buffers()))


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("execution", ["dense", "grouped", "auto"])
def test_exports_with_a_free_batch_size(execution, strict):
    layer = make_layer(execution=execution, visibility=VISIBILITY).eval()
    rows = torch.export.Dim("rows", min=2, max=4096)
    program = torch.export.export(
        layer, (torch.randn(B, D),), dynamic_shapes=({0: rows},), strict=strict
    )
    for height in (2, B, 50):
        x = torch.randn(height, D)
        torch.testing.assert_close(program.module()(x).out_BGO, layer(x).out_BGO)


@pytest.mark.parametrize("execution", ["dense", "grouped"])
def test_exports_with_a_batch_size_without_bounds(execution):
    layer = make_layer(execution=execution, visibility=VISIBILITY).eval()
    rows = torch.export.Dim("b")
    program = torch.export.export(layer, (torch.randn(B, D),), dynamic_shapes=({0: rows},))
    x = torch.randn(50, D)
    torch.testing.assert_close(program.module()(x).out_BGO, layer(x).out_BGO)


@pytest.mark.parametrize("execution", ["grouped", "padded"])
@pytest.mark.parametrize("priority", ["position", "choice", "probability"])
def test_exports_training_with_a_capacity_and_a_free_batch_size(execution, priority):
    layer = make_layer(execution=execution, capacity=Capacity(0.6, priority, minimum=2))
    rows = torch.export.Dim("rows", min=2, max=4096)
    program = torch.export.export(layer, (torch.randn(B, D),), dynamic_shapes=({0: rows},))
    for height in (2, B, 50):
        x = torch.randn(height, D)
        output, expected = program.module()(x), layer(x)
        torch.testing.assert_close(output.out_BGO, expected.out_BGO)
        assert int(output.dropped) == int(expected.dropped)
