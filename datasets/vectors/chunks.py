"""A file of vectors by id, in pieces of bounded memory."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from mmoe.config import TableVectors
from mmoe.datasets.files.readers import column_names, iter_tables
from mmoe.datasets.rows.locations import MissingColumnError, find_column, place
from mmoe.datasets.values.vectors import to_vectors
from mmoe.datasets.vectors.tensor_files import is_tensor_file, tensor_pieces

# Rows of a file read at once: 32 MiB of numbers at the greatest width of a table
_ROWS = 2048
WIDEST = 4096  # of a table


@dataclass(frozen=True)
class VectorChunk:
    """Some rows of a file of vectors.

    Attributes:
        ids: As the file has them, N.
        numbers_NL: float32, all finite.
        row: Names a row of the chunk, for errors.
    """

    ids: pa.ChunkedArray
    numbers_NL: np.ndarray
    row: Callable[[int], str]


def vector_chunks(vectors: TableVectors, used_by: str) -> Iterator[VectorChunk]:
    """Yields the rows of a file of vectors; none of them is held when the next ones come.

    Args:
        vectors: Where they are.
        used_by: Who asks, such as "table 'item'".

    Raises:
        ValueError: The file is missing or damaged, lacks a column or tensor, or holds no vectors of
            one length and of finite numbers; names the row.
    """
    pieces = _of_tensors if is_tensor_file(vectors.path) else _of_tables
    width = None
    for chunk in pieces(vectors, used_by):
        if not len(chunk.ids):
            continue
        width = width or chunk.numbers_NL.shape[1]
        if width > WIDEST:
            raise ValueError(
                f"{vectors.path}: vectors of {width:,} numbers (of {used_by}), but a table is at "
                f"most {WIDEST:,} wide; project them to fewer numbers first"
            )
        yield chunk
    if width is None:
        raise ValueError(f"{vectors.path}: holds no vectors (of {used_by}); name another file")


def _of_tables(vectors: TableVectors, used_by: str) -> Iterator[VectorChunk]:
    path, length = vectors.path, None
    if vectors.id is None:
        raise ValueError(
            f"{used_by}: vectors has no id, the column of ids in {path}; say id: COLUMN; the "
            f"columns are: {', '.join(column_names(path)[:60])}"
        )
    names = [vectors.id, vectors.vector]
    try:
        for table in iter_tables(path, names, _ROWS):
            found = to_vectors(table, vectors.vector, path, used_by, length)
            row = partial(place, table, path)
            if not found.present_N.all():
                bad = int((~found.present_N).argmax())
                raise ValueError(
                    f"{row(bad)}: column {vectors.vector!r} (of {used_by}) holds no vector; remove "
                    "the row, or write its numbers"
                )
            length = length or found.numbers_ML.shape[1] or None
            numbers_NL = _finite(found.numbers_ML, row, f"column {vectors.vector!r} (of {used_by})")
            yield VectorChunk(find_column(table, vectors.id, path, used_by), numbers_NL, row)
    except MissingColumnError as error:
        raise error.needed_by(f"vectors of {used_by}") from None


def _of_tensors(vectors: TableVectors, used_by: str) -> Iterator[VectorChunk]:
    for first, ids_N, numbers_NL in tensor_pieces(vectors, used_by):

        def row(index: int, first: int = first) -> str:
            return f"{vectors.path}: row {first + index} (from 0)"

        numbers_NL = _finite(numbers_NL, row, f"tensor {vectors.vector!r} (of {used_by})")
        yield VectorChunk(pa.chunked_array([pa.array(ids_N)]), numbers_NL, row)


def _finite(numbers_NL: np.ndarray, row: Callable[[int], str], what: str) -> np.ndarray:
    """As float32."""
    with np.errstate(over="ignore"):  # to infinity, which is refused below
        narrow_NL = numbers_NL.astype(np.float32, copy=False)
    bad_N = ~np.isfinite(narrow_NL).all(axis=1)
    if bad_N.any():
        bad = int(bad_N.argmax())
        number = numbers_NL[bad][~np.isfinite(narrow_NL[bad])][0]
        raise ValueError(
            f"{row(bad)}: {what} holds {'a missing number' if np.isnan(number) else number}, "
            "expected finite numbers of float32; mend the vector, or remove the row"
        )
    return narrow_NL
