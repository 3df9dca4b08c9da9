"""Predicted help between tasks against training with one of them left out."""

import tempfile
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import rankdata

from benchmarks.explain.log import TASKS, SixTasks, raw_config, six_tasks
from mmoe.config import config_from_dict
from mmoe.explain.affinity import task_affinity
from mmoe.predictor import load_predictor
from mmoe.run import RunDirectory
from mmoe.run.console import SilentReporter
from mmoe.train import train_run
from mmoe.train.prepare import prepare

Say = Callable[[str], None]


def rank_correlation(rows: int, seeds: int, say: Say) -> dict[str, Any]:
    """Trains all tasks, and all but each, with every seed.

    Help of i for j: by how much j's log-loss is above its entropy where i was left out, less the
    same where it was not, over that entropy; expected by the true probabilities of the test rows,
    so that luck of labels is no part of it.

    Returns:
        Spearman's correlation of affinity and help over all ordered pairs, means over seeds; the
        same of the gradients' cosine, and by seed; both matrices.
    """
    helps, affinities, cosines = [], [], []
    for seed in range(seeds):
        log = six_tasks(rows, seed)
        say(f"seed {seed}: all {len(TASKS)} tasks")
        with tempfile.TemporaryDirectory() as folder:
            whole, run = _excess(log, TASKS, seed, Path(folder) / "run")
            predictor, encoder, config = load_predictor(run, "cpu")
            prepared = prepare(config, encoder=encoder, splits=log.splits)
            found = task_affinity(predictor.ranker, config, prepared.validation, SilentReporter())
        affinities.append(found["affinity"])
        cosines.append(found["cosine"])
        help_TT = np.full((len(TASKS), len(TASKS)), np.nan)
        for i, left_out in enumerate(TASKS):
            say(f"seed {seed}: without {left_out}")
            others = tuple(task for task in TASKS if task != left_out)
            with tempfile.TemporaryDirectory() as folder:
                without, _ = _excess(log, others, seed, Path(folder) / "run")
            for task in others:
                help_TT[i, TASKS.index(task)] = without[task] - whole[task]
        helps.append(help_TT)
    by_seed = [_spearman(a, h) for a, h in zip(affinities, helps, strict=True)]
    agree = [_spearman(a, b) for a, b in combinations(helps, 2)]
    return {
        "affinity": _spearman(_mean(affinities), _mean(helps)),
        "cosine": _spearman(_mean(cosines), _mean(helps)),
        "by_seed": by_seed,
        "seeds_agree": float(np.mean(agree)) if agree else None,
        "tasks": list(TASKS),
        "help": _rounded(_mean(helps)),
        "predicted": _rounded(_mean(affinities)),
    }


def _excess(
    log: SixTasks, tasks: tuple[str, ...], seed: int, folder: Path
) -> tuple[dict[str, float], RunDirectory]:
    """Of each task that is trained its expected log-loss above its entropy, over that."""
    seen: list[np.ndarray] = []
    finished = train_run(
        config_from_dict(raw_config(tasks, seed)),
        folder,
        splits=log.splits,
        on_test=lambda predictions_NT, _: seen.append(predictions_NT),
    )
    found = {}
    for column, task in enumerate(tasks):
        p_N = log.probabilities_NT[:, TASKS.index(task)]
        q_N = np.clip(seen[0][:, column].astype(np.float64), 1e-7, 1 - 1e-7)
        entropy = _cross_entropy(p_N, p_N)
        found[task] = (_cross_entropy(p_N, q_N) - entropy) / entropy
    return found, finished.directory


def _cross_entropy(p_N: np.ndarray, q_N: np.ndarray) -> float:
    return float(-np.mean(p_N * np.log(q_N) + (1 - p_N) * np.log1p(-q_N)))


def _mean(matrices: Sequence[Any]) -> np.ndarray:
    return np.mean(np.array(matrices, dtype=np.float64), axis=0)


def _spearman(predicted: Any, helped: np.ndarray) -> float:
    """Over pairs of two tasks."""
    pairs = ~np.eye(len(TASKS), dtype=bool)
    predicted = np.array(predicted, dtype=np.float64)
    return float(np.corrcoef(rankdata(predicted[pairs]), rankdata(helped[pairs]))[0, 1])


def _rounded(matrix: np.ndarray) -> list[list[float | None]]:
    return [[None if np.isnan(v) else round(float(v), 6) for v in row] for row in matrix]
