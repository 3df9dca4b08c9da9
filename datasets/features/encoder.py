"""From columns to network inputs: fitted on the training split, stored with the run."""

from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import numpy as np
import pyarrow as pa

from mmoe.config import (
    CategoricalFeature,
    CrossFeature,
    DatetimeFeature,
    FeatureSpec,
    IdFeature,
    ListFeature,
    ManagedIds,
    NumericFeature,
    RunConfig,
    TableSettings,
    TableSpec,
)
from mmoe.datasets.features import encoder_files
from mmoe.datasets.features.crosses import cross_columns, cross_keys
from mmoe.datasets.features.datetime_parts import part_circle, part_ids, part_rows
from mmoe.datasets.features.fit_encoder import EncoderFit, id_column, id_label, numbers_of_feature
from mmoe.datasets.features.numeric import NumericRule
from mmoe.datasets.features.ragged import fill_empty, ids_with_missing
from mmoe.datasets.features.vocabulary import UNSEEN, IdMap, ManagedRule, Vocabulary
from mmoe.datasets.features.weighted_lists import list_ids
from mmoe.datasets.rows.encoded import EncodedFeatures
from mmoe.datasets.values.datetimes import local_moments
from mmoe.datasets.values.keys import KeyKind

_WAVES = ("sin", "cos")


