"""`gate_mm` on CUDA: a product in float32 whatever the rows are in, against float64 and the CPU."""

import math
from collections.abc import Iterator

import pytest
import torch

from mmoe.ops import gate_mm

pytestmark = pytest.mark.gpu
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

# Rows, their width, outputs: beside the tiles' 64 outputs (21 of three parts) and 128 rows.
SIZES = {
    "usual": (37, 16, 24),
    "one output": (20, 9, 1),
    "no rows": (0, 4, 6),
    "no width": (5, 0, 6),
    "no outputs": (5, 4, 0),
    "one of all": (1, 1, 1),
    "odd widths": (131, 33, 67),
    "a tile of parts": (128, 48, 21),
    "one more": (129, 129, 22),
    "a tile": (64, 128, 64),
    "many outputs": (70, 20, 300),
    "chunks of rows": (900, 136, 8),
    "deep": (40, 1024, 16),
}
# Of the sum of |x * w|: the rounding of sums of at most 1,024 numbers, any sign.
STEPS = {torch.float32: 1e-6, torch.bfloat16: 1e-6, torch.float64: 1e-15}


@pytest.fixture(params=SIZES, ids=lambda name: name.replace(" ", "-"))
def sizes(request):
    return SIZES[request.param]


@pytest.fixture
def tf32() -> Iterator[None]:
    """Products of float32 may be rounded to TF32, as a user may have said."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


def inputs(sizes, dtype):
    """Rows, weights, bias, and a gradient."""
    B, D, N = sizes
    generator = torch.Generator().manual_seed(D)
    sums = torch.float64 if dtype == torch.float64 else torch.float32
    x_BD, weight_DN, bias_N, grad_BN = (
        torch.randn(*shape, generator=generator) for shape in ((B, D), (D, N), (N,), (B, N))
    )
    return x_BD.to(dtype), weight_DN.to(sums), bias_N.to(sums), grad_BN.to(sums)


def check_sums(actual, a, b, step, bias: torch.Tensor | float = 0.0, rounds=0.0):
    """A product is within `step` of the sum of its terms' sizes, and `rounds` of itself."""
    exact = a.double() @ b.double() + bias
    scale = a.double().abs() @ b.double().abs() + abs(bias)
    assert actual.shape == exact.shape
    assert ((actual.cpu().double() - exact).abs() <= step * scale + rounds * exact.abs()).all()


def gradients(x_BD, weight_DN, grad_BN, *needs):
    on_gpu = (tensor.cuda() for tensor in (grad_BN, x_BD, weight_DN))
    return torch.ops.mmoe.gate_mm_backward(*on_gpu, *(needs or (True, True, True)))


def test_sums_are_those_of_float32(sizes, dtype):
    x_BD, weight_DN, bias_N, _ = inputs(sizes, dtype)

    plain = gate_mm(x_BD.cuda(), weight_DN.cuda())
    y_BN = gate_mm(x_BD.cuda(), weight_DN.cuda(), bias_N.cuda())

    assert y_BN.dtype == plain.dtype == weight_DN.dtype
    check_sums(plain, x_BD, weight_DN, STEPS[dtype])
    check_sums(y_BN, x_BD, weight_DN, STEPS[dtype], bias_N.double())


def test_gradients_are_those_of_float32(sizes, dtype):
    x_BD, weight_DN, _, grad_BN = inputs(sizes, dtype)

    grad_x, grad_weight, grad_bias = gradients(x_BD, weight_DN, grad_BN)

    assert grad_x.dtype == dtype
    assert grad_weight.dtype == grad_bias.dtype == weight_DN.dtype
    rounds = 2.0**-8 if dtype == torch.bfloat16 else 0.0
    check_sums(grad_x, grad_BN, weight_DN.mT, STEPS[dtype], rounds=rounds)
    check_sums(grad_weight, x_BD.mT, grad_BN, STEPS[dtype])
    check_sums(grad_bias[None], torch.ones(1, len(x_BD)), grad_BN, STEPS[dtype])


@pytest.mark.usefixtures("tf32")
def test_nothing_is_rounded_to_tf32(dtype):
    x_BD, weight_DN, bias_N, grad_BN = inputs(SIZES["odd widths"], dtype)

    y_BN = gate_mm(x_BD.cuda(), weight_DN.cuda(), bias_N.cuda())
    grad_x, grad_weight, _ = gradients(x_BD, weight_DN, grad_BN)
    torch.backends.cuda.matmul.allow_tf32 = False

    assert torch.equal(y_BN, gate_mm(x_BD.cuda(), weight_DN.cuda(), bias_N.cuda()))
    others = gradients(x_BD, weight_DN, grad_BN)
    assert torch.equal(grad_x, others[0])
    assert torch.equal(grad_weight, others[1])


def test_weights_are_not_rounded_beside_bfloat16_rows():
    weight_DN = torch.randn(70, 35).cuda()

    assert torch.equal(gate_mm(torch.eye(70).bfloat16().cuda(), weight_DN), weight_DN)
    eye_BD = torch.eye(70).bfloat16().cuda()
    grad_weight = torch.ops.mmoe.gate_mm_backward(weight_DN, eye_BD, weight_DN, False, True, False)
    assert torch.equal(grad_weight[1], weight_DN)


