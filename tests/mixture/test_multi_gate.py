"""MultiGateMixture: its formula, under torch's modes, with structures, and what it refuses.

Executions against brute force, on whatever shapes and picks there are, are in test_properties.py.
"""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from mmoe.mixture import (
    MLP,
    Capacity,
    ExpertPool,
    GateOutput,
    MLPExperts,
    MoE,
    MultiGateMixture,
    SoftmaxGate,
    TopKGate,
)

B, D, H, G, E, K = 9, 6, 5, 3, 4, 2
VISIBILITY = [[True, True, True, False], [True, False, True, True], [False, True, True, False]]
EXECUTIONS = ["dense", "grouped", "padded", "auto"]


def make_layer(kind="top_k", execution="grouped", seed=0, experts=None, dropout=0.0, **settings):
    torch.manual_seed(seed)
    experts = experts or MLPExperts(E, D, [7, H], activation="gelu", dropout=dropout)
    gate = SoftmaxGate(D, G, E) if kind == "softmax" else TopKGate(D, G, E, k=K)
    if execution == "padded":
        settings.setdefault("capacity", Capacity(0.6, "probability"))
    return MultiGateMixture(D, G, experts, gate=gate, execution=execution, **settings)


def gradients(layer, x, run=None):
    """Output, gradient of x and of every parameter, for a random weighting of the outputs."""
    layer.zero_grad()
    x = x.clone().requires_grad_()
    out = layer(x).out_BGO if run is None else run(x)
    torch.manual_seed(1)
    (out * torch.randn(out.shape, dtype=out.dtype)).sum().backward()
    return out, x.grad, [p.grad for p in layer.parameters()]


def run_expert(experts, e, x):
    """Expert e of a pool of MLPs, layer by layer."""
    for weight, bias in zip(experts.weights, experts.biases, strict=True):
        z = x @ weight[e] + bias[e]
        x = torch.relu(z) if experts.activation == "relu" else torch.nn.functional.gelu(z)
    return x


def test_equals_the_formula_of_the_mmoe_paper():
    torch.manual_seed(0)
    layer = MultiGateMixture(D, G, MLPExperts(E, D, [7, H]))
    x = torch.randn(B, D)
    out = layer(x, return_gates=True)
    for g in range(G):
        w_BE = torch.softmax(x @ layer.gate.logits.weights[0][g].T, dim=1)
        mixed = torch.zeros(B, H)
        for e in range(E):
            mixed += w_BE[:, e : e + 1] * run_expert(layer.experts, e, x)
        torch.testing.assert_close(out.out_BGO[:, g], mixed)
        torch.testing.assert_close(out.gate_weights_BGE[:, g], w_BE)


@pytest.mark.parametrize("kind", ["softmax", "top_k"])
def test_sources_reach_their_experts_and_gates(kind):
    expert_source, gate_source = [2, 0, 0, 1], [1, 2, 0]
    sources = {"expert_source": expert_source, "gate_source": gate_source}
    x = torch.randn(B, 3, D, dtype=torch.float64)
    dense = make_layer(kind, "dense", **sources).double()
    grouped = make_layer(kind, "grouped", **sources).double()
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


# Under autocast, checkpointing, copies, torch.compile and torch.export


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("execution", EXECUTIONS)
def test_activation_checkpointing_changes_nothing(execution, reentrant):
    layer, x = make_layer(execution=execution, dropout=0.3), torch.randn(B, D)

    def plain(x):
        return layer(x).out_BGO

    results = []
    for run in (lambda x: checkpoint(plain, x, use_reentrant=reentrant), plain):
        torch.manual_seed(3)  # the same dropout
        results.append(gradients(layer, x, run))
    torch.testing.assert_close(*results, rtol=0, atol=0)


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_copies_and_state_dicts_compute_the_same(execution):
    settings = {"execution": execution, "visibility": VISIBILITY, "expert_source": [0] * E}
    layer, x = make_layer(**settings), torch.randn(B, D)
    copied, fresh = copy.deepcopy(layer), make_layer(**settings, seed=7)
    assert not torch.equal(fresh(x).out_BGO, layer(x).out_BGO)
    fresh.load_state_dict(layer.state_dict())
    assert torch.equal(copied(x).out_BGO, layer(x).out_BGO)
    assert torch.equal(fresh(x).out_BGO, layer(x).out_BGO)
    assert set(layer.state_dict()) == {name for name, _ in layer.named_parameters()}
    with torch.no_grad():
        copied.experts.weights[0].zero_()
    assert torch.equal(fresh(x).out_BGO, layer(x).out_BGO)
    assert {buffer.device.type for buffer in layer.to("meta").buffers()} == {"meta"}


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(mode, execution):
    layer, x = make_layer(execution=execution), torch.randn(B, D)
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


