"""What is timed: calls that compute the same, each with as many sets of tensors as L2 cannot hold.

A call takes its tensors from the set whose number it is given.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

import torch
from torch import Tensor

from benchmarks.gpu_check.clock import Call, sets_needed


@dataclass(frozen=True)
class Size:
    """Rows, widths and experts of a layer; every row goes to one expert."""

    P: int
    D: int
    H: int
    E: int
    dtype: torch.dtype

    @property
    def name(self) -> str:
        """For keys."""
        kind = {torch.bfloat16: "bf16", torch.float32: "fp32"}[self.dtype]
        return f"{kind} P={self.P} D={self.D} H={self.H} E={self.E}"

    @property
    def flops(self) -> float:
        """Of one product."""
        return 2.0 * self.P * self.D * self.H


@dataclass(frozen=True)
class Contest:
    """Calls that compute the same.

    Attributes:
        name: For the key.
        calls: By who; `mmoe` is ours.
        sets: Of tensors.
        flops: That all of them do.
        moved: Bytes that all of them have to read and write.
        left_out: Who is not here, and why.
    """

    name: str
    calls: Mapping[str, Call]
    sets: int
    flops: float = 0.0
    moved: int = 0
    left_out: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Layer:
    """One set of tensors of a grouped layer."""

    x_PD: Tensor
    grad_PH: Tensor
    weight_EDH: Tensor
    bias_EH: Tensor
    offsets_E1: Tensor
    bounds: Sequence[int]

    @classmethod
    def draw(cls, size: Size, device: str, seed: int) -> "Layer":
        """Random rows, weights and routing."""
        generator = torch.Generator(device).manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, device=device).to(size.dtype)

        picks = torch.randint(0, size.E, (size.P,), generator=generator, device=device)
        ends_E = torch.bincount(picks, minlength=size.E).cumsum(0)
        offsets_E1 = torch.cat([ends_E.new_zeros(1), ends_E]).int()
        return cls(
            x_PD=normal(size.P, size.D),
            grad_PH=normal(size.P, size.H),
            weight_EDH=normal(size.E, size.D, size.H) / size.D**0.5,
            bias_EH=normal(size.E, size.H),
            offsets_E1=offsets_E1,
            bounds=offsets_E1.tolist(),
        )

    @property
    def size_in_bytes(self) -> int:
        """Of what a call reads and writes."""
        parts = (self.x_PD, self.grad_PH, self.weight_EDH)
        return sum(part.numel() * part.element_size() for part in parts)


def expert_of_rows(own: Layer) -> Tensor:
    """The number of each row's expert."""
    counts_E = own.offsets_E1.diff().long()
    return torch.arange(len(counts_E), device=counts_E.device).repeat_interleave(counts_E)


def layers(size: Size, device: str) -> list[Layer]:
    """As many sets as the cache cannot hold."""
    first = Layer.draw(size, device, 0)
    count = sets_needed(first.size_in_bytes, device)
    return [first, *(Layer.draw(size, device, seed) for seed in range(1, count))]


def sizes(
    dtype: torch.dtype, rows: Sequence[int], widths: Sequence[int], experts: Sequence[int]
) -> Iterator[Size]:
    """All sizes of a grid, D = H."""
    for P, D, E in product(rows, widths, experts):
        yield Size(P, D, D, E, dtype)
