"""A softmax over few numbers for many rows."""

import pytest
import torch

from mmoe.ops.gating import row_softmax


def rows(shape, dtype=torch.float32):
    torch.manual_seed(sum(shape))
    return (3 * torch.randn(shape, dtype=torch.float64)).to(dtype)


def test_what_is_not_a_number_stays_in_its_row():
    x_RN = rows((100, 6))
    x_RN[3, 0] = x_RN[5, 4] = torch.nan
    x_RN[7] = -torch.inf
    x_RN[9, 2] = -torch.inf

    p_RN = row_softmax(x_RN)

    wrong_R = torch.tensor([row in (3, 5, 7) for row in range(100)])
    assert torch.equal(p_RN.isnan(), wrong_R[:, None].expand(100, 6))
    assert p_RN[9, 2] == 0


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.ones(3), r"x_RN: expected 2 dimensions \[R, N\]"),
        (torch.ones(3, 4).bfloat16(), "x_RN: expected torch.float32 or torch.float64, got"),
        (torch.ones(3, 17), "x_RN: expected rows of 1 to 16 numbers, got 17; use .softmax"),
        (torch.ones(3, 0), "x_RN: expected rows of 1 to 16 numbers, got 0"),
    ],
)
def test_refuses(x, message):
    with pytest.raises(ValueError, match=message):
        row_softmax(x)