@pytest.fixture
def fresh_compiler():
    """Every layer here has other settings, and torch stops at eight programs for one function."""
    torch._dynamo.reset()


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize(
    ("execution", "kind", "norm"),
    [("dense", "top_k", None), ("grouped", "top_k", "batch"), ("auto", "softmax", None)],
)
def test_compiles_without_a_graph_break(execution, kind, norm):
    """Running statistics too."""

    def make():
        torch.manual_seed(0)
        experts = MLPExperts(E, D, [7, H], activation="silu", norm=norm)
        return make_layer(kind, execution, experts=experts, visibility=VISIBILITY)

    layer, other, x = make(), make(), torch.randn(B, D)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    found = gradients(layer, x, lambda x: compiled(x).out_BGO)
    torch.testing.assert_close(found, gradients(other, x))
    torch.testing.assert_close(dict(layer.named_buffers()), dict(other.named_buffers()))


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("execution", ["padded"])
def test_compiles_with_everything_asked_for_and_any_batch_size(execution):
    sources = {"expert_source": [1, 0, 1, 2], "gate_source": [0, 2, 1]}
    layer = make_layer(execution=execution, capacity=Capacity(0.5), **sources)

    def run(x):
        output = layer(x, return_gates=True, return_statistics=True)
        return output._replace(auxiliary_losses={})

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager", dynamic=True)
    for rows in (B, 5):
        x = torch.randn(rows, 3, D)
        torch.testing.assert_close(compiled(x), run(x))


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("execution", ["dense", "grouped", "auto"])
def test_exports_with_a_free_batch_size(execution, strict):
    layer = make_layer(execution=execution, visibility=VISIBILITY).eval()
    rows = torch.export.Dim("rows", min=2, max=4096) if strict else torch.export.Dim("rows")
    program = torch.export.export(
        layer, (torch.randn(B, D),), dynamic_shapes=({0: rows},), strict=strict
    )
    for height in (2, B, 50):
        x = torch.randn(height, D)
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


# Other dispatchers, and what is refused


class TakesAll:
    """A dispatcher that is not the local one."""

    def dispatch(self, sources, plan):
        return sources[0], torch.tensor([0, len(sources[0])], dtype=torch.int32), plan

    def combine(self, y_RO, handle):
        return y_RO[:, None].expand(-1, handle.experts_BGK.shape[1], -1)


def test_another_dispatcher_may_keep_experts_elsewhere():
    expert = MLP(D, [H])
    layer = MultiGateMixture(
        D, G, [expert], dispatcher=TakesAll(), visibility=torch.ones(G, 8, dtype=torch.bool)
    )
    assert layer.num_experts == 8
    x = torch.randn(B, D)
    torch.testing.assert_close(layer(x).out_BGO, expert(x)[:, None].expand(-1, G, -1))


