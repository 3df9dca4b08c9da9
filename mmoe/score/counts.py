"""`ScoreCounts`: what is counted of scored rows; those of parts add up to those of all."""

import base64
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
from pydantic import Field, PlainSerializer, PlainValidator, TypeAdapter, ValidationError

from mmoe.alarms import Column, Distribution, TrainingColumns
from mmoe.config.json_files import Count, Stored
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.features.numeric import NumericCodec
from mmoe.datasets.rows.columns import UnseenIds, columns_of
from mmoe.datasets.rows.encoded import EncodedFeatures
from mmoe.datasets.values.arrow import is_text, pc, plain

KEY = b"mmoe.counts"  # of the metadata of a Parquet file of scores
_COUNTS = TypeAdapter(list[Count])


def _as_bins(counts: Any) -> np.ndarray:
    """Counts as numbers that add up fast, checked."""
    if isinstance(counts, np.ndarray):
        return counts
    return np.array(_COUNTS.validate_python(counts), np.int64)


# A list in JSON
_Bins = Annotated[np.ndarray, PlainValidator(_as_bins), PlainSerializer(np.ndarray.tolist)]


class ColumnCounts(Stored):
    """Counts of one column that the model reads.

    Attributes:
        items: Its values that are there; of lists, of all rows together.
        missing: Rows without a value; of a list, without any.
        bins: Items in each bin of training (`StoredColumn`), int64; none where training is not
            known.
        unseen: Items that training had not.
    """

    items: Count
    missing: Count
    bins: _Bins = Field(default_factory=lambda: _as_bins([]))
    unseen: Count = 0

    def __eq__(self, other: object) -> bool:
        """Returns whether all counts are the same."""
        if not isinstance(other, ColumnCounts) or not np.array_equal(self.bins, other.bins):
            return False
        return self.model_dump(exclude={"bins"}) == other.model_dump(exclude={"bins"})

    def __add__(self, other: "ColumnCounts") -> "ColumnCounts":
        """Returns the counts of the rows of both."""
        # Of another version's bins nothing is known
        same = len(self.bins) == len(other.bins)
        return ColumnCounts.model_construct(
            items=self.items + other.items,
            missing=self.missing + other.missing,
            bins=self.bins + other.bins if same else _as_bins([]),
            unseen=self.unseen + other.unseen,
        )


class ScoreCounts(Stored):
    """Counts of rows that were scored.

    Attributes:
        rows: All of them.
        unseen: Feature → rows with an id that training had not; see `UnseenIds`.
        outside: Feature → rows with a number far outside training's range, or with anything else
            than what all training rows had; of features whose range the run knows.
        columns: That the model reads.
        scores: Numbers that were written, predicted or fused.
        classes: Of columns that hold classes: class → rows.
    """

    rows: Count = 0
    unseen: dict[str, Count] = Field(default_factory=dict)
    outside: dict[str, Count] = Field(default_factory=dict)
    columns: dict[str, ColumnCounts] = Field(default_factory=dict)
    scores: dict[str, Distribution] = Field(default_factory=dict)
    classes: dict[str, dict[str, Count]] = Field(default_factory=dict)

    def __add__(self, other: "ScoreCounts") -> "ScoreCounts":
        """Returns the counts of the rows of both."""
        if not self.rows or not other.rows:
            return self if self.rows else other
        classes = (_sum(self.classes[name], other.classes[name]) for name in self.classes)
        return ScoreCounts.model_construct(
            rows=self.rows + other.rows,
            unseen=_sum(self.unseen, other.unseen),
            outside=_sum(self.outside, other.outside),
            columns={n: self.columns[n] + other.columns[n] for n in self.columns},
            scores={n: self.scores[n] + other.scores[n] for n in self.scores},
            classes=dict(zip(self.classes, classes, strict=True)),
        )

    def unseen_ids(self) -> dict[str, dict[str, Any]]:
        """Returns rows with unseen ids and their share, by feature, for JSON."""
        return {
            name: {"rows": count, "share": count / max(self.rows, 1)}
            for name, count in self.unseen.items()
        }

    def as_metadata(self) -> dict[bytes, bytes]:
        """Returns them as metadata of a Parquet file, packed: some kB a hundred columns."""
        text = self.model_dump_json().encode()
        return {KEY: base64.b64encode(zlib.compress(text))}

    @classmethod
    def in_metadata(cls, metadata: Mapping[bytes, bytes] | None) -> "ScoreCounts | None":
        """Reads them; None where a file has none, or they cannot be read."""
        packed = (metadata or {}).get(KEY)
        if packed is None:
            return None
        try:
            return cls.model_validate_json(zlib.decompress(base64.b64decode(packed)))
        except (ValueError, zlib.error, ValidationError):
            return None


