"""Tables of which every rank has a copy."""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torchrec.distributed.batched_embedding_kernel import (
    BatchedDenseEmbedding,
    BatchedDenseEmbeddingBag,
)

from mmoe.config import EmbeddingOptimizerConfig, TableSpec
from mmoe.embeddings.backend import table_of_module
from mmoe.embeddings.row_updates import TableOptimizer, decays_of, row_update


class Replicas:
    """Trains the data-parallel tables of a sharded collection as its fused kernels train others.

    TorchRec leaves their gradients, dense and averaged over the ranks, to an optimizer of the
    caller's. Here they are added up, and the rows that they move are moved by the rule of all
    tables: a row that no rank looked up has no gradient, and so keeps its values and its state.

    Args:
        sharded: TorchRec's modules, which hold the lookups (and hide them from `modules`).
        tables: All that there are.
        rates: Of each table.
        config: Of the optimizer.

    Attributes:
        weights: The copies that this process has, by table; empty: there are none to move.
    """

    def __init__(
        self,
        sharded: Sequence[Any],
        tables: Sequence[TableSpec],
        rates: Mapping[str, float],
        config: EmbeddingOptimizerConfig,
    ) -> None:
        self.weights: dict[str, Any] = {}
        for wrapped in (lookup for collection in sharded for lookup in collection._lookups):
            if isinstance(wrapped, DistributedDataParallel):
                wrapped.register_comm_hook(None, _add_up)
                lookup: Any = wrapped.module
                _look_up_with_gradient(lookup)
                for name, weight in lookup.named_parameters_by_table():
                    self.weights[table_of_module(name)] = weight
        self._frozen = {table.name for table in tables if table.frozen}
        moved = {name: w for name, w in self.weights.items() if name not in self._frozen}
        self._optimizer = TableOptimizer(
            moved, rates, row_update(config), decays_of(tables, config)
        )

    def state(self) -> dict[str, Tensor]:
        """Returns the optimizer's state, by `TABLE/NAME`."""
        return self._optimizer.state()

    def scale_learning_rates(self, factor: float) -> None:
        """Scales the rates for the next step."""
        self._optimizer.factor = factor

    def step(self) -> None:
        """Moves the rows, and clears the gradients."""
        self._optimizer.step()
        for name in self._frozen.intersection(self.weights):
            self.weights[name].grad = None


def _add_up(
    _: None,
    bucket: dist.GradBucket,  # type: ignore[attr-defined]  # documented, but not in __all__
) -> Future[Tensor]:
    work: Any = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


def _look_up_with_gradient(lookup: nn.Module) -> None:
    """FBGEMM's unfused lookup has no gradient on the CPU (1.8); torch's has, over its weights."""
    for module in lookup.modules():
        if not isinstance(module, BatchedDenseEmbeddingBag | BatchedDenseEmbedding):
            continue
        kernel: Any = module._emb_module
        if kernel.current_device.type == "cpu":
            own = _pooled if isinstance(module, BatchedDenseEmbeddingBag) else _rows
            kernel.forward = partial(own, kernel, module._feature_table_map)


def _rows(
    kernel: Any, feature_tables: Sequence[int], indices: Tensor, offsets: Tensor, **_: Any
) -> Tensor:
    """A row for each id, one feature's below another's; arguments as those of `_pooled`."""
    tables = _tables(kernel)
    batch = (len(offsets) - 1) // len(feature_tables)
    bounds = pairwise(offsets[::batch].tolist())
    found = [
        F.embedding(indices[start:end], tables[table])
        for (start, end), table in zip(bounds, feature_tables, strict=True)
    ]
    return torch.cat(found)


def _tables(kernel: Any) -> list[Tensor]:
    """The tables, which lie one after another."""
    flat = kernel.weights.split([rows * dim for rows, dim in kernel.embedding_specs])
    return [part.view(size) for part, size in zip(flat, kernel.embedding_specs, strict=True)]


def _pooled(
    kernel: Any,
    feature_tables: Sequence[int],
    indices: Tensor,
    offsets: Tensor,
    per_sample_weights: Tensor | None = None,
    **_: Any,
) -> Tensor:
    """Sums of every feature's rows, side by side: what FBGEMM's kernel returns, x_BD.

    Args:
        kernel: Holds the tables, one after another in `weights`.
        feature_tables: Number of each feature's table, [C].
        indices: Feature-major, [V].
        offsets: Where each (feature, row) begins, [C · B + 1].
        per_sample_weights: Of the ids, [V].
    """
    tables = _tables(kernel)
    batch = (len(offsets) - 1) // len(feature_tables)
    bounds = offsets[::batch].tolist()
    pooled = []
    for c, ((start, end), table) in enumerate(zip(pairwise(bounds), feature_tables, strict=True)):
        weights = None if per_sample_weights is None else per_sample_weights[start:end]
        first = offsets[c * batch : (c + 1) * batch] - start
        ids, first = indices[start:end], first.to(indices.dtype)
        pooled.append(
            F.embedding_bag(ids, tables[table], first, mode="sum", per_sample_weights=weights)
        )
    return torch.cat(pooled, dim=1)
