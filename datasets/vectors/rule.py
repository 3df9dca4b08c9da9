"""`VectorScaling`: what a file of vectors is like, and how its vectors become rows."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from mmoe.config import TableVectors
from mmoe.config.json_files import Stored
from mmoe.datasets.features.codec import Section
from mmoe.datasets.features.vector import NARROWER

_EVEN = 4  # FBGEMM reads rows in vectors of four numbers


@dataclass(frozen=True, kw_only=True)
class VectorScaling:
    """How vectors of L numbers become rows: scaled as the config says, then zeros up to `dim`.

    Attributes:
        mean: Of each number over the file, L of them; of vectors of length 1, where they are made
            that.
        deviation: Likewise, times L^¼; 1 where all vectors have one value.

    Example:
        >>> scaling = VectorScaling(mean=(1.0, 0.0, 0.0), deviation=(2.0, 1.0, 1.0))
        >>> standard = TableVectors(path="items.parquet", id="item")
        >>> scaling.dim, scaling.rows(np.array([[3.0, 1.0, 0.0]], np.float32), standard).tolist()
        (4, [[1.0, 1.0, 0.0, 0.0]])
    """

    mean: tuple[float, ...]
    deviation: tuple[float, ...]

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


@dataclass
class ScalingFit:
    """Sums of the numbers of all vectors, piece by piece, about the first one."""

    vectors: TableVectors
    count: int = 0
    about_L: np.ndarray = field(default_factory=lambda: np.zeros(0))
    sum_L: np.ndarray = field(default_factory=lambda: np.zeros(0))
    squares_L: np.ndarray = field(default_factory=lambda: np.zeros(0))

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


_Finite = Annotated[float, Field(allow_inf_nan=False)]


class _StoredScaling(Stored):
    """A `VectorScaling`."""

    mean: Annotated[list[_Finite], Field(min_length=1)]
    deviation: list[Annotated[_Finite, Field(gt=0)]]


class VectorScalings(Section):
    """Section of encoder.json: table → `VectorScaling`, where it begins with vectors."""

    name = "table_vectors"
    entry = _StoredScaling

    def write(self, rule: VectorScaling, folder: Path, stem: str) -> Any:
        """Returns its fields."""
        return asdict(rule)

    def read(self, entry: Any, folder: Path) -> VectorScaling:
        """Reads what `write` wrote."""
        mean, deviation = tuple(entry["mean"]), tuple(entry["deviation"])
        if len(mean) != len(deviation):
            raise ValueError(f"table_vectors: {len(mean)} means and {len(deviation)} deviations")
        return VectorScaling(mean=mean, deviation=deviation)

    def marks(self, rules: dict[str, VectorScaling]) -> Iterator[bytes]:
        """Yields lengths alone: last bits of numbers may differ from machine to machine."""
        for table, rule in rules.items():
            yield f"{table} {len(rule.mean)}".encode()
