"""The config with which our side trains a workload. Imports neither torch nor mmoe."""

from collections.abc import Mapping
from typing import Any, Literal

from benchmarks.train.logs import Log
from benchmarks.train.workloads import (
    BATCH,
    DIM,
    EMBEDDING_EPS,
    EMBEDDING_LEARNING_RATE,
    EXPERTS,
    HIDDEN,
    LEARNING_RATE,
    TOWER,
    Ids,
    Workload,
)

FOREVER = 1_000_000  # epochs, and epochs without gain
Encoding = Literal["hash", "vocabulary"]


def raw_config(
    log: Log,
    *,
    precision: str,
    encoding: Encoding = "hash",
    epochs: int = FOREVER,
    seed: int = 0,
) -> dict[str, Any]:
    """A config as YAML has it.

    Args:
        log: What is trained.
        precision: fp32 or bf16.
        encoding: hash: tables of exactly the workload's sizes; vocabulary: a row for every id seen,
            as the rival has a row for every id.
        epochs: Rounds over the log.
        seed: Of weights and batch order.
    """
    workload = log.workload
    return {
        "name": workload.name,
        "seed": seed,
        "data": {
            "split": {"by": "file"},
            "train": str(log.train),
            "validation": str(log.validation),
            "test": str(log.test),
        },
        "tables": _shared_tables(workload, encoding),
        "features": [
            *({"kind": "numeric", "name": name} for name in workload.dense_columns),
            *(_feature(column, encoding) for column in workload.ids),
        ],
        "tasks": [{"name": task, "label": task} for task in workload.tasks],
        "model": {
            "kind": "mmoe",
            "embedding_dim": DIM,
            "num_experts": EXPERTS,
            "expert": {"hidden": list(HIDDEN), "activation": "relu"},
            "gate": {"kind": "softmax"},
            "tower": {"hidden": [TOWER], "activation": "relu"},
        },
        "training": {
            "epochs": epochs,
            "patience": FOREVER,
            "batch_size": BATCH,
            "eval_batch_size": BATCH,
            "precision": precision,
            "optimizer": {"kind": "adam", "learning_rate": LEARNING_RATE},
            "embedding_optimizer": {
                "kind": "rowwise_adagrad",
                "learning_rate": EMBEDDING_LEARNING_RATE,
                "eps": EMBEDDING_EPS,
            },
        },
    }


def _feature(column: Ids, encoding: Encoding) -> dict[str, Any]:
    kind = "categorical" if column.length is None else "list"
    feature: dict[str, Any] = {"kind": kind, "name": column.column}
    if kind == "list":
        feature["pooling"] = "mean"
    if column.table:
        return {**feature, "table": column.table}
    return {**feature, **_rows(column, encoding)}


def _shared_tables(workload: Workload, encoding: Encoding) -> list[Mapping[str, Any]]:
    shared = {column.table: column for column in workload.ids if column.table}
    return [{"name": name, **_rows(column, encoding)} for name, column in shared.items()]


def _rows(column: Ids, encoding: Encoding) -> dict[str, Any]:
    if encoding == "vocabulary":
        return {"encoding": "vocabulary"}
    return {"encoding": "hash", "hash_size": column.rows}
