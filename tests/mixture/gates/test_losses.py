"""The auxiliary losses against loops written from the papers' equations."""

import math

import pytest
import torch

from mmoe.mixture.gates.losses import balance, count_picks, cv_squared, mean, over_experts, z_loss

VISIBILITY = torch.tensor([[True, True, True, False], [True, False, True, True]])
ALL = torch.ones(2, 4, dtype=torch.bool)


def even_shares(visibility) -> list[list[float]]:
    return [[float(seen) / sum(row) for seen in row] for row in visibility.tolist()]


def test_balance_of_one_gate_is_the_switch_loss():
    """N · Σ f_i P_i, from the rows' probabilities and their best experts."""
    torch.manual_seed(0)
    p_BE = torch.randn(50, 4, dtype=torch.float64).softmax(-1)
    expected = 0.0
    for e in range(4):
        f = sum(int(row.argmax()) == e for row in p_BE) / 50
        expected += 4 * f * float(p_BE[:, e].sum()) / 50
    load_GE = count_picks(p_BE.argmax(-1).view(50, 1, 1).int(), 4)
    got = balance(load_GE, p_BE.sum(0, keepdim=True), ALL[:1], "gate")
    assert float(got) == pytest.approx(expected)


@pytest.mark.parametrize("scope", ["gate", "all"])
def test_balance_over_what_gates_see(scope):
    torch.manual_seed(0)
    load = torch.randint(1, 20, (2, 4)) * VISIBILITY
    importance = torch.rand(2, 4, dtype=torch.float64) * VISIBILITY
    even = even_shares(VISIBILITY)
    if scope == "gate":
        rows = [(load[g].tolist(), importance[g].tolist(), even[g]) for g in range(2)]
    else:
        pooled = [sum(column) / 2 for column in zip(*even, strict=True)]
        rows = [(load.sum(0).tolist(), importance.sum(0).tolist(), pooled)]
    losses = [
        sum(a / sum(f) * b / sum(p) / c for a, b, c in zip(f, p, u, strict=True) if c)
        for f, p, u in rows
    ]
    got = balance(load, importance, VISIBILITY, scope)
    assert float(got) == pytest.approx(sum(losses) / len(losses))


@pytest.mark.parametrize("scope", ["gate", "all"])
def test_even_loads_give_the_smallest_loss(scope):
    even = torch.tensor(even_shares(VISIBILITY), dtype=torch.float64)
    least = float(balance(even, even, VISIBILITY, scope))
    assert least == pytest.approx(1)
    assert float(cv_squared(even, VISIBILITY, scope)) == pytest.approx(0, abs=1e-12)
    torch.manual_seed(0)
    for _ in range(20):
        other = torch.rand(2, 4, dtype=torch.float64) * VISIBILITY
        assert float(balance(other, other, VISIBILITY, scope)) > 1
        assert float(cv_squared(other, VISIBILITY, scope)) > 0


def test_all_gates_together_may_specialise():
    """Two gates that split the pool between them: even together, uneven each."""
    split = torch.tensor([[10.0, 10.0, 0.0, 0.0], [0.0, 0.0, 10.0, 10.0]])
    assert float(balance(split, split, ALL, "all")) == pytest.approx(1)
    assert float(balance(split, split, ALL, "gate")) == pytest.approx(2)
    assert float(cv_squared(split, ALL, "all")) == pytest.approx(0, abs=1e-6)
    assert float(cv_squared(split, ALL, "gate")) == pytest.approx(1)


def test_cv_squared_is_the_squared_coefficient_of_variation():
    torch.manual_seed(0)
    amount = torch.rand(2, 4, dtype=torch.float64)
    expected = 0.0
    for row in amount.tolist():
        m = sum(row) / 4
        expected += sum((x - m) ** 2 for x in row) / 4 / m**2 / 2
    assert float(cv_squared(amount, ALL, "gate")) == pytest.approx(expected)


def test_z_loss():
    torch.manual_seed(0)
    logits = torch.randn(5, 2, 4, dtype=torch.float64)
    expected = 0.0
    for row in logits:
        for g in range(2):
            seen = [math.exp(float(row[g, e])) for e in range(4) if VISIBILITY[g, e]]
            expected += math.log(sum(seen)) ** 2 / 10
    assert float(z_loss(logits, VISIBILITY)) == pytest.approx(expected)


@pytest.mark.parametrize("scope", ["gate", "all"])
def test_gradients(scope):
    torch.manual_seed(0)
    amount = torch.rand(2, 4, dtype=torch.float64, requires_grad=True)
    load = torch.randint(0, 9, (2, 4))
    logits = torch.randn(3, 2, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a: balance(load, a, VISIBILITY, scope), amount)
    assert torch.autograd.gradcheck(lambda a: balance(a, a, VISIBILITY, scope), amount)
    assert torch.autograd.gradcheck(lambda a: cv_squared(a, VISIBILITY, scope), amount)
    assert torch.autograd.gradcheck(lambda x: z_loss(x, VISIBILITY), logits)


@pytest.mark.parametrize("scope", ["gate", "all"])
def test_nothing_gives_zero_and_no_gradient(scope):
    nothing = torch.zeros(2, 4, requires_grad=True)
    empty = torch.zeros(0, 2, 4, requires_grad=True)
    losses = (
        balance(nothing.detach().long(), nothing, VISIBILITY, scope),
        cv_squared(nothing, VISIBILITY, scope),
        z_loss(empty, VISIBILITY),
        mean(empty),
    )
    assert [float(loss.detach()) for loss in losses] == [0, 0, 0, 0]
    sum(losses).backward()
    assert nothing.grad.isfinite().all()


def test_picks_are_counted_and_put_in_place():
    experts = torch.tensor([[[0, 2], [3, -1]], [[2, 1], [-1, -1]]], dtype=torch.int32)
    weights = torch.tensor([[[0.7, 0.3], [1.0, 0.0]], [[0.6, 0.4], [0.0, 0.0]]])
    assert count_picks(experts, 4).tolist() == [[1, 1, 2, 0], [0, 0, 0, 1]]
    expected = [[[0.7, 0, 0.3, 0], [0, 0, 0, 1.0]], [[0, 0.4, 0.6, 0], [0, 0, 0, 0]]]
    torch.testing.assert_close(over_experts(weights, experts, 4), torch.tensor(expected))
    assert count_picks(experts[:0], 4).tolist() == [[0] * 4] * 2
