"""What a part of this benchmark is, and how its models are trained and judged."""

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.racing.harness import Target
from mmoe.config import config_from_dict
from mmoe.datasets.rows.encoded import EncodedLabels
from mmoe.datasets.rows.splits import Splits
from mmoe.train import train_run

# `Section`: one comparison, which measures some of the JSON keys


@dataclass(frozen=True)
class Measured:
    """What a section found."""

    values: Mapping[str, float]  # JSON key → number
    # What stands behind them: numbers of each seed, the oracle's among them
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Section:
    """One comparison."""

    name: str  # For `--only`
    # JSON key → what it should reach; keys without a target are None
    targets: Mapping[str, Target | None]
    # Called with the seeds, and with what prints a line of progress
    measure: Callable[[Sequence[int], Callable[[str], None]], Measured]


# Training in this process, on a log in memory


def predictions(
    config: Mapping[str, Any],  # As in a YAML file
    splits: Splits,  # Rows to train on, to choose the checkpoint by, and to predict
    seed: int,  # Of the run
    read: Callable[[Path], object] = lambda _: None,
) -> dict[str, np.ndarray]:
    """Trains with a seed, and predicts the rows of the test split.

    Returns task → float64 [N], in the order of the test rows.
    """
    folder = Path(tempfile.mkdtemp(prefix="inputs-"))
    found: list[np.ndarray] = []

    def keep(predictions_NP: np.ndarray, labels: EncodedLabels) -> None:
        found.append(predictions_NP.astype(np.float64))

    run = config_from_dict({**config, "seed": seed})
    try:
        train_run(run, folder / "run", splits=splits, on_test=keep)
        read(folder / "run")
    finally:
        shutil.rmtree(folder)
    (predictions_NP,) = found
    return {task.name: predictions_NP[:, t] for t, task in enumerate(run.tasks)}


def split_rows(log: pa.Table, test: pa.Table) -> Splits:
    """Makes splits of generated rows: the last tenth of the log is for validation."""
    stop = round(len(log) * 0.9)
    return Splits(train=log.slice(0, stop), validation=log.slice(stop), test=test)


def log_loss(labels: np.ndarray, probabilities: np.ndarray) -> float:
    """Returns the mean of −ln p of what happened, in nats.

    Labels may be true probabilities: then it is the expectation over labels.
    """
    p = np.clip(probabilities, 1e-7, 1 - 1e-7)
    return float(-np.mean(labels * np.log(p) + (1 - labels) * np.log1p(-p)))
