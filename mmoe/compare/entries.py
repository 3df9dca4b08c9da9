"""The rows of a comparison, and what each model predicts of them: kept on disk."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mmoe.checkpoint import CheckpointFolder
from mmoe.config import RunConfig
from mmoe.config.json_files import Count, Number, Stored
from mmoe.config.tasks import prediction_columns
from mmoe.datasets import EncodedLabels, Splits, load_splits
from mmoe.datasets.files.fingerprint import print_data
from mmoe.datasets.rows.sources import at_versions, generated_splits
from mmoe.datasets.stream import wants_stream
from mmoe.errors import Damaged, Diverged
from mmoe.metrics.task_kinds import kind_of
from mmoe.parallel import training_group
from mmoe.predictor import Predictor
from mmoe.run import Reporter, RunDirectory, SilentReporter, read_json, write_json
from mmoe.run.folder_claim import remove_stray_files
from mmoe.train import PreparedData, prepare, train_run
from mmoe.train.baselines import boosted_trees, logistic_regression
from mmoe.train.evaluate import wide_alone
from mmoe.train.fit import training_state
from mmoe.train.fit_wide import fit_wide
from mmoe.train.prepare import refuse_change


@dataclass(frozen=True, kw_only=True)
class ComparedRows:
    """Splits as tables, for simple models, and encoded."""

    config: RunConfig
    splits: Splits
    prepared: PreparedData

    @property
    def test_labels(self) -> EncodedLabels:
        """Labels of the test rows."""
        held = self.prepared.test.held
        assert held is not None and held.labels is not None, "rows in memory carry labels"
        return held.labels

    def shared(self, config: RunConfig) -> PreparedData | None:
        """Returns the encoded rows for a model's run; None: its labels differ (ESMM)."""
        return self.prepared if config.trained_tasks == self.config.trained_tasks else None


def read_rows(config: RunConfig) -> ComparedRows:
    """Reads, splits and encodes the rows that all models are compared on.

    Args:
        config: With absolute paths.

    Raises:
        ValueError: Anything is wrong with the data, or it is too large to be held in memory.
    """
    if wants_stream(config):
        raise ValueError(
            f"{config.name}: compare holds all rows in memory, for logistic regression and trees, "
            "but these are streamed (data.input, data.streaming.above_mb); say --set "
            "data.input=memory where there is room, or give fewer rows with --data"
        )
    splits = generated_splits(config)
    data = print_data(config, splits)
    if splits is None:
        splits = load_splits(at_versions(config, data.versions))
        refuse_change(config, data)
    prepared = replace(prepare(config, splits=splits), data=data)
    return ComparedRows(config=config, splits=splits, prepared=prepared)


BASELINES: Mapping[str, str] = MappingProxyType(
    {"logistic_regression": "logistic regression", "boosted_trees": "boosted trees"}
)
_FIT: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {"logistic_regression": logistic_regression, "boosted_trees": boosted_trees}
)
_WIDE = "wide_part"


def simple_models(config: RunConfig) -> Mapping[str, str]:
    """Returns the simple models beside those of a config, and their titles.

    Where it has `model.wide`, and every trained task a linear model there, that part alone is one.
    """
    tasks = [task for task in config.tasks if task.weight]
    if config.model.wide and all(kind_of(task.kind).linear_logit for task in tasks):
        return {_WIDE: "the wide part alone", **BASELINES}
    return BASELINES


_PREDICTIONS, _BASELINE = "predictions.parquet", "baseline.json"
_AGAIN = "remove its folder and say --resume"


