"""Predictions of every tested row on disk, and the metrics of all of them together."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mmoe.config import RunConfig
from mmoe.config.tasks import prediction_columns
from mmoe.datasets.rows.encoded import EncodedLabels, join_labels
from mmoe.datasets.rows.locations import find_column
from mmoe.datasets.stream import open_stream
from mmoe.datasets.values.keys import hash_keys, missing_mask, to_keys
from mmoe.train.measure import metrics_of

_GROUP = "group_hash"  # of the GAUC group: codes of one day mean nothing on another


def write_tested(
    path: Path, config: RunConfig, predictions_NP: np.ndarray, labels: EncodedLabels
) -> None:
    """Writes a day's predictions, labels (empty where unobserved), weights and groups.

    Args:
        path: The Parquet file; whole or absent.
        config: Of the run that made the predictions; its test split are the rows.
        predictions_NP: Of the test split, a column for each of prediction_columns.
        labels: Of the same rows.
    """
    columns: dict[str, pa.Array] = {}
    for p, name in enumerate(prediction_columns(config.tasks)):
        columns[name] = pa.array(predictions_NP[:, p])
    for t, task in enumerate(config.tasks):
        missing_N = ~labels.observed_NT[:, t]
        columns[f"label_{task.name}"] = pa.array(labels.labels_NT[:, t], mask=missing_N)
        columns[f"weight_{task.name}"] = pa.array(labels.weights_NT[:, t])
    if config.data.group_column is not None:
        columns[_GROUP] = _groups(config, config.data.group_column)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    pq.write_table(pa.table(columns), temporary)
    temporary.replace(path)


def total_metrics(
    config: RunConfig, paths: list[Path]
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Computes metrics by task over the rows of all files, and notes on what is missing.

    Raises:
        ValueError: A file cannot be read.
    """
    predictions, labels = [], []
    for path in paths:
        try:
            table = pq.read_table(path)
            names = prediction_columns(config.tasks)
            predictions.append(np.stack([table[name].to_numpy() for name in names], axis=1))
            labels.append(_labels(table, config))
        except (OSError, KeyError, pa.ArrowException) as error:
            reason = " ".join(str(error).split())
            raise ValueError(
                f"{path}: is damaged ({reason}); remove its folder and say --resume"
            ) from None
    together = join_labels(labels)
    if together.groups_N is not None:
        codes_N = np.unique(together.groups_N, return_inverse=True)[1].astype(np.int64)
        missing_N = np.concatenate([_missing_groups(path) for path in paths])
        together = EncodedLabels(
            labels_NT=together.labels_NT,
            observed_NT=together.observed_NT,
            weights_NT=together.weights_NT,
            groups_N=np.where(missing_N, -1, codes_N),
        )
    return metrics_of(config, np.concatenate(predictions), together)


def _groups(config: RunConfig, column: str) -> pa.Array:
    """A hash of each test row's group; the same for 7 and "7", as files may differ in type."""
    test, origin = open_stream(config).test, f"column {column!r}"
    hashes: list[np.ndarray] = []
    missing: list[np.ndarray] = []
    for piece, count in enumerate(test.counts_P):
        for table in test.tables(piece, [column]) if count else ():
            values = find_column(table, column, origin, "data.group_column")
            hashes.append(hash_keys(to_keys(values, "text", origin)))
            missing.append(missing_mask(values, "text"))
    return pa.array(np.concatenate(hashes), mask=np.concatenate(missing))


def _labels(table: pa.Table, config: RunConfig) -> EncodedLabels:
    observed = [table[f"label_{task.name}"].is_valid().to_numpy() for task in config.tasks]
    groups_N = None
    if _GROUP in table.column_names:
        groups_N = table[_GROUP].fill_null(0).to_numpy().view(np.int64)
    return EncodedLabels(
        labels_NT=_stack(table, config, "label"),
        observed_NT=np.stack(observed, axis=1),
        weights_NT=_stack(table, config, "weight"),
        groups_N=groups_N,
    )


def _missing_groups(path: Path) -> np.ndarray:
    return pq.read_table(path, columns=[_GROUP])[_GROUP].is_null().to_numpy()


def _stack(table: pa.Table, config: RunConfig, what: str) -> np.ndarray:
    columns = [table[f"{what}_{task.name}"].fill_null(0).to_numpy() for task in config.tasks]
    return np.stack(columns, axis=1)
