"""Embeddings on TorchRec: `DistributedModelParallel` over FBGEMM's fused tables."""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import Tensor
from torchrec import KeyedJaggedTensor
from torchrec.distributed.comm_ops import set_gradient_division
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizer

from mmoe.config import EmbeddingOptimizerConfig, FeatureSpec, ParallelConfig, TableSpec
from mmoe.embeddings.backend import EmbeddingBackend, table_of_module
from mmoe.embeddings.lookups import Block, Lookups, arrange, arrangement, needed_weights
from mmoe.embeddings.sharded.collections import (
    Collections,
    UnpooledLookups,
    pooled_collection,
    sharded_collections,
    tables_of_events,
)
from mmoe.embeddings.sharded.ids_ahead import IdsAhead
from mmoe.embeddings.sharded.planning import TablePlanner, World
from mmoe.embeddings.sharded.replicas import Replicas
from mmoe.embeddings.sharded.sharder import RowSharder, TableSharder
from mmoe.embeddings.step_phases import StepPhases, StepT
from mmoe.parallel import Shard, Sharded
from mmoe.parallel.sharded_tensors import held_whole

# What FBGEMM has kernels for on the CPU (tried with 1.8: Adam, partial row-wise Adam, LAMB, LARS
# and the others say "not supported in CPU mode").
_OPTIMIZERS = {
    "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
    "adagrad": EmbOptimType.EXACT_ADAGRAD,
    "sgd": EmbOptimType.EXACT_SGD,
}


