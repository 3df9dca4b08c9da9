"""Operators of the emulated library, and those of PyTorch's that are other ones on CUDA."""

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.library import Library

_PACK = 8  # bfloat16 numbers in 16 bytes
_MOST_EXPERTS = 1023


def grouped_mm(
    a: Tensor, b: Tensor, offs: Tensor | None, bias: Tensor | None, out_dtype: torch.dtype | None
) -> Tensor:
    """PyTorch's grouped product as CUDA has it: strides of 16 bytes, and garbage in the tail.

    Rows by matrices, `[P, D] x [E, D, H]`, or a product for each group, `[D, P] x [P, H]`.
    """
    assert offs is not None
    assert bias is None
    assert a.dtype == b.dtype == torch.bfloat16
    for name, tensor in (("mat_a", a), ("mat_b", b)):
        _check_strides(name, tensor)
    ends = offs.tolist()
    if len(ends) > _MOST_EXPERTS:
        raise RuntimeError("Can't process more than 1024 groups")
    begins = [0, *ends[:-1]]
    if b.dim() == 3:
        width = (b.shape[2] + _PACK - 1) // _PACK * _PACK
        room = a.new_full((a.shape[0], width), torch.nan)
        out = room[:, : b.shape[2]]
        for e, (begin, end) in enumerate(zip(begins, ends, strict=True)):
            out[begin:end] = (a[begin:end].float() @ b[e].float()).to(a.dtype)
        return out
    width = (b.shape[1] + _PACK - 1) // _PACK * _PACK
    room = a.new_full((len(ends), a.shape[0], width), torch.nan)
    out = room[..., : b.shape[1]]
    for e, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        if end > begin:  # a group without rows leaves its matrix as it was
            out[e] = (a[:, begin:end].float() @ b[begin:end].float()).to(a.dtype)
    return out


def _check_strides(name: str, tensor: Tensor) -> None:
    """As `_grouped_mm` does: one of the last two dimensions is dense, the others whole packs."""
    last, before = tensor.stride(-1), tensor.stride(-2)
    if last == 1 and before >= max(1, tensor.shape[-1]):
        step = before
    elif before == 1 and last >= max(1, tensor.shape[-2]):
        step = last
    else:
        raise RuntimeError(f"Invalid strides/sizes, got {tensor.stride()} for {name}")
    if step % _PACK or tensor.data_ptr() % 16:
        raise RuntimeError(f"expected data_ptr and strides of {name} to be aligned to 16 bytes")


def bmm_dtype_out(a: Tensor, b: Tensor, out_dtype: torch.dtype, *, out: Tensor) -> Tensor:
    """A batched product of narrow numbers whose sums are not rounded."""
    assert out.dtype == out_dtype
    return out.copy_(torch.bmm(a.to(out_dtype), b.to(out_dtype)))


def mm_dtype_out(a: Tensor, b: Tensor, out_dtype: torch.dtype, *, out: Tensor) -> Tensor:
    """A product of narrow numbers whose sums are not rounded."""
    assert out.dtype == out_dtype
    return out.copy_(torch.mm(a.to(out_dtype), b.to(out_dtype)))


REPLACED: dict[str, tuple[str, Callable[..., Any]]] = {
    "_grouped_mm": (
        "(Tensor a, Tensor b, Tensor? offs, Tensor? bias, ScalarType? out_dtype) -> Tensor",
        grouped_mm,
    ),
    "bmm.dtype_out": (
        "(Tensor a, Tensor b, ScalarType out_dtype, *, Tensor(a!) out) -> Tensor(a!)",
        bmm_dtype_out,
    ),
    "mm.dtype_out": (
        "(Tensor a, Tensor b, ScalarType out_dtype, *, Tensor(a!) out) -> Tensor(a!)",
        mm_dtype_out,
    ),
}


class LibraryOperators:
    """Schemas for the kernels that the emulated library brought, under `mmoe_emulated`."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = Library("mmoe_emulated", "FRAGMENT")
        for name, (schema, function) in REPLACED.items():
            self.library.define(name + schema)
            self.library.impl(name, function, "CPU")
            library.emulated_replace_operator(f"aten::{name}".encode())

    def find(self, name: str) -> Callable[..., Any] | None:
        """Returns the operator, or None where the library has no kernel for it."""
        full = f"mmoe_emulated::{name}"
        if not hasattr(torch.ops.mmoe_emulated, name):
            schema = str(getattr(torch.ops.mmoe, name).default._schema)
            self.library.define(schema.removeprefix("mmoe::"))
        if not torch._C._dispatch_has_kernel_for_dispatch_key(full, "CPU"):
            return None
        return getattr(torch.ops.mmoe_emulated, name)