def test_any_float_comes_through():
    """The largest, denormals, infinities and NaN: each output is one product alone."""
    drawn = torch.randint(-(2**31), 2**31 - 1, (64, 70), generator=torch.Generator().manual_seed(0))
    weight_DN = drawn.to(torch.int32).view(torch.float32)
    weight_DN[0, :5] = torch.tensor([math.inf, -math.inf, math.nan, 3.3953e38, 2.0**-149])
    zeros_DN = weight_DN.new_zeros(64, 70)

    # A row of x for each of weight's, so that no infinity meets another's 0
    y_BN = torch.cat(
        [gate_mm(x_D.new_ones(1, 1).bfloat16().cuda(), x_D[None].cuda()) for x_D in weight_DN]
    )

    assert torch.equal(y_BN.cpu().nan_to_num(), weight_DN.nan_to_num())
    assert torch.equal(y_BN.cpu().isnan(), weight_DN.isnan())
    x_BD = torch.ones(1, 64).bfloat16()
    grad_weight = gradients(x_BD, zeros_DN, weight_DN[:1], False, True, False)[1].cpu()
    expected = weight_DN[:1].expand(64, 70)
    assert torch.equal(grad_weight.nan_to_num(), expected.nan_to_num())
    assert torch.equal(grad_weight.isnan(), expected.isnan())


def test_infinities_and_nan_are_those_of_a_product_in_float32(dtype):
    sums = torch.float64 if dtype == torch.float64 else torch.float32
    special = torch.tensor([math.inf, -math.inf, math.nan, 0.0, 1.0, 1 / 3, -2.0, 1e3])
    x_BD = torch.cartesian_prod(special, special).to(dtype)
    weight_DN = torch.cartesian_prod(special, special).mT.contiguous().to(sums)
    # BLAS on a CPU may take products with 0 for 0
    first, second = (x_BD[:, d : d + 1].to(sums) * weight_DN[d] for d in range(2))
    expected = first + second

    y_BN = gate_mm(x_BD.cuda(), weight_DN.cuda()).cpu()
    zeros_DN = weight_DN.new_zeros(64, 64)
    _, grad_weight, _ = gradients(x_BD.mT.contiguous(), zeros_DN, weight_DN, False, True, False)

    for actual in (y_BN, grad_weight.cpu()):
        assert torch.equal(actual.isnan(), expected.isnan())
        assert torch.equal(actual[expected.isinf()], expected[expected.isinf()])
        finite = expected.isfinite()
        torch.testing.assert_close(actual[finite], expected[finite], rtol=3e-7, atol=1e-6)


def test_a_rows_result_depends_on_that_row_alone(dtype):
    x_BD, weight_DN, bias_N, _ = inputs((300, 100, 30), dtype)
    x_BD, weight_DN, bias_N = x_BD.cuda(), weight_DN.cuda(), bias_N.cuda()
    y_BN = gate_mm(x_BD, weight_DN, bias_N)

    assert torch.equal(gate_mm(x_BD, weight_DN, bias_N), y_BN)
    assert torch.equal(gate_mm(x_BD[7:150], weight_DN, bias_N), y_BN[7:150])
    x_BD[3] = math.nan
    assert torch.equal(gate_mm(x_BD, weight_DN, bias_N)[4:], y_BN[4:])


@pytest.mark.parametrize("needed", range(3))
def test_one_gradient_alone(dtype, needed):
    x_BD, weight_DN, _, grad_BN = inputs(SIZES["odd widths"], dtype)
    every = gradients(x_BD, weight_DN, grad_BN)

    some = gradients(x_BD, weight_DN, grad_BN, *(i == needed for i in range(3)))

    for i, (part, whole) in enumerate(zip(some, every, strict=True)):
        assert torch.equal(part, whole) if i == needed else part.shape == (0,)


@pytest.mark.parametrize(
    ("x", "weight", "said"),
    [((3,), (3, 2), "x_BD: expected 2 dimensions"), ((3, 4), (4,), "weight_DN: expected 2 dim")],
)
def test_refuses_what_has_other_dimensions(x, weight, said):
    x, weight, grad_BN = (torch.zeros(shape, device="cuda") for shape in (x, weight, (3, 2)))
    with pytest.raises(ValueError, match=said):
        torch.ops.mmoe.gate_mm(x, weight, None)
    with pytest.raises(ValueError, match=said):
        torch.ops.mmoe.gate_mm_backward(grad_BN, x, weight, True, True, True)


def test_memory_that_is_not_there_is_named():
    """Rows that are one number, and 4 PiB where they are copied to lie in order."""
    weight_DN = torch.zeros(2**20, 1, device="cuda")
    x_BD = torch.zeros(1, 1, device="cuda").expand(2**30, 2**20)
    with pytest.raises(torch.OutOfMemoryError, match="gate_mm: out of memory"):
        torch.ops.mmoe.gate_mm(x_BD, weight_DN, None)