ELSEWHERE, THREE = {"dispatcher": TakesAll()}, TopKGate(D, G, E, k=3)
PADDED = {"execution": "padded", "capacity": Capacity()}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_gates": 0}, "num_gates: expected 1 or more, got 0"),
        ({"experts": []}, "experts: expected at least one module"),
        ({"visibility": [[True] * 4]}, "visibility: expected .* with 3 rows.*got shape"),
        ({"visibility": [[True] * 3] * 3}, "visibility: expected 4 columns.*got 3"),
        (
            {"visibility": [[True] * 4, [False] * 4, [True] * 4]},
            "visibility: gate 1 sees no expert",
        ),
        ({"visibility": [[True, True, False, True]] * 3}, "visibility: no gate sees expert 2"),
        ({"expert_source": [0, 1]}, r"expert_source: expected 4 .* got \[0, 1\]"),
        ({"gate_source": [0, -1, 0]}, r"gate_source: expected 3 .* got \[0, -1, 0\]"),
        ({"execution": "fast"}, "execution: expected one of auto, dense, grouped, padded, got 'f"),
        ({"gate": THREE, "visibility": VISIBILITY}, "gate: gate 2 picks k = 3 experts, but sees 2"),
        ({**ELSEWHERE, "execution": "dense"}, "execution: dense .* dispatcher"),
        ({**ELSEWHERE, **PADDED}, "execution: padded .* dispatcher"),
    ],
)
def test_wrong_settings(settings, message):
    settings = {"num_gates": G, "experts": MLPExperts(E, D, [H]), **settings}
    with pytest.raises(ValueError, match=message):
        MultiGateMixture(D, **settings)


LINEAR = nn.Linear(D, H)


@pytest.mark.parametrize(
    ("experts", "got"),
    [
        (8, r"8; for equal MLPs pass MLPExperts\(8, 6, \[width, …\]\)"),
        (MLPExperts, r"the class MLPExperts; make one, as MLPExperts\(…\)"),
        (LINEAR, "a Linear; pass a list, even of one"),
        ([LINEAR, nn.Linear], "a list with a type in it"),
        (nn.ModuleDict({"a": LINEAR}), "a ModuleDict with a str in it"),
        (None, "a NoneType"),
    ],
)
def test_what_is_no_pool(experts, got):
    message = f"experts: expected a pool, or a list of modules, got {got}"
    for make in (lambda: MultiGateMixture(D, G, experts), lambda: MoE(D, experts)):
        with pytest.raises(ValueError, match=message):
            make()


NO_GATE = r"gate: expected a module with forward\(inputs, visibility_GE\).*, got a"


@pytest.mark.parametrize(
    ("gate", "message"),
    [
        (TopKGate, r"gate: expected a module, got the class TopKGate; make one, as TopKGate\(…\)"),
        (nn.ModuleList([LINEAR] * G), f"{NO_GATE} ModuleList; help"),
        (LINEAR, f"{NO_GATE} Linear"),
        ("top_k", f"{NO_GATE} str"),
    ],
)
def test_what_is_no_gate(gate, message):
    with pytest.raises(ValueError, match=message):
        MultiGateMixture(D, G, MLPExperts(E, D, [H]), gate=gate)


def test_a_list_of_modules_is_a_pool():
    modules = [nn.Linear(D, H) for _ in range(E)]
    x = torch.randn(B, D)
    gate = TopKGate(D, G, E, k=2)
    first, *others = (
        MultiGateMixture(D, G, experts, gate=gate)(x).out_BGO
        for experts in (modules, nn.ModuleList(modules), iter(modules), ExpertPool(modules))
    )
    assert all(torch.equal(first, other) for other in others)


def test_sources_of_different_heights():
    layer = MultiGateMixture(D, 1, MLPExperts(2, D, [H]), expert_source=[0, 1])
    message = r"x: expected shape \[3 \(rows of source 0\), 6\] of source 1, got \[4, 6\]"
    with pytest.raises(ValueError, match=message):
        layer([torch.zeros(3, D), torch.zeros(4, D)])
    with pytest.raises(
        ValueError, match=r"x: expected shape \[rows, 6\] of source 0, got \[3, 5\]"
    ):
        layer([torch.zeros(3, D - 1), torch.zeros(3, D)])


