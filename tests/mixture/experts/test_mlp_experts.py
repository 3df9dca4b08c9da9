"""MLPExperts: formula, both ways to run, gradients, norms, dropout, invariance, errors."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mmoe import ops
from mmoe.mixture import MLPExperts, Pool

E, D, HIDDEN = 3, 5, [6, 4]
ACTIVATIONS = ["relu", "gelu", "silu", "swiglu"]


def offsets_of(sizes):
    return torch.tensor([0, *torch.tensor(sizes).cumsum(0).tolist()], dtype=torch.int32)


def make_pool(**settings):
    torch.manual_seed(0)
    pool = MLPExperts(E, D, HIDDEN, **settings).double()
    for bias in pool.biases:
        torch.nn.init.normal_(bias)
    for norm in pool.norms:
        torch.nn.init.normal_(norm.weight)
        torch.nn.init.normal_(norm.bias)
    return pool


def slow_norm(pool, layer, e, x):
    norm = pool.norms[layer]
    if pool.norm == "layer":
        return F.layer_norm(x, x.shape[1:], norm.weight[e], norm.bias[e])
    training = pool.training and len(x) >= 2
    mean = x.mean(0) if training else norm.running_mean[e]
    var = x.var(0, unbiased=False) if training else norm.running_var[e]
    return (x - mean) / (var + 1e-5).sqrt() * norm.weight[e] + norm.bias[e]


def slow_expert(pool, e, x):
    for layer, (weight, bias) in enumerate(zip(pool.weights, pool.biases, strict=True)):
        x = x @ weight[e] + bias[e]
        x = slow_norm(pool, layer, e, x) if pool.norm else x
        activation = pool.activation
        if layer == len(pool.weights) - 1 and pool.output_activation != "same":
            activation = pool.output_activation
        if activation == "swiglu":
            gate, value = x.chunk(2, dim=1)
            x = F.silu(gate) * value
        elif activation is not None:
            x = getattr(F, activation)(x)
    return x


LAST = [
    *((kind, "same") for kind in ACTIVATIONS),
    ("gelu", None),
    ("swiglu", None),
    ("relu", "silu"),
]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("norm", [None, "layer", "batch"])
@pytest.mark.parametrize(("activation", "last"), LAST)
def test_dense_and_grouped_equal_the_formula_with_all_gradients(activation, last, norm, training):
    pool = make_pool(activation=activation, output_activation=last, norm=norm)
    with torch.no_grad():
        for layer in pool.norms if norm == "batch" else []:
            layer.running_mean.normal_()
            layer.running_var.uniform_(0.5, 2)
    before = {name: buffer.clone() for name, buffer in pool.named_buffers()}
    pool.train(training)
    sizes = [4, 0, 3]
    rows = torch.randn(7, D, dtype=torch.float64)

    def compare(run, slow):
        """`slow` first: it needs the running statistics as they are."""
        results = []
        for function in (slow, run):
            for name, buffer in pool.named_buffers():
                buffer.copy_(before[name])
            pool.zero_grad(set_to_none=True)
            x = rows.clone().requires_grad_()
            y = function(x)
            torch.manual_seed(1)
            (y * torch.randn_like(y)).sum().backward()
            zeros = torch.zeros_like
            grads = [zeros(p) if p.grad is None else p.grad for p in pool.parameters()]
            results.append((y, x.grad, grads))
        torch.testing.assert_close(results[1], results[0])

    parts = [slice(0, 4), slice(4, 4), slice(4, 7)]
    compare(
        lambda x: pool.grouped(x, offsets_of(sizes)),
        lambda x: torch.cat([slow_expert(pool, e, x[parts[e]]) for e in range(E)]),
    )
    compare(
        lambda x: torch.stack(pool.dense([x])),
        lambda x: torch.stack([slow_expert(pool, e, x) for e in range(E)]),
    )
    compare(
        lambda x: torch.stack(pool.dense([x, 2 * x, 3 * x])),
        lambda x: torch.stack([slow_expert(pool, e, (e + 1) * x) for e in range(E)]),
    )


@pytest.mark.parametrize("norm", [None, "layer", "batch"])
def test_gradients_of_experts_without_rows_are_zero_and_the_tail_is_never_read(norm):
    pool = make_pool(norm=norm, activation="silu")
    offsets = offsets_of([0, 3, 0])
    rows = torch.randn(5, D, dtype=torch.float64)
    rows[3:] = 1e300
    rows.requires_grad_()
    y = pool.grouped(rows, offsets)
    torch.testing.assert_close(y[:3], slow_expert(pool, 1, rows[:3]))
    y[:3].sum().backward()
    assert (rows.grad[3:] == 0).all()
    for parameter in pool.parameters():
        assert (parameter.grad[[0, 2]] == 0).all()
        assert parameter.grad.isfinite().all()


def test_batch_statistics_are_those_of_an_experts_own_rows():
    """Against torch's own layer, expert by expert, over three batches."""
    torch.manual_seed(0)
    pool = MLPExperts(2, D, [4], activation="silu", norm="batch")
    own = [torch.nn.BatchNorm1d(4) for _ in range(2)]
    weight, bias = pool.weights[0], pool.biases[0]
    for sizes in ([5, 3], [2, 6], [4, 1]):
        rows = 3 * torch.randn(sum(sizes), D) + 1
        y = pool.grouped(rows, offsets_of(sizes))
        for e, (part, out) in enumerate(zip(rows.split(sizes), y.split(sizes), strict=True)):
            if len(part) < 2:  # torch's layer refuses one row; ours takes the running statistics
                own[e].eval()
            torch.testing.assert_close(out, F.silu(own[e](part @ weight[e] + bias[e])))
    for e, layer in enumerate(own):
        torch.testing.assert_close(pool.norms[0].running_mean[e], layer.running_mean)
        torch.testing.assert_close(pool.norms[0].running_var[e], layer.running_var)


