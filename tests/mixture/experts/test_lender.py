"""Experts as tensors by which others compute, and who can join them."""

import pytest
import torch
from torch import nn

from mmoe.mixture import MLP, ExpertPool, MixedExperts, MLPExperts, cut_into_slices
from mmoe.mixture.experts.lender import lender_of

D = 4
OFFSETS_E1 = torch.tensor([0, 2, 2, 5], dtype=torch.int32)


class Own(nn.Module):
    """With a buffer and a setting."""

    output_dim = D

    def __init__(self, factor=2.0):
        super().__init__()
        self.linear, self.factor = nn.Linear(D, D), factor
        self.register_buffer("shift", torch.randn(D))

    def forward(self, x):
        return self.linear(x) * self.factor + self.shift


def pools():
    torch.manual_seed(0)
    return {
        "mlp": MLPExperts(6, D, [3, D], activation="swiglu", norm="layer"),
        "sliced": cut_into_slices(MLPExperts(3, D, [6, D], output_activation=None), 2),
        "modules": ExpertPool([Own() for _ in range(6)]),
        "stacked": ExpertPool([Own() for _ in range(6)], stacked=True),
    }


@pytest.mark.parametrize("name", list(pools()))
@pytest.mark.parametrize("places", [[5, 0, 3], [1, 2, 3]])
def test_taken_experts_compute_as_in_their_pool_also_where_there_are_none(name, places):
    pool = pools()[name].double()
    x_RD = torch.randn(5, D, dtype=torch.float64)
    expected = pool.part(places).grouped(x_RD, OFFSETS_E1)
    taken = lender_of(pool).take(places)
    # A rank without experts, in another type until the network is converted
    nobody = pools()[name].part([]).double()
    assert not sum(tensor.numel() for tensor in nobody.state_dict().values())
    for lender in (lender_of(pool), lender_of(nobody)):
        assert torch.equal(lender.compute_by(3, taken)(x_RD, OFFSETS_E1), expected)
        dense = lender.compute_by(3, taken)(x_RD, None)
        assert torch.equal(dense, torch.cat(pool.part(places).dense([x_RD])))


@pytest.mark.parametrize("name", list(pools()))
def test_what_ranks_must_agree_in_is_the_same_with_any_part_of_the_experts(name):
    pool = pools()[name]
    structures = {lender_of(pool.part(own)).structure() for own in ([], [2], [5, 1])}
    assert structures == {lender_of(pool).structure()} and None not in structures
    formats = lender_of(pool).formats
    assert all(lender_of(pool.part(own)).formats == formats for own in ([], [2]))
    taken = lender_of(pool.part([])).take([])
    assert [tuple(taken[form.name].shape) for form in formats] == [(0, *f.shape) for f in formats]


@pytest.mark.parametrize("name", list(pools()))
def test_gradients_reach_the_experts_that_were_taken(name):
    pool = pools()[name]
    taken = lender_of(pool).take([4, 1])
    # Beside a call of the pool, by which sparse gradients become dense
    own = pool.grouped(torch.zeros(0, D), torch.zeros(7, dtype=torch.int32))
    sum([own.sum(), *(t.sum() for t in taken.values() if t.requires_grad)]).backward()
    assert not any(p.grad.is_sparse for p in pool.parameters())
    if name == "modules":
        reached = [e for e, expert in enumerate(pool) if expert.linear.weight.grad.any()]
    else:
        reached = [e for e in range(6) if next(pool.parameters()).grad[e].any()]
    assert reached == [1, 4]


@pytest.mark.parametrize(
    "experts",
    [
        [nn.Linear(D, D), nn.Linear(D, D, bias=False)],
        [Own(), Own(factor=3.0)],
        [nn.Sequential(nn.Linear(D, D), nn.ReLU()), nn.Sequential(nn.Linear(D, D), nn.GELU())],
        [MLP(D, [3, D]), MLP(D, [5, D])],
    ],
)
def test_experts_that_differ_in_more_than_numbers_have_no_structure(experts):
    assert lender_of(ExpertPool(experts, output_dim=D)).structure() is None


def test_a_setting_without_words_is_like_no_other():
    experts = [nn.Linear(D, D) for _ in range(2)]
    for expert in experts:
        expert.own = lambda x: x
    assert lender_of(ExpertPool(experts)).structure() is None


def test_others_do_not_lend():
    mixed = MixedExperts([MLPExperts(2, D, [D]), MLPExperts(2, D, [D])])
    assert lender_of(mixed) is lender_of(ExpertPool([], D)) is lender_of(None) is None


def test_a_rank_without_experts_follows_to_and_train():
    pool = ExpertPool([nn.Linear(D, D) for _ in range(2)]).part([])
    assert pool.bfloat16().kind[0].weight.dtype == torch.bfloat16
    assert not pool.eval().kind[0].training and pool.train().kind[0].training
