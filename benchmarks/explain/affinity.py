"""Predicted help between tasks against training with one of them left out."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from benchmarks.explain.log import TASKS, raw_config, splits_of
from mmoe.config import config_from_dict
from mmoe.datasets.rows.splits import Splits
from mmoe.explain.affinity import task_affinity
from mmoe.predictor import load_predictor
from mmoe.run.console import SilentReporter
from mmoe.train import train_run
from mmoe.train.prepare import prepare

Say = Callable[[str], None]


def rank_correlation(rows: int, seeds: int, say: Say) -> dict[str, Any]:
    """Trains all tasks, and all but each, with every seed.

    Help of i for j: NE of j where i was left out less that where it was not, on the test split.

    Returns:
        Spearman's correlation of affinity and help over all ordered pairs, means over seeds; the
        same of the gradients' cosine, and by seed; both matrices.
    """
    helps, affinities, cosines = [], [], []
    for seed in range(seeds):
        splits = splits_of(rows, seed)
        say(f"seed {seed}: all {len(TASKS)} tasks")
        with tempfile.TemporaryDirectory() as folder:
            whole, found = _whole(splits, seed, Path(folder) / "run")
        affinities.append(found["affinity"])
        cosines.append(found["cosine"])
        help_TT = np.full((len(TASKS), len(TASKS)), np.nan)
        for i, left_out in enumerate(TASKS):
            say(f"seed {seed}: without {left_out}")
            others = tuple(task for task in TASKS if task != left_out)
            without = _nes(splits, others, seed)
            for j, task in enumerate(TASKS):
                if j != i:
                    help_TT[i, j] = without[task] - whole[task]
        helps.append(help_TT)
    by_seed = [_spearman(a, h) for a, h in zip(affinities, helps, strict=True)]
    return {
        "affinity": _spearman(_mean(affinities), _mean(helps)),
        "cosine": _spearman(_mean(cosines), _mean(helps)),
        "by_seed": by_seed,
        "tasks": list(TASKS),
        "help": _rounded(_mean(helps)),
        "predicted": _rounded(_mean(affinities)),
    }


def _whole(splits: Splits, seed: int, folder: Path) -> tuple[dict[str, float], dict[str, Any]]:
    """NE of every task, trained together, and what the tasks' gradients foretell."""
    config = config_from_dict(raw_config(TASKS, seed))
    finished = train_run(config, folder, splits=splits)
    predictor, encoder, config = load_predictor(finished.directory, "cpu")
    prepared = prepare(config, encoder=encoder, splits=splits)
    found = task_affinity(predictor.ranker, config, prepared.train, SilentReporter())
    return _ne(finished.metrics), found


def _nes(splits: Splits, tasks: Sequence[str], seed: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        config = config_from_dict(raw_config(tuple(tasks), seed))
        return _ne(train_run(config, Path(folder) / "run", splits=splits).metrics)


def _ne(metrics: dict[str, Any]) -> dict[str, float]:
    return {task: values["ne"] for task, values in metrics["tasks"].items()}


def _mean(matrices: Sequence[Any]) -> np.ndarray:
    return np.mean(np.array(matrices, dtype=np.float64), axis=0)


def _spearman(predicted: Any, helped: np.ndarray) -> float:
    """Over pairs of two tasks."""
    pairs = ~np.eye(len(TASKS), dtype=bool)
    predicted = np.array(predicted, dtype=np.float64)
    return float(spearmanr(predicted[pairs], helped[pairs]).statistic)


def _rounded(matrix: np.ndarray) -> list[list[float | None]]:
    return [[None if np.isnan(v) else round(float(v), 6) for v in row] for row in matrix]
