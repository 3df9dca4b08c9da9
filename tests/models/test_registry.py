"""Every kind of model: formula or shape, training, copies, precision, errors."""

import copy

import pytest
import torch
import torch.nn.functional as F

from mmoe.config import ExpertConfig, ModelConfig
from mmoe.models import build_network
from mmoe.models.sections import build_experts
from tests.own_kinds import own_keys

D, TASKS = 6, ["click", "purchase"]
KINDS = ["mmoe", "shared_bottom", "single_task", "omoe", "cgc", "ple", "esmm"]
SPARSE = {"gate": {"kind": "top_k", "k": 2}}


def config(kind: str, **settings) -> ModelConfig:
    sizes = {"num_experts": 4, "shared_experts": 2, "task_experts": 1}
    widths = {"expert": {"hidden": [16, 8]}, "tower": {"hidden": [8]}}
    return ModelConfig.model_validate(own_keys({"kind": kind, **sizes, **widths, **settings}))


def network_of(kind: str, seed: int = 0, **settings):
    torch.manual_seed(seed)
    return build_network(config(kind, **settings), D, TASKS)


def mlp(module, x):
    for layer in module.layers:
        x = F.relu(F.linear(x, layer.weight, layer.bias))
    return x


def expert_of(experts, e, x):
    for weight, bias in zip(experts.weights, experts.biases, strict=True):
        x = F.relu(x @ weight[e] + bias[e])
    return x


def head(tower, h):
    return F.linear(mlp(tower.mlp, h), tower.logit.weight, tower.logit.bias)[:, 0]


def test_mmoe_equals_the_paper():
    """Ma et al. 2018, equations 5 to 7."""
    network, x = network_of("mmoe"), torch.randn(9, D)
    mixture = network.levels[0].mixture
    logits = []
    for t, tower in enumerate(network.towers):
        w = torch.softmax(x @ mixture.gate.logits.weights[0][t].T, dim=1)
        f = sum(w[:, e : e + 1] * expert_of(mixture.experts, e, x) for e in range(4))
        logits.append(head(tower, f))
    torch.testing.assert_close(network(x).logits_BT, torch.stack(logits, 1))


def test_omoe_is_mmoe_with_equal_gates():
    omoe, mmoe = network_of("omoe"), network_of("mmoe", seed=1)
    state = omoe.state_dict()
    name = "levels.0.mixture.gate.logits.weights.0"
    state[name] = state[name].expand(2, -1, -1)
    mmoe.load_state_dict(state)
    x = torch.randn(9, D)
    torch.testing.assert_close(omoe(x).logits_BT, mmoe(x).logits_BT)


def test_shared_bottom_and_single_task_are_plain_networks():
    x = torch.randn(9, D)
    shared, single = network_of("shared_bottom"), network_of("single_task")
    bottom = expert_of(shared.levels[0].mixture.experts, 0, x)
    expected = torch.stack([head(tower, bottom) for tower in shared.towers], 1)
    torch.testing.assert_close(shared(x).logits_BT, expected)
    experts = single.levels[0].mixture.experts
    columns = [head(tower, expert_of(experts, t, x)) for t, tower in enumerate(single.towers)]
    expected = torch.stack(columns, 1)
    torch.testing.assert_close(single(x).logits_BT, expected)
    for network in (shared, single):
        assert network(x, return_gates=True).gates == []
        assert not any("gate" in name for name, _ in network.named_parameters())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_rows_copies_and_states(kind, rows):
    network, x = network_of(kind), torch.randn(rows, D)
    logits = network(x).logits_BT
    assert logits.shape == (rows, 2)
    assert torch.equal(copy.deepcopy(network)(x).logits_BT, logits)
    other = network_of(kind, seed=5)
    other.load_state_dict(network.state_dict())
    assert torch.equal(other(x).logits_BT, logits)
    logits.sum().backward()
    assert all(p.grad is not None for p in network.parameters())