def test_inputs_of_any_structure_need_a_gate():
    with pytest.raises(ValueError, match="gate: expected one where input_dim is None, got None"):
        MultiGateMixture(None, G, [nn.Linear(D, H)])
    layer = MultiGateMixture(None, 1, [nn.Linear(D, H)], gate=Returns(torch.ones(3, 1, 1)))
    assert layer(torch.zeros(3, D)).out_BGO.shape == (3, 1, H)
    with pytest.raises(ValueError, match=r"x: expected tensors, or tuples and dicts .* got a str"):
        layer(("x", torch.zeros(3, D)))
    two = MultiGateMixture(None, 1, [nn.Linear(D, H)], gate_source=[1], gate=layer.gate)
    with pytest.raises(ValueError, match=r"x: expected 2 input source.*, got 1"):
        two(torch.zeros(3, D))


class Returns(nn.Module):
    def __init__(self, weights, experts=None, decision=None):
        super().__init__()
        self.decision = GateOutput(weights, experts, {}) if decision is None else decision

    def forward(self, inputs, visibility_GE):
        return self.decision


def returns(*shape, picks=None, dtype=None, device=None):
    """A gate of weights 0; of one pick each, if any."""
    weights = torch.zeros(shape, dtype=dtype, device=device)
    return Returns(weights, picks)


ONE, ALL = torch.zeros(3, G, 1, dtype=torch.int32), torch.zeros(3, G, E)
OUT_OF_RANGE = r"gate: expected picks from -1 \(unused\) to 3, got"


@pytest.mark.parametrize(
    ("gate", "message"),
    [
        (returns(3, 1, E), r"gate: expected weights of shape \[3, 3, …\]"),
        (returns(3, G, 2), "gate: expected a weight for each of 4 experts.*got 2"),
        (returns(3, G, 2, picks=ONE), "gate: expected as many picks as weights"),
        (returns(3, G, E, dtype=torch.int64), "gate: expected floating point weights, got torch.i"),
        (returns(3, G, 1, picks=ONE.short()), "gate: expected picks in torch.int32 or torch.int64"),
        (returns(3, G, 1, picks=ONE.long() + 2**32), f"{OUT_OF_RANGE} 4294967296"),
        (returns(3, G, 1, picks=ONE + E), f"{OUT_OF_RANGE} 4"),
        (returns(3, G, 1, picks=ONE - 2), f"{OUT_OF_RANGE} -2"),
        (Returns(None, decision=(ALL, None, {})), r"gate: expected a GateOutput\(.*, got a tuple"),
        (Returns(None, decision=ALL), "gate: expected a GateOutput.*, got a Tensor"),
        (Returns([[0.5]]), "gate: expected a GateOutput.*, got one with a list for weights"),
        (returns(3, G, E, device="meta"), "gate: expected weights on device cpu as the mixture, g"),
        (returns(3, G, 1, picks=ONE.to("meta")), "gate: expected picks on device cpu as the mixtu"),
    ],
)
def test_gates_that_return_nonsense(gate, message):
    for execution in ("auto", "dense", "grouped"):
        layer = MultiGateMixture(D, G, MLPExperts(E, D, [H]), gate=gate, execution=execution)
        with pytest.raises(ValueError, match=message):
            layer(torch.zeros(3, D))


def test_losses_and_picks_may_be_left_out():
    weights, x = torch.rand(B, G, E), torch.randn(B, D)
    layer = MultiGateMixture(D, G, MLPExperts(E, D, [H]), gate=Returns(weights))
    expected = layer(x)
    for decision in (GateOutput(weights), GateOutput(weights, None, None)):
        layer.gate.decision = decision
        result = layer(x)
        assert torch.equal(result.out_BGO, expected.out_BGO)
        assert result.auxiliary_losses == {}
    result.auxiliary_losses["mine"] = weights.sum()
    assert layer(x).auxiliary_losses == {}


def told(gate, execution):
    """A layer that does what it is told."""
    torch.manual_seed(0)
    settings = {"gate": gate, "execution": execution}
    settings["capacity"] = Capacity(10) if execution == "padded" else None
    return MultiGateMixture(D, G, MLPExperts(E, D, [H]), **settings)


