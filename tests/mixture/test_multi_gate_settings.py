"""MultiGateMixture: other dispatchers, and what it refuses."""

import pytest
import torch
from torch import nn

from mmoe.mixture import (
    MLP,
    Capacity,
    ExpertPool,
    GateOutput,
    MLPExperts,
    MoE,
    MultiGateMixture,
    TopKGate,
    mlp_experts,
)

B, D, H, G, E = 9, 6, 5, 3, 4
VISIBILITY = [[True, True, True, False], [True, False, True, True], [False, True, True, False]]


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
        (
            {"execution": "fast"},
            "execution: expected one of auto, dense, grouped, padded, got 'fast'",
        ),
        (
            {"gate": TopKGate(D, G, E, k=3), "visibility": VISIBILITY},
            "gate: gate 2 picks k = 3 experts, but sees 2",
        ),
        ({"dispatcher": TakesAll(), "execution": "dense"}, "execution: dense .* dispatcher"),
        (
            {"dispatcher": TakesAll(), "execution": "padded", "capacity": Capacity()},
            "execution: padded .* dispatcher",
        ),
    ],
)
def test_wrong_settings(settings, message):
    settings = {"num_gates": G, "experts": mlp_experts(E, D, [H]), **settings}
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


@pytest.mark.parametrize(
    ("gate", "message"),
    [
        (TopKGate, r"gate: expected a module, got the class TopKGate; make one, as TopKGate\(…\)"),
        (
            nn.ModuleList([LINEAR] * G),
            "gate: expected a module with forward.*, got a ModuleList; help",
        ),
        (LINEAR, r"gate: expected a module with forward\(inputs, visibility_GE\).*, got a Linear"),
        ("top_k", "gate: expected a module with forward.*, got a str"),
    ],
)
def test_what_is_no_gate(gate, message):
    with pytest.raises(ValueError, match=message):
        MultiGateMixture(D, G, mlp_experts(E, D, [H]), gate=gate)


def test_a_list_of_modules_is_a_pool():
    modules = [nn.Linear(D, H) for _ in range(E)]
    x = torch.randn(B, D)
    gate = TopKGate(D, G, E, k=2)
    first, *others = (
        MultiGateMixture(D, G, experts, gate=gate)(x).out_BGO
        for experts in (modules, nn.ModuleList(modules), iter(modules), ExpertPool(modules))
    )
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(3, D + 1), r"x: expected shape \[rows, 6\], got \[3, 7\]"),
        (torch.zeros(3, 2, D), "x: expected 1 input source.*, got 2"),
        (torch.zeros(D), r"x: expected shape.*got \[6\]"),
        ([], "x: expected 1 input source.*, got 0"),
    ],
)
def test_wrong_inputs(x, message):
    layer = MultiGateMixture(D, G, mlp_experts(E, D, [H]))
    with pytest.raises(ValueError, match=message):
        layer(x)


def test_sources_of_different_heights():
    layer = MultiGateMixture(D, 1, mlp_experts(2, D, [H]), expert_source=[0, 1])
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