def test_initial_weights_keep_the_second_moment_and_differ_between_experts():
    torch.manual_seed(0)
    pool = MLPExperts(2, 300, [400, 400, 400])
    for y in pool.dense([torch.randn(500, 300)]):
        # He et al. 2015: E[relu(y)²] = E[x²] = 1, layer after layer.
        assert 0.8 < y.square().mean() < 1.2
    assert not torch.equal(pool.weights[0][0], pool.weights[0][1])
    assert all((bias == 0).all() for bias in pool.biases)


def test_dropout_zeroes_and_rescales_only_while_training():
    torch.manual_seed(0)
    pool, x = MLPExperts(2, 4, [1000], dropout=0.25), torch.rand(20, 4)
    offsets = offsets_of([10, 10])
    y, full = pool.grouped(x, offsets), pool.eval().grouped(x, offsets)
    kept = y != 0
    torch.testing.assert_close(y[kept], full[kept] / 0.75)
    assert abs(kept.sum() / (full > 0).sum() - 0.75) < 0.02
    assert torch.equal(pool.grouped(x, offsets), full)


@pytest.mark.parametrize("run", ["dense", "grouped"])
@pytest.mark.parametrize("norm", [None, "layer"])
def test_autocast_computes_in_bfloat16_and_keeps_fp32_gradients(run, norm):
    pool = make_pool(norm=norm, activation="silu").float()
    x = torch.randn(6, D)

    def out():
        y = pool.dense([x]) if run == "dense" else [pool.grouped(x, offsets_of([2, 2, 2]))]
        return torch.cat(y)

    exact = out()
    with torch.autocast("cpu", torch.bfloat16):
        narrow = out()
    assert narrow.dtype == torch.bfloat16
    torch.testing.assert_close(narrow.float(), exact, atol=0.1, rtol=0.1)
    narrow.float().sum().backward()
    assert all(p.grad.dtype == torch.float32 for p in pool.parameters())


@pytest.mark.parametrize("experts", [1, 3])
def test_without_layers_rows_come_back(experts):
    pool, x = MLPExperts(experts, D, []), torch.randn(6, D)
    assert all(y is x for y in pool.dense([x]))
    assert torch.equal(pool.grouped(x, offsets_of([6] + [0] * (experts - 1))), x)
    assert (len(pool), pool.output_dim) == (experts, D)


def test_names_and_shapes_of_the_state():
    pool = MLPExperts(E, D, HIDDEN, activation="swiglu", norm="batch")
    assert isinstance(pool, Pool)
    shapes = {name: tuple(value.shape) for name, value in pool.state_dict().items()}
    assert shapes["weights.0"] == (E, D, 12)
    assert shapes["weights.1"] == (E, 6, 8)
    assert shapes["biases.1"] == shapes["norms.1.running_mean"] == shapes["norms.1.weight"]
    assert "swiglu" in repr(pool)


