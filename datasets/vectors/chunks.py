"""A file of vectors by id, in pieces of bounded memory: a table, or safetensors."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any, cast

import fsspec
import numpy as np
import pyarrow as pa
from safetensors import SafetensorError, safe_open

from mmoe.config import TableVectors
from mmoe.datasets.files.data_file import DataFile, is_address
from mmoe.datasets.files.readers import column_names, iter_tables
from mmoe.datasets.files.resolve import resolve_files
from mmoe.datasets.rows.locations import MissingColumnError, find_column, place
from mmoe.datasets.values.columns import to_vectors

_NUMBERS = 2**22  # of vectors read at once
_FLOATS = ("F16", "BF16", "F32", "F64")
_INTEGERS = ("I8", "I16", "I32", "I64", "U8", "U16", "U32", "U64")


# Rows of a file read at once: 32 MiB of numbers at the greatest width of a table
_ROWS = 2048
WIDEST = 4096  # of a table


@dataclass(frozen=True)
class VectorChunk:
    """Some rows of a file of vectors."""

    ids: pa.ChunkedArray  # as the file has them, N
    numbers_NL: np.ndarray  # float32, all finite
    row: Callable[[int], str]  # names a row of the chunk, for errors


def vector_chunks(vectors: TableVectors, used_by: str) -> Iterator[VectorChunk]:
    """Yields the rows of a file of vectors; none of them is held when the next ones come.

    Args:
        vectors: Where they are.
        used_by: Who asks, such as "table 'item'".

    Raises:
        ValueError: The file is missing or damaged, lacks a column or tensor, or holds no vectors of
            one length and of finite numbers; names the row.
    """
    pieces = _of_tensors if vectors.path.lower().endswith(".safetensors") else _of_tables
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
    try:
        with safe_open(_local(vectors.path), framework="pt") as file:
            numbers = _tensor(file, vectors.vector, vectors.path, used_by)
            kind, (rows, width) = numbers.get_dtype(), _shape(numbers, vectors, used_by)
            ids = None if vectors.id is None else _ids_of(file, vectors, rows, used_by)
            step = max(1, _NUMBERS // width)
            for first in range(0, rows, step):
                stop = min(first + step, rows)
                piece = numbers[first:stop]
                numbers_NL = (piece.float() if kind in ("F16", "BF16") else piece).numpy()
                ids_N = np.arange(first, stop) if ids is None else ids(first, stop)
                row = partial(_row_from_0, vectors.path, first)
                numbers_NL = _finite(numbers_NL, row, f"tensor {vectors.vector!r} (of {used_by})")
                yield VectorChunk(pa.chunked_array([pa.array(ids_N)]), numbers_NL, row)
    except (OSError, SafetensorError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"{vectors.path}: cannot be read as safetensors ({reason[:200]}); write it again"
        ) from None


def _row_from_0(path: str, first: int, index: int) -> str:
    return f"{path}: row {first + index} (from 0)"


def _shape(numbers: Any, vectors: TableVectors, used_by: str) -> tuple[int, int]:
    kind, shape = numbers.get_dtype(), list(numbers.get_shape())
    if kind not in _FLOATS or len(shape) != 2 or shape[1] == 0:
        raise ValueError(
            f"{vectors.path}: tensor {vectors.vector!r} (of {used_by}) is {kind} {shape}, expected "
            "floats [N, dim]; name another tensor, or write it so"
        )
    return shape[0], shape[1]


def _ids_of(
    file: Any, vectors: TableVectors, rows: int, used_by: str
) -> Callable[[int, int], np.ndarray]:
    """What reads the ids of rows [first, stop), int64."""
    ids = _tensor(file, str(vectors.id), vectors.path, used_by)
    kind, shape = ids.get_dtype(), list(ids.get_shape())
    if kind not in _INTEGERS or shape != [rows]:
        raise ValueError(
            f"{vectors.path}: tensor {vectors.id!r} (ids of {used_by}) is {kind} {shape}, "
            f"expected whole numbers [{rows}], one for each vector; for ids of text write Parquet"
        )

    def read(first: int, stop: int) -> np.ndarray:
        ids_N = ids[first:stop].numpy()
        if ids_N.dtype == np.uint64 and len(ids_N) and ids_N.max() > np.iinfo(np.int64).max:
            raise ValueError(
                f"{vectors.path}: tensor {vectors.id!r} (ids of {used_by}) holds {ids_N.max()}, "
                "expected ids below 2^63; write them as text, in Parquet"
            )
        return ids_N.astype(np.int64)

    return read


def _tensor(file: Any, name: str, path: str, used_by: str) -> Any:
    there = sorted(file.keys())
    if name not in there:
        close = get_close_matches(name, there, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise ValueError(
            f"{path}: there is no tensor {name!r}, which vectors of {used_by} needs{hint}; the "
            f"tensors are: {', '.join(there[:60])}"
        )
    return file.get_slice(name)


def _local(path: str) -> str:
    """Its path on this machine; of an address a copy's, which goes when the process ends."""
    files: list[DataFile] = resolve_files(path)
    if len(files) > 1:
        raise ValueError(
            f"{path}: means {len(files)} files; name one .safetensors file, or write the vectors "
            "as Parquet, of which there may be many"
        )
    if not is_address(path):
        return str(files[0])
    try:
        # One address gives one path, a list of them a list
        return cast(str, fsspec.open_local(f"simplecache::{files[0]}", mode="rb"))
    except Exception as error:  # each file system raises its own kind
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ValueError(
            f"{path}: cannot be copied ({reason}); copy it here, and name the copy"
        ) from None


def _finite(numbers_NL: np.ndarray, row: Callable[[int], str], what: str) -> np.ndarray:
    """Casts to float32; refuses what is not finite."""
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
