"""What the compiled operators say of arguments that do not fit, where a wrapper has not said it."""

import pytest
import torch

from mmoe import ops
from tests.needs_kernels import needs_kernels

pytestmark = needs_kernels
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool)


def zeros(*shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype)


def message(function, *arguments):
    with pytest.raises(ValueError, match=":") as caught:
        function(*arguments)
    return str(caught.value)


def test_dtypes_have_names():
    for dtype, name in (*zip(DTYPES, map(str, DTYPES), strict=True), (torch.complex64, "number 9")):
        said = message(torch.ops.mmoe.route_plan, zeros(2, 1, 1, dtype=dtype), 3)
        assert said == f"experts_BGK: expected dtype torch.int32, got {name}; use .to(torch.int32)"


def test_the_words_are_the_wrappers():
    plan = ops.route_plan(zeros(2, 1, 1, dtype=torch.int32), 3)
    half_BD, slots_BGK = zeros(2, 4, dtype=torch.float16), zeros(2, 1, 1, dtype=torch.int64)
    wrong, weights = plan._replace(slots_BGK=slots_BGK), zeros(2, 1, 1)
    for name, of_kernel, of_wrapper in (
        ("permute", (half_BD, plan.rows_P, plan.slots_BGK), (half_BD, plan)),
        ("permute", (zeros(2, 4), wrong.rows_P, wrong.slots_BGK), (zeros(2, 4), wrong)),
        ("gated_combine", *[(half_BD, plan.slots_BGK, weights)] * 2),
        ("dense_combine", *[([half_BD], weights)] * 2),
    ):
        ours, wrappers = getattr(torch.ops.mmoe, name), getattr(ops, name)
        assert message(ours, *of_kernel) == message(wrappers, *of_wrapper)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (zeros(4), "[2]: expected 2 dimensions, got 1"),
        (zeros(4, 3).double(), "[2]: expected dtype torch.float32, got torch.float64"),
        (zeros(5, 3), "[2]: expected size 4 in dimension 0, got 5"),
        (zeros(4, 2), "[2]: expected size 3 in dimension 1, got 2"),
    ],
)
def test_a_tensor_of_a_list_is_named_by_its_number(wrong, text):
    tensors = [zeros(4, 3), zeros(4, 3), wrong]

    combined = message(torch.ops.mmoe.dense_combine, tensors, zeros(4, 1, 3))
    product = message(torch.ops.mmoe.dense_mm, tensors, zeros(3, 3, 2), None, "relu")

    assert combined.startswith(f"y{text}")
    assert product.startswith(f"x{text}")


def test_one_dimension_is_singular():
    rows_PQ, slots_BGK = zeros(2, 2, dtype=torch.int32), zeros(2, 1, 1, dtype=torch.int32)

    text = message(torch.ops.mmoe.permute, zeros(2, 4), rows_PQ, slots_BGK)

    assert text == "rows_P: expected 1 dimension, got 2"
