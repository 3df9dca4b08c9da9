"""Placement of experts on ranks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch

from mmoe.mixture import DispatchPlan


@dataclass(frozen=True, slots=True)
class ExpertPlacement:
    """Placement of E experts on W ranks: one rank each; a rank holds any number.

    Attributes:
        experts: For each rank its experts, in the order in which it computes them; `()` for a rank
            that holds none.
        slices: Into how many each expert is cut along its hidden units (`cut_into_slices`), where
            ranks outnumber experts. What ranks hold are then slices, in every name here: slice s of
            expert e is number `e · slices + s`.

    Raises:
        ValueError: No rank, no expert, or an expert that is missing or held twice; slices that are
            not all there.

    Example:
        >>> from mmoe.parallel import ExpertPlacement
        >>> placement = ExpertPlacement(((0, 3), (), (1, 2)))
        >>> placement.num_experts, placement.num_ranks, placement.rank_of(3)
        (4, 3, 0)
    """

    experts: tuple[tuple[int, ...], ...]
    slices: int = 1

    def __post_init__(self) -> None:
        held = sorted(self.order)
        if not held:
            raise ValueError(
                f"experts: expected at least one expert on at least one rank, got {self.experts}"
            )
        for before, expert in pairwise(held):
            if before == expert:
                ranks = [rank for rank, own in enumerate(self.experts) if expert in own]
                raise ValueError(
                    f"experts: expected every expert once, got expert {expert} on rank(s) {ranks}"
                )
        missing = sorted(set(range(len(held))).symmetric_difference(held))
        if missing:
            raise ValueError(
                f"experts: expected the numbers 0 to {len(held) - 1} for {len(held)} experts, got "
                f"{held}"
            )
        if self.slices < 1 or len(held) % self.slices:
            raise ValueError(
                f"slices: expected a number that divides the {len(held)} that ranks hold, slices "
                f"counted one by one, got {self.slices}"
            )

    @classmethod
    def even(cls, num_experts: int, num_ranks: int, slices: int = 1) -> "ExpertPlacement":
        """Places neighbours together, evenly: the first E mod W ranks hold one more.

        Args:
            num_experts: E; may be smaller than W: the last ranks then hold none.
            num_ranks: W.
            slices: Of each expert, r.

        Returns:
            The placement: rank w holds `⌊E · r / W⌋ + [w < E · r mod W]` experts, or slices.

        Raises:
            ValueError: A number below 1.

        Example:
            >>> from mmoe.parallel import ExpertPlacement
            >>> ExpertPlacement.even(5, 2).experts
            ((0, 1, 2), (3, 4))
            >>> ExpertPlacement.even(2, 3).experts
            ((0,), (1,), ())
            >>> ExpertPlacement.even(2, 3, slices=2).experts
            ((0, 1), (2,), (3,))
        """
        settings = (("num_experts", num_experts), ("num_ranks", num_ranks), ("slices", slices))
        for name, value in settings:
            if value < 1:
                raise ValueError(f"{name}: expected 1 or more, got {value}")
        each, more = divmod(num_experts * slices, num_ranks)
        bounds = [rank * each + min(rank, more) for rank in range(num_ranks + 1)]
        return cls(tuple(tuple(range(first, last)) for first, last in pairwise(bounds)), slices)

    @property
    def num_experts(self) -> int:
        """Number of experts over all ranks, E; of slices, where they are cut."""
        return len(self.order)

    @property
    def num_ranks(self) -> int:
        """Number of ranks, W."""
        return len(self.experts)

    @property
    def order(self) -> tuple[int, ...]:
        """Lists all experts, rank by rank."""
        return tuple(expert for own in self.experts for expert in own)

    def on(self, rank: int) -> tuple[int, ...]:
        """Returns the experts that a rank holds."""
        return self.experts[rank]

    def rank_of(self, expert: int) -> int:
        """Returns the rank that holds an expert."""
        return self.ranks[expert]

    @property
    def ranks(self) -> tuple[int, ...]:
        """Rank that holds each expert, by expert."""
        return self._by_expert([r for r, own in enumerate(self.experts) for _ in own])

    @property
    def places(self) -> tuple[int, ...]:
        """Number of each expert on the rank that holds it, by expert."""
        return self._by_expert([place for own in self.experts for place in range(len(own))])

    def _by_expert(self, values: Sequence[int]) -> tuple[int, ...]:
        """Values that are given in `order`, by expert."""
        by_expert = dict(zip(self.order, values, strict=True))
        return tuple(by_expert[expert] for expert in range(len(by_expert)))


def slice_picks(plan: DispatchPlan, slices: int) -> DispatchPlan:
    """Turns every pick of an expert into picks of all of its slices, with its weight.

    `w · y[e] = Σ_s w · y[e · slices + s]`, so that nothing else has to know of slices: a row still
    goes to a rank once, and where sums come back, slices on one rank are one sum.

    Args:
        plan: The picks of E experts.
        slices: r.

    Returns:
        The picks of E · r slices, `[B, G, K · r]`; with one slice, the plan itself.

    Example:
        >>> import torch
        >>> from mmoe.mixture import DispatchPlan
        >>> plan = DispatchPlan(
        ...     experts_BGK=torch.tensor([[[1, -1]]], dtype=torch.int32),
        ...     weights_BGK=torch.tensor([[[0.5, 0.0]]]),
        ...     num_experts=2,
        ...     expert_source=(0, 1),
        ... )
        >>> sliced = slice_picks(plan, 2)
        >>> sliced.experts_BGK.tolist(), sliced.expert_source
        ([[[2, 3, -1, -1]]], (0, 0, 1, 1))

    Source: Hwang et al., "Tutel" (MLSys 2023), section 3.1, for experts cut where ranks outnumber
        them (r > 1).
    """
    if slices == 1:
        return plan
    picked_BGK1 = plan.experts_BGK.unsqueeze(3)
    of_one_S = torch.arange(slices, dtype=torch.int32, device=picked_BGK1.device)
    experts_BGKS = torch.where(picked_BGK1 < 0, -1, picked_BGK1 * slices + of_one_S)
    return replace(
        plan,
        experts_BGK=experts_BGKS.to(torch.int32).flatten(2),
        weights_BGK=plan.weights_BGK.repeat_interleave(slices, 2),
        num_experts=plan.num_experts * slices,
        expert_source=tuple(source for source in plan.expert_source for _ in range(slices)),
        source_E=None,
        routes=None,
        # A pair of a row and an expert is one of the row and each slice
        most_pairs=None if plan.most_pairs is None else plan.most_pairs * slices,
    )
