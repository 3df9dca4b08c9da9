"""Columns of encoded rows as alarms and guards see them, and unseen ids."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mmoe.alarms import Column
from mmoe.config import Level
from mmoe.datasets.features.codec import Codec
from mmoe.datasets.features.cross import CrossCodec
from mmoe.datasets.features.datetime import DatetimeCodec, ElapsedCodec
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.features.id_map import FIRST_KNOWN, MISSING, UNSEEN, Vocabulary
from mmoe.datasets.features.ids import IdCodec
from mmoe.datasets.features.numeric import NumericCodec
from mmoe.datasets.features.trees import TreesCodec
from mmoe.datasets.rows.encoded import EncodedFeatures, IdLists

# Numbers of one feature that are columns by themselves; more are a vector, or as many as training
# rows say, and its entries say little
_MOST_NUMBERS = 4


def columns_of(
    features: EncodedFeatures, encoder: FeatureEncoder, *, of_training: bool = False
) -> Iterator[Column]:
    """Yields the columns of some rows, one or more a feature.

    Crosses are left out, since their columns are features too or could be; so are sines and
    cosines, vectors, what trees say, and days that passed, which later rows are to have more of.

    Args:
        features: The rows.
        encoder: That encoded them.
        of_training: Find `expected_unseen` too, in which each id of a vocabulary is looked at.
    """
    for codec, numbers_NF, ids_NC, of_lists in _of_codecs(features, encoder):
        if isinstance(codec, NumericCodec):
            yield _number(codec, encoder, numbers_NF, ids_NC)
        elif not isinstance(codec, (CrossCodec, ElapsedCodec, TreesCodec)):
            # Numbers of another kind of feature, where they are all that it makes
            few = numbers_NF.shape[1] == len(codec.dense_names) <= _MOST_NUMBERS
            named = zip(codec.dense_names, numbers_NF.T, strict=True) if few else ()
            for name, numbers_N in named if not (codec.lookups or codec.lists) else ():
                none_N, rows = np.zeros(len(numbers_N), bool), len(numbers_N)
                yield Column(name=name, kind="number", items=numbers_N, missing=none_N, rows=rows)
            yield from _ids(codec, encoder, ids_NC, of_training)
            yield from _lists(codec, encoder, of_lists, of_training)


def _of_codecs(
    features: EncodedFeatures, encoder: FeatureEncoder
) -> Iterator[tuple[Codec[Any], np.ndarray, np.ndarray, Sequence[IdLists]]]:
    """Yields each codec with every row's numbers, ids and lists; requests' one by one."""
    requests = features.requests
    for codec, level, (dense, ids, lists) in encoder.places():
        if requests is None or level == "row":
            own = features.dense_NF[:, dense], features.ids_NC[:, ids], features.lists[lists]
        else:
            of_requests = EncodedFeatures(
                dense_NF=requests.features.dense_NF[:, dense],
                ids_NC=requests.features.ids_NC[:, ids],
                lists=requests.features.lists[lists],
            ).take(requests.request_N)
            own = of_requests.dense_NF, of_requests.ids_NC, of_requests.lists
        yield codec, *own


def all_alike(features: EncodedFeatures) -> bool:
    """Returns whether all rows are the same to a model."""
    features = features.flat()
    of_lists = [
        part for ids_V, offsets in features.lists for part in (ids_V, np.diff(offsets)) if len(part)
    ]
    return all((x == x[:1]).all() for x in (features.dense_NF, features.ids_NC, *of_lists))


def _number(
    codec: NumericCodec, encoder: FeatureEncoder, numbers_NF: np.ndarray, buckets_NC: np.ndarray
) -> Column:
    """A number: whether it is missing its bucket tells, or its position among pieces."""
    feature, rule = codec.feature, encoder.numeric[codec.feature.name]

    def unscaled(scaled: np.ndarray) -> np.ndarray:
        """The numbers as the file has them."""
        x = np.asarray(scaled, np.float64) * rule.deviation + rule.mean
        with np.errstate(over="ignore"):
            return np.copysign(np.expm1(np.abs(x)), x) if rule.log else x

    zero = float(rule.scale(np.zeros(1))[0])
    scaled_N, position_NF = numbers_NF[:, 0], numbers_NF[:, 1:]
    bucketed, told = buckets_NC.shape[1] > 0, bool(feature.buckets or feature.pieces)
    missing_N = np.any(buckets_NC == MISSING if bucketed else position_NF < 0, axis=1)
    return Column(
        name=feature.name,
        kind="number",
        items=scaled_N,
        missing=missing_N,
        rows=len(scaled_N),
        at_zero=None if told or not len(scaled_N) else float((scaled_N == 0).mean()),
        empty="empty" if told else ("empty or 0" if zero == 0 else "empty (or the training mean)"),
        zero=zero,
        unscale=unscaled,
    )


def _ids(
    codec: Codec[Any], encoder: FeatureEncoder, ids_NC: np.ndarray, of_training: bool
) -> Iterator[Column]:
    part = isinstance(codec, DatetimeCodec)
    for spec, ids_N in zip(codec.lookups, ids_NC.T, strict=True):
        yield Column(
            name=spec.name,
            kind="part" if part else "id",
            items=ids_N,
            missing=ids_N == MISSING,
            rows=len(ids_N),
            **_known(codec, encoder, ids_N, of_training),
        )


def _lists(
    codec: Codec[Any],
    encoder: FeatureEncoder,
    of_lists: Sequence[tuple[np.ndarray, np.ndarray]],
    of_training: bool,
) -> Iterator[Column]:
    for spec, (ids_V, offsets) in zip(codec.lists, of_lists, strict=True):
        empty = None  # share of the rows without an id: a list of none may hold one that says so
        if len(offsets) > 1:
            present = np.concatenate([[0], np.cumsum(ids_V != MISSING)])[offsets]
            empty = float((np.diff(present) == 0).mean())
        yield Column(
            name=spec.name,
            kind="list",
            items=ids_V,
            missing=ids_V == MISSING,
            rows=len(offsets) - 1,
            empty_rows=empty,
            **_known(codec, encoder, ids_V, of_training),
        )


def _known(
    codec: Codec[Any], encoder: FeatureEncoder, ids_V: np.ndarray, of_training: bool
) -> dict[str, Any]:
    """Counts ids that a vocabulary has not seen, as in training, and names them."""
    if not isinstance(codec, IdCodec):
        return {}
    vocabulary, present_V = codec.ids(encoder.rules), ids_V[ids_V != MISSING]
    if not isinstance(vocabulary, Vocabulary) or not len(present_V):
        return {}

    def shown(id_: int) -> str:
        """The id of a row of its table."""
        index = id_ - FIRST_KNOWN
        keys = vocabulary.keys
        return repr(keys[index].as_py()) if index < len(keys) else f"row {id_}"

    known: dict[str, Any] = {"unseen": float((present_V == UNSEEN).mean()), "shown": shown}
    if of_training:
        min_count = codec.encoding.least_seen
        # A training row whose id has min_count rows would find it unseen if it were held out itself
        rare = np.concatenate([[False, True], vocabulary.counts <= min_count])
        known["expected_unseen"] = float(rare[present_V].mean())
        known["shares_rare"] = codec.encoding.shares_rare
    return known


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
        encodings = [codec.encoding for codec in encoder.codecs if isinstance(codec, IdCodec)]
        self._leaves_out_rare = any(encoding.shares_rare for encoding in encodings)
        names = [name for name, _ in (*self._columns, *self._lists)]
        # The column of domains and how many are known, where it is no feature that is counted
        self._domains: dict[str, int] = {}
        section = encoder.config.model.domains
        if section is not None and encoder.domains is not None and section.column not in names:
            self._domains[section.column] = len(encoder.domains.names)
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
        if isinstance(codec, IdCodec) and codec.counted:
            for found, specs, first in (
                (columns, codec.lookups, ids.start),
                (lists, codec.lists, ragged.start),
            ):
                found |= {(spec.name, level): first + i for i, spec in enumerate(specs)}
    return columns, lists


def _percent(share: float) -> str:
    """Two digits; few are not none, and most are not all."""
    if share < 0.0001:
        return "below 0.01 %"
    if 0.99 < share < 1:
        return f"{100 * share:.4g} %"
    return f"{100 * share:.2g} %" if share < 0.995 else "100 %"
