"""`StagedExperts`: experts that came one after another, each reading what there was then."""

import copy
from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor, nn

from mmoe.mixture.axes import Names, Part, picked
from mmoe.mixture.columns import ColumnChoice
from mmoe.mixture.experts.mixed import MixedExperts, of_one_type
from mmoe.mixture.experts.no_experts import NoExperts
from mmoe.mixture.requests.rows import RequestRows, read_by_experts
from mmoe.mixture.traits import SharedWork


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

    reads_requests: ClassVar = True

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

    def named_parts(self, names: Names) -> list[Part]:
        """Says which experts and inputs each pool has; by their names alone its tensors go on."""
        return [
            part._replace(path=(), names=self._read(i, part.names))
            for i, part in enumerate(super().named_parts(names))
        ]

    def _read(self, number: int, names: Names) -> Names:
        columns_C = self._choice(number).columns_C
        return names if columns_C is None else picked(names, "inputs", columns_C.tolist())

    def _choice(self, number: int) -> ColumnChoice:
        choice = self.choices[number]
        assert isinstance(choice, ColumnChoice)
        return choice

    def of_requests(self, rows: RequestRows) -> list[Tensor]:
        """Runs every expert on all rows, of pools that read all columns as they would alone."""
        return of_one_type([y for number in range(len(self.pools)) for y in self._of(number, rows)])

    def shared_work(self, rows: RequestRows) -> SharedWork:
        """Nothing is counted on."""
        return SharedWork()

    def _of(self, number: int, rows: RequestRows) -> list[Tensor]:
        pool, choice = self._each()[number], self._choice(number)
        if not len(pool):
            return []
        read = read_by_experts(pool if choice.columns_C is None else None, rows)
        if isinstance(read, RequestRows):
            return pool.of_requests(read)
        return self._dense(number, [read])

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