class ShardedEmbeddings(EmbeddingBackend):
    """Embeddings under TorchRec's planner, updated inside the backward pass.

    All ranks make it, call it and run its backward pass together, each with its own batch: of any
    height, 0 included. The loss is the sum of what the ranks call `backward` on; every row moves
    as if one process had looked up the batches of all, one under another.

    Args:
        tables: Rows and widths.
        features: In the order of the output.
        optimizer: Its kind, settings and rate.
        parallel: Where the tables are. One rank holds them all.
        device: Of the tables and the batches; default: the CPU.

    Raises:
        ValueError: No process group is initialised; on every rank alike: the tables cannot be
            placed as the config says, or the ranks have not the memory.
    """

    def __init__(
        self,
        tables: Sequence[TableSpec],
        features: Sequence[FeatureSpec],
        optimizer: EmbeddingOptimizerConfig,
        parallel: ParallelConfig | None = None,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        if not dist.is_initialized():
            raise ValueError(
                "the torchrec backend needs a process group; "
                "call mmoe.parallel.ensure_process_group() first"
            )
        self.features = list(features)
        self.tables, self.optimizer = list(tables), optimizer
        self.parallel = parallel or ParallelConfig()
        dims = {table.name: table.dim for table in tables}
        self._dims = [dims[feature.table] for feature in features]
        self.output_dim = sum(dims[f.table] for f in features if f.pooling != "none")
        self.keys = [feature.name for feature in features]
        self._weighted = any(feature.weighted for feature in features)
        self._blocks: list[Block] | None = None
        of_events = tables_of_events(features)
        self._unpooled = UnpooledLookups(tables, features) if of_events else None
        self._rates = {
            table.name: 0.0 if table.frozen else table.learning_rate or optimizer.learning_rate
            for table in tables
        }
        set_gradient_division(False)  # the loss is the ranks' sum, not their mean
        device = device or torch.device("cpu")
        world = World.of_this_process(self.parallel, device)
        self._planner = TablePlanner(self.tables, optimizer, self.parallel, world, of_events)
        with _quiet():
            self.sharded = self._shard(device)
            self._shards = {
                table_of_module(name.split(".")[-2]): _held(value)
                for name, value in self.sharded.state_dict().items()
            }
        # Tables of one kernel have one rate: TorchRec groups them by it
        self._kernels = [
            (group, self._rates[table_of_module(next(iter(group.params)).split(".")[-2])])
            for group in _kernel_optimizers(self.sharded.fused_optimizer)
        ]
        self._replicas = Replicas(
            list(sharded_collections(cast(Any, self.sharded.module))),
            self.tables,
            self._rates,
            optimizer,
        )

    def forward(
        self, values: Tensor, lengths_CB: Tensor, id_weights: Tensor | None = None
    ) -> Lookups:
        """Returns pooled embeddings, the features side by side, and those of events."""
        batch = lengths_CB.numel() // max(len(self.keys), 1)
        if batch == 0 and dist.get_world_size() == 1:
            # FBGEMM refuses an empty batch; the result of no rows is no rows
            return self._nothing(values)
        if self._unpooled is not None:
            lengths_CB = self._at_least_one_row(lengths_CB)
            found = self._unpooled.look_up(self.sharded, values, lengths_CB, id_weights)
            if batch or found.lengths_SB is None:
                return found
            return Lookups(found.x_BD[:0], found.events, found.lengths_SB[:, :0])
        ids = self._ids(values, lengths_CB, id_weights)
        pooled = self.sharded(ids).wait()
        if self._blocks is None:
            # The KeyedTensor of a sharded collection lists its keys in shard order
            self._blocks = arrangement(self.features, self._dims, pooled.keys())
        x_BD = arrange(pooled.values(), ids.lengths(), self._blocks)
        # A slice of all rows would cost the backward pass a tensor of zeros and a copy
        return Lookups(x_BD if len(x_BD) == batch else x_BD[:batch])

    def _nothing(self, values: Tensor) -> Lookups:
        """Looked up for no rows."""
        dims = [d for f, d in zip(self.features, self._dims, strict=True) if f.pooling == "none"]
        events = tuple(torch.zeros(0, dim, device=values.device) for dim in dims)
        lengths_SB = values.new_zeros(len(dims), 0, dtype=torch.int32) if dims else None
        return Lookups(torch.zeros(0, self.output_dim, device=values.device), events, lengths_SB)

    def _at_least_one_row(self, lengths_CB: Tensor) -> Tensor:
        """Other ranks wait for what this one asks for, so it looks up one empty row."""
        return lengths_CB if lengths_CB.numel() else lengths_CB.new_zeros(len(self.keys))

    def _ids(
        self, values: Tensor, lengths_CB: Tensor, id_weights: Tensor | None = None
    ) -> KeyedJaggedTensor:
        weights = needed_weights(self.features, id_weights) if self._weighted else None
        lengths_CB = self._at_least_one_row(lengths_CB)
        return KeyedJaggedTensor(keys=self.keys, values=values, lengths=lengths_CB, weights=weights)

    def ids_ahead(
        self, steps: Iterator[StepT], phases: StepPhases[StepT]
    ) -> IdsAhead[StepT] | None:
        """Trains on `steps` with the ids of the next one under way; None: it cannot here."""
        whole = self.parallel.pipeline != "off" and self._unpooled is None
        if not whole or dist.get_world_size() == 1:
            return None
        return IdsAhead(
            cast(Any, self.sharded.module),
            lambda step: self._ids(*step.ids),
            steps,
            phases,
            self.sharded.device,
        )

    def table_weights(self) -> dict[str, Tensor]:
        """Returns the tables by name, where this process holds all of them whole.

        Raises:
            ValueError: One of them is spread over ranks.
        """
        return held_whole(self._shards)

    def table_shards(self) -> dict[str, Sharded]:
        """Returns the tables (not copies) by name: whole, or the shards that are here."""
        return dict(self._shards)

    def optimizer_state(self) -> dict[str, Tensor]:
        """Returns what a resumed run needs (not copies): `TABLE/NAME`.

        Raises:
            ValueError: A table is spread over ranks.
        """
        return held_whole(self.optimizer_shards())

    def optimizer_shards(self) -> dict[str, Sharded]:
        """Returns the tensors of `optimizer_state`, cut as the tables are."""
        if self.optimizer.kind == "sgd":
            return dict(self._replicas.state())
        with _quiet():
            state = self.sharded.fused_optimizer.state_dict()["state"]
            found: dict[str, Sharded] = {
                f"{table_of_module(name.split('.')[0])}/sum": _held(value)
                for by_table in state.values()
                for name, value in by_table.items()
            }
        copies = self._replicas.state()
        # A rank that holds no shard of a table has none of its state
        moved = [table.name for table in self.tables if not table.frozen]
        return {f"{table}/sum": found.get(f"{table}/sum", []) for table in moved} | copies

    def scale_learning_rates(self, factor: float) -> None:
        """Scales the rates for the next backward pass."""
        if self._replicas.weights:
            self._replicas.scale_learning_rates(factor)
        for group, rate in self._kernels:
            for settings in group.param_groups:
                settings["lr"] = rate * factor  # type: ignore[index]  # a dict
        self.sharded.fused_optimizer.step()  # hands the rates to the kernels; applies nothing

    def step(self) -> None:
        """Moves tables of which every rank has a copy; the backward pass has moved the others."""
        if self._replicas.weights:
            self._replicas.step()

    def plan_summary(self) -> list[dict[str, Any]]:
        """Says who holds what, one entry a table; the same on every rank."""
        plans = self.sharded.plan.plan.values()
        return self._planner.rows({t: how for plan in plans for t, how in cast(Any, plan).items()})

    def _shard(self, device: torch.device) -> DistributedModelParallel:
        make = pooled_collection if self._unpooled is None else Collections
        collection = make(self.tables, self.features, self.parallel)
        fused = {
            "optimizer": _OPTIMIZERS[self.optimizer.kind],
            "learning_rate": self.optimizer.learning_rate,
            **self.optimizer.keywords(),
        }
        sharders: list[Any] = [TableSharder(fused_params=fused), RowSharder(fused_params=fused)]
        plan = self._planner.plan(collection, sharders)
        return DistributedModelParallel(
            collection, device=device, plan=plan, sharders=sharders, init_data_parallel=False
        )


def _kernel_optimizers(optimizer: KeyedOptimizer) -> Iterator[KeyedOptimizer]:
    """Returns the optimizer of each group of tables that share a kernel call."""
    if isinstance(optimizer, CombinedOptimizer):
        for _, inner in optimizer.optimizers:
            yield from _kernel_optimizers(inner)
    elif optimizer.params:
        yield optimizer


def _held(value: object) -> Sharded:
    """The tensor where every rank has it whole, else this rank's shards of it."""
    if isinstance(value, Tensor) and not hasattr(value, "local_shards"):
        return _flat_rows(value)
    sharded: Any = value  # a ShardedTensor
    local = []
    for shard in sharded.local_shards():
        tensor = _flat_rows(shard.tensor)
        dims, offsets = tensor.dim(), shard.metadata.shard_offsets  # as many as the tensor has
        local.append(Shard(tensor, tuple(sharded.size())[:dims], tuple(offsets)[:dims]))
    return local[0].tensor if dist.get_world_size() == 1 and len(local) == 1 else local


def _flat_rows(state: Tensor) -> Tensor:
    """Flattens one number a row, which comes as [rows] or [rows, 1] by the version."""
    return state.view(-1) if state.dim() == 2 and state.shape[1] == 1 else state


@contextmanager
def _quiet() -> Iterator[None]:
    """TorchRec's planner warns about estimates and deprecations a user can do nothing about."""
    loggers = [logging.getLogger("torchrec"), logging.getLogger()]  # it uses the root's as well
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
