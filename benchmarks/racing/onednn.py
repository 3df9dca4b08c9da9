"""fp32 products through oneDNN."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def onednn_products() -> Iterator[None]:
    """fp32 products through oneDNN instead of MKL, where `onednn_is_exact`.

    The setting allows bfloat16 inside, and a processor with AMX makes use of that.
    """
    matmul: Any = getattr(torch.backends.mkldnn, "matmul")  # noqa: B009 - unknown to its stubs
    before = matmul.fp32_precision
    matmul.fp32_precision = "bf16"
    try:
        yield
    finally:
        matmul.fp32_precision = before


def onednn_is_exact(device: str) -> bool:
    """Are fp32 products through oneDNN a choice here, and still fp32?"""
    if device != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    x = torch.randn(256, 256)
    with onednn_products():
        found = x @ x
    return bool((found - x @ x).norm() <= 1e-5 * (x @ x).norm())
