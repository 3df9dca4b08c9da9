"""`PoolCompute`: a pool as what a dispatcher calls."""

from typing import Any, cast

from torch import Tensor

from mmoe.mixture.experts.contract import Pool, Record
from mmoe.mixture.pytrees import Tree, join_rows


class PoolCompute:
    """Runs a pool on what `Dispatcher.dispatch` returns; a dispatcher may look at the pool.

    Args:
        pool: The experts of this rank.
        record: Gets what every ReLU layer gave appended, where the pool has dead units.

    Example:
        >>> import torch
        >>> from mmoe.mixture import mlp_experts
        >>> from mmoe.mixture.experts.pool_compute import PoolCompute
        >>> compute = PoolCompute(mlp_experts(2, 4, [3]))
        >>> compute(torch.zeros(5, 4), None).shape  # both experts compute all rows
        torch.Size([10, 3])
        >>> compute(torch.zeros(5, 4), torch.tensor([0, 2, 5]).int()).shape
        torch.Size([5, 3])
    """

    def __init__(self, pool: Pool, record: Record | None = None) -> None:
        self.pool = pool
        self._recorded = {} if record is None else {"record": record}

    @staticmethod
    def pool_of(compute: object) -> Pool | None:
        """Returns the experts that a function runs; None: it is somebody's own, and has none."""
        return compute.pool if isinstance(compute, PoolCompute) else None

    def __call__(self, rows: Tree, offsets_E1: Tensor | None) -> Tree:
        """Returns `y_RO`, row for row; without offsets every expert computes every row."""
        pool = cast(Any, self.pool)
        if offsets_E1 is None:
            return join_rows(pool.dense([rows]))
        return pool.grouped(rows, offsets_E1, **self._recorded)