class _Facts(Stored):
    """baseline.json."""

    seconds: Number
    parameters: Count | None


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Result of one training.

    Attributes:
        predictions_NP: float64, of the test rows.
        parameters: Weights, tables included; None: it has none (trees).
        seconds: That training took.
        rows_per_second: In training; None: there are no epochs.
    """

    predictions_NP: np.ndarray
    parameters: int | None
    seconds: float
    rows_per_second: float | None


def trained_entry(folder: Path, config: RunConfig, rows: ComparedRows, inner: Reporter) -> Entry:
    """Reads a finished run, or trains it, from where it was interrupted.

    Raises:
        ValueError: It cannot be trained, or a file of it is damaged.
    """
    run, kept = RunDirectory(folder), folder / _PREDICTIONS
    names = prediction_columns(config.tasks)
    if not (run.metrics_file.exists() and kept.exists()):
        try:
            train_run(
                config,
                folder,
                resume=folder.exists(),
                shared=rows.shared(config),
                reporter=inner,
                on_test=lambda predictions_NP, _: _write(kept, names, predictions_NP),
            )
        except Diverged as error:
            raise Diverged(f"compare, {folder.name}: {error}") from None
        except ValueError as error:
            raise ValueError(f"compare, {folder.name}: {error}") from None
    train = run.metrics()["train"]
    return Entry(
        predictions_NP=_read(kept, names, len(rows.test_labels)),
        parameters=_count_weights(run),
        seconds=train["seconds"],
        rows_per_second=train["rows_per_second"],
    )


def baseline_entry(folder: Path, name: str, rows: ComparedRows) -> Entry:
    """Reads what a simple model predicted, or fits it.

    Raises:
        ValueError: A label has one class only, or a file is damaged.
    """
    names = prediction_columns(rows.config.tasks)
    kept, facts = folder / _PREDICTIONS, folder / _BASELINE
    if not (facts.exists() and kept.exists()):
        folder.mkdir(exist_ok=True)
        remove_stray_files(folder)
        start = time.perf_counter()
        predictions_NP, total = _wide_alone(rows) if name == _WIDE else _baseline(name, rows)
        seconds = time.perf_counter() - start
        _write(kept, names, predictions_NP)
        write_json(facts, {"seconds": seconds, "parameters": total})
    found = read_json(facts, _Facts)
    return Entry(
        predictions_NP=_read(kept, names, len(rows.test_labels)),
        parameters=found["parameters"],
        seconds=found["seconds"],
        rows_per_second=None,
    )


def _baseline(name: str, rows: ComparedRows) -> tuple[np.ndarray, int | None]:
    """Predictions of a model of `BASELINES` for the test rows, and its weights."""
    splits = rows.splits
    given: dict[str, Any] = {"origin": splits.origin, "maturity": rows.prepared.maturity}
    if name == "boosted_trees":  # whose size and number the validation split chooses
        given["validation"] = splits.validation
    fitted = _FIT[name](rows.config, splits.train, splits.test, **given)
    each = [fitted[task.name] for task in rows.config.tasks]
    first, further = [one.predictions_N[:, None] for one in each], [one.further_NK for one in each]
    counts = [one.parameters for one in each]
    total = None if None in counts else sum(counts)
    return np.concatenate([*first, *further], axis=1), total


def _wide_alone(rows: ComparedRows) -> tuple[np.ndarray, int]:
    """The same of the wide part of the config's model, as it is before the first epoch."""
    with training_group(rows.config.parallel.timeout_seconds):
        state = training_state(rows.config, rows.prepared)
        wide = state.ranker.wide
        assert wide is not None, "the config has one"
        fit_wide(wide, rows.config, rows.prepared, SilentReporter())
        predicted_NP = wide_alone(rows.config, Predictor(state.ranker, rows.config), rows.prepared)
    weights = sum(buffer.numel() for buffer in (wide.ids_RT, wide.dense_TF, wide.bias_T))
    return predicted_NP, weights


def _count_weights(run: RunDirectory) -> int:
    """Counts the weights of the network, the tables and a wide part."""
    model = CheckpointFolder(run.checkpoint).tensors("best", "model")
    names = [name for name in model.names() if name.startswith(("network.", "tables.", "wide."))]
    return sum(prod(model.shape(name)) for name in names)


def _write(path: Path, names: Sequence[str], predictions_NP: np.ndarray) -> None:
    columns = {name: predictions_NP[:, p] for p, name in enumerate(names)}
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    pq.write_table(pa.table(columns), temporary)
    temporary.replace(path)


def _read(path: Path, names: Sequence[str], rows: int) -> np.ndarray:
    try:
        table = pq.read_table(path)
        columns = [table[name].to_numpy() for name in names]
    except (OSError, KeyError, pa.ArrowException) as error:
        raise Damaged(path, " ".join(str(error).split()), _AGAIN) from None
    if table.num_rows != rows:
        raise Damaged(path, f"{table.num_rows:,} rows, the test split has {rows:,}", _AGAIN)
    return np.stack(columns, axis=1).astype(np.float64)
