"""Sums over each expert's rows and values for each row, against loops; their gradients."""

import pytest
import torch

from mmoe.mixture.experts.norm import per_row, segment_sum

SIZES = [[3, 0, 2], [0, 0, 0], [1, 4, 0], [0, 0, 6]]


def offsets_of(sizes):
    return torch.tensor([0, *torch.tensor(sizes).cumsum(0).tolist()], dtype=torch.int32)


@pytest.mark.parametrize("tail", [0, 2])
@pytest.mark.parametrize("sizes", SIZES)
def test_segment_sum_is_a_sum_over_slices(sizes, tail):
    torch.manual_seed(0)
    offsets = offsets_of(sizes)
    y = torch.randn(sum(sizes) + tail, 5, dtype=torch.float64, requires_grad=True)
    sums = segment_sum(y, offsets)
    parts = y[: sum(sizes)].split(sizes)
    torch.testing.assert_close(sums, torch.stack([part.sum(0) for part in parts]))
    assert torch.autograd.gradcheck(lambda y: segment_sum(y, offsets), (y,))


@pytest.mark.parametrize("tail", [0, 2])
@pytest.mark.parametrize("sizes", SIZES)
def test_per_row_repeats_and_leaves_the_tail_zero(sizes, tail):
    torch.manual_seed(0)
    offsets, rows = offsets_of(sizes), sum(sizes) + tail
    values = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    expected = values.repeat_interleave(torch.tensor(sizes), dim=0)
    y = per_row(values, offsets, rows)
    assert torch.equal(y[: sum(sizes)], expected)
    assert (y[sum(sizes) :] == 0).all()
    assert torch.autograd.gradcheck(lambda values: per_row(values, offsets, rows), (values,))