@pytest.mark.parametrize("kind", ["mmoe", "omoe", "cgc", "ple", "esmm"])
def test_sparse_gates_give_the_same_dense_or_grouped(kind):
    x = torch.randn(20, D)
    dense = network_of(kind, execution="dense", **SPARSE)
    grouped = network_of(kind, execution="grouped", **SPARSE)
    torch.testing.assert_close(dense(x).logits_BT, grouped(x).logits_BT)
    for record in grouped(x, return_gates=True).gates:
        assert ((record.weights_BGE > 0).sum(-1) == 2).all()


@pytest.mark.parametrize("kind", KINDS)
def test_autocast_returns_fp32_logits_that_are_finer_than_bf16(kind):
    network, x = network_of(kind), torch.randn(64, D)
    exact = network(x).logits_BT
    with torch.autocast("cpu", torch.bfloat16):
        logits = network(x).logits_BT
    assert logits.dtype == torch.float32
    assert not torch.equal(logits, logits.bfloat16().float())
    torch.testing.assert_close(logits, exact, atol=0.1, rtol=0.1)


def test_input_dropout_acts_on_the_input_only_while_training():
    torch.manual_seed(0)
    network, x = network_of("mmoe", input_dropout=0.5), torch.randn(64, D)
    assert not torch.equal(network(x).logits_BT, network(x).logits_BT)
    assert torch.equal(network.eval()(x).logits_BT, network_of("mmoe").eval()(x).logits_BT)


def test_settings_reach_the_modules():
    network = network_of(
        "mmoe",
        expert={"hidden": [5], "activation": "swiglu", "norm": "batch", "dropout": 0.1},
        tower={"hidden": [], "dropout": 0.2},
        gate={"hidden": [3], "temperature": 2.0},
    )
    experts = network.levels[0].mixture.experts
    assert (experts.activation, experts.norm, experts.dropout) == ("swiglu", "batch", 0.1)
    assert experts.output_dim == 5
    assert network.towers[0].logit.in_features == 5
    assert network.towers[0].mlp.dropout == 0.2
    gate = network.levels[0].mixture.gate
    assert gate.options.temperature == 2.0
    assert gate.logits.weights[0].shape == (2, 3, D)


@pytest.mark.parametrize(
    ("kind", "input_dim", "tasks", "message"),
    [
        ("mmoe", D, [], "task_names: expected at least one task, got none"),
        ("mmoe", 0, TASKS, "input_dim: expected 1 or more, got 0; .* at least one feature"),
        ("esmm", D, ["a", "b", "c"], "esmm needs two tasks, .* got 3: a, b, c"),
    ],
)
def test_errors(kind, input_dim, tasks, message):
    with pytest.raises(ValueError, match=message):
        build_network(config(kind), input_dim, tasks)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("execution", ["auto", "padded"])
def test_a_capacity_drops_in_training_alone_and_counts(kind, execution):
    sparse = {} if kind in ("shared_bottom", "single_task") else SPARSE
    capacity = {"factor": 0.5, "priority": "choice", "minimum": 1}
    network = network_of(kind, capacity=capacity, execution=execution, **sparse)
    x = torch.randn(40, D)
    assert int(network(x).dropped) > 0
    assert network.eval()(x).dropped is None
    plain = network_of(kind, **sparse)
    assert plain(x).dropped is None
    torch.testing.assert_close(network(x).logits_BT, plain.eval()(x).logits_BT)


@pytest.mark.parametrize(
    ("said", "built"), [("same", "gelu"), ("none", None), ("swiglu", "swiglu")]
)
def test_experts_get_their_last_activation_from_the_config(said, built):
    expert = ExpertConfig(hidden=[6, 4], activation="gelu", output_activation=said)
    pool = build_experts(ModelConfig(expert=expert), 3, 2)
    assert pool.activations == ["gelu", built]
