"""Permutation importance: each task's loss where a feature's values are other rows'."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mmoe.config import Level, RunConfig
from mmoe.datasets import BatchSource, EncodedData, EncodedFeatures, EncodedLabels, FeatureEncoder
from mmoe.datasets.rows.encoded import RaggedRows, join_labels
from mmoe.datasets.values.arrow import offsets_of
from mmoe.explain.measures import TaskJudge, worst
from mmoe.models import Ranker
from mmoe.predictor import Predictor
from mmoe.run import Reporter


@dataclass(frozen=True, kw_only=True)
class FeatureColumns:
    """Columns of a feature among the encoded columns of its level.

    Attributes:
        dense: Of dense_NF.
        ids: Of ids_NC.
        lists: Places among the lists.
        level: Whose columns they are.
    """

    dense: Sequence[int]
    ids: Sequence[int]
    lists: Sequence[int]
    level: Level = "row"


def columns_of(encoder: FeatureEncoder) -> dict[str, FeatureColumns]:
    """Finds the encoded columns of each feature that scoring reads.

    Example:
        >>> import pyarrow as pa
        >>> from mmoe.config import config_from_dict
        >>> config = config_from_dict({
        ...     "features": [{"kind": "categorical", "name": "item"},
        ...                  {"kind": "numeric", "name": "age", "buckets": 2}],
        ...     "tasks": [{"name": "click", "label": "click"}]})
        >>> log = pa.table({"item": ["a", "b"], "age": [1.0, 2.0]})
        >>> columns_of(FeatureEncoder.fit(config, log, "log"))["age"]
        FeatureColumns(dense=[0], ids=[1], lists=[], level='row')
    """
    found: dict[str, FeatureColumns] = {}
    for codec, level, places in encoder.places():
        mine = [range(place.start, place.stop) for place in places]
        name = codec.feature.name
        before = found.get(name, FeatureColumns(dense=[], ids=[], lists=[]))
        found[name] = FeatureColumns(
            dense=[*before.dense, *mine[0]],
            ids=[*before.ids, *mine[1]],
            lists=[*before.lists, *mine[2]],
            level=level,
        )
    unread = encoder.config.unread_when_scoring
    return {name: columns for name, columns in found.items() if name not in unread}


def values_of(data: EncodedData, columns: FeatureColumns) -> int:
    """Returns how many values a feature has: one for each row, or for each request."""
    requests = data.features.requests
    return len(data if columns.level == "row" or requests is None else requests)


def with_shuffled(data: EncodedData, columns: FeatureColumns, order: np.ndarray) -> EncodedData:
    """Returns the rows with one feature's values in another order.

    Those of a feature of requests change hands between requests: all rows of one get another's.

    Args:
        data: N rows.
        columns: Of the feature.
        order: Which row, or which request (`values_of`), each takes its values from.
    """
    features, requests = data.features, data.features.requests
    if columns.level == "row" or requests is None:
        return replace(data, features=_shuffled(features, columns, order))
    shuffled = replace(requests, features=_shuffled(requests.features, columns, order))
    return replace(data, features=replace(features, requests=shuffled))


def _shuffled(
    features: EncodedFeatures, columns: FeatureColumns, order_N: np.ndarray
) -> EncodedFeatures:
    dense_NF, ids_NC = features.dense_NF.copy(), features.ids_NC.copy()
    dense_NF[:, columns.dense] = dense_NF[order_N][:, columns.dense]
    ids_NC[:, columns.ids] = ids_NC[order_N][:, columns.ids]
    lists, weights = list(features.lists), list(features.list_weights)
    for place in columns.lists:
        values, offsets = lists[place]
        moved = RaggedRows(offsets, order_N, len(order_N))
        lists[place] = values[moved.index], offsets_of(moved.lengths_B)
        if weights and (own := weights[place]) is not None:
            weights[place] = own[moved.index]
    return replace(features, dense_NF=dense_NF, ids_NC=ids_NC, lists=lists, list_weights=weights)


def feature_importance(
    ranker: Ranker,
    config: RunConfig,
    encoder: FeatureEncoder,
    rows: BatchSource,
    tolerance: float,
    reporter: Reporter,
) -> list[dict[str, Any]]:
    """Shuffles one feature after the other among the rows, and measures every task.

    `change = metric(feature shuffled) − metric`, on the same rows, so with a paired interval. Two
    features that say the same hide each other: shuffled alone, neither is needed. Of streamed rows
    those of a chunk are shuffled among themselves.

    Args:
        ranker: In evaluation mode.
        config: Of its run.
        encoder: That encoded the rows.
        rows: With labels.
        tolerance: As in `ExplainSettings`.
        reporter: Told of progress.

    Returns:
        For each feature its name and, by task, changes of its metrics and the verdict.

    Source: Breiman, "Random forests" (Machine Learning 45, 2001), section 10.
    """
    columns, predictor = columns_of(encoder), Predictor(ranker, config)
    rng, found = np.random.default_rng(config.seed), list[np.ndarray]()
    labels: list[EncodedLabels] = []
    with (
        reporter.track("shuffling features", len(rows) * len(columns), "rows") as tracker,
        closing(rows.chunks()) as chunks,
    ):
        for chunk in chunks:
            assert chunk.labels is not None, "these rows carry labels"
            labels.append(chunk.labels)
            predictions = [_predicted(predictor, chunk)]
            for mine in columns.values():
                one = with_shuffled(chunk, mine, rng.permutation(values_of(chunk, mine)))
                predictions.append(_predicted(predictor, one))
                tracker.advance(len(chunk))
            found.append(np.stack(predictions))
    predictions_FNP = np.concatenate(found, axis=1)
    joined = labels[0] if len(labels) == 1 else join_labels(labels)
    judges = [
        TaskJudge(config, joined, t, predictions_FNP[0], tolerance)
        for t in range(len(config.tasks))
    ]
    result = []
    for name, shuffled_NP in zip(columns, predictions_FNP[1:], strict=True):
        tasks = {}
        for judge in judges:
            changes = judge.changes(shuffled_NP)
            said = judge.verdicts(changes)
            own = {"changes": changes, "verdicts": said, "verdict": worst(said.values())}
            tasks[judge.task.name] = own
        result.append({"name": name, "tasks": tasks})
    return result


def _predicted(predictor: Predictor, data: EncodedData) -> np.ndarray:
    """Numbers everywhere: where a task does not exist its label is unobserved."""
    ((_, predictions_NP),) = predictor.predict_chunks(BatchSource.of(data))
    return predictions_NP