@pytest.mark.parametrize("execution", ["dense", "grouped", "padded"])
def test_picks_as_topk_returns_them(execution):
    """`torch.topk` gives int64."""
    weights, experts = torch.rand(B, G, E).topk(2)
    long, short = (
        told(Returns(weights, picks), execution)(
            torch.ones(B, D), return_gates=True, return_statistics=True
        )
        for picks in (experts, experts.to(torch.int32))
    )
    assert torch.equal(long.out_BGO, short.out_BGO)
    assert torch.equal(long.gate_weights_BGE, short.gate_weights_BGE)
    assert torch.equal(long.statistics.picks_GE, short.statistics.picks_GE)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("execution", ["dense", "grouped", "padded"])
def test_weights_of_an_expert_picked_twice_add_up(execution, training):
    experts = torch.tensor([2, 0, 2], dtype=torch.int32).expand(B, G, -1)
    weights = torch.tensor([0.3, 0.5, 0.2]).expand(B, G, -1).clone().requires_grad_()
    layer = told(Returns(weights, experts), execution).train(training)
    x = torch.randn(B, D, requires_grad=True)
    result = layer(x, return_gates=True)
    once = layer.experts.dense([x])
    expected = (0.5 * once[0] + (0.3 + 0.2) * once[2])[:, None].expand(-1, G, -1)
    torch.testing.assert_close(result.out_BGO, expected)
    torch.testing.assert_close(result.gate_weights_BGE[0, 0], torch.tensor([0.5, 0, 0.5, 0]))
    (grad,) = torch.autograd.grad(result.out_BGO.sum(), [weights])
    torch.testing.assert_close(grad[..., 0], once[2].sum(1)[:, None].expand(-1, G))
    assert torch.equal(grad[..., 0], grad[..., 2])


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("picks", [True, False])
def test_weights_that_are_no_numbers(picks, value):
    experts = torch.arange(E, dtype=torch.int32).expand(3, G, E).clone() if picks else None
    weights = torch.ones(3, G, E)
    weights[1:, 2, 0] = value
    gate = Returns(weights, experts)
    layer = MultiGateMixture(D, G, MLPExperts(E, D, [H]), gate=gate)
    message = "gate: expected finite weights, got NaN or infinity in 2 of 3 rows of gate 2"
    with pytest.raises(ValueError, match=message):
        layer(torch.zeros(3, D))
    if experts is not None:
        # An unused pick may weigh anything.
        experts[1:, 2, 0] = -1
        assert layer(torch.zeros(3, D)).out_BGO.isfinite().all()


@pytest.mark.parametrize("picks", [True, False])
def test_gates_that_look_past_their_visibility(picks):
    experts = torch.tensor([0, 2], dtype=torch.int32).expand(3, G, 2) if picks else None
    weights = torch.full((3, G, 2 if picks else E), 0.5)
    if not picks:
        weights[:, ~torch.tensor(VISIBILITY)] = 0
        weights[2, 2, 0] = 0.5
    layer = MultiGateMixture(
        D, G, MLPExperts(E, D, [H]), gate=Returns(weights, experts), visibility=VISIBILITY
    )
    message = "gate: expected no weight of gate 2 on expert 0, which it does not see, got 0.5"
    with pytest.raises(ValueError, match=f"{message} in row {0 if picks else 2}"):
        layer(torch.zeros(3, D))


# Experts that read and return tuples and dicts, against a slow form (as FastMoE's mimo test)


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


def make_tree_experts():
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
    experts, batch = make_tree_experts(), make_batch()
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


class PicksNothing(nn.Module):
    def forward(self, inputs, visibility_GE):
        experts = torch.full((len(inputs[0]["dense"]), G, 1), -1, dtype=torch.int32)
        return GateOutput(torch.ones(experts.shape, dtype=torch.float64), experts, {})


@pytest.mark.parametrize("execution", ["dense", "grouped", "auto"])
def test_rows_that_nobody_picked_come_out_as_zeros(execution):
    layer = MultiGateMixture(None, G, make_tree_experts(), gate=PicksNothing(), execution=execution)
    leaves = flat(layer(make_batch()).out_BGO)
    assert all((leaf == 0).all() for leaf in leaves)
    loss_of(leaves).backward()
    assert all((p.grad == 0).all() for p in layer.parameters())
