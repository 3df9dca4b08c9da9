"""`Mode`: how the rows, or the weights, of one step travel between ranks."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """Mode in which a call brings rows and experts together; parameters never move.

    All ranks must use the same one for a call. It may change from call to call, and changes no
    number but by rounding.

    Attributes:
        hierarchical: A sample crosses to another host once, and fans out inside it to the ranks
            that hold its experts; the way back adds up inside the host before it crosses again.
        chunks: The batch is cut into so many: the exchange of one goes on under the experts of
            another, forward and backward. 1: one after another.
        shadowed: Experts whose weights are copied to all ranks for this call, where each rank
            computes its own rows by them; `all` of them: no row travels. Gradients of the copies
            go back to the rank that holds an expert. Of `MLPExperts`, slices of them (by the
            numbers of whole experts), and an `ExpertPool` of modules that differ
            in their numbers alone. The rows of others travel all the same, and a warning says so:
            pools of several kinds, and norm `batch`, whose statistics need all rows of an expert.

    Raises:
        ValueError: Chunks below 1, or an expert named twice.

    Example:
        >>> from mmoe.parallel import Mode
        >>> Mode(chunks=2)
        Mode(hierarchical=False, chunks=2, shadowed=())
        >>> print(Mode(hierarchical=True, chunks=2))
        rows travel, two levels, 2 chunks

    Source: Hwang et al., "Tutel" (MLSys 2023), for two levels, chunks and weights that are gathered
        instead of rows (r = 0); He et al., "FasterMoE" (PPoPP 2022), for shadowed experts.
    """

    hierarchical: bool = False
    chunks: int = 1
    shadowed: tuple[int, ...] | Literal["all"] = ()

    def __post_init__(self) -> None:
        if self.chunks < 1:
            raise ValueError(f"chunks: expected 1 or more, got {self.chunks}")
        if self.shadowed != "all" and len(set(self.shadowed)) < len(self.shadowed):
            raise ValueError(f"shadowed: expected every expert once, got {self.shadowed}")

    def __str__(self) -> str:
        """Name of the mode in logs."""
        if self.shadowed == "all":
            return "weights travel"
        words = ["rows travel"]
        if self.hierarchical:
            words.append("two levels")
        if self.chunks > 1:
            words.append(f"{self.chunks} chunks")
        if self.shadowed:
            words.append(f"weights of experts {', '.join(map(str, self.shadowed))} too")
        return ", ".join(words)


ROWS_TRAVEL = Mode()
"""The plain one: every row goes straight to the ranks of its experts, in one piece."""
