"""`grouped_product`, `dense_product`: which products are taken on a GPU, for tests and benchmarks.

In bfloat16 on GPUs of capability 9 and 10 a layer's products can be this library's own or PyTorch's
grouped one. `grouped_mm` chooses for itself; `csrc/cuda/gemm/product_choice.cu` says by what.
`dense_mm` has a product for each expert or one for all; `csrc/cuda/gemm/dense_choice.cu`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, get_args

import torch
from torch import Tensor

from mmoe.ops._library import define

GroupedProduct = Literal["auto", "own", "library"]
DenseProduct = Literal["auto", "batched", "straight"]


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
        >>> with grouped_product("own", device="cpu"):
        ...     pass
    """
    with _setting(torch.ops.mmoe.grouped_product, product, get_args(GroupedProduct), device):
        yield


@contextmanager
def dense_product(product: DenseProduct, device: torch.device | str = "cuda") -> Iterator[None]:
    """Lets `dense_mm` write its products in one of two ways, in the whole process, while open.

    As `grouped_product` does; the gradients' products too.

    Args:
        product: `auto`, as without this; `batched`: one product for all experts, which a pass over
            it then takes apart; `straight`: a product for each expert, into its result.
        device: Of the kernels; on a CPU there is one way, and this changes nothing.

    Raises:
        ValueError: Another word.

    Example:
        >>> with dense_product("straight", device="cpu"):
        ...     pass
    """
    with _setting(torch.ops.mmoe.dense_product, product, get_args(DenseProduct), device):
        yield


@contextmanager
def _setting(
    operator: Callable[[Tensor, int], int],
    product: str,
    choices: Sequence[str],
    device: torch.device | str,
) -> Iterator[None]:
    if product not in choices:
        raise ValueError(f"product: expected one of {', '.join(choices)}, got {product!r}")
    # The operator has no other argument that says whose kernels are meant
    like = torch.empty(0, device=device)
    before = operator(like, choices.index(product))
    try:
        yield
    finally:
        operator(like, before)


def _fake(like: Tensor, choice: int) -> int:
    raise NotImplementedError("mmoe.ops.product_choice: a choice of products cannot be traced")


define("grouped_product(Tensor like, int choice) -> int", _fake)
define("dense_product(Tensor like, int choice) -> int", _fake)
