"""`IdMap`: what turns ids into rows of an embedding table, once it has seen those of training."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa

from mmoe.config.json_files import Stored
from mmoe.datasets.values.keys import KeyKind, widest

MISSING = 0  # the row of cells without an id
UNSEEN = 1  # the row of ids that training did not have, or had too seldom
FIRST_KNOWN = 2


class IdMap(ABC):
    """What turns ids into rows; each encoding has its own, which `ENCODINGS` names.

    Attributes:
        kind: What the ids are, over all features that share the table.
        encoding: Name of its encoding.
        entry: What `write` returns, and the name of the encoding: a type that pydantic checks.
        counted: Is it made of the counts of ids (or of their kinds alone)?
    """

    kind: KeyKind
    encoding: ClassVar[str]
    entry: ClassVar[type[Stored]]
    counted: ClassVar[bool] = False

    @classmethod
    @abstractmethod
    def learnt(cls, found: Sequence[Any], encoding: Any) -> Self:
        """Makes one of what each feature that shares the table has found.

        Args:
            found: `Counts` where it is counted, else kinds of ids.
            encoding: The section of the config.

        Raises:
            ValueError: There are more ids than the table may have.
        """

    @property
    @abstractmethod
    def num_rows(self) -> int:
        """Rows of the embedding table."""

    @abstractmethod
    def lookup(self, column: pa.ChunkedArray, label: str) -> np.ndarray:
        """Returns rows [N]: 0 where missing, 1 where unknown, 2 and up for other ids."""

    def row_of(self, value: object, words: Collection[str]) -> int | None:
        """Returns the row of one cell, where that is quickly said; None: `lookup` finds it.

        Args:
            value: Of the cell.
            words: Those that mean a missing value.
        """
        return None

    @abstractmethod
    def write(self, folder: Path, stem: str) -> dict[str, Any]:
        """Returns it as plain JSON; what is large goes into a file of this stem."""

    @classmethod
    @abstractmethod
    def read(cls, entry: Any, folder: Path) -> Self:
        """Reads what `write` wrote."""

    def marks(self, table: str) -> Iterator[bytes | memoryview]:
        """Yields what tells it from another one, cheaply."""
        yield f"{table} {self}".encode()

    def extended(self, earlier: "IdMap", encoding: Any, label: str) -> "IdMap":
        """Returns ids with known ones as in `earlier`, and today's new ones as well.

        Args:
            earlier: Of the run that is continued.
            encoding: Today's section of the config.
            label: What the ids are called in an error.

        Raises:
            ValueError: Ids that are hashed or managed are of another kind now, the table has
                another encoding, or a vocabulary outgrows its max_rows.

        Example:
            >>> from mmoe.config import TableEncoding
            >>> from mmoe.datasets.features.vocabulary import Vocabulary
            >>> tuesday, monday = (
            ...     Vocabulary.fit([pa.chunked_array([ids])], ["item"], min_count=1)
            ...     for ids in (["c", "c", "a", "d"], ["a", "b", "b"]))
            >>> tuesday.extended(monday, TableEncoding(), "item").keys.to_pylist()
            ['b', 'a', 'c', 'd']
        """
        if type(self) is not type(earlier):
            raise ValueError(
                f"{label} has another encoding than in the run that is continued; keep that "
                "encoding, or give the feature another name"
            )
        return self._extended(earlier, widest([self.kind, earlier.kind]), encoding, label)

    @abstractmethod
    def _extended(self, earlier: Any, kind: KeyKind, encoding: Any, label: str) -> "IdMap":
        """As `extended`, of an earlier map of the same class; `kind` holds the ids of both."""

    def rows(self, ids: np.ndarray) -> np.ndarray:
        """Returns what `lookup` gave as rows of a table."""
        return ids

    def rank(self) -> np.ndarray | None:
        """Returns for each row the place of its id in the ids' order; None where rows have none."""
        return None
