"""Embeddings on TorchRec: `DistributedModelParallel` over FBGEMM's fused tables."""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import Tensor, nn
from torchrec import (
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    KeyedJaggedTensor,
    PoolingType,
)
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.planner.types import ParameterConstraints, PlannerError
from torchrec.distributed.types import ShardingPlan, ShardingType
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizer

from mmoe.config import EmbeddingOptimizerConfig, FeatureSpec, TableSpec
from mmoe.embeddings.arrange import Block, arrange, arrangement
from mmoe.embeddings.names import module_name, table_of_module
from mmoe.embeddings.pooling import needed_weights
from mmoe.embeddings.quiet import quiet_tracing

# What FBGEMM has kernels for on the CPU (tried with 1.8: Adam, partial row-wise Adam, LAMB, LARS
# and the others say "not supported in CPU mode").
_OPTIMIZERS = {
    "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
    "adagrad": EmbOptimType.EXACT_ADAGRAD,
    "sgd": EmbOptimType.EXACT_SGD,
}


class ShardedEmbeddings(nn.Module):
    """Pooled embeddings under TorchRec's planner, updated inside the backward pass.

    Args:
        tables: Rows and widths.
        features: In the order of the output.
        optimizer: Its kind, settings and rate.
        device: Of the tables; default: the CPU.

    Raises:
        ValueError: No process group is initialised.
    """

    def __init__(
        self,
        tables: Sequence[TableSpec],
        features: Sequence[FeatureSpec],
        optimizer: EmbeddingOptimizerConfig,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        if not dist.is_initialized():
            raise ValueError(
                "the torchrec backend needs a process group; "
                "call mmoe.parallel.ensure_process_group() first"
            )
        self.features = list(features)
        dims = {table.name: table.dim for table in tables}
        self._dims = [dims[feature.table] for feature in features]
        self.output_dim = sum(self._dims)
        self.keys = [feature.name for feature in features]
        self._blocks: list[Block] | None = None
        quiet_tracing()
        with _quiet():
            self.sharded = _shard(tables, features, optimizer, device or torch.device("cpu"))
            self._weights = _local_shards(self.sharded.state_dict())
        self._rates = {
            table.name: table.learning_rate or optimizer.learning_rate for table in tables
        }

    def forward(
        self, values: Tensor, lengths_CB: Tensor, id_weights: Tensor | None = None
    ) -> Tensor:
        """See `EmbeddingBackend`."""
        batch = lengths_CB.numel() // max(len(self.keys), 1)
        if not self.keys or batch == 0:
            # FBGEMM refuses an empty batch; the result of no rows is no rows
            return torch.zeros(batch, self.output_dim, device=values.device)
        ids = KeyedJaggedTensor(
            keys=self.keys,
            values=values,
            lengths=lengths_CB,
            weights=needed_weights(self.features, id_weights),
        )
        pooled = self.sharded(ids).wait()
        if self._blocks is None:
            # The KeyedTensor of a sharded collection lists its keys in shard order
            self._blocks = arrangement(self.features, self._dims, pooled.keys())
        return arrange(pooled.values(), lengths_CB, self._blocks)

    def table_weights(self) -> dict[str, Tensor]:
        """The tables (this rank's shards) by name."""
        return dict(self._weights)

    def optimizer_state(self) -> dict[str, Tensor]:
        """See `EmbeddingBackend`."""
        with _quiet():
            state = self.sharded.fused_optimizer.state_dict()["state"]
            return {
                f"{table_of_module(name.split('.')[0])}/sum": _flat_rows(_local(value))
                for by_table in state.values()
                for name, value in by_table.items()
            }

    def scale_learning_rates(self, factor: float) -> None:
        """For the next backward pass."""
        optimizer = self.sharded.fused_optimizer
        for group in _kernel_optimizers(optimizer):
            # Tables of one kernel have one rate: TorchRec groups them by it
            table = table_of_module(next(iter(group.params)).split(".")[-2])
            for settings in group.param_groups:
                settings["lr"] = self._rates[table] * factor  # type: ignore[index]  # a dict
        optimizer.step()  # hands the rates to the kernels; applies nothing

    def step(self) -> None:
        """Nothing to do: the backward pass has updated the rows."""


def _shard(
    tables: Sequence[TableSpec],
    features: Sequence[FeatureSpec],
    optimizer: EmbeddingOptimizerConfig,
    device: torch.device,
) -> DistributedModelParallel:
    collection = EmbeddingBagCollection(
        device=torch.device("meta"),
        tables=[
            EmbeddingBagConfig(
                name=module_name(table.name),
                num_embeddings=table.num_rows,
                embedding_dim=table.dim,
                feature_names=[f.name for f in features if f.table == table.name],
                pooling=PoolingType.SUM,
            )
            for table in tables
        ],
        is_weighted=any(feature.weighted for feature in features),
    )
    for table in tables:
        if table.learning_rate is not None:
            # Where TorchRec looks for settings of one table; those that agree share a kernel call
            weight: Any = collection.embedding_bags[module_name(table.name)].weight
            weight._optimizer_kwargs = [{"learning_rate": table.learning_rate}]
    sharder = EmbeddingBagCollectionSharder(
        fused_params={
            "optimizer": _OPTIMIZERS[optimizer.kind],
            "learning_rate": optimizer.learning_rate,
            "eps": optimizer.eps,
        }
    )
    world = dist.get_world_size()
    # Left alone, the planner replicates small tables without a fused optimizer
    fused = ParameterConstraints(
        sharding_types=[ShardingType.TABLE_WISE.value],
        compute_kernels=[EmbeddingComputeKernel.FUSED.value],
    )
    planner = EmbeddingShardingPlanner(
        topology=Topology(world_size=world, compute_device=device.type),
        constraints={module_name(table.name): fused for table in tables},
    )
    try:
        plan = planner.collective_plan(collection, [sharder], dist.group.WORLD)  # type: ignore[arg-type]
    except PlannerError as error:
        raise ValueError(_too_large(tables)) from error
    assert isinstance(plan, ShardingPlan)
    return DistributedModelParallel(
        collection,
        device=device,
        plan=plan,
        sharders=[sharder],  # type: ignore[list-item]  # invariant list in torchrec's signature
        init_data_parallel=False,
    )


def _too_large(tables: Sequence[TableSpec]) -> str:
    """Fused and table-wise are always allowed, so a plan lacks nothing but memory."""
    bytes_of = {table.name: table.num_rows * table.dim * 4 for table in tables}
    largest = max(bytes_of, key=lambda name: bytes_of[name])
    return (
        f"the embedding tables need {sum(bytes_of.values()) / 2**30:,.0f} GiB, which TorchRec's "
        f"planner cannot place; the largest is {largest!r} ({bytes_of[largest] / 2**30:,.0f} GiB): "
        "lower its rows, hash_size or dim"
    )


def _local_shards(state: dict[str, object]) -> dict[str, Tensor]:
    """`embedding_bags.table_TABLE.weight` → the local tensor."""
    return {table_of_module(name.split(".")[1]): _local(value) for name, value in state.items()}


def _kernel_optimizers(optimizer: KeyedOptimizer) -> Iterator[KeyedOptimizer]:
    """One for each group of tables that share a kernel call."""
    if isinstance(optimizer, CombinedOptimizer):
        for _, inner in optimizer.optimizers:
            yield from _kernel_optimizers(inner)
    else:
        yield optimizer


def _flat_rows(state: Tensor) -> Tensor:
    """One number a row comes as [rows] or [rows, 1], by the version."""
    return state.view(-1) if state.dim() == 2 and state.shape[1] == 1 else state


def _local(value: object) -> Tensor:
    if isinstance(value, Tensor) and not hasattr(value, "local_shards"):
        return value
    shards = value.local_shards()  # type: ignore[attr-defined]  # a ShardedTensor
    assert len(shards) == 1, "one rank holds each table whole"
    return shards[0].tensor


@contextmanager
def _quiet() -> Iterator[None]:
    """TorchRec's planner warns about estimates and deprecations a user can do nothing about."""
    logger = logging.getLogger("torchrec")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        logger.setLevel(level)
