"""stable_linear: the product, and rows that keep their bits wherever they stand."""

import pytest
import torch
import torch.nn.functional as F

from mmoe.mixture.linear import stable_linear


@pytest.mark.parametrize("width", [1, 2, 8, 11, 16, 33])
@pytest.mark.parametrize("bias", [True, False])
def test_is_the_linear_layer(width, bias):
    torch.manual_seed(0)
    x, weight = torch.randn(50, 33), torch.randn(width, 33)
    b = torch.randn(width) if bias else None
    torch.testing.assert_close(stable_linear(x, weight, b), F.linear(x, weight, b))


@pytest.mark.parametrize("rows", [100, 512])
@pytest.mark.parametrize("width", [1, 2, 3, 4, 6, 8, 11, 12, 16, 24, 64])
def test_shuffled_rows_keep_their_bits(width, rows):
    torch.manual_seed(0)
    for inner in (6, 33, 330):
        x, weight = torch.randn(rows, inner), torch.randn(width, inner)
        order = torch.randperm(rows)
        assert torch.equal(stable_linear(x[order], weight), stable_linear(x, weight)[order])
