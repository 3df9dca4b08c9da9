"""Copies of what a kernel reads, with poison around: reads and writes beside them show."""

from dataclasses import dataclass

import torch
from torch import Tensor

POISON = 0x7FFF  # NaN in bfloat16; repeated, in float32 and float64, and no row's number in int32
_GUARD = 256  # bytes before and after
_LARGE = 1 << 24  # bytes; beyond, tensors are passed as they are


@dataclass(frozen=True)
class Guarded:
    """A tensor's memory and its copy: the part of `words` from `begin` to `end`, in bytes."""

    original: Tensor
    words: Tensor
    begin: int
    end: int

    def beside(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Address and bytes of what lies before and after."""
        whole = self.words.data_ptr()
        after = self.words.numel() * self.words.element_size() - self.end
        return (whole, self.begin), (whole + self.end, after)

    def check(self, name: str) -> None:
        """Refuses what was written.

        Raises:
            RuntimeError: To the input, or beside it.
        """
        raw = self.words.view(torch.uint8)
        if not torch.equal(raw[self.begin : self.end], self.original):
            raise RuntimeError(f"CUDA error: {name} wrote to one of its inputs")
        # Whole words of poison on both sides; the odd byte at an end is left out
        before = raw[: self.begin // 2 * 2].view(torch.int16)
        after = raw[(self.end + 1) // 2 * 2 :].view(torch.int16)
        if (before != POISON).any() or (after != POISON).any():
            raise RuntimeError(f"CUDA error: {name} wrote beside one of its inputs")


def guard(tensor: Tensor, memory: list[Guarded]) -> Tensor:
    """Returns the same numbers with the same strides and alignment, poison on both sides."""
    if tensor.numel() == 0:
        return tensor
    extent = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    size = extent * tensor.element_size()
    if size > _LARGE:
        return tensor
    flat = tensor.detach().as_strided((extent,), (1,), tensor.storage_offset())
    words = torch.full((_GUARD + 32 + size // 2 + 1,), POISON, dtype=torch.int16)
    begin = _GUARD + (tensor.data_ptr() - words.data_ptr() - _GUARD) % 64
    raw = words.view(torch.uint8)
    part = raw[begin : begin + size]
    original = flat.view(torch.uint8)
    part.copy_(original)
    memory.append(Guarded(original, words, begin, begin + size))
    if tensor.dtype == torch.bool:
        return part.view(torch.bool).as_strided(tensor.shape, tensor.stride(), begin)
    offset, left = divmod(begin, tensor.element_size())
    if left:  # PyTorch has no tensor that begins inside a number
        return tensor
    whole = raw[: len(raw) // tensor.element_size() * tensor.element_size()].view(tensor.dtype)
    return whole.as_strided(tensor.shape, tensor.stride(), offset)