class Counter:
    """Counts rows as they are scored, from any number of threads.

    Args:
        encoder: Of the run.
        training: What the run knows of its training rows; None: nothing.
    """

    def __init__(self, encoder: FeatureEncoder, training: TrainingColumns | None) -> None:
        self.encoder, self.training = encoder, training
        self._stored = {} if training is None else training.columns
        self._numeric = {
            codec.feature.name: codec for codec in encoder.codecs if isinstance(codec, NumericCodec)
        }
        self._ranged = encoder.ranged
        self._sources = [
            (codec.feature.name, codec.feature.source_columns) for codec in encoder.codecs
        ]

    def count(
        self,
        features: EncodedFeatures,
        table: pa.Table,
        scores: Mapping[str, pa.Array],
        origin: str,
    ) -> ScoreCounts:
        """Counts some rows.

        Args:
            features: The rows, encoded.
            table: As they were read.
            scores: What is written of them, beside kept columns.
            origin: What the user calls them.
        """
        unseen = UnseenIds(self.encoder)
        unseen.add(features)
        columns = {
            column.name: self._column(column, table, origin)
            for column in columns_of(features, self.encoder)
        }
        # Of vectors and the like it is known whether they are there
        there = set(table.column_names)
        for name, sources in self._sources:
            if name not in columns and there.issuperset(sources):
                columns[name] = _without_bins(table, sources)
        numbers = {n: x for n, x in scores.items() if pa.types.is_floating(x.type)}
        others = {n: x for n, x in scores.items() if n not in numbers}
        return ScoreCounts.model_construct(
            rows=table.num_rows,
            unseen=dict(unseen.by_feature),
            outside=_outside(features, self._ranged),
            columns=columns,
            scores={name: _distribution(values) for name, values in numbers.items()},
            classes={name: _classes(values) for name, values in others.items()},
        )

    def _column(self, column: Column, table: pa.Table, origin: str) -> ColumnCounts:
        stored = self._stored.get(column.name)
        fits = stored is not None and stored.kind == column.kind
        there = len(column.items) - int(np.count_nonzero(column.missing))
        return ColumnCounts.model_construct(
            items=there,
            missing=self._missing(column, table, origin),
            bins=stored.counted(column) if stored is not None and fits else _as_bins([]),
            unseen=round((column.unseen or 0.0) * there),
        )

    def _missing(self, column: Column, table: pa.Table, origin: str) -> int:
        if column.kind == "list":
            return round((column.empty_rows or 0.0) * column.rows)
        codec = self._numeric.get(column.name)
        if column.at_zero is None or codec is None:
            return int(np.count_nonzero(column.missing))
        # Once it is scaled, a number that is missing looks like the mean
        cells = plain(table[codec.feature.source_column])
        if is_text(cells.type) or codec.feature.missing_values:
            return int(np.count_nonzero(np.isnan(codec.numbers(table, origin)[0])))
        return _nulls(cells)


def added(counts: Iterable[ScoreCounts]) -> ScoreCounts:
    """Returns the counts of all rows together."""
    total = ScoreCounts()
    for some in counts:
        total += some
    return total


def _outside(features: EncodedFeatures, names: Iterable[str]) -> dict[str, int]:
    """Rows of each of these features that hold what training never did."""
    found = {name: int(of.sum()) for name, of in features.outside.items()}
    if features.requests is not None:
        rows_M = np.bincount(features.requests.request_N, minlength=len(features.requests))
        shared = features.requests.features.outside
        found |= {name: int(rows_M[of_M].sum()) for name, of_M in shared.items()}
    return {name: found.get(name, 0) for name in names}


def _without_bins(table: pa.Table, sources: Sequence[str]) -> ColumnCounts:
    missing = max((_nulls(plain(table[source])) for source in sources), default=0)
    items = table.num_rows - missing
    return ColumnCounts.model_construct(items=items, missing=missing, bins=_as_bins([]), unseen=0)


def _nulls(cells: pa.ChunkedArray) -> int:
    if not pa.types.is_floating(cells.type):
        return int(cells.null_count)
    return int(pc.sum(pc.is_null(cells, nan_is_null=True)).as_py() or 0)


def _distribution(values: Any) -> Distribution:
    there = values.drop_null()
    return Distribution.of(there.to_numpy(zero_copy_only=False), values.null_count)


def _classes(values: Any) -> dict[str, int]:
    found = pc.value_counts(values).to_pylist()
    return {str(pair["values"]): int(pair["counts"]) for pair in found}


def _sum(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in dict.fromkeys([*one, *other])}
