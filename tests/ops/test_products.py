import pytest
import torch

from mmoe.ops import grouped_mm
from mmoe.ops.product_choice import grouped_product


def test_a_cpu_has_one_product():
    x_PD, offsets_E1 = torch.randn(5, 3), torch.tensor([0, 2, 5], dtype=torch.int32)
    weight_EDH = torch.randn(2, 3, 4)
    expected = grouped_mm(x_PD, offsets_E1, weight_EDH)

    for product in ("auto", "own", "library"):
        with grouped_product(product, device="cpu"):
            assert torch.equal(grouped_mm(x_PD, offsets_E1, weight_EDH), expected)

    message = "product: expected one of auto, own, library, got 'ours'"
    with pytest.raises(ValueError, match=message), grouped_product("ours", device="cpu"):
        pass


@pytest.mark.gpu
def test_what_was_chosen_before_holds_again_afterwards():
    like = torch.empty(0, device="cuda")

    with grouped_product("library"):
        with pytest.raises(ZeroDivisionError), grouped_product("own"):
            raise ZeroDivisionError
        assert torch.ops.mmoe.grouped_product(like, 2) == 2

    assert torch.ops.mmoe.grouped_product(like, 0) == 0
