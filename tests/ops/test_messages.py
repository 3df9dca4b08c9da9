"""What the compiled operators say of arguments that do not fit, where a wrapper has not said it."""

import pytest
import torch

from mmoe import ops

pytestmark = pytest.mark.skipif(
    not ops.extension_status().built, reason="plain PyTorch leaves these checks to the wrapper"
)


def zeros(*shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype)


def message(function, *arguments):
    with pytest.raises(ValueError, match=":") as caught:
        function(*arguments)
    return str(caught.value)


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (torch.float32, "torch.float32"),
        (torch.float64, "torch.float64"),
        (torch.bfloat16, "torch.bfloat16"),
        (torch.float16, "torch.float16"),
        (torch.int64, "torch.int64"),
        (torch.bool, "torch.bool"),
        (torch.complex64, "number 9"),
    ],
)
def test_dtypes_have_names(dtype, name):
    experts_BGK = zeros(2, 1, 1, dtype=dtype)

    assert message(torch.ops.mmoe.route_plan, experts_BGK, 3) == (
        f"experts_BGK: expected dtype torch.int32, got {name}; use .to(torch.int32)"
    )


def test_the_words_are_the_wrappers():
    plan = ops.route_plan(zeros(2, 1, 1, dtype=torch.int32), 3)
    half_BD, slots_BGK = zeros(2, 4, dtype=torch.float16), zeros(2, 1, 1, dtype=torch.int64)
    wrong = plan._replace(slots_BGK=slots_BGK)
    kernels = torch.ops.mmoe

    for ours, wrappers in (
        (
            message(kernels.permute, half_BD, plan.rows_P, plan.slots_BGK),
            message(ops.permute, half_BD, plan),
        ),
        (
            message(kernels.permute, zeros(2, 4), wrong.rows_P, wrong.slots_BGK),
            message(ops.permute, zeros(2, 4), wrong),
        ),
        (
            message(kernels.gated_combine, half_BD, plan.slots_BGK, zeros(2, 1, 1)),
            message(ops.gated_combine, half_BD, plan.slots_BGK, zeros(2, 1, 1)),
        ),
        (
            message(kernels.dense_combine, [half_BD], zeros(2, 1, 1)),
            message(ops.dense_combine, [half_BD], zeros(2, 1, 1)),
        ),
    ):
        assert ours == wrappers


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (zeros(4), "{}[2]: expected 2 dimensions, got 1"),
        (
            zeros(4, 3, dtype=torch.float64),
            "{}[2]: expected dtype torch.float32, got torch.float64",
        ),
        (zeros(5, 3), "{}[2]: expected size 4 in dimension 0, got 5"),
        (zeros(4, 2), "{}[2]: expected size 3 in dimension 1, got 2"),
    ],
)
def test_a_tensor_of_a_list_is_named_by_its_number(wrong, text):
    tensors = [zeros(4, 3), zeros(4, 3), wrong]

    combined = message(torch.ops.mmoe.dense_combine, tensors, zeros(4, 1, 3))
    product = message(torch.ops.mmoe.dense_mm, tensors, zeros(3, 3, 2), None, "relu")

    assert combined.startswith(text.format("y"))
    assert product.startswith(text.format("x"))


def test_one_dimension_is_singular():
    rows_PQ, slots_BGK = zeros(2, 2, dtype=torch.int32), zeros(2, 1, 1, dtype=torch.int32)

    text = message(torch.ops.mmoe.permute, zeros(2, 4), rows_PQ, slots_BGK)

    assert text == "rows_P: expected 1 dimension, got 2"
