"""Features → tables → pooled embeddings. The only package that imports torchrec."""

from mmoe.embeddings.backend import EmbeddingBackend, plan_table, table_of_state
from mmoe.embeddings.build import (
    build_embeddings,
    build_scoring_embeddings,
    managed_ids,
    torchrec_problem,
)
from mmoe.embeddings.lookups import Lookups
from mmoe.embeddings.managed import ManagedEmbeddings
from mmoe.embeddings.plain import PlainEmbeddings
from mmoe.embeddings.quantized import (
    RowPrecision,
    ScoringEmbeddings,
    memory_of_tables,
    scoring_embeddings,
)
from mmoe.embeddings.step_phases import StepIds, StepPhases
from mmoe.parallel import Shard, Sharded, local_shards

__all__ = [
    "EmbeddingBackend",
    "Lookups",
    "ManagedEmbeddings",
    "PlainEmbeddings",
    "RowPrecision",
    "ScoringEmbeddings",
    "Shard",
    "Sharded",
    "StepIds",
    "StepPhases",
    "build_embeddings",
    "build_scoring_embeddings",
    "local_shards",
    "managed_ids",
    "memory_of_tables",
    "plan_table",
    "scoring_embeddings",
    "table_of_state",
    "torchrec_problem",
]
