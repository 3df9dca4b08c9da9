"""DeepSpeed's and Megatron-LM's test cases for gates and capacity, told in our own words.

Cases: deepspeedai/DeepSpeed, tests/unit/moe/test_moe.py; NVIDIA/Megatron-LM,
tests/unit_tests/transformer/moe/: test_token_dispatcher.py, test_aux_loss.py, test_grouped_mlp.py,
test_token_count_preservation.py. Megatron's "there and back is the identity" is in
tests/ops/test_permute_cases.py.
"""

import pytest
import torch
from torch import nn

from mmoe.mixture import Capacity, GateOutput, MLPExperts, MultiGateMixture, TopKGate
from mmoe.mixture.gates import losses
from mmoe.ops import topk_gate


class GivenLogits(nn.Module):
    """A gate whose logits are a parameter: the k largest, with their share of the full softmax."""

    def __init__(self, logits_BGE, k):
        super().__init__()
        self.logits_BGE, self.k = nn.Parameter(logits_BGE), k

    def forward(self, inputs, visibility_GE):
        weights, experts = topk_gate(self.logits_BGE, visibility_GE, self.k, softmax="before")
        return GateOutput(weights, experts, {})


class Sees(nn.Module):
    """A pool that gives rows back, and remembers the first number of every row of each expert."""

    output_dim = None

    def __init__(self, num_experts):
        super().__init__()
        self.num_experts, self.rows_E = num_experts, []

    def __len__(self):
        return self.num_experts

    def dense(self, inputs):
        self.rows_E = [x[:, 0].tolist() for x in inputs]
        return list(inputs)

    def grouped(self, rows, offsets_E1):
        parts = rows.tensor_split(offsets_E1[1:-1].long())
        self.rows_E = [part[:, 0].tolist() for part in parts]
        return rows


# Logits, k, capacity, and the samples that stay with each expert, in order, counted from 1.
FOUR = [[0.11, 0.2, 0.1, 0.3], [0.3, 0.4, 0.11, 0.1], [0.11, 0.1, 0.6, 0.5], [0.1, 0.11, 0.7, 0.8]]
SIX = [
    [0.5858, 0.4801, 0.6269, 0.5397, 0.9722, 0.7034],
    [0.5445, 0.6332, 0.4519, 0.6308, 0.0519, 0.6450],
    [0.4874, 0.8110, 0.7467, 0.8474, 0.0277, 0.3068],
    [0.8570, 0.6714, 0.5310, 0.3274, 0.4836, 0.9892],
]
AGREE = [
    [0.95, 0.85, 0.90, 0.80],
    [0.70, 0.65, 0.75, 0.60],
    [0.50, 0.55, 0.45, 0.40],
    [0.35, 0.30, 0.25, 0.20],
]
TABLES = [
    (FOUR, 2, Capacity(1.0, "probability"), [[2], [1, 2], [3, 4], [3, 4]]),
    (FOUR, 2, Capacity(1.0, "position"), [[2], [1, 2], [3, 4], [1, 3]]),
    (SIX, 3, Capacity(1.0, "probability"), [[4], [2, 3], [1, 3], [2, 3], [1], [2, 4]]),
    (SIX, 3, Capacity(1.0, "position"), [[4], [2, 3], [1, 3], [2, 3], [1], [1, 2]]),
    (AGREE, 2, Capacity(0.0), [[1, 2, 3, 4], [3, 4], [1, 2], []]),
]


@pytest.mark.parametrize("execution", ["grouped", "padded"])
@pytest.mark.parametrize("scale", [1, 2])
@pytest.mark.parametrize(("logits", "k", "capacity", "stays"), TABLES)
def test_who_stays_with_an_expert_and_where(logits, k, capacity, stays, scale, execution):
    """Case: DeepSpeed, TestTopkGate: tables of samples, experts and places in an expert's rows."""
    logits_BGE = scale * torch.tensor(logits).unsqueeze(1)
    B, _, E = logits_BGE.shape
    gate, pool = GivenLogits(logits_BGE, k), Sees(E)
    layer = MultiGateMixture(1, 1, pool, gate=gate, capacity=capacity, execution=execution)
    x = torch.arange(1.0, B + 1).unsqueeze(1)

    result = layer(x)

    width = capacity.limit(B, k, E) if execution == "padded" else 0
    assert pool.rows_E == [rows + [0] * (width - len(rows)) for rows in stays]
    assert int(result.dropped) == B * k - sum(map(len, stays))
    shares_BE = logits_BGE[:, 0].softmax(1)
    expected = [
        sum(shares_BE[b, e] for e, rows in enumerate(stays) if b + 1 in rows) * x[b]
        for b in range(B)
    ]
    torch.testing.assert_close(result.out_BGO[:, 0], torch.stack(expected))


