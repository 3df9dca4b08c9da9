"""Vocabularies, buckets and scaling, learnt from training rows chunk by chunk."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from mmoe.config import (
    CategoricalFeature,
    CrossFeature,
    DatetimeFeature,
    IdFeature,
    ListFeature,
    NumericFeature,
    RunConfig,
    TableSettings,
)
from mmoe.datasets.features.crosses import (
    CrossCountFit,
    CrossKindFit,
    counts_of_keys,
    cross_columns,
    kinds_of_counts,
    widest_columns,
)
from mmoe.datasets.features.fit_ids import CountFit, Counts, KindFit, widest
from mmoe.datasets.features.numeric import LARGEST_SAMPLE, NumberFit, NumericRule
from mmoe.datasets.features.vocabulary import HashRule, IdMap, ManagedRule, Vocabulary
from mmoe.datasets.features.vocabulary_size import refuse_too_many
from mmoe.datasets.features.weighted_lists import list_ids
from mmoe.datasets.rows.places import find_column
from mmoe.datasets.values.columns import to_numbers
from mmoe.datasets.values.datetimes import local_moments
from mmoe.datasets.values.keys import KeyKind

# Values sampled over all bucketed features (16 bytes each), and the least for one of them: then a
# quantile's rank is off by 0.2 % of the rows (standard deviation)
_SAMPLES = 1 << 22
_SMALLEST_SAMPLE = 1 << 16


@dataclass(frozen=True, kw_only=True)
class FittedRules:
    """What training rows taught.

    Attributes:
        numeric: Numeric feature → its scaling and buckets.
        ids: Table → its vocabulary or hash.
        crosses: Table of crosses → what the ids of each of their columns are.
    """

    numeric: dict[str, NumericRule]
    ids: dict[str, IdMap]
    crosses: dict[str, tuple[KeyKind, ...]]


class EncoderFit:
    """What `FeatureEncoder.of` is made from.

    Memory is bounded by the features and by the distinct ids of vocabularies, not by the rows.

    Args:
        config: Features and tables.
        origin: What the user calls the data; starts error messages.
    """

    def __init__(self, config: RunConfig, origin: str) -> None:
        self.config, self.origin = config, origin
        self.rows = 0
        numeric = [f for f in config.features if isinstance(f, NumericFeature)]
        bucketed = sum(f.buckets > 0 for f in numeric)
        sample = min(LARGEST_SAMPLE, max(_SMALLEST_SAMPLE, _SAMPLES // max(bucketed, 1)))
        self.numbers = {f.name: NumberFit(f, sample) for f in numeric}
        self.ids = {
            f.name: self._id_fit(f) for f in config.features if isinstance(f, CategoricalFeature)
        }
        self.crosses = {
            f.name: self._cross_fit(f) for f in config.features if isinstance(f, CrossFeature)
        }

    def add(self, table: pa.Table) -> None:
        """More training rows.

        Raises:
            ValueError: A column is missing, or a value does not fit its feature's kind.
        """
        self.rows += table.num_rows
        for feature in self.config.features:
            if isinstance(feature, NumericFeature):
                numbers_N = numbers_of_feature(table, feature, self.origin)
                self.numbers[feature.name].add(numbers_N)
            elif isinstance(feature, CrossFeature):
                self.crosses[feature.name].add(cross_columns(table, feature, self.origin))
            elif isinstance(feature, DatetimeFeature):
                local_moments(table, feature, self.origin)  # nothing to learn; refuses what is none
            elif isinstance(feature, ListFeature):
                self.ids[feature.name].add(list_ids(table, feature, self.origin).values)
            else:
                self.ids[feature.name].add(id_column(table, feature, self.origin))

    def check(self, table: pa.Table) -> None:
        """Rows that do not train: are their values good? Better asked now than after hours."""
        for feature in self.config.features:
            if isinstance(feature, NumericFeature):
                numbers_of_feature(table, feature, self.origin)
            elif isinstance(feature, DatetimeFeature):
                local_moments(table, feature, self.origin)
            elif isinstance(feature, ListFeature) and feature.weighted:
                list_ids(table, feature, self.origin)

    def finish(self) -> FittedRules:
        """The rules of numbers by feature and those of ids by table.

        Raises:
            ValueError: There was not one row, or a column holds no ids.
        """
        if self.rows == 0:
            raise ValueError(f"{self.origin}: there are no training rows to fit the features on")
        rules = FittedRules(
            numeric={name: fit.finish() for name, fit in self.numbers.items()}, ids={}, crosses={}
        )
        users: dict[str, list[IdFeature]] = {}
        for feature in self.config.features:
            if isinstance(feature, IdFeature):
                users.setdefault(feature.table_name, []).append(feature)
        for table, features in users.items():
            crosses = [feature for feature in features if isinstance(feature, CrossFeature)]
            if crosses:
                rules.ids[table], rules.crosses[table] = self._cross_map(crosses)
            else:
                rules.ids[table] = self._id_map(features)
        return rules

    def _settings(self, feature: IdFeature) -> TableSettings:
        shared = {table.name: table for table in self.config.tables}
        return shared.get(feature.table_name) or feature

    def _id_fit(self, feature: CategoricalFeature) -> CountFit | KindFit:
        counted = self._settings(feature).encoding == "vocabulary"
        label, settle = id_label(feature, self.origin), isinstance(feature, ListFeature)
        return CountFit(label, settle=settle) if counted else KindFit(label, settle=settle)

    def _cross_fit(self, feature: CrossFeature) -> CrossCountFit | CrossKindFit:
        counted = self._settings(feature).encoding == "vocabulary"
        return CrossCountFit() if counted else CrossKindFit()

    def _id_map(self, features: list[IdFeature]) -> IdMap:
        """One table's ids, over all the features that share it."""
        settings = self._settings(features[0])
        fits = [self.ids[feature.name] for feature in features]
        if settings.encoding != "vocabulary":
            return _rule(settings, widest(fit.finish() for fit in fits if isinstance(fit, KindFit)))
        counts = [fit.finish() for fit in fits if isinstance(fit, CountFit)]
        return _vocabulary(counts, settings)

    def _cross_map(self, features: list[CrossFeature]) -> tuple[IdMap, tuple[KeyKind, ...]]:
        """One table's ids, over all the crosses that share it: their keys are integers."""
        settings = self._settings(features[0])
        fits = [self.crosses[feature.name] for feature in features]
        if settings.encoding != "vocabulary":
            kinds = widest_columns([fit.finish() for fit in fits if isinstance(fit, CrossKindFit)])
            return _rule(settings, "int"), tuple(kinds)
        parts = [fit.finish() for fit in fits if isinstance(fit, CrossCountFit)]
        kinds = kinds_of_counts(parts)
        counts = [
            counts_of_keys(*part, kinds, cross_label(feature, self.origin))
            for part, feature in zip(parts, features, strict=True)
        ]
        return _vocabulary(counts, settings), tuple(kinds)


