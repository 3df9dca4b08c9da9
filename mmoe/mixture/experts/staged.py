"""`StagedExperts`: experts that came one after another, each reading what there was then."""

import copy
from collections.abc import Sequence

from torch import Tensor, nn

from mmoe.mixture.columns import ColumnChoice
from mmoe.mixture.experts.mixed import MixedExperts
from mmoe.mixture.experts.no_experts import NoExperts


class StagedExperts(MixedExperts):
    """`MixedExperts` whose pools read columns of their own.

    Args:
        pools: As there; the first ones first.
        columns: Of the input, those that each pool reads; None: all.
        names: As there.

    Example:
        >>> import torch
        >>> from mmoe.mixture import MLPExperts
        >>> from mmoe.mixture.experts.staged import StagedExperts
        >>> pool = StagedExperts([MLPExperts(6, 8, [16]), MLPExperts(2, 9, [16])], [range(8), None])
        >>> [y.shape for y in pool.dense([torch.zeros(3, 9)])][-1]
        torch.Size([3, 16])
    """

    def __init__(
        self,
        pools: Sequence[nn.Module],
        columns: Sequence[Sequence[int] | None],
        names: Sequence[str] | None = None,
    ) -> None:
        super().__init__(pools, names)
        self.choices = nn.ModuleList(
            ColumnChoice(None if own is None else list(own)) for own in columns
        )

    def _choice(self, number: int) -> ColumnChoice:
        choice = self.choices[number]
        assert isinstance(choice, ColumnChoice)
        return choice

    def part(self, experts: Sequence[int]) -> MixedExperts | NoExperts:
        """Copies some of the experts into a pool of their own, as `MixedExperts.part`."""
        part = super().part(experts)
        if isinstance(part, StagedExperts):
            part.choices = copy.deepcopy(self.choices)
        return part

    def _dense(self, number: int, inputs: Sequence[Tensor]) -> list[Tensor]:
        return super()._dense(number, self._choice(number).of(inputs))

    def _grouped(self, number: int, rows: Tensor, offsets_E1: Tensor) -> Tensor:
        return super()._grouped(number, self._choice(number)(rows), offsets_E1)