@pytest.mark.parametrize("priority", ["probability", "position"])
@pytest.mark.parametrize(
    ("rows", "experts", "k", "capacity"),
    [
        (8, 2, 2, {"factor": 2.0}),
        (8, 2, 1, {"factor": 4.0}),
        (4, 2, 1, {"factor": 1.0, "minimum": 8}),
        (3, 4, 1, {"factor": 8.0}),
    ],
)
def test_more_room_than_rows(rows, experts, k, capacity, priority):
    """Nothing is dropped; no more rows are set aside than there are, as an expert has none twice.

    Case: DeepSpeed, test_topkgating_probs_capacity_exceeds_num_tokens and the three after it.
    There more rows than tokens are set aside.
    """
    torch.manual_seed(0)
    gate, pool = GivenLogits(torch.randn(rows, 1, experts), k), Sees(experts)
    limits = Capacity(**capacity, priority=priority)
    layer = MultiGateMixture(1, 1, pool, gate=gate, capacity=limits, execution="padded")

    result = layer(torch.ones(rows, 1))

    assert int(result.dropped) == 0
    assert [len(seen) for seen in pool.rows_E] == [rows] * experts
    assert sum(map(sum, pool.rows_E)) == rows * k


@pytest.mark.parametrize("rows", [2, 10])
def test_as_much_room_as_the_busiest_expert_needs(rows):
    """Case: DeepSpeed, TestTopk: two ranks with 2 and 10 rows, nothing dropped."""
    torch.manual_seed(rows)
    gate, pool = GivenLogits(torch.rand(rows, 1, 2), 1), Sees(2)
    layer = MultiGateMixture(1, 1, pool, gate=gate, capacity=Capacity(0.0), execution="padded")

    result = layer(torch.ones(rows, 1))

    assert int(result.dropped) == 0
    busiest = max(gate.logits_BGE.argmax(-1).flatten().bincount().tolist())
    assert [len(seen) for seen in pool.rows_E] == [busiest] * 2


@pytest.mark.parametrize("priority", ["probability", "position"])
@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
def test_padding_to_the_capacity_changes_nothing(factor, priority):
    """Output and gradients; all experts have as many rows as the capacity, or at most as many.

    Case: Megatron-LM, dispatcher_capacity_test and dispatcher_drop_and_pad_test: 16 rows, top 2 of
    8 experts; test_routers.py, test_token_dropping.
    """
    torch.manual_seed(0)
    logits_BGE, x = torch.randn(16, 1, 8), torch.randn(16, 16)
    results, counts = [], []
    for execution in ("grouped", "padded"):
        gate, pool = GivenLogits(logits_BGE.clone(), 2), Sees(8)
        layer = MultiGateMixture(
            16, 1, pool, gate=gate, capacity=Capacity(factor, priority), execution=execution
        )
        leaf = x.clone().requires_grad_()
        result = layer(leaf)
        result.out_BGO.square().sum().backward()
        results.append((result.out_BGO, result.dropped, leaf.grad, gate.logits_BGE.grad))
        counts.append([len(rows) for rows in pool.rows_E])

    torch.testing.assert_close(*results)
    limit = int(factor * 16 * 2 / 8)
    assert max(counts[0]) <= limit
    assert sum(counts[0]) == 32 - int(results[0][1])
    assert counts[1] == [limit] * 8


def test_rows_without_picks_change_nothing_for_the_others():
    """They come out as zeros, get no gradient and are not counted.

    Case: Megatron-LM, test_aux_loss.py, TestPaddingMaskAuxLoss, and test_routers.py,
    test_router_with_padding_mask: the second half of a batch is padding.
    """
    torch.manual_seed(0)
    gate = TopKGate(6, 2, 5, k=2)
    x = torch.randn(12, 6)

    def run(x, valid):
        decision = gate([x, x], torch.ones(2, 5, dtype=torch.bool))
        unused_B11 = (torch.arange(len(x)) >= valid).view(-1, 1, 1)
        picks_BGK = decision.experts.masked_fill(unused_B11, -1)
        torch.manual_seed(1)
        layer = MultiGateMixture(
            6, 2, MLPExperts(5, 6, [7]), gate=Told(decision.weights, picks_BGK)
        )
        x = x.clone().requires_grad_()
        result = layer(x, return_statistics=True)
        result.out_BGO.sum().backward()
        return result.out_BGO, x.grad, result.statistics.picks_GE, list(layer.experts.parameters())

    padded, alone = run(x, 6), run(x[:6], 6)

    assert torch.equal(padded[0][:6], alone[0])
    assert torch.equal(padded[1][:6], alone[1])
    assert not padded[0][6:].any()
    assert not padded[1][6:].any()
    assert torch.equal(padded[2], alone[2])
    for left, right in zip(padded[3], alone[3], strict=True):
        assert torch.equal(left.grad, right.grad)


