"""Ids that training did not have, counted while rows are scored."""

from collections import Counter
from collections.abc import Collection
from typing import Any

import numpy as np

from mmoe.config.tables import VocabularyEncoding
from mmoe.datasets.features.codec import Codec
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.features.id_map import UNSEEN
from mmoe.datasets.features.ids import IdCodec
from mmoe.datasets.features.levels import Level
from mmoe.datasets.rows.encoded import EncodedFeatures


class UnseenIds:
    """Counts, feature by feature, rows with an id that has no row of its own.

    Of features with a vocabulary alone: a hash has rows for all ids, and managed ids come and go.
    An id that training saw less than `min_count` times counts as well; so does, under the name of
    the column of `model.domains`, a row that is of no known domain.

    Args:
        encoder: Made the rows.

    Attributes:
        rows: All rows so far.
        by_feature: Those of them with such an id; of a list, with one at least.

    Example:
        >>> import pyarrow as pa
        >>> from mmoe.config import config_from_dict
        >>> config = config_from_dict({
        ...     "features": [{"kind": "categorical", "name": "item"}],
        ...     "tasks": [{"name": "click", "label": "click"}]})
        >>> encoder = FeatureEncoder.fit(config, pa.table({"item": ["a", "b"]}), "log")
        >>> unseen = UnseenIds(encoder)
        >>> unseen.add(encoder.encode(pa.table({"item": ["b", "c", "d", None]}), "new"))
        >>> unseen.by_feature, unseen.text()
        (Counter({'item': 2}), 'unseen ids: item in 2 rows (50 %)')
    """

    def __init__(self, encoder: FeatureEncoder) -> None:
        self.rows = 0
        self.by_feature: Counter[str] = Counter()
        self._columns, self._lists = _places(encoder)
        self._leaves_out_rare = any(map(_leaves_out_rare, encoder.codecs))
        names = [name for name, _ in (*self._columns, *self._lists)]
        self._domains = _domains(encoder, names)
        names += self._domains
        self.by_feature.update(dict.fromkeys(names, 0))

    def add(self, features: EncodedFeatures) -> None:
        """Counts more rows."""
        self.rows += len(features)
        self._add(features, "row")
        if features.requests is not None:
            rows_M = np.bincount(features.requests.request_N, minlength=len(features.requests))
            self._add(features.requests.features, "request", rows_M)
        for name, known in self._domains.items():
            assert features.domains_N is not None, "the run has domains"
            self.by_feature[name] += int(np.count_nonzero(features.domains_N == known))

    def _add(
        self, features: EncodedFeatures, level: Level, rows_M: np.ndarray | None = None
    ) -> None:
        """Counts features of one level; each of M requests has so many rows."""
        for (name, of), column in self._columns.items():
            if of == level:
                unseen_N = features.ids_NC[:, column] == UNSEEN
                found = np.count_nonzero(unseen_N) if rows_M is None else rows_M[unseen_N].sum()
                self.by_feature[name] += int(found)
        for (name, of), position in self._lists.items():
            if of == level:
                ids_V, offsets = features.lists[position]
                places = np.flatnonzero(ids_V == UNSEEN)
                rows = np.unique(np.searchsorted(offsets, places, side="right") - 1)
                self.by_feature[name] += len(rows) if rows_M is None else int(rows_M[rows].sum())

    def include(self, rows: int, by_feature: dict[str, int]) -> None:
        """Counts what others have counted: another file, or another rank."""
        self.rows += rows
        self.by_feature.update(by_feature)

    def text(self) -> str | None:
        """Returns a line for people; None where no feature has a vocabulary."""
        if not self.by_feature or not self.rows:
            return None
        found = [
            f"{name} in {count:,} row{'s' * (count != 1)} ({_percent(count / self.rows)})"
            for name, count in self.by_feature.items()
            if count
        ]
        rare = ", or rarer than min_count in training" if self._leaves_out_rare else ""
        return f"unseen ids{rare}: {', '.join(found) or 'none'}"


_Places = dict[tuple[str, Level], int]


def _places(encoder: FeatureEncoder) -> tuple[_Places, _Places]:
    """Features with a vocabulary: numbers of their columns of ids, and lists, at their level."""
    columns: _Places = {}
    lists: _Places = {}
    for codec, level, (_, ids, ragged) in encoder.places():
        if _knows_its_ids(codec):
            for found, specs, first in (
                (columns, codec.lookups, ids.start),
                (lists, codec.lists, ragged.start),
            ):
                found |= {(spec.name, level): first + i for i, spec in enumerate(specs)}
    return columns, lists


def _domains(encoder: FeatureEncoder, taken: Collection[str]) -> dict[str, int]:
    """The column of domains and how many are known, where it is no feature that is counted."""
    section = encoder.config.model.domains
    if section is None or encoder.domains is None or section.column in taken:
        return {}
    return {section.column: len(encoder.domains.names)}


def _knows_its_ids(codec: Codec[Any]) -> bool:
    return isinstance(codec, IdCodec) and codec.counted


def _leaves_out_rare(codec: Codec[Any]) -> bool:
    encoding = codec.encoding if isinstance(codec, IdCodec) else None
    return isinstance(encoding, VocabularyEncoding) and encoding.min_count > 1


def _percent(share: float) -> str:
    """Two digits; few are not none, and most are not all."""
    if share < 0.0001:
        return "below 0.01 %"
    if 0.99 < share < 1:
        return f"{100 * share:.4g} %"
    return f"{100 * share:.2g} %" if share < 0.995 else "100 %"
