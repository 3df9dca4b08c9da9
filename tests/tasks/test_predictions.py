"""From logits to predictions."""

import pytest
import torch

from mmoe.config import TaskConfig
from mmoe.tasks import predictions_from_logits

TASKS = [
    TaskConfig(name="click", label="c"),
    TaskConfig(name="minutes", label="m", kind="regression"),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_sigmoid_for_binary_and_the_number_itself_for_regression(dtype):
    logits = torch.tensor([[0.0, -2.5], [2.0, 100.0]], dtype=dtype)
    predictions = predictions_from_logits(logits, TASKS)
    assert predictions.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    expected = torch.tensor([[0.5, -2.5], [0.8807970779778823, 100.0]], dtype=predictions.dtype)
    torch.testing.assert_close(predictions, expected)


def test_a_row_keeps_its_bits_wherever_it_stands():
    torch.manual_seed(0)
    logits = 4 * torch.randn(300, 2)
    predictions, order = predictions_from_logits(logits, TASKS), torch.randperm(300)
    assert torch.equal(predictions_from_logits(logits[order], TASKS), predictions[order])
    for rows in range(1, 20):
        assert torch.equal(predictions_from_logits(logits[:rows], TASKS), predictions[:rows])


def test_no_rows():
    assert predictions_from_logits(torch.zeros(0, 2), TASKS).shape == (0, 2)


def test_wrong_shape():
    with pytest.raises(ValueError, match=r"logits_BT: expected shape \[rows, 2\].*got \[4, 1\]"):
        predictions_from_logits(torch.zeros(4, 1), TASKS)
