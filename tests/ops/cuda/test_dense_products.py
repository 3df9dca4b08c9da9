"""`dense_mm` on CUDA: products straight into their results, and in one batch for all experts."""

import math

import pytest
import torch

from mmoe.ops.product_choice import dense_product
from tests.ops.cuda.calls import near

pytestmark = pytest.mark.gpu
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

# Rows, experts, depth, width; more experts than travel with a launch, and what is empty.
SIZES = {
    "usual": (130, 3, 40, 24),
    "odd": (33, 3, 17, 13),
    "one-expert": (21, 1, 16, 8),
    "many-experts": (5, 150, 8, 16),
    "thin": (9, 2, 1, 1),
    "no-rows": (0, 2, 8, 8),
    "no-depth": (6, 2, 0, 8),
    "no-width": (6, 2, 8, 0),
}


@pytest.fixture(params=["straight", "batched"])
def product(request):
    with dense_product(request.param):
        yield request.param


def inputs(sizes, types, shared):
    """Rows, weights, bias, gradients."""
    (B, E, D, H), (rows, weights) = sizes, types
    generator = torch.Generator().manual_seed(D)
    x = [torch.randn(B, D, generator=generator).to(rows) for _ in range(1 if shared else E)]
    weight_EDH = (torch.randn(E, D, H, generator=generator) / max(D, 1) ** 0.5).to(weights)
    bias_EH = torch.randn(E, H, generator=generator).to(weights)
    grad = [torch.randn(B, H, generator=generator).to(rows) for _ in range(E)]
    return x, weight_EDH, bias_EH, grad


def on_gpu(tensors):
    return [tensor.cuda() for tensor in tensors]


@pytest.mark.parametrize(
    ("activation", "has_bias"),
    [("none", True), ("none", False), ("relu", True), ("gelu", False), ("silu", True)],
)
@pytest.mark.parametrize("shared", [True, False], ids=["shared-rows", "rows-of-their-own"])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=list(SIZES))
def test_every_way_gives_the_same(product, sizes, layer_types, shared, has_bias, activation):
    x, weight_EDH, bias_EH, grad = inputs(sizes, layer_types, shared)
    bias = bias_EH if has_bias else None
    op, backward = torch.ops.mmoe.dense_mm, torch.ops.mmoe.dense_mm_backward

    y, z = op(on_gpu(x), weight_EDH.cuda(), None if bias is None else bias.cuda(), activation)

    expected_y, expected_z = op(x, weight_EDH, bias, activation)
    near([*y, *z], [*expected_y, *expected_z], layer_types[0])

    kept = (weight_EDH, expected_y, expected_z)
    on_device = (weight_EDH.cuda(), on_gpu(expected_y), on_gpu(expected_z))
    needs = (activation, True, True, True)
    grad_x, *others = backward(on_gpu(grad), on_gpu(x), *on_device, *needs)
    expected_x, *expected = backward(grad, x, *kept, *needs)
    near([*grad_x, *others], [*expected_x, *expected], layer_types[0])


def test_sums_and_bias_are_rounded_once():
    """257 and 1 are 258 in bfloat16; 257 alone would be 256."""
    x_BD, weight_EDH = torch.ones(64, 257).bfloat16(), torch.ones(2, 257, 64).bfloat16()
    bias_EH = torch.ones(2, 64).bfloat16()

    with dense_product("straight"):
        y, _ = torch.ops.mmoe.dense_mm([x_BD.cuda()], weight_EDH.cuda(), bias_EH.cuda(), "relu")

    assert all((y_BH == 258).all() for y_BH in y)


def test_a_small_layer_is_one_batch(layer_types):
    """Left to itself: a launch for each expert would take longer than the products."""
    x, weight_EDH, bias_EH, _ = inputs(SIZES["usual"], layer_types, True)
    arguments = on_gpu(x), weight_EDH.cuda(), bias_EH.cuda(), "gelu"
    with dense_product("batched"):
        expected, _ = torch.ops.mmoe.dense_mm(*arguments)

    y, _ = torch.ops.mmoe.dense_mm(*arguments)

    assert all(map(torch.equal, y, expected))


def test_results_have_memory_of_their_own(product, layer_types):
    """They may be kept, and written to, each by itself."""
    x, weight_EDH, bias_EH, _ = inputs(SIZES["usual"], layer_types, True)

    y, z = torch.ops.mmoe.dense_mm(on_gpu(x), weight_EDH.cuda(), bias_EH.cuda(), "gelu")
    before = [tensor.clone() for tensor in [*y[1:], *z]]
    y[0].fill_(math.nan)

    assert all(map(torch.equal, [*y[1:], *z], before))


@pytest.mark.parametrize("activation", ["none", "relu", "gelu", "silu"])
@pytest.mark.parametrize("has_bias", [True, False], ids=["bias", "no-bias"])
def test_nan_stays_nan(product, layer_types, has_bias, activation):
    x, weight_EDH, bias_EH, _ = inputs(SIZES["usual"], layer_types, True)
    x[0][3] = math.nan
    bias = bias_EH.cuda() if has_bias else None

    y, _ = torch.ops.mmoe.dense_mm(on_gpu(x), weight_EDH.cuda(), bias, activation)

    for y_BH in y:
        assert y_BH[3].isnan().all()
        assert not y_BH[:3].isnan().any()


def test_another_word_is_refused():
    with (
        pytest.raises(ValueError, match="product: expected one of auto, batched, straight"),
        dense_product("each"),  # pyright: ignore[reportArgumentType]
    ):
        pass
    with pytest.raises(ValueError, match="choice: expected 0, 1 or 2, got 3"):
        torch.ops.mmoe.dense_product(torch.zeros(1).cuda(), 3)


def test_the_setting_is_put_back():
    like = torch.zeros(1).cuda()
    with dense_product("batched"), dense_product("straight"):
        pass

    assert torch.ops.mmoe.dense_product(like, 0) == 0
