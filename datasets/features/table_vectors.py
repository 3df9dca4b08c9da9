"""Tables of ids that begin with vectors: a file of vectors by id, and how it becomes rows.

The file is a table, or safetensors, and is read in pieces of bounded memory.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Annotated, Any, cast

import fsspec
import numpy as np
import pyarrow as pa
from pydantic import Field
from safetensors import SafetensorError, safe_open

from mmoe.config import Stored, TableVectors
from mmoe.config.tables import VocabularyEncoding
from mmoe.datasets.features.codec import Finite, Section
from mmoe.datasets.features.id_map import Counts, Vocabulary, least_seen, refuse_too_many
from mmoe.datasets.features.vector import NARROWER
from mmoe.datasets.files.data_file import is_address
from mmoe.datasets.files.readers import column_names, iter_tables
from mmoe.datasets.files.resolve import resolve_files
from mmoe.datasets.rows.locations import MissingColumnError, find_column, place
from mmoe.datasets.values.arrow import pc
from mmoe.datasets.values.columns import to_vectors
from mmoe.datasets.values.keys import ARROW_TYPES, KeyKind, key_kind, missing_mask, to_keys, widest

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
                ids_N = np.arange(first, stop)
                if ids is not None:
                    ids_N = _int64(ids[first:stop].numpy(), vectors, used_by)
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


def _ids_of(file: Any, vectors: TableVectors, rows: int, used_by: str) -> Any:
    """The tensor of ids, one for each vector."""
    ids = _tensor(file, str(vectors.id), vectors.path, used_by)
    kind, shape = ids.get_dtype(), list(ids.get_shape())
    if kind not in _INTEGERS or shape != [rows]:
        raise ValueError(
            f"{vectors.path}: tensor {vectors.id!r} (ids of {used_by}) is {kind} {shape}, "
            f"expected whole numbers [{rows}], one for each vector; for ids of text write Parquet"
        )

    return ids


def _int64(ids_N: np.ndarray, vectors: TableVectors, used_by: str) -> np.ndarray:
    if ids_N.dtype == np.uint64 and len(ids_N) and ids_N.max() > np.iinfo(np.int64).max:
        raise ValueError(
            f"{vectors.path}: tensor {vectors.id!r} (ids of {used_by}) holds {ids_N.max()}, "
            "expected ids below 2^63; write them as text, in Parquet"
        )
    return ids_N.astype(np.int64)


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
    files = resolve_files(path)
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


_EVEN = 4  # FBGEMM reads rows in vectors of four numbers


@dataclass(frozen=True, kw_only=True)
class VectorScaling:
    """Scaling of vectors of L numbers to rows: as the config says, then zeros up to `dim`.

    Example:
        >>> scaling = VectorScaling(mean=(1.0, 0.0, 0.0), deviation=(2.0, 1.0, 1.0))
        >>> standard = TableVectors(path="items.parquet", id="item")
        >>> scaling.dim, scaling.rows(np.array([[3.0, 1.0, 0.0]], np.float32), standard).tolist()
        (4, [[1.0, 1.0, 0.0, 0.0]])
    """

    # Of each number over the file, L of them; of vectors of length 1, where they are made that
    mean: tuple[float, ...]
    deviation: tuple[float, ...]  # likewise, times L^¼; 1 where all vectors have one value

    def __post_init__(self) -> None:
        means, deviations = len(self.mean), len(self.deviation)
        if means != deviations:
            raise ValueError(f"table_vectors: {means} means and {deviations} deviations")

    @property
    def dim(self) -> int:
        """Width of the rows."""
        return padded(len(self.mean))

    def rows(self, numbers_NL: np.ndarray, vectors: TableVectors) -> np.ndarray:
        """Returns rows, float32 [N, dim]."""
        scaled_NL = unit(numbers_NL, vectors)
        if vectors.scale == "standard":
            scaled_NL = (scaled_NL - np.array(self.mean)) / np.array(self.deviation)
        rows_ND = np.zeros((len(numbers_NL), self.dim), np.float32)
        rows_ND[:, : len(self.mean)] = scaled_NL
        return rows_ND

    def row_of_others(self, vectors: TableVectors) -> np.ndarray:
        """Returns what a row without a vector holds for good, float32 [dim]: their mean."""
        row_D = np.zeros(self.dim, np.float32)
        if vectors.scale != "standard":
            row_D[: len(self.mean)] = self.mean
        return row_D


def padded(length: int) -> int:
    """Returns the width of rows that hold vectors of so many numbers."""
    return -(-length // _EVEN) * _EVEN


def unit(numbers_NL: np.ndarray, vectors: TableVectors) -> np.ndarray:
    """Returns vectors in float64, of length 1 where that is asked; zeros stay zeros."""
    wide_NL = numbers_NL.astype(np.float64)
    if vectors.scale != "unit":
        return wide_NL
    lengths_N = np.linalg.norm(wide_NL, axis=1, keepdims=True)
    return np.divide(wide_NL, lengths_N, out=wide_NL, where=lengths_N > 0)


class ScalingFit:
    """Sums of the numbers of all vectors, piece by piece, about the first one."""

    def __init__(self, vectors: TableVectors) -> None:
        self.vectors, self.count = vectors, 0
        self.about_L = self.sum_L = self.squares_L = np.zeros(0)

    def add(self, numbers_NL: np.ndarray) -> None:
        """Adds more vectors."""
        wide_NL = unit(numbers_NL, self.vectors)
        if not self.count:
            self.about_L = wide_NL[0].copy()
            self.sum_L = self.squares_L = np.zeros(wide_NL.shape[1])
        wide_NL -= self.about_L
        self.count += len(wide_NL)
        self.sum_L = self.sum_L + wide_NL.sum(axis=0)
        self.squares_L = self.squares_L + np.square(wide_NL).sum(axis=0)

    def finish(self) -> VectorScaling:
        """Returns the scaling of all of them."""
        moved_L = self.sum_L / self.count
        variance_L = np.maximum(self.squares_L / self.count - np.square(moved_L), 0.0)
        # What is left of a constant is rounding noise; dividing by it would blow noise up
        noise_L = 1e-12 * (self.squares_L / self.count)
        deviation_L = np.where(variance_L > noise_L, np.sqrt(variance_L), 1.0)
        return VectorScaling(
            mean=tuple((self.about_L + moved_L).tolist()),
            deviation=tuple((deviation_L * len(moved_L) ** NARROWER).tolist()),
        )


class _StoredScaling(Stored):
    """A `VectorScaling`."""

    mean: Annotated[list[Finite], Field(min_length=1)]
    deviation: list[Annotated[Finite, Field(gt=0)]]


class VectorScalings(Section):
    """Section of encoder.json: table → `VectorScaling`, where it begins with vectors."""

    name = "table_vectors"
    entry = _StoredScaling
    rule = VectorScaling

    def marks(self, rules: dict[str, VectorScaling]) -> Iterator[bytes]:
        """Yields lengths alone: last bits of numbers may differ from machine to machine."""
        for table, rule in rules.items():
            yield f"{table} {len(rule.mean)}".encode()


_SHOWN = 5  # ids in an error


def learn_vectors(
    found: Sequence[Counts],
    encoding: VocabularyEncoding,
    vectors: TableVectors,
    table: str,
    dim: int | None,
) -> tuple[Vocabulary, VectorScaling]:
    """Reads a file of vectors once, and checks every number of it.

    An id with a vector has a row, however often training has seen it; the others as `min_count`
    says. Ids of the file alone come last, in its order.

    Args:
        found: What each feature that shares the table has counted.
        encoding: Of the table.
        vectors: The file.
        table: Name of the table.
        dim: Its width, as the config has it; None: that of the vectors.

    Raises:
        ValueError: The file cannot be used, or does not go with the rows.
    """
    used_by = f"table {table!r}"
    scaling, ids = ScalingFit(vectors), []
    for chunk in vector_chunks(vectors, used_by):
        if not scaling.count:
            _check_width(chunk.numbers_NL.shape[1], dim, vectors, table)
        scaling.add(chunk.numbers_NL)
        ids.append(chunk.ids)
    # Ids of many pieces; of files that have them in other types as the wider one
    tables = [pa.table({"id": one}) for one in ids]
    joined = pa.concat_tables(tables, promote_options="permissive")["id"]
    return _vocabulary(found, encoding, _FileIds(joined, vectors, used_by)), scaling.finish()


@dataclass(frozen=True)
class _FileIds:
    """Ids of a file of vectors, one for each vector, as it has them."""

    ids: pa.ChunkedArray
    vectors: TableVectors
    used_by: str

    @property
    def label(self) -> str:
        """Name of the vectors in an error."""
        what = f"ids of {self.used_by}"
        name = self.vectors.id
        return f"{self.vectors.path}: {what if name is None else f'column {name!r} ({what})'}"

    def keys(self, kind: KeyKind) -> tuple[pa.Array, KeyKind]:
        """Returns distinct keys, and their kind: a wider one where the file's ids need it.

        Raises:
            ValueError: An id is missing, or there twice.
        """
        missing_N = missing_mask(self.ids, kind)
        if missing_N.any():
            raise ValueError(
                f"{self.label}: row {int(missing_N.argmax()) + 1} has no id; remove it, or write "
                "its id"
            )
        keys = to_keys(self.ids, kind, self.label)
        if keys.null_count and self.vectors.takes_all_ids:
            kind = widest([kind, key_kind(self.ids, self.label)])
            keys = to_keys(self.ids, kind, self.label)
        keys = keys.cast(ARROW_TYPES[kind]).combine_chunks()
        distinct = keys.drop_null().unique()
        if len(distinct) < len(keys) - keys.null_count:
            self._refuse_twice(keys)
        return distinct, kind

    def _refuse_twice(self, keys: pa.Array) -> None:
        codes_N = pc.fill_null(keys.dictionary_encode().indices, -1).to_numpy()
        order_N = np.argsort(codes_N, kind="stable")
        same_N = (np.diff(codes_N[order_N]) == 0) & (codes_N[order_N][1:] >= 0)
        pairs_K = np.stack([order_N[:-1][same_N], order_N[1:][same_N]])
        one, two = pairs_K[:, pairs_K[1].argmin()].tolist()
        raise ValueError(
            f"{self.label}: rows {one + 1} and {two + 1} have the same id, "
            f"{keys[one].as_py()!r}; keep one vector of each id"
        )


def _vocabulary(
    found: Sequence[Counts], encoding: VocabularyEncoding, in_file: _FileIds
) -> Vocabulary:
    seen = Vocabulary.of(found, VocabularyEncoding())
    file_keys, kind = in_file.keys(seen.kind)
    label = found[0].label
    keys, counts = seen.keys_as(kind, label), seen.counts
    has_N = pc.is_in(keys, file_keys).to_numpy(zero_copy_only=False)
    frequent_N = counts >= least_seen(encoding, counts)
    _check_share(keys, has_N, frequent_N, in_file, label)
    kept_N = frequent_N | has_N
    keys, counts = keys.filter(pa.array(kept_N)), counts[kept_N]
    if in_file.vectors.takes_all_ids:
        more = file_keys.filter(pc.invert(pc.is_in(file_keys, keys)))
        keys = pa.concat_arrays([keys, more])
        counts = np.concatenate([counts, np.zeros(len(more), np.int64)])
    both, otherwise = f"{label}, with ids of {in_file.vectors.path},", "vectors.ids: seen"
    refuse_too_many(len(keys), encoding, both, otherwise=otherwise)
    return Vocabulary(kind=kind, keys=keys, counts=counts)


def _check_width(length: int, dim: int | None, vectors: TableVectors, table: str) -> None:
    width = padded(length)
    if dim not in (None, width):
        rounded = "" if width == length else " (the next multiple of 4)"
        raise ValueError(
            f"{vectors.path}: its vectors have {length} numbers, but dim of table {table!r} is "
            f"{dim}; say dim: {width}{rounded}, or leave it out"
        )


def _check_share(
    keys: pa.Array, has_N: np.ndarray, frequent_N: np.ndarray, in_file: _FileIds, label: str
) -> None:
    """Checks the share of ids with a row that have a vector."""
    asked_N = frequent_N if frequent_N.any() else np.ones_like(frequent_N)
    total, known = int(asked_N.sum()), int((has_N & asked_N).sum())
    vectors = in_file.vectors
    if not total or known >= vectors.least_share * total:
        return
    without = keys.filter(pa.array(asked_N & ~has_N))[:_SHOWN]
    shown = ", ".join(repr(key) for key in without.to_pylist())
    if known:
        raise ValueError(
            f"{label}: only {known:,} of {total:,} ids ({known / total:.0%}) have a vector in "
            f"{vectors.path}; the most frequent without: {shown}; add their vectors, or say "
            f"vectors.least_share: {int(100 * known / total) / 100}"
        )
    there = ", ".join(repr(value) for value in in_file.ids[:_SHOWN].to_pylist())
    raise ValueError(
        f"{label}: none of its {total:,} ids has a vector in {vectors.path}: here {shown}, there "
        f"{there} ({in_file.ids.type}); write both in one form, or name the right column as "
        "vectors.id"
    )
