"""What three parts in bfloat16 keep of a float32, by the arithmetic of the CUDA kernels."""

import math

import pytest
import torch

from tests.ops.bf16_parts import join_parts, parts_of, parts_product, rounded_product

LARGEST, SMALLEST = torch.finfo(torch.float32).max, 2.0**-149


def bits(count: int) -> torch.Tensor:
    """Floats of any bits: every exponent, denormals, infinities and NaN."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(-(2**31), 2**31 - 1, (count,), generator=generator)
    edges = torch.tensor([LARGEST, -LARGEST, 3.3953e38, SMALLEST, 2.0**-126 - SMALLEST, 0.0, -1.0])
    return torch.cat([drawn.to(torch.int32).view(torch.float32), edges])


def test_three_parts_are_every_finite_float_exactly():
    x = bits(300_000)
    x = x[x.isfinite()]

    first, second, third = (part.double() for part in parts_of(x))

    assert torch.equal(first + (second + third / 256) / 256, x.double())
    for part in (first, second, third):
        assert part.isfinite().all()
        assert torch.equal(part.bfloat16().double(), part)
    # So the lower parts' sums overflow no earlier than the first's
    usual = (x.abs() >= 2.0**-126) & (x.abs() <= torch.finfo(torch.bfloat16).max)
    assert (second.abs() <= first.abs())[usual].all()
    assert (third.abs() <= first.abs())[usual].all()


def test_infinities_and_nan_are_the_first_part():
    first, second, third = parts_of(torch.tensor([math.inf, -math.inf, math.nan]))

    assert first[:2].tolist() == [math.inf, -math.inf]
    assert first[2].isnan()
    assert not second.any()
    assert not third.any()


def test_what_is_infinite_or_nan_is_so_in_a_product_too():
    special = torch.tensor([math.inf, -math.inf, math.nan, 0.0, 1.0, 1 / 3, -2.0, LARGEST])
    x_BD = torch.cartesian_prod(special, special).bfloat16().float()
    weight_DN = torch.cartesian_prod(special, special).mT.contiguous()
    # Sums of two finite numbers may overflow; those of parts then need not be the same
    expected = x_BD[:, :1] * weight_DN[:1] + x_BD[:, 1:] * weight_DN[1:]

    parts = [x_BD[:, :1] * part[:1] + x_BD[:, 1:] * part[1:] for part in parts_of(weight_DN)]
    y_BN = join_parts(*parts)

    assert torch.equal(y_BN.isnan(), expected.isnan())
    finite = expected.isfinite()
    assert torch.equal(y_BN[expected.isinf()], expected[expected.isinf()])
    torch.testing.assert_close(y_BN[finite], expected[finite], rtol=3e-7, atol=0)


@pytest.mark.parametrize("positive", [False, True], ids=["any-sign", "positive"])
@pytest.mark.parametrize("D", [16, 330, 1024])
def test_errors_are_those_of_a_plain_product_in_float32(D, positive):
    generator = torch.Generator().manual_seed(D)
    x_BD = torch.randn(64, D, generator=generator).bfloat16().float()
    weight_DN = torch.randn(D, 16, generator=generator)
    if positive:
        x_BD, weight_DN = x_BD.abs(), weight_DN.abs()
    exact = x_BD.double() @ weight_DN.double()
    scale = x_BD.abs().double() @ weight_DN.abs().double()

    ours, plain, narrow = (
        float(((y_BN - exact).abs() / scale).max())
        for y_BN in (
            parts_product(x_BD, weight_DN),
            rounded_product(x_BD, weight_DN),
            x_BD @ weight_DN.bfloat16().float(),
        )
    )

    assert ours < 2 * plain
    assert ours < narrow / 100
