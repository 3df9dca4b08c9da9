"""float32 weights beside bfloat16 rows: read as the nearest bfloat16, ties to even, bit for bit."""

import pytest
import torch

from mmoe.ops import dense_mm, grouped_mm


@pytest.fixture(params=[(64, 64), (64, 67), (33, 48), (61, 35), (7, 5), (1, 1), (130, 300)])
def weight_EDH(request):
    """Numbers of which every third lies in the middle between two bfloat16."""
    D, H = request.param
    weight_EDH = torch.randn(2, D, H, generator=torch.Generator().manual_seed(D))
    bits = weight_EDH.view(torch.int32)
    middle = torch.arange(bits.numel()).view(bits.shape) % 3 == 0
    return torch.where(middle, bits & ~0xFFFF | 0x8000, bits).view(torch.float32)


@pytest.fixture(params=[False, True], ids=["rows", "columns"])
def laid_out(request):
    """The weights as they are, or as a view whose columns lie together."""

    def lay_out(weight_EDH):
        return weight_EDH.mT.contiguous().mT if request.param else weight_EDH

    return lay_out


def identity(size):
    return torch.eye(size, dtype=torch.bfloat16)


def grouped(x, weight_EDH):
    """Both experts read x."""
    rows = len(x)
    offsets_E1 = torch.tensor([0, rows, 2 * rows], dtype=torch.int32)
    return grouped_mm(torch.cat([x, x]), offsets_E1, weight_EDH).view(2, rows, -1)


def dense(x, weight_EDH):
    return torch.stack(dense_mm([x, x.clone()], weight_EDH))


def dense_shared(x, weight_EDH):
    return torch.stack(dense_mm(x, weight_EDH))


@pytest.mark.parametrize("layer", [grouped, dense, dense_shared])
def test_products_read_the_nearest(weight_EDH, laid_out, layer):
    y_EBH = layer(identity(weight_EDH.shape[1]), laid_out(weight_EDH))

    assert torch.equal(y_EBH, weight_EDH.bfloat16())


@pytest.mark.parametrize("layer", [grouped, dense, dense_shared])
def test_gradients_of_rows_read_the_nearest(weight_EDH, laid_out, layer):
    _, D, H = weight_EDH.shape
    x_HD = torch.zeros(H, D, dtype=torch.bfloat16, requires_grad=True)

    for expert in range(2):
        grad_EHH = torch.zeros(2, H, H, dtype=torch.bfloat16)
        grad_EHH[expert] = identity(H)
        (grad_HD,) = torch.autograd.grad(layer(x_HD, laid_out(weight_EDH)), x_HD, grad_EHH)
        assert torch.equal(grad_HD, weight_EDH[expert].t().bfloat16())


@pytest.mark.parametrize("layer", [grouped, dense, dense_shared])
def test_what_is_added_up_is_rounded_before(layer):
    """On every processor: those without products of bfloat16 multiply in float32."""
    weight_EDH = torch.tensor([[1 + 2.0**-9], [1.0]]).repeat(2, 20, 37)
    x = torch.tensor([[1.0, -1.0]], dtype=torch.bfloat16).repeat(3, 20)

    assert not layer(x, weight_EDH).any()
