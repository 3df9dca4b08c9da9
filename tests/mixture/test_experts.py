"""MLPs and the pool: formula, initialisation, both ways to run, errors."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mmoe.mixture import MLP, ExpertPool, mlp_experts
from mmoe.mixture.experts import SCORING_TILE


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
@pytest.mark.parametrize("training", [True, False])
def test_mlp_equals_its_formula(activation, training):
    torch.manual_seed(0)
    mlp, x = MLP(5, [4, 3], activation=activation).train(training), torch.randn(6, 5)
    for layer in mlp.layers:
        nn.init.normal_(layer.bias)
    h = x
    for layer in mlp.layers:
        h = getattr(F, activation)(h @ layer.weight.T + layer.bias)
    torch.testing.assert_close(mlp(x), h)
    assert (mlp.input_dim, mlp.output_dim) == (5, 3)


def test_mlp_without_layers_is_the_identity():
    x = torch.randn(3, 5)
    assert MLP(5, [])(x) is x
    assert MLP(5, []).output_dim == 5


def test_mlp_leaves_its_input_alone():
    x = torch.randn(3, 5)
    before = x.clone()
    MLP(5, [4])(x)
    assert torch.equal(x, before)


def test_he_initialisation_keeps_the_second_moment():
    torch.manual_seed(0)
    y = MLP(300, [400, 400, 400])(torch.randn(500, 300))
    # He et al. 2015: E[relu(y)²] = E[x²] = 1, layer after layer.
    assert 0.8 < y.square().mean() < 1.2


def test_dropout_zeroes_and_rescales():
    torch.manual_seed(0)
    mlp, x = MLP(4, [1000], dropout=0.25), torch.rand(20, 4)
    y, full = mlp(x), mlp.eval()(x)
    kept = y != 0
    torch.testing.assert_close(y[kept], full[kept] / 0.75)
    assert abs(kept.sum() / (full > 0).sum() - 0.75) < 0.02


@pytest.mark.parametrize(
    "sizes", [[3, 0, 2], [0, 0, 0], [SCORING_TILE, SCORING_TILE + 1, 2 * SCORING_TILE - 1]]
)
@pytest.mark.parametrize("training", [True, False])
def test_grouped_runs_each_expert_on_its_rows(sizes, training):
    torch.manual_seed(0)
    pool = mlp_experts(3, 5, [4]).train(training)
    rows = torch.randn(sum(sizes), 5)
    offsets = torch.tensor([0, *torch.tensor(sizes).cumsum(0).tolist()], dtype=torch.int32)
    y = pool.grouped(rows, offsets)
    expected = [expert(part) for expert, part in zip(pool, rows.split(sizes), strict=True)]
    torch.testing.assert_close(y, torch.cat(expected))


@pytest.mark.parametrize("mates", [0, 1, 7, 126, 127, 300])
def test_a_row_scores_the_same_bits_however_many_rows_its_expert_got(mates):
    torch.manual_seed(0)
    pool = mlp_experts(1, 330, [256, 64]).eval()
    row, offsets = torch.randn(1, 330), torch.tensor([0, 1], dtype=torch.int32)
    with torch.no_grad():
        alone = pool.grouped(row, offsets)
        together = pool.grouped(torch.cat([row, torch.randn(mates, 330)]), offsets * (1 + mates))
    assert torch.equal(together[:1], alone)


def test_weights_are_separate_and_contiguous():
    pool = mlp_experts(3, 5, [4, 2])
    weights = [expert.layers[0].weight for expert in pool]
    assert all(weight.is_contiguous() for weight in weights)
    assert len({weight.data_ptr() for weight in weights}) == 3
    assert not torch.equal(weights[0], weights[1])


class Doubles(nn.Module):
    def forward(self, x):
        return 2 * x


def test_a_module_of_unknown_width_needs_it_said():
    with pytest.raises(ValueError, match="cannot tell the output width of Doubles"):
        ExpertPool([Doubles()])
    pool = ExpertPool([Doubles(), nn.Linear(3, 3)], output_dim=3)
    assert torch.equal(pool([torch.ones(2, 3)] * 2)[0], 2 * torch.ones(2, 3))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MLP(0, [4]), "input_dim: expected a width of 1 or more, got 0"),
        (lambda: MLP(4, [4, 0]), r"hidden: expected widths of 1 or more, got \[4, 0\]"),
        (lambda: MLP(4, [4], activation="tanh"), "activation: expected one of relu, gelu, silu"),
        (lambda: MLP(4, [4], dropout=1.0), r"dropout: expected a probability in \[0, 1\), got 1"),
        (lambda: ExpertPool([]), "experts: expected at least one module, got none"),
        (
            lambda: ExpertPool([nn.Linear(3, 2), nn.Linear(3, 4)]),
            "experts: expert 1 returns width 4, expected 2",
        ),
        (
            lambda: mlp_experts(2, 3, [4])([torch.zeros(1, 3)]),
            "inputs: expected 2 tensors, one per expert, got 1",
        ),
        (
            lambda: ExpertPool([Doubles()], output_dim=4)([torch.zeros(2, 3)]),
            r"experts: expected shape \[2, 4\] from expert 0 \(Doubles\), got \[2, 3\]",
        ),
        (
            lambda: mlp_experts(2, 3, [4]).grouped(torch.zeros(1, 3), torch.tensor([0, 1])),
            "offsets_E1: expected 3 entries.*got 2",
        ),
    ],
)
def test_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make()
