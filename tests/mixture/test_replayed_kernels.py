"""Test cases of ScatterMoE, MegaBlocks and grouped_gemm, told in our own words, sizes scaled down.

Their cases for gathers, scatters, histograms, sums and sorts alone are in
tests/ops/test_permute_cases.py; grouped products of uneven sizes in tests/ops/test_grouped_mm.py.
MegaBlocks' topology_test.py lists the blocks of a block-sparse product, which we do not have.
"""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mmoe.mixture import Capacity, GateOutput, MLPExperts, MoE, MultiGateMixture, TopKGate
from mmoe.mixture.routing.dispatcher import padded_routes, plan_routes
from mmoe.mixture.routing.segments import per_row
from mmoe.ops import gated_combine, grouped_mm
from mmoe.ops.dispatch import permute


class Given(nn.Module):
    """A gate that decides what it was told."""

    def __init__(self, weights_BGK, experts_BGK):
        super().__init__()
        self.weights_BGK = nn.Parameter(weights_BGK)
        self.experts_BGK = experts_BGK

    def forward(self, inputs, visibility_GE):
        return GateOutput(self.weights_BGK, self.experts_BGK, {})


def experts_of(pool):
    """The experts of an `MLPExperts` with GELU as plain functions."""
    weights = zip(*(weight_EDH.unbind(0) for weight_EDH in pool.weights), strict=True)
    biases = zip(*(bias_EH.unbind(0) for bias_EH in pool.biases), strict=True)

    def run(weights, biases, x):
        for weight_DH, bias_H in zip(weights, biases, strict=True):
            x = F.gelu(x @ weight_DH + bias_H)
        return x

    return [partial(run, *layers) for layers in zip(weights, biases, strict=True)]


