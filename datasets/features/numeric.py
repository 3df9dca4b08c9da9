"""Numeric features: logarithm, scaling, quantile buckets, positions among pieces."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
from pydantic import Field

from mmoe.config import InputLayerSpec, NumericFeature, PiecesSpec, Stored, TableSpec
from mmoe.datasets.features.codec import Codec, Coded, Finite, RuleCodec, Rules, Section, limits_of
from mmoe.datasets.features.fit_numbers import Moments, Quantiles
from mmoe.datasets.features.id_map import FIRST_KNOWN, MISSING
from mmoe.datasets.values.columns import feature_numbers

# Values that quantiles are taken of: then a rank is off by 0.1 % of the rows (standard deviation)
_LARGEST_SAMPLE = 1 << 18
# Values sampled over all features that need quantiles (16 bytes each), and the least for one of
# them: then a quantile's rank is off by 0.2 % of the rows (standard deviation)
_SAMPLES = 1 << 22
_SMALLEST_SAMPLE = 1 << 16
# float32 products of this and ordinary weights stay finite through a network.
_LIMIT = 1e9
# A constant that a file holds as float32 and another as text is the same number
_ROUNDING = 1e-6


@dataclass(frozen=True, kw_only=True)
class NumericRule:
    """Rule by which a numeric column becomes a network input, a bucket id and a position.

    scaled = (f(x) − mean) / deviation, with f(x) = sign(x)·log(1 + |x|) or x; a missing value
    becomes 0, which is the mean. The position u counts pieces below x, and is linear in f(x) within
    a piece. A number that training had in one value, or not at all, is 0 whatever it is later.
    """

    log: bool
    mean: float
    deviation: float
    edges: tuple[float, ...] = ()  # ascending; bucket i holds edges[i − 1] < x ≤ edges[i]
    ends: tuple[float, ...] = ()  # of pieces, ascending; piece p is ends[p] to ends[p + 1]
    missing: bool = False  # has the network a column that says so, beside the pieces?
    # The lowest and the highest f(x) of training; () where all were missing
    seen: tuple[float, ...]
    gaps: bool = True  # some were missing
    clips: bool  # f(x) beyond `limits_of(*seen)` is taken as these

    @classmethod
    def fit(cls, feature: NumericFeature, numbers_N: np.ndarray) -> "NumericRule":
        """Fits mean, deviation and edges of buckets and pieces to training values.

        Args:
            feature: log, standardise, buckets, pieces.
            numbers_N: float64 [N], NaN where missing.

        Example:
            >>> rule = NumericRule.fit(
            ...     NumericFeature(name="x", buckets=2), np.array([1.0, 2.0, 3.0, np.nan])
            ... )
            >>> rule.mean, rule.edges
            (2.0, (2.0,))
        """
        fit = NumberFit(feature)
        fit.add(numbers_N)
        return fit.finish()

    @property
    def num_rows(self) -> int:
        """Rows of the bucket table: missing, unseen (unused), and a row a bucket."""
        return FIRST_KNOWN + len(self.edges) + 1

    @property
    def num_pieces(self) -> int:
        """Pieces between all ends; 0 where training rows have one value, or none."""
        return max(len(self.ends) - 1, 0)

    @property
    def varies(self) -> bool:
        """Whether training rows had two values."""
        return len(set(self.seen)) == 2

    @cached_property
    def _alone(self) -> "NumericRules":
        return NumericRules([self])

    def settled(self, numbers_N: np.ndarray) -> np.ndarray:
        """Returns numbers; those that never varied in training as what all rows had there."""
        if self.varies:
            return numbers_N
        if not self.seen:
            return np.full(len(numbers_N), np.nan)
        return np.where(np.isnan(numbers_N) & self.gaps, np.nan, 0.0)

    def outside(self, numbers_N: np.ndarray) -> np.ndarray:
        """Returns which numbers training had nothing like, bool [N]."""
        return self._alone.outside(numbers_N)

    def scale(self, numbers_N: np.ndarray) -> np.ndarray:
        """Scales numbers: float32 [N], finite."""
        return self._alone.scale(numbers_N)

    def bucket(self, numbers_N: np.ndarray) -> np.ndarray:
        """Returns bucket ids, int32 [N]: 0 where missing, else 2 + edges below x."""
        numbers_N = self.settled(numbers_N)
        ids_N = np.searchsorted(np.array(self.edges), numbers_N, side="left").astype(np.int32)
        ids_N += FIRST_KNOWN
        ids_N[np.isnan(numbers_N)] = MISSING
        return ids_N

    def position(self, numbers_N: np.ndarray) -> np.ndarray:
        """Returns positions among pieces, float32 [N] in [0, P]; −1 where missing."""
        numbers_N = self.settled(numbers_N)
        # Halves, since two ends may lie further apart than the largest float64
        ends_E = _transform(np.array(self.ends or (0.0,)), self.log) / 2
        position_N = np.interp(_transform(numbers_N, self.log) / 2, ends_E, np.arange(len(ends_E)))
        position_N[np.isnan(numbers_N)] = -1.0
        return position_N.astype(np.float32)

    def after(self, earlier: "NumericRule") -> "NumericRule":
        """Returns the rule of a run that goes on: the earlier one, with the range of both.

        Where the number never varied until now, no weight has learnt from it, and today's rule is
        taken.
        """
        ends = (*earlier.seen, *self.seen)
        gaps = earlier.gaps or self.gaps
        if not ends:
            return replace(earlier, gaps=gaps)
        seen = low, high = min(ends), max(ends)
        if not earlier.varies and low < high:
            if self.varies:
                return replace(self, seen=seen, gaps=gaps)
            mean, half = low / 2 + high / 2, high / 2 - low / 2
            earlier = replace(earlier, mean=mean, deviation=half)
        return replace(earlier, seen=seen, gaps=gaps, clips=self.clips)


def _transform(numbers_N: np.ndarray, log: bool) -> np.ndarray:
    return np.copysign(np.log1p(np.abs(numbers_N)), numbers_N) if log else numbers_N


class NumericRules:
    """Scales numbers of one of the features, or of all: [N] by [1], [F] by [F], or [N, F] by [F].

    Args:
        rules: Of F features.
    """

    def __init__(self, rules: Sequence[NumericRule]) -> None:
        self.log_F = np.array([rule.log for rule in rules], bool)
        self.flat_F = np.array([not rule.varies for rule in rules], bool)
        self.mean_F = np.array([rule.mean for rule in rules])
        self.deviation_F = np.array([rule.deviation for rule in rules])
        # What is outside, and what numbers are clipped to; where there is no such end, infinity
        self.low_F, self.high_F = np.array([_ends(rule) for rule in rules]).reshape(-1, 2).T
        self.clips_F = np.array([rule.clips and bool(rule.seen) for rule in rules], bool)
        ends = [limits_of(*(rule.seen or (0.0, 0.0))) for rule in rules]
        ends_2F = np.array(ends).reshape(-1, 2).T
        self.least_F, self.most_F = np.where(self.clips_F, ends_2F, [[-np.inf], [np.inf]])

    def transformed(self, numbers: np.ndarray) -> np.ndarray:
        """Returns f(x)."""
        if not self.log_F.any():
            return numbers
        found = _transform(numbers, True)
        return found if self.log_F.all() else np.where(self.log_F, found, numbers)

    def outside(self, numbers: np.ndarray) -> np.ndarray:
        """Returns which numbers training had nothing like."""
        x = self.transformed(numbers)
        return (x < self.low_F) | (x > self.high_F)

    def scale(self, numbers: np.ndarray) -> np.ndarray:
        """Scales numbers: float32, finite."""
        x = self.transformed(numbers)
        if self.clips_F.any():
            x = x.clip(self.least_F, self.most_F)
        with np.errstate(over="ignore"):  # to infinity, which is clipped below
            scaled = (x - self.mean_F) / self.deviation_F
        nothing = np.isnan(scaled) | self.flat_F
        if nothing.any():
            scaled[nothing] = 0.0
        return scaled.clip(-_LIMIT, _LIMIT, out=scaled).astype(np.float32)


def _ends(rule: NumericRule) -> tuple[float, float]:
    """Numbers below the first or above the second are outside; where training had none, all are."""
    if not rule.seen:
        return np.inf, -np.inf
    lowest, highest = limits_of(*rule.seen)
    room = _ROUNDING * max(abs(lowest), abs(highest))
    return lowest - room, highest + room


class NumberFit:
    """Fits a `NumericRule` chunk by chunk.

    Args:
        feature: log, standardise, buckets, pieces.
        sample: Values that quantiles are taken of; exact up to so many, a uniform sample beyond.
    """

    def __init__(self, feature: NumericFeature, sample: int = _LARGEST_SAMPLE) -> None:
        self.feature = feature
        self.moments = Moments()
        ends = 0 if feature.pieces is None else feature.pieces + 1
        self.quantiles = Quantiles(sample, max(feature.buckets, ends))
        self.missing = False

    def add(self, numbers_N: np.ndarray) -> None:
        """Adds more training rows: float64 [N], NaN where missing."""
        present = numbers_N[~np.isnan(numbers_N)]
        self.moments.add(_transform(present, self.feature.log))
        self.missing |= len(present) < len(numbers_N)
        if takes_quantiles(self.feature):
            self.quantiles.add(present)

    def finish(self) -> NumericRule:
        """Returns the rule of all rows."""
        feature = self.feature
        mean, deviation = self.moments.finish() if feature.standardise else (0.0, 1.0)
        edges = self.quantiles.edges(feature.buckets) if feature.buckets else ()
        ends = self._ends(feature.pieces) if feature.pieces else ()
        return NumericRule(
            log=feature.log,
            mean=mean,
            deviation=deviation,
            edges=edges,
            ends=ends,
            # Where there are buckets, that of missing values says it
            missing=self.missing and feature.pieces is not None and not feature.buckets,
            seen=self.moments.ends,
            gaps=self.missing,
            clips=feature.outside == "clip",
        )

    def _ends(self, pieces: int) -> tuple[float, ...]:
        """Ends of pieces in the file's numbers, as many as the logarithm tells apart."""
        ends_E = self.quantiles.ends(pieces)
        _, kept = np.unique(_transform(ends_E, self.feature.log), return_index=True)
        return tuple(ends_E[kept].tolist())


