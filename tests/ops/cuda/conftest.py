"""Operators by name, once for each product that they may take on a GPU."""

import pytest

from mmoe.ops.product_choice import grouped_product
from tests.ops.cuda.calls import PRODUCTS


@pytest.fixture(params=PRODUCTS.values(), ids=list(PRODUCTS))
def operator(request):
    """The name of a group of calls; while it is used, its product is the one in the test's name."""
    name, product = request.param
    with grouped_product(product):
        yield name
