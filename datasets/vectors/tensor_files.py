"""Vectors in a safetensors file: a tensor of them, and one of ids or none."""

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any, cast

import fsspec
import numpy as np
from safetensors import SafetensorError, safe_open

from mmoe.config import TableVectors
from mmoe.datasets.files.data_file import DataFile, is_address
from mmoe.datasets.files.resolve import resolve_files

_NUMBERS = 2**22  # of vectors read at once
_FLOATS = ("F16", "BF16", "F32", "F64")
_INTEGERS = ("I8", "I16", "I32", "I64", "U8", "U16", "U32", "U64")


def _signed(ids_N: np.ndarray, vectors: TableVectors, used_by: str) -> np.ndarray:
    if ids_N.dtype == np.uint64 and len(ids_N) and ids_N.max() > np.iinfo(np.int64).max:
        raise ValueError(
            f"{vectors.path}: tensor {vectors.id!r} (ids of {used_by}) holds {ids_N.max()}, "
            "expected ids below 2^63; write them as text, in Parquet"
        )
    return ids_N.astype(np.int64)


def is_tensor_file(path: str) -> bool:
    """Returns whether it is a safetensors file, by its name."""
    return path.lower().endswith(".safetensors")


def tensor_pieces(
    vectors: TableVectors, used_by: str
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yields number of the first row, ids int64 [N] and vectors [N, L], float32 or float64.

    Raises:
        ValueError: The file is missing or damaged, or a tensor has another shape or type.
    """
    try:
        with safe_open(_local(vectors.path), framework="pt") as file:
            yield from _pieces(file, vectors, used_by)
    except (OSError, SafetensorError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"{vectors.path}: cannot be read as safetensors ({reason[:200]}); write it again"
        ) from None


def _pieces(
    file: Any, vectors: TableVectors, used_by: str
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    numbers = _tensor(file, vectors.vector, vectors.path, used_by)
    rows, width = _shape(numbers, vectors, used_by)
    ids = None
    if vectors.id is not None:
        ids = _tensor(file, vectors.id, vectors.path, used_by)
        kind, shape = ids.get_dtype(), list(ids.get_shape())
        if kind not in _INTEGERS or shape != [rows]:
            raise ValueError(
                f"{vectors.path}: tensor {vectors.id!r} (ids of {used_by}) is {kind} {shape}, "
                f"expected whole numbers [{rows}], one for each vector; for ids of text write "
                "Parquet"
            )
    step = max(1, _NUMBERS // width)
    for first in range(0, rows, step):
        stop = min(first + step, rows)
        piece = numbers[first:stop]
        if numbers.get_dtype() in ("F16", "BF16"):
            piece = piece.float()
        ids_N = (
            np.arange(first, stop)
            if ids is None
            else _signed(ids[first:stop].numpy(), vectors, used_by)
        )
        yield first, ids_N, piece.numpy()


def _shape(numbers: Any, vectors: TableVectors, used_by: str) -> tuple[int, int]:
    kind, shape = numbers.get_dtype(), list(numbers.get_shape())
    if kind not in _FLOATS or len(shape) != 2 or shape[1] == 0:
        raise ValueError(
            f"{vectors.path}: tensor {vectors.vector!r} (of {used_by}) is {kind} {shape}, expected "
            "floats [N, dim]; name another tensor, or write it so"
        )
    return shape[0], shape[1]


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
