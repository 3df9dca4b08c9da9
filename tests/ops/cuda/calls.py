"""Calls of every operator, as often as one likes with other numbers in the same shapes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.bench_ops import given_arguments
from benchmarks.gpu_check.operator_cases import BUILDERS, Call, Case

OPERATORS = tuple(BUILDERS)
# Of operators and products: either product wherever there are two, for a GPU has both
PRODUCTS = {
    f"{name}-{product}" if product != "auto" else name: (name, product)
    for name in OPERATORS
    for product in (("own", "library") if name in ("grouped_mm", "gathered_mm") else ("auto",))
}
WAYS = ("pairs", "sums")  # in which an exchange's outputs come back


@dataclass(frozen=True)
class Draw(Case):
    """A case of which there are many: each `draw` has rows, weights and picks of its own."""

    draw: int = 0

    def random(self, *shape: int, seed: int) -> Tensor:
        return super().random(*shape, seed=seed + 1_000 * self.draw)


def calls(name: str, case: Draw, dtype: torch.dtype) -> Iterator[Call]:
    """What a builder of the smoke gives, on the CPU.

    The sizes of an exchange's messages follow from the picks: those stay those of the first draw.
    """
    if name != "exchange":
        yield from BUILDERS[name](case, dtype)
        return
    experts_BGK = Draw(case.B, case.G, case.K, case.E, case.D, case.H, case.unused).experts_BGK()
    for way in WAYS:
        torch.manual_seed(case.draw)
        yield from given_arguments(experts_BGK, case.E, case.D, dtype, way).items()


def run(call: Call) -> list[Tensor]:
    """All tensors that the operator gives, one after another."""
    name, arguments = call
    return flat(getattr(torch.ops.mmoe, name)(*arguments))


def flat(value: Any) -> list[Tensor]:
    """The tensors among these."""
    if isinstance(value, Tensor):
        return [value]
    parts = value if isinstance(value, list | tuple) else ()
    return [tensor for part in parts for tensor in flat(part)]


def with_tensors(value: Any, tensors: Iterator[Tensor]) -> Any:
    """The same with these in the place of its tensors."""
    if isinstance(value, Tensor):
        return next(tensors)
    if isinstance(value, list | tuple):
        return type(value)(with_tensors(part, tensors) for part in value)
    return value


def on_gpu(call: Call) -> Call:
    """The same call of tensors on the GPU."""
    name, arguments = call
    return name, with_tensors(arguments, iter([tensor.cuda() for tensor in flat(arguments)]))


STEPS = {torch.float32: 1e-5, torch.bfloat16: 1.5e-2, torch.float64: 1e-12}


def near(found: Sequence[Tensor], wanted: Sequence[Tensor], rows: torch.dtype) -> None:
    """Within the roundings of the rows' type, seen from the largest number."""
    for ours, theirs in zip(found, wanted, strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        if theirs.numel():
            atol = STEPS[rows] * max(1.0, float(theirs.abs().max()))
            torch.testing.assert_close(ours.cpu(), theirs, rtol=0, atol=atol)


def same_bits(found: list[Tensor], wanted: list[Tensor]) -> bool:
    """NaN equals NaN."""
    return len(found) == len(wanted) and all(
        a.shape == b.shape and a.dtype == b.dtype and torch.equal(_bits(a), _bits(b))
        for a, b in zip(found, wanted, strict=True)
    )


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().flatten().view(torch.uint8)
