"""Features → tables → pooled embeddings. The only package that imports torchrec."""

from mmoe.embeddings.build import EmbeddingBackend, build_embeddings, torchrec_problem
from mmoe.embeddings.plain import PlainEmbeddings, RowWiseAdagrad

__all__ = [
    "EmbeddingBackend",
    "PlainEmbeddings",
    "RowWiseAdagrad",
    "build_embeddings",
    "torchrec_problem",
]