def takes_quantiles(feature: NumericFeature) -> bool:
    """Returns whether quantiles of the training values are needed: for buckets or pieces."""
    return feature.buckets > 0 or feature.pieces is not None


class _StoredRule(Stored):
    """A `NumericRule`."""

    log: bool
    mean: Finite
    deviation: Annotated[Finite, Field(gt=0)]
    edges: list[Finite]
    ends: list[Finite] = Field(default=[])
    missing: bool = False
    seen: Annotated[list[Finite], Field(max_length=2)]
    gaps: bool
    clips: bool


class _NumericRules(Section):
    """Section of encoder.json: feature → its `NumericRule`."""

    name = "numeric"
    entry = _StoredRule
    rule = NumericRule
    tells_apart = False

    def write(self, rule: NumericRule, folder: Path, stem: str) -> Any:
        """Returns the fields of a rule; those of pieces where it has them."""
        fields = asdict(rule)
        of_pieces = {key: fields.pop(key) for key in ("ends", "missing")}
        return fields | {key: value for key, value in of_pieces.items() if value}


class NumericCodec(RuleCodec[NumericFeature]):
    """Codec of a column of numbers."""

    by_cell = True
    section = "numeric"
    sections = (_NumericRules(),)
    content = "buckets"
    # How files say it, and what becomes of numbers that no weight has learnt from
    free = Codec.free | {"decimal", "thousands", "unit", "missing_values", "outside"}

    @property
    def dense_names(self) -> list[str]:
        """Its own name, and that of its position among its pieces."""
        name = self.feature.name
        return [name] if self.feature.pieces is None else [name, f"{name}[position]"]

    def input_layers(self, rules: Rules, first: int) -> list[InputLayerSpec]:
        """Returns its pieces, in place of the position."""
        if self.feature.pieces is None:
            return []
        rule, name = self.rule(rules), self.feature.name
        return [
            PiecesSpec(name=name, first=first + 1, pieces=rule.num_pieces, missing=rule.missing)
        ]

    def numbers(self, table: pa.Table, origin: str) -> list[np.ndarray]:
        """Reads its column as its keys say, float64 [N], NaN where missing."""
        return [feature_numbers(table, self.feature, origin)]

    def tables(self, rules: Rules) -> list[TableSpec]:
        """Returns the table of its buckets, if it has any."""
        num_rows = self.rule(rules).num_rows
        names = self.feature.derived_names
        return [TableSpec(name=name, num_rows=num_rows, dim=self.dim) for name in names]

    def start(self, origin: str, codecs: Sequence[Codec[Any]]) -> NumberFit:
        """Returns what fits its rule; it samples fewer values the more columns need quantiles."""
        wanted = max(_count_quantiles(tuple(codecs)), 1)
        sample = min(_LARGEST_SAMPLE, max(_SMALLEST_SAMPLE, _SAMPLES // wanted))
        return NumberFit(self.feature, sample)

    def check(self, fit: NumberFit, table: pa.Table, origin: str) -> None:
        """Refuses what is no number."""
        self.numbers(table, origin)

    def encode(self, table: pa.Table, rules: Rules, origin: str) -> Coded:
        """Encodes rows: the scaled number, its position among pieces, and its bucket."""
        [numbers_N] = self.numbers(table, origin)
        rule = self.rule(rules)
        return self.coded(rule, numbers_N, rule.scale(numbers_N), rule.outside(numbers_N))

    def coded(
        self, rule: NumericRule, numbers_N: np.ndarray, scaled_N: np.ndarray, outside_N: np.ndarray
    ) -> Coded:
        """Returns rows whose numbers are scaled already, with their positions and buckets."""
        buckets = [rule.bucket(numbers_N)] if self.feature.buckets else []
        positions = [] if self.feature.pieces is None else [rule.position(numbers_N)]
        return Coded(dense=[scaled_N, *positions], ids=buckets, outside_N=outside_N)


@lru_cache(maxsize=1)
def _count_quantiles(codecs: tuple[Codec[Any], ...]) -> int:
    """Counts the quantiles that differ, once for all that ask."""
    return sum(isinstance(c, NumericCodec) and takes_quantiles(c.feature) for c in codecs)
