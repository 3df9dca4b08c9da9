"""Vectors: each number standardised, all of them projected by the network where that is asked."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
from pydantic import Field

from mmoe.config import Stored, VectorFeature
from mmoe.datasets.features.codec import Codec, Coded, Finite, RuleCodec, Rules, Section
from mmoe.datasets.features.fit_numbers import Moments
from mmoe.datasets.features.numeric import NumericRule, NumericRules
from mmoe.datasets.values.columns import Vectors, to_vectors

# Values of one number whose moments are taken at once: vectors have hundreds of them
_BLOCK = 1024
_ROWS = 8192  # widened and scaled at a time
# Power of the length L by which standardised numbers are narrower than those of numeric features:
# at Adam's one rate for all weights, those of a vector learn too fast together. In ten of ten pairs
# on invented logs (10,000 rows as they are, 20,000 with dim 32) that raised the test AUC, by 0.001
# to 0.003 with L = 16, 0.003 to 0.008 with 64, 0.009 to 0.012 with 256. The square root is too
# much: with 2,000 rows and L = 64 it took 0.035 in one of two pairs.
NARROWER = 0.25


@dataclass(frozen=True, kw_only=True)
class VectorRule:
    """Rule by which a column of vectors becomes network inputs.

    scaled = (x − mean) / deviation, number by number; one that is missing becomes 0, the mean.
    """

    mean: tuple[float, ...]  # L numbers
    # Likewise; where vectors are standardised L^¼ times those of training
    deviation: tuple[float, ...]
    # A training row has no vector, so that there is a column that says so: its weights are what the
    # network learns of such rows
    missing: bool = False
    # The lowest and the highest of each number in training; one that had one value, or none, is 0
    # whatever it is later
    seen: tuple[tuple[float, float], ...]
    clips: bool  # numbers beyond `limits_of` these are taken as the limit

    def __post_init__(self) -> None:
        for what, numbers in (("deviations", self.deviation), ("ranges", self.seen)):
            if len(numbers) != self.length:
                raise ValueError(f"vectors: {self.length} means and {len(numbers)} {what}")

    @property
    def length(self) -> int:
        """L."""
        return len(self.mean)

    def scale(self, vectors: Vectors) -> tuple[np.ndarray, np.ndarray]:
        """Returns network inputs, and which rows training had nothing like.

        Returns:
            float32 [N, L], or [N, L + 1] with 1 where a row has no vector; and bool [N].
        """
        rows_M, width = np.flatnonzero(vectors.present_N), self.length + self.missing
        out_NK = np.zeros((len(vectors.present_N), width), np.float32)
        outside_N = np.zeros(len(out_NK), bool)
        for start in range(0, len(rows_M), _ROWS):
            rows_B = rows_M[start : start + _ROWS]
            numbers_BL = vectors.numbers_ML[start : start + _ROWS].astype(np.float64)
            outside_N[rows_B] = self._each.outside(numbers_BL).any(axis=1)
            out_NK[rows_B, : self.length] = self._each.scale(numbers_BL)
        if self.missing:
            out_NK[~vectors.present_N, self.length] = 1.0
        return out_NK, outside_N

    @cached_property
    def _each(self) -> NumericRules:
        """Scaling of each number by its own mean and deviation."""
        each = zip(self.mean, self.deviation, self.seen, strict=True)
        rule = partial(NumericRule, log=False, clips=self.clips)
        return NumericRules([rule(mean=m, deviation=d, seen=ends) for m, d, ends in each])

    def after(self, earlier: "VectorRule") -> "VectorRule":
        """Returns the rule of a run that goes on: the earlier one, with the ranges of both.

        Numbers that never varied until now are scaled as today: no weight has learnt from them.
        """
        before_L2, now_L2 = np.array(earlier.seen), np.array(self.seen)
        new_L = (before_L2[:, 0] == before_L2[:, 1]) & (now_L2[:, 0] < now_L2[:, 1])
        seen_2L = np.minimum(before_L2, now_L2)[:, 0], np.maximum(before_L2, now_L2)[:, 1]
        return replace(
            earlier,
            mean=tuple(np.where(new_L, self.mean, earlier.mean).tolist()),
            deviation=tuple(np.where(new_L, self.deviation, earlier.deviation).tolist()),
            seen=tuple(zip(*(end_L.tolist() for end_L in seen_2L), strict=True)),
            clips=self.clips,
        )


class VectorFit:
    """Fits a `VectorRule` chunk by chunk.

    Attributes:
        length: Of the first vector seen, also among rows that do not train.
    """

    def __init__(self, feature: VectorFeature, label: str) -> None:
        self.feature, self.label = feature, label  # what the column is called in an error
        self.length: int | None = None
        self.missing = False
        self.moments: list[Moments] = []

    def take_length(self, vectors: Vectors) -> None:
        """Remembers how long vectors are."""
        self.length = self.length or vectors.numbers_ML.shape[1] or None

    def add(self, vectors: Vectors) -> None:
        """Adds more training rows."""
        self.take_length(vectors)
        self.missing |= not vectors.present_N.all()
        if not len(vectors.numbers_ML):
            return
        self.moments = self.moments or [Moments(block=_BLOCK) for _ in range(self.length or 0)]
        for start in range(0, len(vectors.numbers_ML), _ROWS):
            numbers_BL = vectors.numbers_ML[start : start + _ROWS]
            numbers_LB = np.ascontiguousarray(numbers_BL.T, np.float64)
            gaps = np.isnan(numbers_LB).any()
            for moments, numbers_B in zip(self.moments, numbers_LB, strict=True):
                moments.add(numbers_B[~np.isnan(numbers_B)] if gaps else numbers_B)

    def finish(self) -> VectorRule:
        """Returns the rule of all rows.

        Raises:
            ValueError: No training row has a vector.
        """
        if not self.moments:
            raise ValueError(f"{self.label} is empty in every training row; remove the feature")
        found = [moments.finish() for moments in self.moments]
        narrower = len(found) ** NARROWER
        if not self.feature.standardise:
            found, narrower = [(0.0, 1.0)] * len(found), 1.0
        return VectorRule(
            mean=tuple(mean for mean, _ in found),
            deviation=tuple(deviation * narrower for _, deviation in found),
            missing=self.missing,
            # A number that no row has is as one that is always 0
            seen=tuple((m.lowest, m.highest) if m.ends else (0.0, 0.0) for m in self.moments),
            clips=self.feature.outside == "clip",
        )


class _StoredRule(Stored):
    """A `VectorRule`."""

    mean: Annotated[list[Finite], Field(min_length=1)]
    deviation: list[Annotated[Finite, Field(gt=0)]]
    missing: bool
    seen: list[Annotated[list[Finite], Field(min_length=2, max_length=2)]]
    clips: bool


class _VectorRules(Section):
    """Section of encoder.json: feature → its `VectorRule`."""

    name = "vectors"
    entry = _StoredRule
    rule = VectorRule

    def marks(self, rules: dict[str, VectorRule]) -> Iterator[bytes]:
        """Yields lengths alone: last bits of numbers may differ from machine to machine."""
        for name, rule in rules.items():
            yield f"{name} {rule.length} {rule.missing}".encode()


class VectorCodec(RuleCodec[VectorFeature]):
    """Codec of a column of vectors."""

    section = "vectors"
    sections = (_VectorRules(),)
    free = frozenset({"name", "column", "level", "outside"})  # `dim` is the shape of a weight
    long_tailed = False

    def dense_columns(self, rules: Rules) -> list[str]:
        """Names its numbers, and that of rows without."""
        rule, name = self.rule(rules), self.feature.name
        return [f"{name}[{i}]" for i in range(rule.length)] + [f"{name}[missing]"] * rule.missing

    @property
    def projected_to(self) -> int | None:
        """Its `dim`."""
        return self.feature.dim

    def start(self, origin: str, codecs: Sequence[Codec[Any]]) -> VectorFit:
        """Returns what fits its rule."""
        return VectorFit(self.feature, f"{origin}: {self._column}")

    def add(self, fit: VectorFit, table: pa.Table, origin: str) -> None:
        """Learns from more training rows."""
        fit.add(self._vectors(table, origin, fit.length))

    def check(self, fit: VectorFit, table: pa.Table, origin: str) -> None:
        """Refuses what is no vector, or one of another length."""
        fit.take_length(self._vectors(table, origin, fit.length))

    def extend(self, rules: Rules, earlier: Rules, origin: str) -> None:
        """Keeps the scaling of an earlier run; its vectors have to be as long.

        Raises:
            ValueError: They are not.
        """
        before, now = earlier[self.section].get(self.feature.name), self.rule(rules)
        if before is not None and before.length != now.length:
            raise ValueError(
                f"{origin}: {self._column} holds vectors of {now.length} numbers, but "
                f"{before.length} in the run that is continued; give the feature another name, or "
                "train without --warm-start"
            )
        super().extend(rules, earlier, origin)

    def encode(self, table: pa.Table, rules: Rules, origin: str) -> Coded:
        """Encodes rows: the scaled numbers."""
        rule = self.rule(rules)
        scaled_NK, outside_N = rule.scale(self._vectors(table, origin, rule.length))
        return Coded(dense=[scaled_NK], outside_N=outside_N)

    def number_inputs(self, table: pa.Table, rules: Rules, origin: str) -> list[np.ndarray]:
        """Reads its numbers, NaN where a row has none."""
        rule = self.rule(rules)
        vectors = self._vectors(table, origin, rule.length)
        numbers_LN = np.full((rule.length, table.num_rows), np.nan)
        numbers_LN[:, vectors.present_N] = vectors.numbers_ML.T
        return list(numbers_LN)

    @property
    def _column(self) -> str:
        return f"column {self.feature.source_column!r} (of {self.used_by})"

    def _vectors(self, table: pa.Table, origin: str, length: int | None) -> Vectors:
        return to_vectors(table, self.feature.source_column, origin, self.used_by, length)
