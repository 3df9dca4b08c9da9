"""Rows for ids that are not counted: by hash, or raw ids that get rows later."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
import pyarrow as pa
from pydantic import Field

from mmoe.config.json_files import Count, Stored
from mmoe.config.tables import HashEncoding, ManagedEncoding
from mmoe.datasets.features.id_map import FIRST_KNOWN, MISSING, UNSEEN, IdMap
from mmoe.datasets.values.arrow import pc
from mmoe.datasets.values.keys import KeyKind, hash_keys, missing_mask, raw_ids, to_keys, widest


class _Entry(Stored):
    """Of encoder.json."""

    encoding: Literal["hash", "managed"]
    kind: KeyKind
    size: Annotated[Count, Field(gt=0)]


@dataclass(frozen=True, kw_only=True)
class _SizedRule(IdMap):
    """A rule that stores no id: their kind and the number of rows say it all."""

    entry = _Entry

    kind: KeyKind
    size: int

    @property
    def num_rows(self) -> int:
        """Rows of the embedding table."""
        return FIRST_KNOWN + self.size

    def write(self, folder: Path, stem: str) -> dict[str, Any]:
        """Returns both."""
        return asdict(self)

    @classmethod
    def read(cls, entry: Any, folder: Path) -> Self:
        """Reads both."""
        return cls(kind=entry["kind"], size=entry["size"])

    def _extended(self, earlier: Self, kind: KeyKind, encoding: Any, label: str) -> Self:
        """The earlier rule: neither keeps ids, so what was said of known ones stays as it is."""
        if kind != earlier.kind:
            raise ValueError(
                f"{label} holds {self.kind} ids, but {earlier.kind} ids in the run that is "
                f"continued, and they hash differently; write the column as {earlier.kind}, or "
                "train without --warm-start"
            )
        return earlier


class HashRule(_SizedRule):
    """Rows by hash: every id is hashed into `size` rows; no id is stored.

    Row 1 stays for values that are no id of this kind (text, where training had integers).
    """

    encoding = "hash"

    @classmethod
    def learnt(cls, found: Sequence[KeyKind], encoding: HashEncoding) -> "HashRule":
        """Makes one of `hash_size` rows."""
        return cls(kind=widest(found), size=encoding.hash_size)

    def lookup(self, column: pa.ChunkedArray, label: str) -> np.ndarray:
        """Returns rows, int32 [N]: 0 missing, 1 no id of this kind, else 2 + hash mod size."""
        keys = to_keys(column, self.kind, label)
        ids_N = (hash_keys(keys) % np.uint64(self.size)).astype(np.int32)
        ids_N += FIRST_KNOWN
        return _marked(ids_N, keys, column, self.kind)


class ManagedRule(_SizedRule):
    """Raw ids: the embeddings give `size` of them a row while training goes on."""

    encoding = "managed"

    @classmethod
    def learnt(cls, found: Sequence[KeyKind], encoding: ManagedEncoding) -> "ManagedRule":
        """Makes one of `rows` ids that own a row."""
        return cls(kind=widest(found), size=encoding.managed.rows)

    def lookup(self, column: pa.ChunkedArray, label: str) -> np.ndarray:
        """Returns int64 [N]: 0 missing, 1 no id of this kind, else the raw id, 2 and up."""
        keys = to_keys(column, self.kind, label)
        return _marked(raw_ids(keys, FIRST_KNOWN), keys, column, self.kind)

    def rows(self, ids: np.ndarray) -> np.ndarray:
        """Returns raw ids as rows by their remainder: a baseline has no owners to ask."""
        return np.where(ids < FIRST_KNOWN, ids, FIRST_KNOWN + (ids - FIRST_KNOWN) % self.size)


def _marked(
    ids_N: np.ndarray, keys: pa.ChunkedArray, column: pa.ChunkedArray, kind: KeyKind
) -> np.ndarray:
    """The ids, in place: 1 where a value is no id of this kind, 0 where it is missing."""
    if keys.null_count:
        ids_N[pc.is_null(keys).to_numpy()] = UNSEEN
        ids_N[missing_mask(column, kind)] = MISSING
    return ids_N