@pytest.mark.parametrize(
    ("gate", "message"),
    [
        (Returns(torch.zeros(3, 1, E)), r"gate: expected weights of shape \[3, 3, …\]"),
        (Returns(torch.zeros(3, G, 2)), "gate: expected a weight for each of 4 experts.*got 2"),
        (
            Returns(torch.zeros(3, G, 2), torch.zeros(3, G, 1, dtype=torch.int32)),
            "gate: expected as many picks as weights",
        ),
        (
            Returns(torch.zeros(3, G, E, dtype=torch.int64)),
            "gate: expected floating point weights, got torch.int64",
        ),
        (
            Returns(torch.zeros(3, G, 1), torch.zeros(3, G, 1, dtype=torch.int16)),
            r"gate: expected picks in torch.int32 or torch.int64, got torch.int16; use .to",
        ),
        (
            Returns(torch.zeros(3, G, 1), torch.full((3, G, 1), 2**32)),
            r"gate: expected picks from -1 \(unused\) to 3, got 4294967296",
        ),
        (
            Returns(None, decision=(torch.zeros(3, G, E), None, {})),
            r"gate: expected a GateOutput\(weights, experts, auxiliary_losses\) .*, got a tuple",
        ),
        (
            Returns(None, decision=torch.zeros(3, G, E)),
            "gate: expected a GateOutput.*, got a Tensor",
        ),
        (Returns([[0.5]]), "gate: expected a GateOutput.*, got one with a list for weights"),
        (
            Returns(torch.zeros(3, G, 1), torch.full((3, G, 1), E, dtype=torch.int32)),
            r"gate: expected picks from -1 \(unused\) to 3, got 4",
        ),
        (
            Returns(torch.zeros(3, G, 1), torch.full((3, G, 1), -2, dtype=torch.int32)),
            r"gate: expected picks from -1 \(unused\) to 3, got -2",
        ),
        (
            Returns(torch.zeros(3, G, E, device="meta")),
            "gate: expected weights on device cpu as the mixture, got meta",
        ),
        (
            Returns(torch.zeros(3, G, 1), torch.zeros(3, G, 1, dtype=torch.int32, device="meta")),
            "gate: expected picks on device cpu as the mixture, got meta",
        ),
    ],
)
def test_gates_that_return_nonsense(gate, message):
    for execution in ("auto", "dense", "grouped"):
        layer = MultiGateMixture(D, G, mlp_experts(E, D, [H]), gate=gate, execution=execution)
        with pytest.raises(ValueError, match=message):
            layer(torch.zeros(3, D))


def test_losses_and_picks_may_be_left_out():
    weights, x = torch.rand(B, G, E), torch.randn(B, D)
    layer = MultiGateMixture(D, G, mlp_experts(E, D, [H]), gate=Returns(weights))
    expected = layer(x)
    for decision in (GateOutput(weights), GateOutput(weights, None, None)):
        layer.gate.decision = decision
        result = layer(x)
        assert torch.equal(result.out_BGO, expected.out_BGO)
        assert result.auxiliary_losses == {}
    result.auxiliary_losses["mine"] = weights.sum()
    assert layer(x).auxiliary_losses == {}


@pytest.mark.parametrize("execution", ["dense", "grouped", "padded"])
def test_picks_as_topk_returns_them(execution):
    """`torch.topk` gives int64."""
    weights, experts = torch.rand(B, G, E).topk(2)
    capacity = Capacity(10) if execution == "padded" else None
    results = []
    for picks in (experts, experts.to(torch.int32)):
        torch.manual_seed(0)
        layer = MultiGateMixture(
            D,
            G,
            mlp_experts(E, D, [H]),
            gate=Returns(None, decision=GateOutput(weights, picks)),
            execution=execution,
            capacity=capacity,
        )
        results.append(layer(torch.ones(B, D), return_gates=True, return_statistics=True))
    assert torch.equal(results[0].out_BGO, results[1].out_BGO)
    assert torch.equal(results[0].gate_weights_BGE, results[1].gate_weights_BGE)
    assert torch.equal(results[0].statistics.picks_GE, results[1].statistics.picks_GE)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("execution", ["dense", "grouped", "padded"])
def test_weights_of_an_expert_picked_twice_add_up(execution, training):
    experts = torch.tensor([2, 0, 2], dtype=torch.int32).expand(B, G, -1)
    weights = torch.tensor([0.3, 0.5, 0.2]).expand(B, G, -1).clone().requires_grad_()
    layer = MultiGateMixture(
        D,
        G,
        mlp_experts(E, D, [H]),
        gate=Returns(weights, experts),
        execution=execution,
        capacity=Capacity(10) if execution == "padded" else None,
    ).train(training)
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
    layer = MultiGateMixture(D, G, mlp_experts(E, D, [H]), gate=gate)
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
        D, G, mlp_experts(E, D, [H]), gate=Returns(weights, experts), visibility=VISIBILITY
    )
    message = "gate: expected no weight of gate 2 on expert 0, which it does not see, got 0.5"
    with pytest.raises(ValueError, match=f"{message} in row {0 if picks else 2}"):
        layer(torch.zeros(3, D))