class Told(nn.Module):
    """A gate that decides what it was told."""

    def __init__(self, weights_BGK, experts_BGK):
        super().__init__()
        self.decision = GateOutput(weights_BGK.detach(), experts_BGK, {})

    def forward(self, inputs, visibility_GE):
        return self.decision


@pytest.mark.parametrize("scope", ["gate", "all"])
@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize("rows", [[8, 8, 8, 8], [6, 0, 3, 5], [0, 0, 0, 32]])
def test_losses_of_a_batch_in_parts_are_those_of_the_whole(rows, k, scope):
    """Counts and importances add up over ranks, those without rows too; so do gradients.

    Case: Megatron-LM, test_aux_loss.py, TestAuxLoss (a batch over 8 ranks in five ways), and
    test_token_count_preservation.py (uneven ranks, one without rows).
    """
    torch.manual_seed(k)
    whole_BGE = torch.randn(sum(rows), 2, 8, dtype=torch.float64, requires_grad=True)
    parts = [part.detach().requires_grad_() for part in whole_BGE.split(rows)]
    seen_GE = torch.ones(2, 8, dtype=torch.bool)

    def measure(logits_BGE):
        _, experts_BGK = topk_gate(logits_BGE, seen_GE, k)
        shares_BGE = logits_BGE.softmax(-1)
        return losses.count_picks(experts_BGK, 8), shares_BGE.sum(0)

    measures = [measure(part) for part in parts]
    counts_GE, importance_GE = (sum(terms) for terms in zip(*measures, strict=True))
    loss = losses.balance(counts_GE, importance_GE, seen_GE, scope)
    z_loss = sum(len(part) * losses.z_loss(part, seen_GE) for part in parts) / sum(rows)

    whole_counts_GE, whole_importance_GE = measure(whole_BGE)
    assert torch.equal(counts_GE, whole_counts_GE)
    assert [int(counts.sum()) for counts, _ in measures] == [2 * k * count for count in rows]
    expected = losses.balance(whole_counts_GE, whole_importance_GE, seen_GE, scope)
    torch.testing.assert_close(loss, expected)
    expected_z = losses.z_loss(whole_BGE, seen_GE)
    torch.testing.assert_close(z_loss, expected_z)
    (gradient,) = torch.autograd.grad(expected + expected_z, whole_BGE)
    split = torch.autograd.grad(loss + z_loss, parts)
    torch.testing.assert_close(torch.cat(split), gradient)


@pytest.mark.parametrize("scope", ["gate", "all"])
def test_the_loss_of_gates_that_do_not_care_is_one(scope):
    """However uneven the picks are (ties all go to the same experts).

    Case: Megatron-LM, test_aux_loss.py, test_force_balanced_aux_loss: 32 experts, top 8.
    """
    gate = TopKGate(12, 3, 32, k=8, balance_loss=1.0, balance_scope=scope)
    nn.init.zeros_(gate.logits.weights[0])

    decision = gate([torch.randn(64, 12)] * 3, torch.ones(3, 32, dtype=torch.bool))

    assert decision.experts.unique().tolist() == list(range(8))
    assert float(decision.auxiliary_losses["balance_loss"].detach()) == 1


@pytest.mark.parametrize("norm", [None, "layer", "batch"])
@pytest.mark.parametrize("activation", ["gelu", "swiglu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_rows_at_all(activation, norm, dtype):
    """An empty output of the right width, and gradients that are there, and zero.

    Case: Megatron-LM, test_grouped_mlp.py, test_gpu_forward_backward_with_no_tokens_allocated.
    """
    pool = MLPExperts(2, 16, [64, 16], activation=activation, norm=norm).to(dtype)
    x = torch.rand(0, 16, dtype=dtype, requires_grad=True)

    out = pool.grouped(x, torch.zeros(3, dtype=torch.int32))
    out.sum().backward()

    assert out.shape == x.grad.shape == (0, 16)
    for name, parameter in pool.named_parameters():
        assert parameter.grad is not None, name
        assert not parameter.grad.any(), name
    assert all(buffer.isfinite().all() for buffer in pool.buffers())
