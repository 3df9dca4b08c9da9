"""Vocabularies, buckets and scaling, learnt from training rows chunk by chunk."""

import numpy as np
import pyarrow as pa

from mmoe.config import CategoricalFeature, ListFeature, NumericFeature, RunConfig
from mmoe.datasets.columns import to_numbers
from mmoe.datasets.fit_ids import CountFit, KindFit, widest
from mmoe.datasets.numeric import LARGEST_SAMPLE, NumberFit, NumericRule
from mmoe.datasets.ragged import to_ragged
from mmoe.datasets.rows import find_column
from mmoe.datasets.vocabulary import HashRule, IdMap, Vocabulary

# Values sampled over all bucketed features (16 bytes each), and the least for one of them: then a
# quantile's rank is off by 0.2 % of the rows (standard deviation)
_SAMPLES = 1 << 22
_SMALLEST_SAMPLE = 1 << 16


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
        self.ids = {f.name: self._id_fit(f) for f in self._id_features()}

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
                continue
            column = id_column(table, feature, self.origin)
            if isinstance(feature, ListFeature):
                column = to_ragged(column, feature).values
            self.ids[feature.name].add(column)

    def check(self, table: pa.Table) -> None:
        """Rows that do not train: are their numbers numbers? Better asked now than after hours."""
        for feature in self.config.features:
            if isinstance(feature, NumericFeature):
                numbers_of_feature(table, feature, self.origin)

    def finish(self) -> tuple[dict[str, NumericRule], dict[str, IdMap]]:
        """The rules of numbers by feature and those of ids by table.

        Raises:
            ValueError: There was not one row, or a column holds no ids.
        """
        if self.rows == 0:
            raise ValueError(f"{self.origin}: there are no training rows to fit the features on")
        numeric = {name: fit.finish() for name, fit in self.numbers.items()}
        users: dict[str, list[CategoricalFeature]] = {}
        for feature in self._id_features():
            users.setdefault(feature.table or feature.name, []).append(feature)
        return numeric, {table: self._id_map(table, users[table]) for table in users}

    def _id_features(self) -> list[CategoricalFeature]:
        return [f for f in self.config.features if isinstance(f, CategoricalFeature)]

    def _settings(self, feature: CategoricalFeature):
        shared = {table.name: table for table in self.config.tables}
        return shared.get(feature.table or feature.name) or feature

    def _id_fit(self, feature: CategoricalFeature) -> CountFit | KindFit:
        hashed = self._settings(feature).encoding == "hash"
        label, settle = id_label(feature, self.origin), isinstance(feature, ListFeature)
        return KindFit(label, settle=settle) if hashed else CountFit(label, settle=settle)

    def _id_map(self, table: str, features: list[CategoricalFeature]) -> IdMap:
        """One table's ids, over all the features that share it."""
        settings = self._settings(features[0])
        fits = [self.ids[feature.name] for feature in features]
        if settings.encoding == "hash":
            kinds = [fit.finish() for fit in fits if isinstance(fit, KindFit)]
            return HashRule(kind=widest(kinds), size=settings.hash_size)
        counts = [fit.finish() for fit in fits if isinstance(fit, CountFit)]
        return Vocabulary.of(counts, settings.min_count)


def id_column(table: pa.Table, feature: CategoricalFeature, origin: str) -> pa.ChunkedArray:
    """The column that a feature of ids reads."""
    return find_column(table, feature.source_column, origin, f"feature {feature.name!r}")


def numbers_of_feature(table: pa.Table, feature: NumericFeature, origin: str) -> np.ndarray:
    """The column that a numeric feature reads, float64, NaN where missing."""
    return to_numbers(table, feature.source_column, origin, f"feature {feature.name!r}")


def id_label(feature: CategoricalFeature, origin: str) -> str:
    """What the feature's column is called in an error."""
    return f"{origin}: column {feature.source_column!r} (of feature {feature.name!r})"