ROW = torch.zeros(1, D, dtype=torch.float64)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MLPExperts(0, D, [4]), "num_experts: expected 1 or more, got 0"),
        (lambda: MLPExperts(2, 0, [4]), "input_dim: expected a width of 1 or more, got 0"),
        (lambda: MLPExperts(2, D, [4, 0]), r"hidden: expected widths of 1 or more, got \[4, 0\]"),
        (lambda: make_pool(output_activation="none"), "output_activation: .* swiglu, got 'none'"),
        (lambda: make_pool(activation="tanh"), "activation: .* gelu, silu, swiglu, got 'tanh'"),
        (lambda: make_pool(norm="group"), "norm: expected one of None, layer, batch, got 'group'"),
        (lambda: make_pool(dropout=1.0), r"dropout: expected .* in \[0, 1\), got 1"),
        (
            lambda: make_pool().dense([ROW] * 2),
            "inputs: expected one for all experts or 3, one per",
        ),
        (lambda: make_pool().grouped(ROW, offsets_of([1])), r"offsets_E1: expected shape \[4\]"),
        (
            lambda: make_pool().grouped(ROW[:, 1:], offsets_of([1, 0, 0])),
            "weight_EDH: expected sha",
        ),
    ],
)
def test_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("bias", [True, False])
def test_feed_forward_parts_of_a_transformer(bias):
    """Linear, GELU, Linear: the same numbers as a loop over torch's own modules."""
    torch.manual_seed(4)
    loop = [
        nn.Sequential(nn.Linear(D, 12, bias), nn.GELU(), nn.Linear(12, D, bias)).double()
        for _ in range(E)
    ]
    pool = MLPExperts(E, D, [12, D], activation="gelu", output_activation=None, bias=bias).double()
    assert len(list(pool.parameters())) == (4 if bias else 2)
    assert ("bias=False" in repr(pool)) is not bias
    with torch.no_grad():
        for e, feed_forward in enumerate(loop):
            for layer, linear in enumerate((feed_forward[0], feed_forward[2])):
                pool.weights[layer][e] = linear.weight.T
                if bias:
                    pool.biases[layer][e] = linear.bias
    x_BD = torch.randn(7, D, dtype=torch.float64)
    expected = [feed_forward(x_BD) for feed_forward in loop]
    torch.testing.assert_close(pool.dense([x_BD]), expected)
    found = pool.grouped(torch.cat([x_BD] * E), offsets_of([7] * E)).chunk(E)
    torch.testing.assert_close(list(found), expected)
    assert min(y.min() for y in found) < -0.2, "GELU would end at -0.17"


@pytest.mark.parametrize("run", ["dense", "grouped", "gathered"])
def test_the_last_layer_may_have_a_dropout_of_its_own(run):
    """As a Transformer's feed-forward part: hidden units are dropped, outputs are not."""
    torch.manual_seed(0)
    pool = MLPExperts(1, D, [64, 50], output_activation=None, dropout=0.5, output_dropout=0.0)
    with torch.no_grad():
        pool.weights[1].zero_()
        pool.biases[1].fill_(1.0)
    x_BD = torch.randn(3, D)
    if run == "gathered":
        plan = ops.route_plan(torch.zeros(3, 1, 1, dtype=torch.int32), 1)
        outs = [pool.gathered(x_BD, plan)]
    else:
        outs = pool.dense([x_BD]) if run == "dense" else [pool.grouped(x_BD, offsets_of([3]))]
    assert torch.equal(outs[0], torch.ones(3, 50))
    with torch.no_grad():
        pool.weights[1].fill_(1.0)
    first, second = (pool.dense([x_BD])[0] for _ in range(2))
    assert not torch.equal(first, second)
    with pytest.raises(ValueError, match=r"output_dropout: expected a probability .*, got 1"):
        MLPExperts(1, D, [4], output_dropout=1.0)


def test_the_last_layers_activation_adds_no_tensor_and_draws_the_same_weights():
    pools = []
    for last in ("same", None):
        torch.manual_seed(5)
        pools.append(MLPExperts(E, D, HIDDEN, activation="gelu", output_activation=last))
    before, now = (pool.state_dict() for pool in pools)
    assert before.keys() == now.keys()
    assert all(torch.equal(before[name], now[name]) for name in before)
    assert "last layer: none" in repr(pools[1]) and "last layer" not in repr(pools[0])


def test_only_relus_have_dead_units():
    assert MLPExperts(E, D, HIDDEN, output_activation=None).traits.has_dead_units
    assert not MLPExperts(E, D, [4], output_activation=None).traits.has_dead_units
    pool, record = MLPExperts(E, D, HIDDEN, output_activation=None), []
    pool.dense([torch.randn(3, D)], record)
    assert [units[0].shape[1] for units in record] == HIDDEN[:1]
    part = pool.part([2, 0])
    assert torch.equal(part.dense([torch.ones(1, D)])[0], pool.dense([torch.ones(1, D)])[2])
