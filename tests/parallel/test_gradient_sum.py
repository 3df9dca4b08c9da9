"""Which gradients are added up, and when; that the sums are right is tested on several ranks."""

import pytest
import torch
from torch import nn

from mmoe.parallel import AllReduceSums, GradientSum, ensure_process_group


@pytest.fixture(autouse=True)
def _group():
    ensure_process_group()


@pytest.fixture
def layers():
    torch.manual_seed(0)
    return nn.ModuleList(nn.Linear(4, 4) for _ in range(3))


def test_buckets_hold_neighbours_from_the_last_parameter_on(layers):
    sizes = [
        [len(bucket) for bucket in GradientSum(layers.parameters(), bucket_bytes=size).buckets]
        for size in (1, 64, 10**6)
    ]
    # A bias has 16 bytes, a weight 64: it closes the bucket that the bias began
    assert sizes == [[1] * 6, [2] * 3, [6]]
    assert GradientSum(layers.parameters(), bucket_bytes=1).buckets[0][0] is layers[2].bias


def test_types_do_not_share_a_bucket(layers):
    layers[1].double()
    buckets = GradientSum(layers.parameters()).buckets
    assert [bucket[0].dtype for bucket in buckets] == [torch.float32, torch.float64, torch.float32]


@pytest.mark.parametrize("bucket_bytes", [1, 64, 10**6])
def test_earlier_backward_passes_are_part_of_the_sum(layers, bucket_bytes):
    gradients = GradientSum(layers.parameters(), bucket_bytes=bucket_bytes)
    x = torch.randn(5, 4)

    def loss():
        return nn.Sequential(*layers)(x).square().sum()

    loss().backward()
    with gradients.in_flight():
        loss().backward()
    gradients.wait()
    for weight in layers.parameters():
        (once,) = torch.autograd.grad(loss(), weight)
        torch.testing.assert_close(weight.grad, 2 * once)


def test_what_no_rank_reaches_keeps_no_gradient(layers):
    """With a gradient of 0 AdamW would let its weights decay."""
    gradients = GradientSum(layers.parameters(), bucket_bytes=100)
    for _ in range(2):
        with gradients.in_flight():
            layers[1](torch.ones(1, 4)).sum().backward()
        gradients.wait()
    assert [layer.weight.grad is None for layer in layers] == [True, False, True]
    assert torch.equal(layers[1].weight.grad, torch.full((4, 4), 2.0))


def test_parameters_that_do_not_learn_are_left_out(layers):
    layers[0].requires_grad_(False)
    held = [w for bucket in GradientSum(layers.parameters()).buckets for w in bucket]
    assert len(held) == 4 and all(w.requires_grad for w in held)


def test_amounts_keep_their_types_and_shapes():
    counts, importance = torch.tensor([[2**53 - 1, 3]]), torch.tensor([0.1], requires_grad=True)
    summed, weighed, rows = AllReduceSums().of_losses(counts, importance, 7)
    assert torch.equal(summed, counts) and summed.dtype == torch.int64
    assert weighed.dtype == torch.float32 and int(rows) == 7
    (3 * weighed).backward()
    assert importance.grad == 3
