"""Layers that are more than their weights: hooks, shared weights, code that reads weights."""

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from mmoe.integrations.convert import convert
from tests.integrations.convert.networks import D, Gated, H, Mlp, difference, encoder, sequential


def doubled(module, _, output):
    return 2 * output


@pytest.mark.parametrize(
    ("dense", "change"),
    [
        (sequential(nn.ReLU()), lambda m: m[0].register_forward_hook(doubled)),
        (sequential(nn.ReLU()), lambda m: m[2].register_forward_pre_hook(lambda *_: None)),
        (sequential(nn.ReLU()), lambda m: nn.utils.spectral_norm(m[0])),
        (sequential(nn.ReLU()), lambda m: prune.l1_unstructured(m[2], "weight", 0.5)),
        (encoder(1), lambda m: m.layers[0].linear1.register_forward_hook(doubled)),
        (nn.Sequential(Gated()), lambda m: m[0].up_proj.register_forward_hook(doubled)),
    ],
)
def test_linear_layers_with_hooks_are_no_parts(dense, change):
    change(dense)
    with pytest.raises(ValueError, match="linear layers with hooks"):
        convert(dense, 4)


class ReadsType(Mlp):
    def forward(self, x):
        return super().forward(x.to(self.fc1.weight.dtype))


class ReadsWidth(Mlp):
    def forward(self, x):
        return super().forward(x).view(*x.shape[:-1], self.fc2.out_features)


@pytest.mark.parametrize("block", [ReadsType, ReadsWidth])
def test_a_block_that_reads_its_layers_stays_as_it_is(block):
    dense = nn.Sequential(block(), Mlp())
    x = torch.randn(3, D)
    model = convert(dense, 4)
    assert type(model[0].fc1) is nn.Linear and type(model[1].fc1) is not nn.Linear
    assert difference(model(x), dense(x)) <= 1e-5


@pytest.mark.parametrize("others", [(nn.ReLU, nn.Tanh), (nn.PReLU, nn.PReLU), (nn.Tanh, nn.Tanh)])
def test_layers_of_the_same_weights_keep_their_own_activations(others):
    dense = nn.ModuleList([sequential(other()) for other in others])
    dense[1][0], dense[1][2] = dense[0][0], dense[0][2]
    x = torch.randn(3, D)
    model = convert(dense, 4)
    for mine, its in zip(model, dense, strict=True):
        assert difference(mine(x), its(x)) <= 1e-5
    assert (model[0][0] is model[1][0]) == (others == (nn.Tanh, nn.Tanh))


def test_what_is_no_module_or_no_target_is_told():
    with pytest.raises(ValueError, match=r"module: expected an nn\.Module, got a list"):
        convert([sequential(nn.ReLU())])
    with pytest.raises(ValueError, match="target_modules: expected names"):
        convert(sequential(nn.ReLU()), target_modules=3)
    layer = nn.Sequential(nn.TransformerEncoderLayer(D, 2, H))
    with pytest.raises(ValueError, match=r"as an end of names it is \['linear1'\]"):
        convert(layer, target_modules="linear1")


@pytest.mark.parametrize("inplace", [False, True])
def test_hooks_that_are_gone_with_their_layers_are_told_of(inplace):
    dense = nn.ModuleList([Gated(), sequential(nn.ReLU()), Mlp()])
    for module in (dense[0], dense[1], dense[1][1], dense[2].act):
        module.register_forward_hook(lambda *_: None)
    with pytest.warns(UserWarning, match=r"hooks of 0, 1\.1, 2\.act are gone"):
        convert(dense, 4, inplace=inplace)
