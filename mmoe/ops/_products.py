"""`grouped_product`: which of two products `grouped_mm` takes on a GPU, for tests and benchmarks.

In bfloat16 on GPUs of capability 9 and 10 a layer's products can be this library's own or PyTorch's
grouped one. `grouped_mm` chooses for itself; `csrc/cuda/gemm/product_choice.cu` says by what.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, get_args

import torch

GroupedProduct = Literal["auto", "own", "library"]


@contextmanager
def grouped_product(product: GroupedProduct, device: torch.device | str = "cuda") -> Iterator[None]:
    """Lets `grouped_mm` take one of the two products, in the whole process, while this is open.

    The gradients' products too, as far as they are computed inside. A CUDA graph keeps what was
    chosen when it was captured.

    Args:
        product: `auto`, as without this; `own`; `library`: PyTorch's wherever it can compute what
            is asked (bfloat16, fewer than 1,024 experts, a GPU of capability 9 or 10, no fp32
            gradient of a weight), else our own.
        device: Of the kernels; on a CPU there is one product, and this changes nothing.

    Raises:
        ValueError: Another word.

    Example:
        >>> from mmoe.ops._products import grouped_product
        >>> with grouped_product("own", device="cpu"):
        ...     pass
    """
    choices = get_args(GroupedProduct)
    if product not in choices:
        raise ValueError(f"product: expected one of {', '.join(choices)}, got {product!r}")
    # The operator has no other argument that says whose kernels are meant
    like = torch.empty(0, device=device)
    before = torch.ops.mmoe.grouped_product(like, choices.index(product))
    try:
        yield
    finally:
        torch.ops.mmoe.grouped_product(like, before)
