"""Tables that begin with vectors from elsewhere."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from mmoe.config import TableVectors
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.features.id_map import FIRST_KNOWN
from mmoe.datasets.features.ids import IdCodec
from mmoe.datasets.vectors.chunks import vector_chunks
from mmoe.embeddings.vectors import put_rows
from mmoe.models.ranker import Ranker
from mmoe.parallel.sharded_tensors import Sharded

_ROWS = 2**16  # of a table, that are written at once
_LARGEST_HALF = 65_504


def start_from_vectors(
    ranker: Ranker, encoder: FeatureEncoder, learnt: Mapping[str, int]
) -> list[str]:
    """Puts vectors into the tables that begin with them, each file read piece by piece.

    Every rank reads the whole file, and writes the rows that it holds: the same on any number of
    ranks. A row without a vector keeps its first values, and where the table is frozen the mean of
    the vectors, for they are all that it will ever be. So do rows 0 and 1, of missing and unseen
    ids.

    Args:
        ranker: Freshly initialised, or continued from an earlier run.
        encoder: Knows the files and the ids.
        learnt: How many rows of a table an earlier run has left. Trained ones stay as they are.
            Frozen ones get today's vectors; those that today's file has not keep theirs.

    Returns:
        A line about each table that is not kept as an earlier run left it (`training.freeze`).

    Raises:
        ValueError: A file cannot be read, or is another than when the encoder was fitted.
    """
    tables: Mapping[str, Sharded] = ranker.tables.table_shards()
    codecs = {
        codec.table: codec
        for codec in reversed(encoder.codecs)
        if isinstance(codec, IdCodec)
        and codec.vectors is not None
        and codec.table not in encoder.config.frozen_tables
    }
    return [
        _fill(codec, encoder, tables[name], learnt.get(name, 0))
        for name, codec in reversed(codecs.items())
    ]


def _fill(codec: IdCodec, encoder: FeatureEncoder, table: Sharded, learnt: int) -> str:
    vectors, used_by = codec.vectors, f"table {codec.table!r}"
    assert vectors is not None, "asked for of such tables alone"
    ids, scaling = codec.ids(encoder.rules), codec.scaling(encoder.rules)
    has_N = np.zeros(ids.num_rows, bool)
    for chunk in vector_chunks(vectors, used_by):
        if chunk.numbers_NL.shape[1] != len(scaling.mean):
            raise ValueError(
                f"{vectors.path}: its vectors have {chunk.numbers_NL.shape[1]} numbers, but "
                f"{len(scaling.mean)} in what table {codec.table!r} was fitted to; give the "
                "feature another name, or bring back what was there"
            )
        rows_N = ids.lookup(chunk.ids, f"{vectors.path}: ids of {used_by}").astype(np.int64)
        wanted_N = rows_N >= (FIRST_KNOWN if vectors.frozen else max(learnt, FIRST_KNOWN))
        values_RD = scaling.rows(chunk.numbers_NL[wanted_N], vectors)
        _check_half(values_RD, codec, vectors)
        put_rows(table, torch.from_numpy(rows_N[wanted_N]), torch.from_numpy(values_RD))
        has_N[rows_N[rows_N >= FIRST_KNOWN]] = True
    if vectors.frozen:
        without_R = np.flatnonzero(~has_N[learnt:]) + learnt
        other_D = torch.from_numpy(scaling.row_of_others(vectors))
        _put_one(table, torch.from_numpy(without_R), other_D)
    return _said(codec.table, vectors, has_N, learnt)


def _check_half(values_RD: np.ndarray, codec: IdCodec, vectors: TableVectors) -> None:
    """Refuses what rows in fp16 cannot hold, on every rank alike."""
    precision = codec.config.parallel.placement(codec.table).precision
    if precision == "fp16" and np.abs(values_RD).max(initial=0.0) > _LARGEST_HALF:
        raise ValueError(
            f"{vectors.path}: holds numbers beyond {_LARGEST_HALF:,}, and the rows of table "
            f"{codec.table!r} are fp16; say vectors.scale: standard or unit, or precision: fp32"
        )


def _put_one(table: Sharded, rows_R: Tensor, row_D: Tensor) -> None:
    for some_R in rows_R.split(_ROWS):
        put_rows(table, some_R, row_D.expand(len(some_R), -1))


def _said(table: str, vectors: TableVectors, has_N: np.ndarray, learnt: int) -> str:
    known, total = int(has_N.sum()), len(has_N) - FIRST_KNOWN
    kept = min(max(learnt - FIRST_KNOWN, 0), total)
    goes_on = ""
    if kept:
        goes_on = f"; {kept:,} are those of the earlier run" + (
            ", with today's vectors" if vectors.frozen else ", as they were trained"
        )
    how = "frozen" if vectors.frozen else "and is trained"
    return (
        f"table {table} begins with {vectors.path}, {how}: {known:,} of {total:,} ids have a "
        f"vector{goes_on}"
    )
