"""Which product a layer takes by its size: the library's own or PyTorch's, batched or straight."""

from collections import Counter

import pytest
import torch

from mmoe.ops.product_choice import dense_product, grouped_product
from tests.emulated_cuda.device import Settings

pytestmark = [pytest.mark.gpu, pytest.mark.of_emulation]

BF16, FP32, FP64 = torch.bfloat16, torch.float32, torch.float64


def products_taken(name, *arguments):
    """How often an operator calls each of PyTorch's products."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        getattr(torch.ops.mmoe, name)(*arguments)
    names = Counter(event.name.split("::")[-1] for event in profile.events() or ())
    # Not what the emulation computes the grouped product by
    counted = ("_grouped_mm",) if name == "grouped_mm" else ("bmm", "mm")
    return {each: names[each] for each in counted if names[each]}


@pytest.fixture
def hopper(emulated):
    """A GPU whose PyTorch has a grouped product."""
    emulated.configure(Settings(capability=9))


def layer(D, H, rows=BF16, E=2, activation="none", bias=False):
    """The arguments of grouped_mm, of two rows."""
    offsets_E1 = torch.tensor([0, *[2] * E], dtype=torch.int32)
    bias_EH = torch.zeros(E, H, dtype=rows).cuda() if bias else None
    x_PD, weight_EDH = torch.zeros(2, D, dtype=rows), torch.zeros(E, D, H, dtype=rows)
    return "grouped_mm", x_PD.cuda(), offsets_E1.cuda(), weight_EDH.cuda(), bias_EH, activation


@pytest.mark.parametrize(
    ("settings", "library"),
    [
        ({"D": 128, "H": 128}, True),
        ({"D": 120, "H": 128}, False),
        ({"D": 128, "H": 120}, False),
        ({"D": 400, "H": 128, "bias": True}, True),
        ({"D": 392, "H": 128, "bias": True}, False),
        ({"D": 392, "H": 128, "activation": "relu"}, False),
        ({"D": 128, "H": 128, "rows": FP32}, False),
        ({"D": 128, "H": 128, "E": 1023}, True),
        ({"D": 128, "H": 128, "E": 1024}, False),
    ],
    ids=lambda value: str(value).replace("'", ""),
)
def test_wide_layers_are_given_to_the_library(hopper, settings, library):
    taken = products_taken(*layer(**settings))

    assert taken == ({"_grouped_mm": 1} if library else {})


def test_only_where_pytorch_has_a_kernel(emulated):
    emulated.configure(Settings(capability=8))

    with grouped_product("library"):
        assert products_taken(*layer(128, 128)) == {}


@pytest.mark.parametrize(("product", "taken"), [("own", {}), ("library", {"_grouped_mm": 1})])
@pytest.mark.parametrize(("D", "H"), [(128, 128), (8, 8)])
def test_the_switch_goes_before_the_size(hopper, D, H, product, taken):
    with grouped_product(product):
        assert products_taken(*layer(D, H)) == taken


def dense(B, D, H, E=2, rows=FP32):
    """The arguments of dense_mm, with the same rows for every expert."""
    x_BD, weight_EDH = torch.zeros(B, D, dtype=rows), torch.zeros(E, D, H, dtype=rows)
    return "dense_mm", [x_BD.cuda()], weight_EDH.cuda(), None, "none"


@pytest.mark.parametrize(
    ("settings", "straight"),
    [
        ({"B": 16384, "D": 48, "H": 128}, True),
        ({"B": 16384, "D": 47, "H": 128}, False),
        ({"B": 16383, "D": 64, "H": 128}, False),  # enough to compute, too few numbers
        ({"B": 16384, "D": 48, "H": 128, "rows": BF16}, False),
        ({"B": 16384, "D": 48, "H": 128, "rows": FP64}, True),
        ({"B": 2, "D": 8, "H": 8, "E": 1}, True),
        ({"B": 0, "D": 8, "H": 8, "E": 1}, False),
    ],
    ids=lambda value: str(value).replace("'", ""),
)
def test_large_products_are_written_straight(emulated, settings, straight):
    taken = products_taken(*dense(**settings))

    if straight:
        assert taken == {"mm": settings.get("E", 2)}
    else:
        assert "mm" not in taken


@pytest.mark.parametrize(("product", "taken"), [("straight", {"mm": 2}), ("batched", {"bmm": 1})])
def test_the_switch_of_dense_products_goes_before_the_size(emulated, product, taken):
    with dense_product(product):
        assert products_taken(*dense(3, 8, 8)) == taken
