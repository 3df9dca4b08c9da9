"""Dropouts stay what they were: of hidden units, of outputs, and as often."""

import pytest
import torch
from torch import nn

from mmoe.integrations.convert import ConvertedMoE, convert
from mmoe.mixture import MLPExperts
from tests.integrations.convert.networks import D, Gated, H, Mlp, difference

ROWS = 4000


class Shared(nn.Module):
    """One dropout for hidden units and outputs, as in the original code of Swin."""

    def __init__(self, places):
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(D, H), nn.GELU(), nn.Linear(H, D)
        self.drop, self.places = nn.Dropout(0.5), places

    def forward(self, x):
        for name in self.places:
            x = getattr(self, name)(x)
        return x


class GatedWithDropouts(Gated):
    def __init__(self, between, after):
        super().__init__()
        self.between, self.after = nn.Dropout(between), nn.Dropout(after)

    def forward(self, x):
        h = self.act_fn(self.gate_proj(x)) * self.up_proj(x)
        return self.after(self.down_proj(self.between(h)))


def hidden_dropout(model):
    (mixture,) = (m for m in model.modules() if isinstance(m, ConvertedMoE))
    assert isinstance(mixture.mixture.experts, MLPExperts)
    return mixture.mixture.experts.dropout


def zeros(model):
    """The share of outputs that are dropped."""
    with torch.no_grad():
        return float((model.train()(torch.ones(ROWS, D)) == 0).double().mean())


@pytest.mark.parametrize(
    ("make", "hidden", "after"),
    [
        (lambda: Mlp(drop=0.5), 0.5, 0.5),
        (lambda: Shared(["fc1", "act", "drop", "fc2", "drop"]), 0.5, 0.5),
        (lambda: Shared(["fc1", "act", "drop", "fc2", "drop", "drop"]), 0.5, 0.75),
        (lambda: Shared(["fc1", "act", "drop", "fc2"]), 0.5, 0.0),
        (lambda: Shared(["fc1", "act", "fc2", "drop"]), 0.0, 0.5),
        (lambda: GatedWithDropouts(0.5, 0.0), 0.5, 0.0),
        (lambda: GatedWithDropouts(0.0, 0.5), 0.0, 0.5),
        (lambda: GatedWithDropouts(0.25, 0.5), 0.25, 0.5),
    ],
)
def test_as_many_outputs_are_dropped_as_before(make, hidden, after):
    torch.manual_seed(0)
    dense = nn.Sequential(make())
    model = convert(dense, 4)
    assert hidden_dropout(model) == hidden
    assert zeros(dense) == pytest.approx(after, abs=0.02)
    assert zeros(model) == pytest.approx(after, abs=0.02)
    x = torch.randn(5, D)
    assert difference(model.eval()(x), dense.eval()(x)) <= 1e-5
    assert not dense[0]._forward_pre_hooks


@pytest.mark.parametrize(
    "places",
    [
        ["drop", "fc1", "act", "fc2"],
        ["fc1", "drop", "act", "fc2"],
        ["fc1", "act", "drop", "drop", "fc2"],
    ],
)
def test_where_experts_cannot_do_the_same_the_block_stays(places):
    with pytest.raises(ValueError, match="found no feed-forward part"):
        convert(Shared(places), 4)


def test_on_the_meta_device():
    with torch.device("meta"):
        dense = Shared(["fc1", "act", "drop", "fc2", "drop"])
    model = convert(dense, 4)
    assert hidden_dropout(model) == 0.5
    assert isinstance(model.fc2, nn.Dropout)


def test_a_dropout_in_the_activation_stays_one():
    dense = nn.Sequential(
        nn.Linear(D, H), nn.Sequential(nn.ReLU(), nn.Dropout(0.5)), nn.Linear(H, D)
    )
    pool = convert(dense, 4)[0].mixture.experts
    assert [m.p for m in pool.modules() if isinstance(m, nn.Dropout) and m.p] == [0.5] * 4


class Scaled(Mlp):
    def forward(self, x):
        return self.fc2(3 * self.act(self.fc1(x)))


@pytest.mark.parametrize("block", [Mlp, Scaled])
def test_a_second_product_of_zeros_hides_nothing(block):
    dense = nn.Sequential(block(), Mlp())
    nn.init.zeros_(dense[0].fc2.weight)
    nn.init.zeros_(dense[0].fc2.bias)
    weight = dense[0].fc2.weight
    model = convert(dense, 4)
    assert isinstance(model[0].fc1, ConvertedMoE) == (block is Mlp)
    assert dense[0].fc2.weight is weight and not weight.any() and weight.requires_grad
    x = torch.randn(5, D)
    assert difference(model.eval()(x), dense.eval()(x)) <= 1e-5
