"""From columns to network inputs: fitted on the training split, stored with the run."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from mmoe.config import (
    FeatureSpec,
    ListFeature,
    NumericFeature,
    RunConfig,
    TableSpec,
)
from mmoe.datasets import encoder_files
from mmoe.datasets.encoded import EncodedFeatures
from mmoe.datasets.fit_encoder import EncoderFit, id_column, id_label, numbers_of_feature
from mmoe.datasets.numeric import NumericRule
from mmoe.datasets.ragged import ids_with_missing, to_ragged
from mmoe.datasets.vocabulary import IdMap


@dataclass(frozen=True, kw_only=True)
class FeatureEncoder:
    """Scaling, buckets and ids of every feature.

    Ids are int32: 0 = missing (null, NaN, ""), 1 = not in the vocabulary, 2 and up known ids or
    buckets. Numbers: (f(x) − mean) / deviation, missing = 0.

    Attributes:
        config: The run; its features decide the order of everything below.
        numeric: Feature name → its scaling and buckets.
        ids: Table name → its vocabulary or hash; bucket tables are not in it.

    Example:
        >>> from mmoe.config import config_from_dict
        >>> config = config_from_dict({
        ...     "features": [{"kind": "categorical", "name": "item"},
        ...                  {"kind": "numeric", "name": "age"}],
        ...     "tasks": [{"name": "click", "label": "click"}]})
        >>> train = pa.table({"item": ["a", "b", "b"], "age": [10.0, 20.0, 30.0]})
        >>> encoder = FeatureEncoder.fit(config, train, "log.csv")
        >>> encoded = encoder.encode(pa.table({"item": ["b", "x", ""], "age": [20, 20, 20]}), "new")
        >>> encoded.ids_NC[:, 0].tolist(), encoded.dense_NF[:, 0].tolist()
        ([2, 1, 0], [0.0, 0.0, 0.0])
    """

    config: RunConfig
    numeric: dict[str, NumericRule]
    ids: dict[str, IdMap]

    @classmethod
    def fit(cls, config: RunConfig, train: pa.Table, origin: str) -> "FeatureEncoder":
        """Learns vocabularies, buckets and scaling.

        Args:
            config: Features and tables.
            train: The training rows, and no others.
            origin: What the user calls the data; starts error messages.

        Raises:
            ValueError: A column is missing, or a value does not fit its feature's kind.
        """
        fit = EncoderFit(config, origin)
        fit.add(train)
        return cls.of(fit)

    @classmethod
    def of(cls, fit: EncoderFit) -> "FeatureEncoder":
        """From training rows that were seen chunk by chunk; the same as `fit` of all of them.

        Raises:
            ValueError: There was not one row, or a column is no column of ids.
        """
        numeric, ids = fit.finish()
        return cls(config=fit.config, numeric=numeric, ids=ids)

    @property
    def dense_names(self) -> list[str]:
        """The numeric features: columns of dense_NF."""
        return [feature.name for feature in self._numeric_features()]

    @property
    def categorical(self) -> list[FeatureSpec]:
        """Every feature of one id a row, buckets of numbers included: columns of ids_NC."""
        specs = []
        for feature in self.config.features:
            if isinstance(feature, NumericFeature):
                if feature.buckets:
                    twin = bucket_name(feature)
                    specs.append(FeatureSpec(name=twin, table=twin, pooling="sum"))
            elif not isinstance(feature, ListFeature):
                table = feature.table or feature.name
                specs.append(FeatureSpec(name=feature.name, table=table, pooling="sum"))
        return specs

    @property
    def lists(self) -> list[FeatureSpec]:
        """The list features, in the order of EncodedFeatures.lists."""
        return [
            FeatureSpec(name=f.name, table=f.table or f.name, pooling=f.pooling)
            for f in self._list_features()
        ]

    @property
    def tables(self) -> list[TableSpec]:
        """The embedding tables, in the order in which features first use them."""
        default = self.config.model.embedding_dim
        shared = {table.name: table for table in self.config.tables}
        specs: dict[str, TableSpec] = {}
        for feature in self.config.features:
            if isinstance(feature, NumericFeature):
                if feature.buckets:
                    rows = self.numeric[feature.name].num_rows
                    name = bucket_name(feature)
                    specs[name] = TableSpec(name=name, num_rows=rows, dim=feature.dim or default)
                continue
            name = feature.table or feature.name
            dim = (shared.get(name) or feature).dim or default
            specs[name] = TableSpec(name=name, num_rows=self.ids[name].num_rows, dim=dim)
        return list(specs.values())

    def encode(self, table: pa.Table, origin: str) -> EncodedFeatures:
        """Encodes rows; columns may have other types than in training where the values agree.

        Args:
            table: N rows with the features' columns; others are ignored.
            origin: What the user calls the data; starts error messages.

        Raises:
            ValueError: A column is missing, or a numeric value is no number or infinite.
        """
        dense, ids, lists = [], [], []
        for feature in self.config.features:
            if isinstance(feature, NumericFeature):
                numbers_N = numbers_of_feature(table, feature, origin)
                rule = self.numeric[feature.name]
                dense.append(rule.scale(numbers_N))
                if feature.buckets:
                    ids.append(rule.bucket(numbers_N))
            elif isinstance(feature, ListFeature):
                lists.append(self._encode_list(table, feature, origin))
            else:
                column = id_column(table, feature, origin)
                label = id_label(feature, origin)
                ids.append(self.ids[feature.table or feature.name].lookup(column, label))
        return EncodedFeatures(
            dense_NF=_stack(dense, table.num_rows, np.float32),
            ids_NC=_stack(ids, table.num_rows, np.int32),
            lists=lists,
        )

    def save(self, folder: str | Path) -> None:
        """Writes encoder.json and one Parquet file for each vocabulary; no pickle."""
        encoder_files.save(Path(folder), self.config, self.numeric, self.ids)

    @classmethod
    def load(cls, folder: str | Path) -> "FeatureEncoder":
        """Reads what `save` wrote.

        Raises:
            ValueError: The folder holds no complete encoder.
        """
        config, numeric, ids = encoder_files.load(Path(folder))
        return cls(config=config, numeric=numeric, ids=ids)

    def _numeric_features(self) -> list[NumericFeature]:
        return [f for f in self.config.features if isinstance(f, NumericFeature)]

    def _list_features(self) -> list[ListFeature]:
        return [f for f in self.config.features if isinstance(f, ListFeature)]

    def _encode_list(
        self, table: pa.Table, feature: ListFeature, origin: str
    ) -> tuple[np.ndarray, np.ndarray]:
        ragged = to_ragged(id_column(table, feature, origin), feature)
        id_map = self.ids[feature.table or feature.name]
        return ids_with_missing(
            id_map.lookup(ragged.values, id_label(feature, origin)), ragged.offsets
        )


def bucket_name(feature: NumericFeature) -> str:
    """Name of the feature and table that embed a number's bucket."""
    return f"{feature.name}__bucket"


def _stack(columns: list[np.ndarray], num_rows: int, dtype: type) -> np.ndarray:
    """[N, columns], row-major; filled in blocks of rows, so that writes stay in the cache."""
    out = np.empty((num_rows, len(columns)), dtype)
    block = 8192
    for start in range(0, num_rows, block):
        for position, column in enumerate(columns):
            out[start : start + block, position] = column[start : start + block]
    return out
