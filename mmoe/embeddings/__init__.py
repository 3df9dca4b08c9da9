"""Features → tables → pooled embeddings. The only package that imports torchrec."""

from mmoe.embeddings.build import EmbeddingBackend, build_embeddings, torchrec_problem
from mmoe.embeddings.managed import ManagedEmbeddings, managed_ids
from mmoe.embeddings.names import table_of_state
from mmoe.embeddings.plain import PlainEmbeddings
from mmoe.embeddings.plan_table import plan_table
from mmoe.parallel.shards import Shard, Sharded, pieces

__all__ = [
    "EmbeddingBackend",
    "ManagedEmbeddings",
    "PlainEmbeddings",
    "Shard",
    "Sharded",
    "build_embeddings",
    "managed_ids",
    "pieces",
    "plan_table",
    "table_of_state",
    "torchrec_problem",
]
