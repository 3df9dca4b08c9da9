"""Towers that read their gates' mixes in the cache: a network's numbers stay what they were."""

import pytest
import torch
from torch import nn

from mmoe.config import ModelConfig
from mmoe.mixture import MLPExperts, MultiGateMixture
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


def replace_towers(network, numbers, hidden):
    for t in numbers:
        network.towers[t] = Tower(24, hidden)


OTHERS = {
    "two layers": lambda network: replace_towers(network, range(3), [9, 5]),
    "one is other": lambda network: replace_towers(network, [1], [5]),
    "watched tower": lambda network: network.towers[2].register_forward_hook(lambda *_: None),
    "watched towers": lambda network: network.towers.register_forward_hook(lambda *_: None),
    "watched mixture": lambda network: network.levels[0].mixture.register_forward_hook(
        lambda *_: None
    ),
    "shared gate": lambda network: setattr(network, "task_gates", (0, 1, 1)),
    "dropout": lambda network: [setattr(t.mlp, "dropout", 0.5) for t in network.towers],
}


@needs_kernels
@pytest.mark.parametrize("change", OTHERS)
def test_other_towers_read_mixes_that_are_made(change, calls, monkeypatch):
    network, x_BD = network_of(), rows()
    OTHERS[change](network)

    def run(network):
        torch.manual_seed(3)
        return network(x_BD).logits_BT

    logits_BT = run(network)

    assert calls == []
    assert torch.equal(logits_BT, mixing(monkeypatch, network, run))


def test_without_kernels_mixes_are_made(monkeypatch, calls):
    monkeypatch.setattr(alike, "HAS_KERNELS", False)
    network, x_BD = network_of(), rows()
    wanted = mixing(monkeypatch, network, lambda network: network(x_BD).logits_BT)
    assert torch.equal(network(x_BD).logits_BT, wanted)
    assert calls == []


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
    layer = MultiGateMixture(D, 2, MLPExperts(3, D, [8]), execution=execution)
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
