"""Training in this process, on a log in memory."""

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from mmoe.config import config_from_dict
from mmoe.datasets.rows.encoded import EncodedLabels
from mmoe.datasets.rows.splits import Splits
from mmoe.train import train_run


def predictions(config: Mapping[str, Any], splits: Splits, seed: int) -> dict[str, np.ndarray]:
    """Trains with a seed, and predicts the rows of the test split.

    Args:
        config: As in a YAML file.
        splits: Rows to train on, to choose the checkpoint by, and to predict.
        seed: Of the run.

    Returns:
        Task → float64 [N], in the order of the test rows.
    """
    folder = Path(tempfile.mkdtemp(prefix="inputs-"))
    found: list[np.ndarray] = []

    def keep(predictions_NP: np.ndarray, labels: EncodedLabels) -> None:
        found.append(predictions_NP.astype(np.float64))

    run = config_from_dict({**config, "seed": seed})
    try:
        train_run(run, folder / "run", splits=splits, on_test=keep)
    finally:
        shutil.rmtree(folder)
    (predictions_NP,) = found
    return {task.name: predictions_NP[:, t] for t, task in enumerate(run.tasks)}


def split_rows(log: pa.Table, test: pa.Table, validation: float = 0.1) -> Splits:
    """Makes splits of generated rows: the last ones of the log are for validation."""
    stop = round(len(log) * (1 - validation))
    return Splits(train=log.slice(0, stop), validation=log.slice(stop), test=test)


def log_loss(labels: np.ndarray, probabilities: np.ndarray) -> float:
    """Returns the mean of −ln p of what happened, in nats.

    Labels may be true probabilities: then it is the expectation over labels.
    """
    p = np.clip(probabilities, 1e-7, 1 - 1e-7)
    return float(-np.mean(labels * np.log(p) + (1 - labels) * np.log1p(-p)))
