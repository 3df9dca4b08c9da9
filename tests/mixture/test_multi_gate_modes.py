"""MultiGateMixture under autocast, checkpointing, copies, torch.compile and torch.export."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from mmoe.mixture import Capacity, MultiGateMixture, SoftmaxGate, TopKGate, mlp_experts

B, D, H, G, E, K = 9, 6, 5, 3, 4, 2
VISIBILITY = [[True, True, True, False], [True, False, True, True], [False, True, True, False]]
EXECUTIONS = ["dense", "grouped", "padded", "auto"]


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


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("execution", EXECUTIONS)
def test_activation_checkpointing_changes_nothing(execution, reentrant):
    layer = make_layer(execution=execution, dropout=0.3)
    x = torch.randn(B, D)

    def checkpointed(x):
        out = checkpoint(lambda x: layer(x).out_BGO, x, use_reentrant=reentrant)
        return layer(x)._replace(out_BGO=out)

    def plain(x):
        out = layer(x).out_BGO
        return layer(x)._replace(out_BGO=out)

    results = []
    for run in (checkpointed, plain):
        torch.manual_seed(3)  # the same dropout
        results.append(gradients(layer, x, run))
    torch.testing.assert_close(*results, rtol=0, atol=0)


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_copies_and_state_dicts_compute_the_same(execution):
    settings = {"execution": execution, "visibility": VISIBILITY}
    layer = make_layer(**settings)
    x = torch.randn(B, D)
    copied = copy.deepcopy(layer)
    fresh = make_layer(**settings, seed=7)
    assert not torch.equal(fresh(x).out_BGO, layer(x).out_BGO)
    fresh.load_state_dict(layer.state_dict())
    assert torch.equal(copied(x).out_BGO, layer(x).out_BGO)
    assert torch.equal(fresh(x).out_BGO, layer(x).out_BGO)
    assert set(layer.state_dict()) == {name for name, _ in layer.named_parameters()}
    with torch.no_grad():
        copied.experts.weights[0].zero_()
    assert torch.equal(fresh(x).out_BGO, layer(x).out_BGO)


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(mode, execution):
    layer = make_layer(execution=execution)
    x = torch.randn(B, D)
    expected = layer(x).out_BGO.detach()
    with mode():
        out = layer(x).out_BGO
    assert not out.requires_grad
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("pool", ["mlp", "modules"])
@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("kind", ["softmax", "top_k"])
def test_autocast_narrows_the_experts_but_not_the_gate(kind, execution, pool):
    experts = None if pool == "mlp" else [nn.Linear(D, H) for _ in range(E)]
    layer = make_layer(kind, execution, experts=experts)
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


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_bfloat16_parameters(execution):
    layer = make_layer(execution=execution).bfloat16()
    out = layer(torch.randn(B, D, dtype=torch.bfloat16), return_gates=True)
    assert out.out_BGO.dtype == torch.bfloat16
    assert out.gate_weights_BGE.dtype == torch.float32
    out.out_BGO.float().sum().backward()
    assert all(p.grad.dtype == torch.bfloat16 for p in layer.parameters())


def test_settings_move_with_the_layer_and_stay_out_of_the_state():
    layer = make_layer(expert_source=[0, 1, 0, 1]).to("meta")
    assert {buffer.device.type for buffer in layer.buffers()} == {"meta"}
    assert not any(name.endswith(("_GE", "_GV", "_E")) for name in layer.state_dict())


@pytest.fixture
def fresh_compiler():
    """Every layer here has other settings, and torch stops at eight programs for one function."""
    torch._dynamo.reset()


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize(
    ("execution", "kind"),
    [*((execution, "top_k") for execution in EXECUTIONS), ("auto", "softmax")],
)
def test_compiles_without_a_graph_break(execution, kind):
    layer = make_layer(kind, execution, visibility=VISIBILITY)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x = torch.randn(B, D)
    torch.testing.assert_close(gradients(layer, x, compiled), gradients(layer, x))


@pytest.mark.usefixtures("fresh_compiler")
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


@pytest.mark.usefixtures("fresh_compiler")
def test_compiles_with_batch_norm_and_its_running_statistics():
    def make():
        torch.manual_seed(0)
        return make_layer(experts=mlp_experts(E, D, [7, H], activation="silu", norm="batch"))

    x, layer, other = torch.randn(B, D), make(), make()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(gradients(layer, x, compiled), gradients(other, x))
    torch.testing.assert_close(dict(layer.named_buffers()), dict(other.named_buffers()))


@pytest.mark.usefixtures("fresh_compiler")
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


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("execution", ["dense", "grouped"])
def test_exports_with_a_batch_size_without_bounds(execution):
    layer = make_layer(execution=execution, visibility=VISIBILITY).eval()
    rows = torch.export.Dim("b")
    program = torch.export.export(layer, (torch.randn(B, D),), dynamic_shapes=({0: rows},))
    x = torch.randn(50, D)
    torch.testing.assert_close(program.module()(x).out_BGO, layer(x).out_BGO)


@pytest.mark.usefixtures("fresh_compiler")
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
