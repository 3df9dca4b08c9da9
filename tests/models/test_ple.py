"""PLE against a slow, straightforward implementation of the paper's equations."""

import pytest
import torch

from mmoe.config import ModelConfig
from mmoe.models import build_network
from tests.own_kinds import own_keys

D, TASKS = 6, ["click", "like", "purchase"]


def config(**settings) -> ModelConfig:
    sizes = {"shared_experts": 2, "task_experts": 2, "expert": {"hidden": [7, 5]}}
    widths = {"kind": "ple", "levels": 3, "tower": {"hidden": [4]}}
    return ModelConfig.model_validate(own_keys({**widths, **sizes, **settings}))


def slow_mlp(mlp, x):
    for layer in mlp.layers:
        x = torch.relu(x @ layer.weight.T + layer.bias)
    return x


def slow_expert(experts, e, x):
    for weight, bias in zip(experts.weights, experts.biases, strict=True):
        x = torch.relu(x @ weight[e] + bias[e])
    return x


def slow_ple(network, x_BD, own: int, shared: int):
    """Tang et al., equations 1 to 7: one task, one expert, one level at a time."""
    num_tasks = len(TASKS)
    read_by_task = [x_BD] * num_tasks
    read_by_shared = x_BD
    for j, level in enumerate(network.levels):
        experts = level.mixture.experts
        gate_weights = level.mixture.gate.logits.weights[0]
        task_outputs = [
            [slow_expert(experts, t * own + i, read_by_task[t]) for i in range(own)]
            for t in range(num_tasks)
        ]
        shared_outputs = [
            slow_expert(experts, num_tasks * own + i, read_by_shared) for i in range(shared)
        ]
        mixed = []
        for t in range(num_tasks):
            columns = [*range(t * own, t * own + own), *range(num_tasks * own, len(experts))]
            w = torch.softmax(read_by_task[t] @ gate_weights[t][columns].T, dim=1)
            candidates = torch.stack(task_outputs[t] + shared_outputs, dim=1)
            mixed.append((w[:, :, None] * candidates).sum(1))
        if j < len(network.levels) - 1:
            w = torch.softmax(read_by_shared @ gate_weights[num_tasks].T, dim=1)
            everything = [y for outputs in task_outputs for y in outputs] + shared_outputs
            read_by_shared = (w[:, :, None] * torch.stack(everything, dim=1)).sum(1)
        read_by_task = mixed
    logits = [
        slow_mlp(tower.mlp, h) @ tower.logit.weight.T + tower.logit.bias
        for tower, h in zip(network.towers, read_by_task, strict=True)
    ]
    return torch.cat(logits, dim=1)


@pytest.mark.parametrize("execution", ["dense", "grouped"])
@pytest.mark.parametrize("levels", [1, 2, 3])
def test_equals_the_paper(levels, execution):
    torch.manual_seed(0)
    network = build_network(config(levels=levels, execution=execution), D, TASKS).double()
    x = torch.randn(9, D, dtype=torch.float64, requires_grad=True)
    x2 = x.detach().clone().requires_grad_()
    logits, expected = network(x).logits_BT, slow_ple(network, x2, own=2, shared=2)
    torch.testing.assert_close(logits, expected)

    weight = torch.randn_like(logits)
    parameters = list(network.parameters())
    grads = torch.autograd.grad((logits * weight).sum(), [x, *parameters])
    slow_grads = torch.autograd.grad((expected * weight).sum(), [x2, *parameters])
    torch.testing.assert_close(grads, slow_grads)


def test_cgc_is_ple_with_one_level():
    torch.manual_seed(0)
    cgc = build_network(config(kind="cgc"), D, TASKS)
    torch.manual_seed(0)
    ple = build_network(config(levels=1), D, TASKS)
    x = torch.randn(4, D)
    assert torch.equal(cgc(x).logits_BT, ple(x).logits_BT)


def test_gates_and_experts_are_named_and_own_experts_stay_own():
    network = build_network(config(levels=2), D, TASKS)
    first, last = network(torch.randn(3, D), return_gates=True).gates
    assert (first.level, last.level) == (1, 2)
    assert first.gate_names == (*TASKS, "shared")
    assert last.gate_names == tuple(TASKS)
    assert first.expert_names == (
        *("click expert 1", "click expert 2", "like expert 1", "like expert 2"),
        *("purchase expert 1", "purchase expert 2", "shared expert 1", "shared expert 2"),
    )
    yes, no = True, False
    assert last.visibility_GE.tolist() == [
        [yes, yes, no, no, no, no, yes, yes],
        [no, no, yes, yes, no, no, yes, yes],
        [no, no, no, no, yes, yes, yes, yes],
    ]
    assert first.visibility_GE.tolist() == [*last.visibility_GE.tolist(), [yes] * 8]
    assert (last.weights_BGE[:, ~last.visibility_GE] == 0).all()
    assert not last.weights_BGE.requires_grad
