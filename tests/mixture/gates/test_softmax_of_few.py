"""The softmax of few numbers: torch's, with bits of a row that depend on that row alone."""

import pytest
import torch

from mmoe.ops.gating import visible_softmax


def softmax_of_few(x):
    return visible_softmax(x, torch.ones(1, dtype=torch.bool))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    "shape", [(9, 2, 4), (0, 3, 5), (7, 1), (300, 7, 15), (5, 3, 16), (4, 3, 0)]
)
def test_it_is_the_softmax_with_its_gradient(shape, dtype):
    torch.manual_seed(0)
    x = (4 * torch.randn(shape)).to(dtype).requires_grad_()
    wanted = x.softmax(-1)
    grad = torch.randn_like(wanted)

    found = softmax_of_few(x)

    torch.testing.assert_close(found, wanted)
    assert found.is_contiguous()
    (of_x,) = torch.autograd.grad(found, x, grad)
    torch.testing.assert_close(of_x, torch.autograd.grad(wanted, x, grad)[0])
    with torch.no_grad():
        assert torch.equal(softmax_of_few(x), found)


def test_gradcheck():
    x = torch.randn(3, 2, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(softmax_of_few, (x,))


def test_hidden_numbers_have_no_weight_and_large_ones_all():
    x = torch.tensor([[1e30, 0.0, -torch.inf], [-torch.inf, -torch.inf, -1e30]])
    assert softmax_of_few(x).tolist() == [[1, 0, 0], [0, 0, 1]]
    nothing = softmax_of_few(torch.full((2, 3), -torch.inf))
    assert nothing.isnan().all()  # as torch says it; gates refuse it


@pytest.mark.parametrize("few", range(1, 16))
def test_a_row_keeps_its_bits_wherever_it_is(few):
    torch.manual_seed(few)
    x = torch.randn(67, 3, few)
    order = torch.randperm(67)
    whole = softmax_of_few(x)
    assert torch.equal(softmax_of_few(x[order]), whole[order])
    for rows in (1, 2, 5, 33):
        assert torch.equal(softmax_of_few(x[:rows]), whole[:rows])
        assert torch.equal(softmax_of_few(x[-rows:]), whole[-rows:])
