"""A sharding plan in the words of the config."""

from collections.abc import Mapping, Sequence
from typing import Any

from torchrec.distributed.types import ParameterSharding

from mmoe.config import EmbeddingOptimizerConfig, ParallelConfig, TableSpec
from mmoe.embeddings.names import module_name
from mmoe.embeddings.sharded.planning import KERNELS, SHARDINGS, shard_bytes


def plan_rows(
    tables: Sequence[TableSpec],
    plan: Mapping[str, ParameterSharding],
    optimizer: EmbeddingOptimizerConfig,
    parallel: ParallelConfig,
    ranks: int,
) -> list[dict[str, Any]]:
    """Lists the plan for JSON, one entry a table.

    See `EmbeddingBackend.plan_summary`.
    """
    return [
        {
            "table": table.name,
            "rows": table.num_rows,
            "dim": table.dim,
            "sharding": _word(SHARDINGS, plan[module_name(table.name)].sharding_type),
            "kernel": _word(KERNELS, plan[module_name(table.name)].compute_kernel),
            "precision": parallel.placement(table.name).precision,
            "pieces": _shards(table, plan[module_name(table.name)], optimizer, parallel, ranks),
        }
        for table in tables
    ]


def _word(words: Mapping[str, Any], value: str) -> str:
    return next((word for word, known in words.items() if known.value == value), value)


def _shards(
    table: TableSpec,
    sharding: ParameterSharding,
    optimizer: EmbeddingOptimizerConfig,
    parallel: ParallelConfig,
    ranks: int,
) -> list[dict[str, Any]]:
    spec: Any = sharding.sharding_spec
    if spec is None:  # a copy on every rank
        regions = [(rank, (0, 0), (table.num_rows, table.dim)) for rank in range(ranks)]
    else:
        regions = [(s.placement.rank(), s.shard_offsets, s.shard_sizes) for s in spec.shards]
    precision = parallel.placement(table.name).precision or "fp32"
    return [
        {
            "rank": rank,
            "rows": [first[0], first[0] + size[0]],
            "columns": [first[1], first[1] + size[1]],
            "bytes": shard_bytes(size[0], size[1], optimizer, precision, table.frozen),
        }
        for rank, first, size in regions
        if size[0]
    ]
