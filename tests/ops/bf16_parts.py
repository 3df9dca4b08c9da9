"""The arithmetic of csrc/cuda/gemm/bf16_parts.cuh, on the CPU and step by step."""

import torch
from torch import Tensor

SCALE = 256.0
# Of the depth, after which a tensor core's sum is cut off: one instruction
STEP = 16


def parts_of(x: Tensor) -> list[Tensor]:
    """Three tensors of float32 that bfloat16 holds exactly: x = p0 + p1 / 2^8 + p2 / 2^16."""
    finite, parts = x.isfinite(), []
    rest = torch.where(finite, x, 0)
    for number in range(3):
        part = _nearest_finite(rest)
        parts.append(torch.where(finite, part, x if number == 0 else 0))
        rest = (rest - part) * SCALE
    return parts


def join_parts(first: Tensor, second: Tensor, third: Tensor) -> Tensor:
    """The sum of the products, from those of each part."""
    joined = first + (second + third / SCALE) / SCALE
    return torch.where(first.isfinite(), joined, first)


def parts_product(x_BD: Tensor, weight_DN: Tensor) -> Tensor:
    """x @ W as a GPU takes it, of rows that bfloat16 holds."""
    return join_parts(*(tensor_core_product(x_BD, part) for part in parts_of(weight_DN)))


def tensor_core_product(a: Tensor, b: Tensor) -> Tensor:
    """Sums that are exact for 16 steps of the depth, and then cut off to float32."""
    sums = torch.zeros(a.shape[0], b.shape[1])
    for d in range(0, a.shape[1], STEP):
        sums = _cut_off(sums.double() + a[:, d : d + STEP].double() @ b[d : d + STEP].double())
    return sums


def rounded_product(a: Tensor, b: Tensor) -> Tensor:
    """A plain product in float32: fused multiply-adds in rising order, each rounded."""
    sums = torch.zeros(a.shape[0], b.shape[1])
    for d in range(a.shape[1]):
        sums = (sums.double() + a[:, d : d + 1].double() * b[d : d + 1].double()).float()
    return sums


def _nearest_finite(x: Tensor) -> Tensor:
    nearest = x.bfloat16().float()
    cut = (x.view(torch.int32) & -65536).view(torch.float32)
    return torch.where(nearest.isfinite(), nearest, cut)


def _cut_off(x: Tensor) -> Tensor:
    """To float32, toward zero."""
    nearest = x.float()
    return torch.where(
        nearest.abs().double() > x.abs(), nearest.nextafter(torch.zeros(())), nearest
    )
