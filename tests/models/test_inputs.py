"""Numbers and embeddings side by side."""

import pytest
import torch

from mmoe.models.inputs import join_inputs


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("numbers", [0, 3])
def test_equals_cat_and_a_cast(bf16, numbers):
    torch.manual_seed(0)
    dense_BF, x_BD = torch.randn(5, numbers), torch.randn(5, 4).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        got = join_inputs(dense_BF, x_BD)
    wanted = torch.cat([dense_BF, x_BD], dim=1).to(torch.bfloat16 if bf16 else torch.float32)
    assert got.dtype == wanted.dtype
    assert torch.equal(got, wanted)
    weights = torch.randn(wanted.shape).to(wanted.dtype)
    gradients = [torch.autograd.grad(x, x_BD, weights)[0] for x in (got, wanted)]
    assert gradients[0].dtype == torch.float32
    assert torch.equal(*gradients)


def test_numbers_get_gradients_where_they_need_them():
    dense_BF, x_BD = torch.randn(5, 3).requires_grad_(), torch.randn(5, 4)
    with torch.autocast("cpu", torch.bfloat16):
        join_inputs(dense_BF, x_BD).sum().backward()
    assert torch.equal(dense_BF.grad, torch.ones(5, 3))