def _vocabulary(counts: list[Counts], settings: TableSettings) -> Vocabulary:
    """Of a table whose ids are counted; it may not outgrow the table."""
    vocabulary = Vocabulary.of(counts, settings.min_count)
    refuse_too_many(len(vocabulary.keys), settings, counts[0].label, vocabulary.counts)
    return vocabulary


def _rule(settings: TableSettings, kind: KeyKind) -> IdMap:
    """Of a table whose ids are not counted."""
    if settings.encoding == "hash":
        return HashRule(kind=kind, size=settings.hash_size)
    assert settings.rows is not None, "the config asks for them"
    return ManagedRule(kind=kind, size=settings.rows)


def id_column(table: pa.Table, feature: CategoricalFeature, origin: str) -> pa.ChunkedArray:
    """The column that a feature of ids reads."""
    return find_column(table, feature.source_column, origin, f"feature {feature.name!r}")


def numbers_of_feature(table: pa.Table, feature: NumericFeature, origin: str) -> np.ndarray:
    """The column that a numeric feature reads, float64, NaN where missing."""
    return to_numbers(table, feature.source_column, origin, f"feature {feature.name!r}")


def id_label(feature: CategoricalFeature, origin: str) -> str:
    """What the feature's column is called in an error."""
    return f"{origin}: column {feature.source_column!r} (of feature {feature.name!r})"


def cross_label(feature: CrossFeature, origin: str) -> str:
    """What the columns of a cross together are called in an error."""
    names = " × ".join(map(repr, feature.columns))
    return f"{origin}: cross {names} (of feature {feature.name!r})"
