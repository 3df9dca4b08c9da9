"""ExpertPool: modules of any class, structures in and out, both ways to run, errors."""

import copy

import pytest
import torch
from torch import nn

from mmoe.mixture import MLP, Capacity, ExpertPool, GateOutput, MultiGateMixture, Pool
from mmoe.mixture.experts.pool import SCORING_TILE


def offsets_of(sizes):
    return torch.tensor([0, *torch.tensor(sizes).cumsum(0).tolist()], dtype=torch.int32)


class FirstRows(nn.Module):
    """Picks expert 1 for the first half of the rows, expert 0 for the others."""

    def forward(self, inputs, visibility_GE):
        rows = len(inputs[0])
        picks = (torch.arange(rows) < rows // 2).int().view(-1, 1, 1)
        return GateOutput(torch.ones(rows, 1, 1), picks, {})


def mixed_pool():
    torch.manual_seed(0)
    normed = nn.Sequential(nn.LayerNorm(5), nn.Linear(5, 4))
    return ExpertPool([nn.Linear(5, 4), normed, MLP(5, [3, 4], activation="gelu")])


@pytest.mark.parametrize(
    "sizes", [[3, 0, 2], [0, 0, 0], [SCORING_TILE, SCORING_TILE + 1, 2 * SCORING_TILE - 1]]
)
@pytest.mark.parametrize("training", [True, False])
def test_grouped_runs_each_expert_on_its_rows(sizes, training):
    pool = mixed_pool().train(training)
    rows = torch.randn(sum(sizes), 5)
    expected = [expert(part) for expert, part in zip(pool, rows.split(sizes), strict=True)]
    y = pool.grouped(rows, offsets_of(sizes))
    torch.testing.assert_close(y, torch.cat(expected))


def test_rows_past_the_last_offset_are_zero_and_never_read():
    pool, rows = mixed_pool(), torch.randn(8, 5)
    offsets = offsets_of([2, 1, 3])
    expected = pool.grouped(rows[:6], offsets)
    rows[6:] = torch.nan
    y = pool.grouped(rows, offsets)
    assert torch.equal(y[:6], expected)
    assert (y[6:] == 0).all()


def test_dense_runs_every_expert_on_all_rows_of_one_input_or_of_its_own():
    pool, xs = mixed_pool(), [torch.randn(6, 5) for _ in range(3)]
    for inputs in ([xs[0]] * 3, xs):
        expected = [expert(x) for expert, x in zip(pool, inputs, strict=True)]
        torch.testing.assert_close(pool.dense(inputs), expected)
    torch.testing.assert_close(pool.dense(xs[:1]), [expert(xs[0]) for expert in pool])


def test_thread_counts_stay_within_the_documented_tolerance():
    torch.manual_seed(0)
    pool, rows = ExpertPool([MLP(330, [256, 64])]).eval(), torch.randn(300, 330)
    with torch.no_grad():
        one = pool.grouped(rows, offsets_of([300]))
        try:
            torch.set_num_threads(2)
            two = pool.grouped(rows, offsets_of([300]))
        finally:
            torch.set_num_threads(1)
    assert (one - two).abs().max() <= 1e-5 * one.abs().max()


def test_experts_without_rows_get_zero_gradients_not_none():
    pool = mixed_pool()
    pool.grouped(torch.randn(2, 5), offsets_of([2, 0, 0])).sum().backward()
    for e, expert in enumerate(pool):
        for parameter in expert.parameters():
            assert parameter.grad is not None
            assert bool(parameter.grad.any()) == (e == 0)


class Doubles(nn.Module):
    def forward(self, x):
        return 2 * x


def test_a_module_of_unknown_width_may_say_it_or_not():
    assert ExpertPool([Doubles(), nn.Linear(3, 3)]).output_dim == 3
    unknown = ExpertPool([Doubles()])
    assert unknown.output_dim is None
    assert torch.equal(unknown([torch.ones(2, 3)])[0], 2 * torch.ones(2, 3))
    assert isinstance(unknown, Pool)
    assert not isinstance(nn.ModuleList([Doubles()]), Pool)


class Returns(nn.Module):
    def __init__(self, value):
        super().__init__()
        self.value = value

    def forward(self, x):
        return self.value


ROWS = torch.zeros(2, 3)


def pool(*modules, **settings):
    return ExpertPool(modules, **settings)


LINEARS = nn.Linear(3, 2), nn.Linear(3, 4)
OTHERS = [Returns(torch.zeros(2, 5)), Returns({"y": ROWS}), Returns(ROWS.long()), Returns("y")]
EXPECTED, UP_TO_3 = "experts: expected", torch.tensor([0, 3])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pool(), f"{EXPECTED} at least one module, got none"),
        (lambda: pool(*LINEARS), "experts: expert 1 returns width 4, expected 2"),
        (
            lambda: pool(*[Doubles()] * 3).dense([ROWS] * 2),
            "inputs: expected one for all experts o",
        ),
        (
            lambda: pool(Doubles(), output_dim=4).dense([ROWS]),
            rf"{EXPECTED} shape \[2, 4\] from ex",
        ),
        (
            lambda: pool(Doubles(), OTHERS[0]).dense([ROWS]),
            rf"{EXPECTED} shape \[2, 3\] from expert 1",
        ),
        (
            lambda: pool(Doubles(), OTHERS[1]).dense([ROWS]),
            f"{EXPECTED} the structure .* dict of y",
        ),
        (lambda: pool(OTHERS[2]).dense([ROWS]), rf"{EXPECTED} floating point .* got torch.int64"),
        (
            lambda: pool(OTHERS[3]).dense([ROWS]),
            f"{EXPECTED} tensors, or tuples .* of them, got a s",
        ),
        (
            lambda: pool(Doubles()).grouped(ROWS, UP_TO_3[:1]),
            "offsets_E1: expected 2 entries.*got 1",
        ),
        (
            lambda: pool(Doubles()).grouped(ROWS, UP_TO_3),
            r"offsets_E1: .* the 2 rows, got \[0, 3\]",
        ),
        (
            lambda: pool(Doubles()).grouped({}, UP_TO_3),
            "rows: expected at least one tensor, got an e",
        ),
        (
            lambda: pool(Doubles()).dense([(ROWS, ROWS[:1])]),
            r"inputs: expected tensors of one height",
        ),
    ],
)
def test_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_batch_normalisation_sees_the_rows_that_were_picked():
    """Run dense it would count the others, which the mixture must not choose for picks."""
    torch.manual_seed(0)
    experts = [nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4)) for _ in range(3)]
    assert ExpertPool(experts).traits.uses_batch
    assert not ExpertPool([nn.Linear(5, 4)]).traits.uses_batch
    grouped, auto = (
        MultiGateMixture(
            5, 1, ExpertPool(copy.deepcopy(experts)), gate=FirstRows(), execution=execution
        )
        for execution in ("grouped", "auto")
    )
    x = torch.randn(40, 5)
    expected = experts[1](x[:20])
    for layer in (grouped, auto):
        torch.testing.assert_close(layer(x).out_BGO[:20, 0], expected)
        torch.testing.assert_close(layer.experts[1][1].running_mean, experts[1][1].running_mean)
    with pytest.raises(ValueError, match="execution: dense shows every expert all rows"):
        MultiGateMixture(5, 1, experts, gate=FirstRows(), execution="dense")(x)
    with pytest.raises(ValueError, match="execution: padded shows experts rows of zeros"):
        MultiGateMixture(5, 1, experts, execution="padded", capacity=Capacity())


def test_batch_normalisation_of_one_row_is_refused_by_torch():
    pool = ExpertPool([nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4)) for _ in range(2)])
    y = pool.grouped(torch.randn(3, 5), offsets_of([3, 0]))
    assert y.isfinite().all()
    with pytest.raises(ValueError, match="Expected more than 1 value per channel when training"):
        pool.grouped(torch.randn(3, 5), offsets_of([2, 1]))