@dataclass(frozen=True, kw_only=True)
class FeatureEncoder:
    """Scaling, buckets and ids of every feature.

    Ids are int32: 0 = missing (null, NaN, ""), 1 = not in the vocabulary, 2 and up known ids,
    buckets or parts of a moment; int64 raw ids from 2 up with encoding managed. Numbers:
    (f(x) − mean) / deviation, missing = 0.

    Attributes:
        config: The run; its features decide the order of everything below.
        numeric: Feature name → its scaling and buckets.
        ids: Table name → its vocabulary, hash or rule for raw ids; tables of buckets and of parts
            are not in it.
        crosses: Name of a table of crosses → what the ids of each of their columns are.

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
    crosses: dict[str, tuple[KeyKind, ...]] = field(default_factory=dict)

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
        rules = fit.finish()
        return cls(config=fit.config, numeric=rules.numeric, ids=rules.ids, crosses=rules.crosses)

    def fingerprint(self) -> str:
        """Tells encoders of different rows apart, cheaply: not all keys are looked at.

        By ids alone: of numbers the last bits may differ from machine to machine.
        """
        digest = sha256(repr(self.crosses).encode())
        for name, id_map in self.ids.items():
            if isinstance(id_map, Vocabulary):
                digest.update(f"{name} {id_map.kind} {id_map.keys[:1000].to_pylist()}".encode())
                digest.update(np.ascontiguousarray(id_map.counts))
            else:
                digest.update(f"{name} {id_map}".encode())
        return digest.hexdigest()[:16]

    @property
    def dense_names(self) -> list[str]:
        """The numeric features, and the sines and cosines of cyclic ones: columns of dense_NF."""
        names = []
        for feature in self.config.features:
            if isinstance(feature, NumericFeature):
                names.append(feature.name)
            elif isinstance(feature, DatetimeFeature) and feature.cyclic:
                names += [f"{name}_{wave}" for name in feature.derived_names for wave in _WAVES]
        return names

    @property
    def categorical(self) -> list[FeatureSpec]:
        """Every feature of one id a row, also buckets and parts of moments: columns of ids_NC."""
        specs = []
        for feature in self.config.features:
            pairs = [(name, name) for name in feature.derived_names]
            if isinstance(feature, IdFeature) and not isinstance(feature, ListFeature):
                pairs.append((feature.name, feature.table_name))
            specs += [FeatureSpec(name=name, table=table, pooling="sum") for name, table in pairs]
        return specs

    @property
    def lists(self) -> list[FeatureSpec]:
        """The list features, in the order of EncodedFeatures.lists."""
        return [
            FeatureSpec(
                name=f.name,
                table=f.table_name,
                pooling="sum" if f.weighted else f.pooling,  # see FeatureSpec
                weighted=f.weighted,
            )
            for f in self._list_features()
        ]

    @property
    def tables(self) -> list[TableSpec]:
        """The embedding tables, in the order in which features first use them."""
        default = self.config.model.embedding_dim
        shared = {table.name: table for table in self.config.tables}
        specs: dict[str, TableSpec] = {}
        for feature in self.config.features:
            if isinstance(feature, IdFeature):
                name = feature.table_name
                settings = shared.get(name) or feature
                specs[name] = TableSpec(
                    name=name,
                    num_rows=self.ids[name].num_rows,
                    dim=settings.dim or default,
                    managed=_managed_ids(settings),
                    learning_rate=settings.learning_rate,
                )
                continue
            if isinstance(feature, NumericFeature):
                sizes = [(n, self.numeric[feature.name].num_rows) for n in feature.derived_names]
            else:
                rows = [part_rows(part) for part in feature.parts]
                sizes = list(zip(feature.derived_names, rows, strict=True))
            for name, num_rows in sizes:
                dim = feature.dim or default
                specs[name] = TableSpec(name=name, num_rows=num_rows, dim=dim)
        return list(specs.values())

    def encode(self, table: pa.Table, origin: str) -> EncodedFeatures:
        """Encodes rows; columns may have other types than in training where the values agree.

        Args:
            table: N rows with the features' columns; others are ignored.
            origin: What the user calls the data; starts error messages.

        Raises:
            ValueError: A column is missing, or a value does not fit: a number that is none or
                infinite, a moment that is none, a weight too few.
        """
        dense, ids, lists, weights = [], [], [], []
        for feature in self.config.features:
            if isinstance(feature, NumericFeature):
                numbers_N = numbers_of_feature(table, feature, origin)
                rule = self.numeric[feature.name]
                dense.append(rule.scale(numbers_N))
                if feature.buckets:
                    ids.append(rule.bucket(numbers_N))
            elif isinstance(feature, DatetimeFeature):
                local_N = local_moments(table, feature, origin)
                parts = [(part_ids(local_N, part), part) for part in feature.parts]
                ids += [ids_N for ids_N, _ in parts]
                if feature.cyclic:
                    dense += [wave_N for one in parts for wave_N in part_circle(*one)]
            elif isinstance(feature, CrossFeature):
                ids.append(self._encode_cross(table, feature, origin))
            elif isinstance(feature, ListFeature):
                values_V, offsets, weights_V = self._encode_list(table, feature, origin)
                lists.append((values_V, offsets))
                weights.append(weights_V)
            else:
                ids.append(self._lookup(id_column(table, feature, origin), feature, origin))
        return EncodedFeatures(
            dense_NF=_stack(dense, table.num_rows, np.float32),
            ids_NC=_stack(ids, table.num_rows, self._id_type()),
            lists=lists,
            list_weights=weights if any(w is not None for w in weights) else [],
        )

    def save(self, folder: str | Path) -> None:
        """Writes encoder.json and one Parquet file for each vocabulary; no pickle."""
        encoder_files.save(Path(folder), self.config, self.numeric, self.ids, self.crosses)

    @classmethod
    def load(cls, folder: str | Path) -> "FeatureEncoder":
        """Reads what `save` wrote.

        Raises:
            ValueError: The folder holds no complete encoder.
        """
        config, numeric, ids, crosses = encoder_files.load(Path(folder))
        return cls(config=config, numeric=numeric, ids=ids, crosses=crosses)

    def _id_type(self) -> type:
        """Raw ids need 64 bits; rows of tables do not, and take half the memory."""
        rules = [self.ids.get(spec.table) for spec in self.categorical]
        return np.int64 if any(isinstance(rule, ManagedRule) for rule in rules) else np.int32

    def _list_features(self) -> list[ListFeature]:
        return [f for f in self.config.features if isinstance(f, ListFeature)]

    def _lookup(
        self, column: pa.ChunkedArray, feature: CategoricalFeature, origin: str
    ) -> np.ndarray:
        return self.ids[feature.table_name].lookup(column, id_label(feature, origin))

    def _encode_cross(self, table: pa.Table, feature: CrossFeature, origin: str) -> np.ndarray:
        cross, name = cross_columns(table, feature, origin), feature.table_name
        keys, alien_N = cross_keys(cross, self.crosses[name])
        ids_N = self.ids[name].lookup(keys, cross.labels[0])
        ids_N[alien_N] = UNSEEN
        return ids_N

    def _encode_list(
        self, table: pa.Table, feature: ListFeature, origin: str
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        ragged = list_ids(table, feature, origin)
        weights_V = ragged.weights
        if weights_V is not None:
            weights_V = fill_empty(weights_V, ragged.offsets, 1)
        ids_V = self._lookup(ragged.values, feature, origin)
        return *ids_with_missing(ids_V, ragged.offsets), weights_V


def _managed_ids(settings: TableSettings) -> ManagedIds | None:
    if settings.encoding != "managed":
        return None
    assert settings.rows is not None, "the config asks for them"
    return ManagedIds(
        rows=settings.rows,
        admit_after=settings.admit_after,
        evict=settings.evict,
        evict_every=settings.evict_every,
    )


def _stack(columns: list[np.ndarray], num_rows: int, dtype: type) -> np.ndarray:
    """[N, columns], row-major; filled in blocks of rows, so that writes stay in the cache."""
    out = np.empty((num_rows, len(columns)), dtype)
    block = 8192
    for start in range(0, num_rows, block):
        for position, column in enumerate(columns):
            out[start : start + block, position] = column[start : start + block]
    return out
