"""Towers that read their gates' mixes in the cache: a network's numbers stay what they were."""

import pytest
import torch
from torch import nn

from mmoe.config import ModelConfig
from mmoe.mixture import MultiGateMixture, mlp_experts
from mmoe.mixture.multi_gate import Unmixed
from mmoe.models import build_network
from mmoe.models.network import MixtureNetwork
from mmoe.tasks import Tower
from mmoe.tasks import towers as alike
from tests.needs_kernels import needs_kernels
from tests.own_kinds import own_keys

D, ROWS = 10, 131
MANY = [f"task{number}" for number in range(64)]
FEW = ["click", "purchase", "stars"]


def network_of(tasks=FEW, kind="mmoe", **settings):
    torch.manual_seed(0)
    sizes = {"num_experts": 4, "shared_experts": 2, "task_experts": 1, "execution": "dense"}
    widths = {"expert": {"hidden": [16, 24]}, "tower": {"hidden": [9]}}
    model = ModelConfig.model_validate(own_keys({"kind": kind, **sizes, **widths, **settings}))
    network = build_network(model, D, tasks)
    for parameter in network.towers.parameters():
        nn.init.normal_(parameter, std=0.3)  # biases too
    return network


def rows(dtype=torch.float32):
    torch.manual_seed(1)
    return torch.randn(ROWS, D, dtype=dtype)


@pytest.fixture
def calls(monkeypatch):
    """Of how many gates each call was that left no mixes behind."""
    counted, real = [], alike.mixed_towers

    def counting(y, weights_BGE, *others):
        counted.append(weights_BGE.shape[1])
        return real(y, weights_BGE, *others)

    monkeypatch.setattr(alike, "mixed_towers", counting)
    return counted


def mixing(monkeypatch, network, run):
    """What it gives where all mixes are made."""
    with monkeypatch.context() as patch:
        patch.setattr(MixtureNetwork, "towers_mix", lambda self, level: False)
        return run(network)


def logits_and_gradients(network, x_BD):
    x_BD = x_BD.clone().requires_grad_()
    output = network(x_BD)
    labels = torch.arange(output.logits_BT.numel()).view_as(output.logits_BT) % 2
    loss = nn.functional.binary_cross_entropy_with_logits(output.logits_BT, labels.to(x_BD))
    wanted = [x_BD, *network.parameters()]
    return output.logits_BT, torch.autograd.grad(loss, wanted, allow_unused=True)