@pytest.mark.parametrize("execution", ["dense", "grouped"])
@pytest.mark.parametrize("K", [2, 3, 4])
@pytest.mark.parametrize("length", [1, 13])
@pytest.mark.parametrize("width", [100, 600])
def test_a_loop_over_samples_and_picks(width, length, K, execution):
    """Output and the gradients of input, gate weights, both weights and both biases.

    Case: ScatterMoE (shawntan/scattermoe), tests/test_mlp.py: 8 experts; the widths of its grid
    that leave columns over in a register.
    """
    torch.manual_seed(width + K)
    weights_BK, picks_BK = torch.rand(length, 8).softmax(-1).topk(K)
    gate = Given(weights_BK.unsqueeze(1), picks_BK.unsqueeze(1).int())
    pool = MLPExperts(8, width, [width // K, width], activation="gelu")
    for bias in pool.biases:
        nn.init.normal_(bias)
    layer = MultiGateMixture(width, 1, pool, gate=gate, execution=execution)
    x = torch.randn(length, width, requires_grad=True)
    grad = torch.randn(length, width)
    leaves, experts = [x, *layer.parameters()], experts_of(pool)

    out = layer(x).out_BGO[:, 0]

    slow = torch.stack(
        [
            sum(gate.weights_BGK[i, 0, j] * experts[picks_BK[i, j]](x[i]) for j in range(K))
            for i in range(length)
        ]
    )
    torch.testing.assert_close(out, slow, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(
        torch.autograd.grad(out, leaves, grad),
        torch.autograd.grad(slow, leaves, grad),
        rtol=1e-4,
        atol=1e-4,
    )


MEGABLOCKS = [(4, 2, 2, 1), (4, 2, 2, 2), (4, 2, 2, 4), (256, 96, 4, 2), (256, 96, 64, 4)]


@pytest.mark.parametrize(("samples", "width", "experts", "K"), MEGABLOCKS)
def test_bins_of_one_size(samples, width, experts, K):
    """Every expert gets as many rows, zeros where it has fewer; what does not fit is left out.

    Case: MegaBlocks (databricks/megablocks), tests/ops/binned_gather_test.py and
    binned_scatter_test.py, capacity factor 1: samples · K / experts rows. There a row stands in a
    bin once for every pick of it, here once in all.
    """
    torch.manual_seed(samples + experts)
    picks_BGK = torch.randint(experts, (samples, 1, K)).int()
    x_BD, weights_BGK = torch.randn(samples, width), torch.rand(samples, 1, K)
    most = samples * K // experts
    # Bins by a loop; what comes too late leaves the picks.
    bins, kept_BGK = [[] for _ in range(experts)], picks_BGK.clone()
    for b, row in enumerate(picks_BGK[:, 0].tolist()):
        for e in dict.fromkeys(row):
            if len(bins[e]) < most:
                bins[e].append(b)
            else:
                kept_BGK[b][picks_BGK[b] == e] = -1
    expected_ECD, expected_BD = torch.zeros(experts, most, width), torch.zeros(samples, width)
    for e, rows in enumerate(bins):
        for place, b in enumerate(rows):
            expected_ECD[e, place] = x_BD[b]
            for k in range(K):
                if picks_BGK[b, 0, k] == e:
                    expected_BD[b] += weights_BGK[b, 0, k] * 2 * x_BD[b]

    plan = padded_routes(plan_routes(kept_BGK, experts), kept_BGK, most)
    gathered = permute(x_BD, plan)
    scattered = gated_combine(2 * gathered, plan.slots_BGK, weights_BGK)

    assert torch.equal(gathered.view(experts, most, width), expected_ECD)
    torch.testing.assert_close(scattered[:, 0], expected_BD, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("tokens", [8, 1000])
@pytest.mark.parametrize("centers", [1, 2, 8, 128])
@pytest.mark.parametrize("width", [1, 2, 8])
def test_a_value_for_each_row_of_a_bin(tokens, centers, width):
    """Copies of a bin's value for its rows; backwards, a sum over them.

    Case: MegaBlocks, tests/ops/replicate_test.py.
    """
    torch.manual_seed(tokens)
    sizes_E = torch.randint(centers, (tokens,)).bincount(minlength=centers)
    offsets_E1 = F.pad(sizes_E.cumsum(0), (1, 0)).int()
    values_EH = torch.randn(centers, width, requires_grad=True)

    rows_PH = per_row(values_EH, offsets_E1, tokens)

    assert torch.equal(rows_PH, values_EH.repeat_interleave(sizes_E, 0))
    (gradient,) = torch.autograd.grad(rows_PH.sum(), values_EH)
    assert torch.equal(gradient, sizes_E.unsqueeze(1).expand(-1, width).float())


def make_moe(experts, K, execution="grouped", capacity=None, **options):
    torch.manual_seed(42)
    gate = TopKGate(24, 1, experts, k=K, softmax="before", **options)
    pool = MLPExperts(experts, 24, [48, 24], activation="gelu")
    return MoE(24, pool, gate=gate, execution=execution, capacity=capacity)


FORWARD = [(1, 1), (2, 1), (4, 1), (8, 1), (2, 2), (4, 2), (4, 4), (8, 2), (8, 4), (8, 8)]


@pytest.mark.parametrize("execution", ["dense", "grouped", "auto"])
@pytest.mark.parametrize(("experts", "K"), FORWARD)
def test_training_with_both_losses(experts, K, execution):
    """[tokens, batch, width] in and out, in bfloat16, with load-balancing and z-loss.

    Case: MegaBlocks, tests/layers/dmoe_test.py and moe_test.py: test_dmoe_forward,
    test_dmoe_forward_backward and …_with_zloss. They look at shapes; we also at the numbers.
    """
    layer = make_moe(experts, K, execution, balance_loss=0.1, z_loss=1e-3).bfloat16()
    x = torch.randn(10, 3, 24).bfloat16().requires_grad_()

    out, losses, _, _ = layer(x, return_auxiliary=True)
    (out.sum() + sum(losses.values())).backward()

    assert out.shape == x.shape == x.grad.shape
    assert out.dtype == torch.bfloat16
    assert set(losses) == {"balance_loss", "z_loss"}
    rows = x.detach().view(30, 24)
    weights, picks, _ = layer.mixture.gate([rows], torch.ones(1, experts, dtype=torch.bool))
    y = torch.stack([expert(rows) for expert in experts_of(layer.mixture.experts)], 1)
    picked = y.gather(1, picks[:, 0].long().unsqueeze(-1).expand(-1, -1, 24))
    slow = (weights[:, 0].unsqueeze(-1) * picked).sum(1)
    torch.testing.assert_close(out.view(30, 24).float(), slow, rtol=3e-2, atol=3e-2)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())


@pytest.mark.parametrize("execution", ["dense", "grouped", "padded"])
@pytest.mark.parametrize("activation", ["gelu", "swiglu"])
def test_one_expert_is_a_feed_forward_layer(execution, activation):
    """Output and every gradient, with a gated unit as well.

    Case: MegaBlocks, dmoe_test.py (test_dmoe_forward_vs_baseline), moe_test.py
    (test_moe_forward_backward_vs_dense) and glu_test.py.
    """
    torch.manual_seed(0)
    pool = MLPExperts(1, 24, [48], activation=activation)
    layer = MoE(24, pool, k=1, execution=execution, capacity=Capacity(1.0))
    x = torch.randn(7, 5, 24, requires_grad=True)

    out = layer(x)

    z = x @ pool.weights[0][0] + pool.biases[0][0]
    expected = F.gelu(z) if activation == "gelu" else F.silu(z[..., :48]) * z[..., 48:]
    torch.testing.assert_close(out, expected)
    leaves = [x, *pool.parameters()]
    torch.testing.assert_close(
        torch.autograd.grad(out.square().sum(), leaves),
        torch.autograd.grad(expected.square().sum(), leaves),
    )


@pytest.mark.parametrize(("experts", "K"), FORWARD)
def test_padded_without_a_limit_is_dropless(experts, K):
    """Case: MegaBlocks, dmoe_test.py, test_dmoe_forward_vs_moe: capacity factor 0."""
    dropless = make_moe(experts, K)
    padded = make_moe(experts, K, "padded", Capacity(0.0))
    x = torch.randn(64, 24)

    out, _, dropped, _ = padded(x, return_auxiliary=True)

    assert int(dropped) == 0
    assert torch.equal(out, dropless(x))


GROUPED_GEMM = {
    "fixed": [16] * 8,
    "one": [128],
    # Half an expert's rows, a few, one, none: their sizes over 41.
    "uneven, one empty": [5, 55, 1, 197, 1, 27, 114, 0],
    "random": [9, 31, 2, 18, 4, 25, 13, 26],
}


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("sizes", GROUPED_GEMM.values(), ids=GROUPED_GEMM)
@pytest.mark.parametrize(("D", "H"), [(128, 128), (128, 256)])
def test_products_of_groups(sizes, D, H, transposed):
    """In bfloat16, against one product for each group; weights may be transposed in memory.

    Case: grouped_gemm (tgale96/grouped_gemm), grouped_gemm/ops_test.py:
    testGroupedGemm_FixedSizes, …_VariableSizes and …_ZeroSize.
    """
    torch.manual_seed(0)
    E, rows = len(sizes), sum(sizes)
    x_PD = torch.randn(rows, D).bfloat16().requires_grad_()
    shape = (E, H, D) if transposed else (E, D, H)
    leaf = (torch.randn(shape) / D).bfloat16().requires_grad_()
    weight_EDH = leaf.transpose(1, 2) if transposed else leaf
    offsets_E1 = F.pad(torch.tensor(sizes).cumsum(0), (1, 0)).int()

    y_PH = grouped_mm(x_PD, offsets_E1, weight_EDH)

    parts = zip(x_PD.split(sizes), weight_EDH, strict=True)
    slow_PH = torch.cat([part @ weight for part, weight in parts])
    torch.testing.assert_close(y_PH, slow_PH, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(
        torch.autograd.grad(y_PH.sum(), [x_PD, leaf]),
        torch.autograd.grad(slow_PH.sum(), [x_PD, leaf]),
        rtol=2e-2,
        atol=2e-1,  # sums of up to 197 numbers, in another order
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_weight_gradients_of_empty_groups_are_zero(dtype):
    """With ones everywhere the gradient of a weight is its group's size, exactly; garbage in the
    memory it is written to does not show.

    Case: grouped_gemm, ops_test.py, testGroupedGemm_ZeroK: sizes 0, 128, 0 and 64.
    """
    sizes = torch.tensor([0, 128, 0, 64])
    offsets_E1 = F.pad(sizes.cumsum(0), (1, 0)).int()
    x_PD, weight_EDH = torch.ones(192, 128, dtype=dtype), torch.ones(4, 128, 128, dtype=dtype)
    for _ in range(3):
        used = torch.full_like(weight_EDH, torch.nan)
        del used  # its memory is likely to come back as the gradient's
        leaf = weight_EDH.clone().requires_grad_()
        grouped_mm(x_PD, offsets_E1, leaf).backward(torch.ones(192, 128, dtype=dtype))
        assert torch.equal(leaf.grad, sizes.view(4, 1, 1).expand(4, 128, 128).to(dtype))
