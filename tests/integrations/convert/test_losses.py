"""`auxiliary_losses`: those of the last forward pass, taken once, with their gradients."""

import copy
import io

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from mmoe.integrations.convert import auxiliary_losses, convert
from tests.integrations.convert.networks import D, encoder

GATE = {"kind": "top_k", "balance_loss": 0.1, "z_loss": 0.1}
NAMES = {f"layers.{i}.linear1.{loss}" for i in range(2) for loss in ("balance_loss", "z_loss")}


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(encoder(batch_first=True).layers)
        self.reentrant = None

    def forward(self, x):
        for layer in self.layers:
            if self.reentrant is None:
                x = layer(x)
            else:
                x = checkpoint(layer, x, use_reentrant=self.reentrant)
        return x


def make():
    torch.manual_seed(0)
    return convert(Network().double(), 4, gate=GATE), torch.randn(2, 5, D, dtype=torch.float64)


def step(model, x, call=None):
    """Losses, and the gradients of all parameters."""
    model.zero_grad()
    out = (model if call is None else call)(x)
    losses = auxiliary_losses(model)
    (out.pow(3).mean() + sum(losses.values())).backward()
    return losses, [weight.grad.clone() for weight in model.parameters()]


def test_losses_are_those_of_each_mixture_and_reach_its_gate():
    model, x = make()
    losses, _ = step(model, x)
    assert set(losses) == NAMES
    inner = model.layers[0].linear1
    alone = inner(x, return_auxiliary=True)
    assert losses["layers.0.linear1.z_loss"] > 0 and set(alone.auxiliary_losses) == {
        "balance_loss",
        "z_loss",
    }
    model.zero_grad()
    model(x)
    sum(auxiliary_losses(model).values()).backward()
    for layer in model.layers:
        assert layer.linear1.mixture.gate.logits.weights[0].grad.abs().max() > 0


def test_they_are_taken_once_and_the_next_call_brings_its_own():
    model, x = make()
    model(x)
    first = auxiliary_losses(model)
    assert auxiliary_losses(model) == {}
    model(x)
    model(x * 2)
    second = auxiliary_losses(model)
    assert set(first) == set(second) == NAMES
    assert first["layers.0.linear1.z_loss"] != second["layers.0.linear1.z_loss"]


def test_there_are_none_in_evaluation_without_losses_or_mixtures():
    model, x = make()
    model(x)
    model.eval()(x)
    assert auxiliary_losses(model) == {}
    plain = convert(Network().double(), 4)
    plain(x)
    assert auxiliary_losses(plain) == {} == auxiliary_losses(nn.Linear(2, 2))


def test_checkpointed_layers_have_the_same_losses_and_gradients():
    model, x = make()
    expected, gradients = step(model, x)
    model.reentrant = False
    found, checkpointed = step(model, x)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(checkpointed, gradients)
    assert auxiliary_losses(model) == {}, "the forward that is repeated leaves none"


def test_reentrant_checkpoints_which_lose_gradients_are_told_of():
    model, x = make()
    model.reentrant = True
    model(x.requires_grad_())
    with pytest.raises(ValueError, match=r"layers\.0\.linear1: expected a \w+ with a gradient"):
        auxiliary_losses(model)
    model(x)
    with torch.no_grad():
        assert set(auxiliary_losses(model)) == NAMES


@pytest.mark.parametrize(("backend", "reentrant"), [("aot_eager", None), ("eager", False)])
def test_compiled(backend, reentrant):
    torch._dynamo.reset()
    model, x = make()
    expected, gradients = step(model, x)
    model.reentrant = reentrant
    compiled = torch.compile(model, backend=backend)
    for _ in range(2):
        found, its = step(model, x, compiled)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(its, gradients)
        model.eval()
        compiled(x)
        assert auxiliary_losses(model) == {}
        model.train()


def test_exporting_leaves_the_model_as_it_is():
    model, x = make()
    before = dict(model.layers[0].linear1.__dict__)
    torch.export.export(model, (x,))
    assert model.layers[0].linear1.__dict__ == before


def test_a_model_with_losses_can_be_copied_and_stored():
    model, x = make()
    out = model(x)
    other = copy.deepcopy(model)
    assert auxiliary_losses(other) == {} and set(auxiliary_losses(model)) == NAMES
    torch.testing.assert_close(other(x), out)
    file = io.BytesIO()
    torch.save(other, file)
    file.seek(0)
    stored = torch.load(file, weights_only=False)  # the module itself, written above
    torch.testing.assert_close(stored(x), out)


def test_gradients_of_a_small_network_are_numerically_right():
    torch.manual_seed(0)
    dense = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 3)).double()
    model = convert(dense, 3, k=2, gate=GATE, init="fresh")

    def loss(x):
        out = model(x)
        return out.square().sum() + auxiliary_losses(model)["0.z_loss"]

    assert torch.autograd.gradcheck(
        loss, torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    )