@needs_kernels
@pytest.mark.parametrize("kind", ["mmoe", "cgc", "ple", "esmm"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_losses_and_gradients_are_those_of_mixes_that_are_made(
    kind, activation, calls, monkeypatch
):
    tasks = FEW[:2] if kind == "esmm" else FEW
    tower = {"hidden": [9], "activation": activation}
    network, x_BD = network_of(tasks, kind, tower=tower).double(), rows(torch.float64)

    found = logits_and_gradients(network, x_BD)

    assert calls == [len(tasks)]
    wanted = mixing(monkeypatch, network, lambda network: logits_and_gradients(network, x_BD))
    torch.testing.assert_close(found, wanted)
    assert calls == [len(tasks)]


@needs_kernels
def test_of_many_tasks_too(calls, monkeypatch):
    network, x_BD = network_of(MANY), rows()

    logits, gradients = logits_and_gradients(network, x_BD)

    expected = mixing(monkeypatch, network, lambda network: logits_and_gradients(network, x_BD))
    torch.testing.assert_close(logits, expected[0])
    assert calls == [64]
    for gradient, wanted in zip(gradients, expected[1], strict=True):
        torch.testing.assert_close(
            gradient, wanted, rtol=0, atol=1e-5 * max(1e-3, float(wanted.abs().max()))
        )
    again = logits_and_gradients(network, x_BD)
    assert torch.equal(again[0], logits)
    assert all(map(torch.equal, again[1], gradients))


@needs_kernels
@pytest.mark.parametrize("tasks", [1, 3, 64])
@pytest.mark.parametrize("gate", ["softmax", "top_k"])
def test_scores_have_the_bits_of_mixes_that_are_made(tasks, gate, calls, monkeypatch):
    gate = {"kind": gate, **({"k": 2} if gate == "top_k" else {})}
    network, x_BD = network_of(MANY[:tasks], gate=gate).eval(), rows()
    with torch.inference_mode():
        logits = network(x_BD).logits_BT
        assert calls == [tasks]
        wanted = mixing(monkeypatch, network, lambda network: network(x_BD).logits_BT)
        assert torch.equal(logits, wanted)
        for some in (slice(0, 1), slice(50, 113)):
            assert torch.equal(network(x_BD[some]).logits_BT, logits[some])


@needs_kernels
def test_autocast_rounds_the_mixes_and_no_logits(calls, monkeypatch):
    network, x_BD = network_of(), rows()

    def run(network):
        with torch.autocast("cpu", torch.bfloat16):
            return network(x_BD).logits_BT

    logits_BT = run(network)

    assert calls == [3]
    assert logits_BT.dtype == torch.float32
    torch.testing.assert_close(logits_BT, mixing(monkeypatch, network, run), rtol=0, atol=1e-5)


def two_layers(network):
    for t in range(3):
        network.towers[t] = Tower(24, [9, 5])


def one_is_other(network):
    network.towers[1] = Tower(24, [5])


def watched_tower(network):
    network.towers[2].register_forward_hook(lambda *_: None)


def watched_towers(network):
    network.towers.register_forward_hook(lambda *_: None)


def watched_mixture(network):
    network.levels[0].mixture.register_forward_pre_hook(lambda *_: None)


def shared_gate(network):
    network.task_gates = (0, 1, 1)


def dropped(network):
    for tower in network.towers:
        tower.mlp.dropout = 0.5


OTHERS = [
    two_layers, one_is_other, watched_tower, watched_towers, watched_mixture, shared_gate, dropped
]  # fmt: skip


@needs_kernels
@pytest.mark.parametrize("change", OTHERS, ids=lambda change: change.__name__)
def test_other_towers_read_mixes_that_are_made(change, calls, monkeypatch):
    network, x_BD = network_of(), rows()
    change(network)

    def run(network):
        torch.manual_seed(3)
        return network(x_BD).logits_BT

    logits_BT = run(network)

    assert calls == []
    assert torch.equal(logits_BT, mixing(monkeypatch, network, run))


@needs_kernels
def test_a_hook_on_the_mixture_sees_the_mixes():
    network, seen = network_of(), []
    mixture = network.levels[0].mixture
    mixture.register_forward_hook(lambda _, __, output: seen.append(output.out_BGO.shape))
    network(rows())
    assert seen == [(ROWS, 3, 24)]


def test_without_kernels_mixes_are_made(monkeypatch, calls):
    monkeypatch.setattr(alike, "HAS_KERNELS", False)
    network, x_BD = network_of(), rows()
    wanted = mixing(monkeypatch, network, lambda network: network(x_BD).logits_BT)
    assert torch.equal(network(x_BD).logits_BT, wanted)
    assert calls == []


@needs_kernels
def test_gates_are_recorded_all_the_same(calls):
    output = network_of()(rows(), return_gates=True)
    torch.testing.assert_close(output.gates[0].weights_BGE.sum(2), torch.ones(ROWS, 3))
    assert calls == [3]


@needs_kernels
def test_a_frozen_mixture_lets_towers_learn(monkeypatch):
    network, x_BD = network_of().double(), rows(torch.float64)
    network.levels.requires_grad_(False)
    parameters = list(network.towers.parameters())

    def run(network):
        return torch.autograd.grad(network(x_BD).logits_BT.sum(), parameters)

    torch.testing.assert_close(run(network), mixing(monkeypatch, network, run))


@pytest.mark.parametrize("execution", ["dense", "grouped"])
def test_a_mixture_leaves_mixes_where_it_can(execution):
    torch.manual_seed(0)
    layer = MultiGateMixture(D, 2, mlp_experts(3, D, [8]), execution=execution)
    wanted_BGO = layer(rows()).out_BGO

    output = layer(rows(), mix=False)

    if execution == "grouped":
        assert output.unmixed is None
        assert torch.equal(output.out_BGO, wanted_BGO)
    else:
        assert isinstance(output.unmixed, Unmixed)
        assert torch.equal(output.unmixed.mixes(), wanted_BGO)


class Pair(nn.Module):
    """An expert of two results."""

    def forward(self, x_BD):
        return x_BD, 2 * x_BD


def test_experts_of_several_results_are_mixed():
    layer = MultiGateMixture(D, 2, [Pair(), Pair()], execution="dense")
    output = layer(rows(), mix=False)
    assert output.unmixed is None
    torch.testing.assert_close(output.out_BGO[1], 2 * output.out_BGO[0])
