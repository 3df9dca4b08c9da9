"""MoE: the single-gate layer for tensors of any rank."""

import pytest
import torch
from torch import nn

from mmoe.mixture import Capacity, FixedGate, GateOutput, MLPExperts, MoE, SoftmaxGate, TopKGate

D, E = 6, 4


def make(**settings):
    torch.manual_seed(0)
    return MoE(D, MLPExperts(E, D, [7, 5]), **settings)


@pytest.mark.parametrize("shape", [(D,), (9, D), (3, 4, D), (2, 3, 4, D), (0, D), (3, 0, D)])
def test_last_dimension_goes_through_the_experts(shape):
    moe, x = make(k=2), torch.randn(shape)
    y = moe(x)
    assert y.shape == (*shape[:-1], 5)
    rows = x.reshape(-1, D) if x.numel() else x.new_zeros(0, D)
    torch.testing.assert_close(y, moe.mixture(rows).out_BGO[:, 0].reshape(y.shape))


def test_equals_the_formula_with_renormalised_top_2():
    moe, x = make(), torch.randn(3, 5, D)
    logits = x @ moe.mixture.gate.logits.weights[0][0].T
    best = logits.topk(2)
    weights = torch.zeros_like(logits).scatter(-1, best.indices, best.values.softmax(-1))
    pool, expected = moe.mixture.experts, 0
    for e in range(E):
        h = torch.relu(x @ pool.weights[0][e] + pool.biases[0][e])
        y = torch.relu(h @ pool.weights[1][e] + pool.biases[1][e])
        expected = expected + weights[..., e : e + 1] * y
    torch.testing.assert_close(moe(x), expected)


class Loses(nn.Module):
    def forward(self, inputs, visibility_GE):
        weights = torch.full((len(inputs[0]), 1, E), 0.25)
        return GateOutput(weights, None, {"even": inputs[0].sum()})


def test_losses_drops_and_statistics_are_returned_on_request_and_not_kept():
    moe, x = make(gate=Loses()), torch.randn(2, 3, D)
    before = set(vars(moe)) | set(vars(moe.mixture))
    out, losses, dropped, statistics = moe(x, return_auxiliary=True)
    assert torch.equal(out, moe(x))
    torch.testing.assert_close(losses, {"even": x.sum()})
    assert dropped is None and statistics is None
    assert moe(x, return_statistics=True).statistics.picks_GE.tolist() == [[6] * E]
    assert set(vars(moe)) | set(vars(moe.mixture)) == before


def test_capacity_drops_while_training():
    moe, x = make(k=2, capacity=Capacity(0.5)), torch.randn(8, 8, D)
    result = moe(x, return_auxiliary=True)
    assert result.dropped > 0
    assert moe.eval()(x, return_auxiliary=True).dropped is None


def test_one_expert_is_a_plain_layer():
    moe, x = MoE(D, [nn.Linear(D, 3)]), torch.randn(4, D)
    torch.testing.assert_close(moe(x), moe.mixture.experts[0](x))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: make(k=5), "k: expected 1 to 4"),
        (
            lambda: make(k=2, gate=TopKGate(D, 1, E, k=2)),
            "k: expected None beside a gate, which picks itself, got 2",
        ),
        (lambda: make(execution="padded"), "execution: padded needs a capacity"),
        (lambda: make()(torch.zeros(3, D + 1)), r"x: expected shape \[..., 6\], got \[3, 7\]"),
        (lambda: make()(torch.tensor(1.0)), r"x: expected shape \[..., 6\], got \[\]"),
        (lambda: make(gate=SoftmaxGate(D, 2, E))(torch.zeros(3, D)), "gates|inputs"),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()


class Named(nn.Module):
    """Rows in, a dict of a tensor and a tuple out."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 5)

    def forward(self, x):
        """Two leaves of different ranks."""
        y = self.layer(x)
        return {"wide": y, "pair": (y[:, :2].sum(1, keepdim=True), y.unsqueeze(1).tanh())}


@pytest.mark.parametrize("leading", [(7,), (2, 3), ()])
@pytest.mark.parametrize("execution", ["dense", "grouped"])
def test_experts_may_return_structures(leading, execution):
    torch.manual_seed(0)
    experts = [Named(), Named()]
    moe, x = (
        MoE(6, experts, gate=SoftmaxGate(6, 1, 2), execution=execution),
        torch.randn(*leading, 6),
    )
    out = moe(x)
    weights = moe.mixture.gate([x.reshape(-1, 6)], moe.mixture.visibility_GE).weights[:, 0]
    wide = sum(
        weights[:, e].view(*leading, 1) * experts[e].layer(x.reshape(-1, 6)).view(*leading, 5)
        for e in range(2)
    )
    torch.testing.assert_close(out["wide"], wide)
    assert [leaf.shape for leaf in out["pair"]] == [(*leading, 1), (*leading, 1, 5)]
    assert set(moe(x, return_auxiliary=True).out) == {"wide", "pair"}


class TakesPair(nn.Module):
    def forward(self, x):
        return x["a"] * x["b"].sum(1)


def test_experts_may_take_structures():
    x = {"a": torch.randn(4, 5), "b": torch.randn(4, 3, 5)}
    moe = MoE(None, [TakesPair()] * 2, gate=FixedGate(torch.tensor([[0.25, 0.75]])))
    torch.testing.assert_close(moe(x), TakesPair()(x))


def test_structures_need_a_gate_and_a_width_needs_a_tensor():
    with pytest.raises(ValueError, match="gate: expected one where input_dim is None, got None"):
        MoE(None, [Named()])
    moe = MoE(6, [nn.Linear(6, 5)])
    for x, kind in (({"a": torch.ones(2, 6)}, "dict"), (None, "NoneType"), ([[1.0] * 6], "list")):
        with pytest.raises(ValueError, match=rf"x: expected a tensor \[..., 6\], got a {kind}"):
            moe(x)
