"""What is computed: sizes, weights and logits, the same for every contestant of a race."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Sizes of a layer; letters as in `mmoe.mixture`.

    Attributes:
        hidden: Widths of an expert's layers, the last one its output; ReLU after each.
        k: Picks of a gate; None: softmax over all experts.
    """

    B: int
    D: int
    hidden: tuple[int, ...]
    E: int
    G: int = 1
    k: int | None = None
    dtype: torch.dtype = torch.float32
    device: str = "cpu"

    @property
    def widths(self) -> tuple[int, ...]:
        """Input, then every layer's output."""
        return (self.D, *self.hidden)

    @property
    def output_dim(self) -> int:
        """O."""
        return self.hidden[-1]

    @property
    def tolerance(self) -> float:
        """Relative error that orders of summation and roundings explain."""
        return 1e-4 if self.dtype == torch.float32 else 2e-2

    def dense_flops(self) -> float:
        """Of the products, forward and backward, all experts on all rows; gates included."""
        per_row = sum(a * b for a, b in zip(self.widths, self.hidden, strict=False)) * self.E
        return 6.0 * self.B * (per_row + self.D * self.E * self.G)


@dataclass(frozen=True, kw_only=True)
class Values:
    """Numbers for a workload: leaves are made from copies of these.

    Attributes:
        x_BD: Rows.
        grad_BGO: The gradient that comes back.
        layers: For every layer of the experts, weights `[E, in, out]`.
        gate_GED: Weights of linear gates.
    """

    x_BD: Tensor
    grad_BGO: Tensor
    layers: Sequence[Tensor]
    gate_GED: Tensor


def draw(work: Workload, seed: int = 0) -> Values:
    """Inputs and weights in the workload's dtype."""
    generator = torch.Generator(work.device).manual_seed(seed)

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        values = torch.randn(*shape, generator=generator, device=work.device) * scale
        return values.to(work.dtype)

    widths = zip(work.widths, work.hidden, strict=False)
    return Values(
        x_BD=normal(work.B, work.D),
        grad_BGO=normal(work.B, work.G, work.output_dim),
        layers=[normal(work.E, a, b, scale=(2 / a) ** 0.5) for a, b in widths],
        gate_GED=normal(work.G, work.E, work.D, scale=work.D**-0.5),
    )


def correlated_logits(work: Workload, shared: float) -> Tensor:
    """`logits_BGE = shared · s_be + (1 − shared) · own_bge`; 0 shared: independent gates."""
    generator = torch.Generator(work.device).manual_seed(1)
    common = torch.randn(work.B, 1, work.E, generator=generator, device=work.device)
    own = torch.randn(work.B, work.G, work.E, generator=generator, device=work.device)
    return shared * common + (1 - shared) * own


def skewed_logits(work: Workload, exponent: float) -> Tensor:
    """Gates that like the same experts: by Gumbel noise, first picks follow `rank ** -exponent`."""
    generator = torch.Generator(work.device).manual_seed(2)
    uniform = torch.rand(work.B, work.G, work.E, generator=generator, device=work.device)
    ranks = torch.arange(1, work.E + 1, device=work.device)
    return -exponent * ranks.log() - (-uniform.clamp_min(1e-12).log()).clamp_min(1e-12).log()


def distinct_pairs(logits_BGE: Tensor, k: int) -> tuple[int, int]:
    """Distinct (sample, expert) pairs, and picks in all."""
    picks_BGK = logits_BGE.topk(k, dim=-1).indices
    chosen_BE = torch.zeros(len(logits_BGE), logits_BGE.shape[-1], dtype=torch.bool)
    chosen_BE.scatter_(1, picks_BGK.flatten(1).cpu(), True)
    return int(chosen_BE.sum()), picks_BGK.numel()
