"""Forms of one's own, and what only looks like a feed-forward part."""

import pytest
import torch
from torch import nn

from mmoe.integrations.convert import (
    RECOGNISERS,
    ConvertedMoE,
    FeedForward,
    Recogniser,
    convert,
    register,
)
from tests.integrations.convert.networks import (
    D,
    H,
    Intermediate,
    Mlp,
    Output,
    Pair,
    difference,
    sequential,
)

# --- forms of one's own ---


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.wi, self.wo, self.scale = nn.Linear(D, H), nn.Linear(H, D), 2.0

    def forward(self, x):
        return self.scale * self.wo(self.wi(x).relu())


def match_own(module):
    if isinstance(module, Own):
        return FeedForward(module.wi, module.wo, torch.relu)
    return None


@pytest.fixture
def own_forms():
    before = RECOGNISERS.names()
    yield
    for name in set(RECOGNISERS.names()) - set(before):
        RECOGNISERS.remove(name)
    assert sorted(RECOGNISERS.names()) == sorted(before)


@pytest.mark.usefixtures("own_forms")
def test_a_form_of_ones_own():
    def replace(module, mixture):
        module.wi, module.wo, module.forward = None, None, lambda x: module.scale * mixture(x)
        module.mixture = mixture
        return module

    dense = nn.ModuleList([Own()]).double()
    with pytest.raises(ValueError, match="found no feed-forward part"):
        convert(dense, 4)
    register("own", match_own, replace)
    model = convert(dense, 4)
    x = torch.randn(3, D, dtype=torch.float64)
    assert difference(model[0](x), dense[0](x)) <= 1e-10
    register(Recogniser("own", lambda module: None, replace))  # in place of the first one
    assert RECOGNISERS.names().count("own") == 1
    with pytest.raises(ValueError, match="found no feed-forward part"):
        convert(dense, 4)


@pytest.mark.usefixtures("own_forms")
def test_what_register_refuses_and_in_place():
    with pytest.raises(
        ValueError, match=r"recogniser: expected a Recogniser alone, or a name with"
    ):
        register("own")
    register("own", match_own)
    with pytest.raises(ValueError, match="inplace: the module itself is the feed-forward part"):
        convert(Own(), 4, inplace=True)
    assert isinstance(convert(Own(), 4), ConvertedMoE)


# --- what only looks like one ---


class Doubled(Mlp):
    def forward(self, x):
        return 2 * super().forward(x)


class HiddenDropout(Mlp):
    """Drops hidden units by a function, which no attribute shows."""

    def forward(self, x):
        hidden = nn.functional.dropout(self.act(self.fc1(x)), 0.5, self.training)
        return self.fc2(hidden)


class OtherLayer(nn.TransformerEncoderLayer):
    def _ff_block(self, x):
        return super()._ff_block(x) + x


class OtherOutput(Output):
    def forward(self, hidden, x):
        return self.LayerNorm(self.dense(hidden * 2) + x)


def pair(output):
    layer = Pair()
    layer.output = output
    return layer


class Whole(nn.Module):
    """Has the layers of a block, and attention of its own."""

    def __init__(self):
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(D, H), nn.GELU(), nn.Linear(H, D)

    def forward(self, x, mask):
        return self.fc2(self.act(self.fc1(x))) * mask


@pytest.mark.parametrize(
    "make",
    [
        Doubled,
        HiddenDropout,
        Whole,
        lambda: OtherLayer(D, 2, H),
        lambda: pair(OtherOutput()),
        lambda: sequential(nn.Softmax(-1)),
        lambda: sequential(nn.ReLU(), nn.Linear(H, H)),
        lambda: sequential(),
        lambda: nn.Sequential(nn.Linear(D, H), nn.Dropout(0.1), nn.ReLU(), nn.Linear(H, D)),
        lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(D, H)), nn.ReLU()),
        lambda: Intermediate(),
    ],
)
def test_what_computes_something_else_is_not_taken(make):
    assert RECOGNISERS.find(make()) is None
