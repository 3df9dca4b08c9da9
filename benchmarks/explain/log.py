"""A generated log of six tasks, some of which are akin."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from mmoe.datasets.rows.splits import Splits

TASKS = ("click", "finish", "like", "share", "buy", "report")
# Of each task: how much it follows two signals and one of its own, and where it is observed
_OF_SIGNALS = {
    "click": (1.0, 0.0, 0.3),
    "finish": (0.9, 0.2, 0.4),
    "like": (0.8, 0.1, 0.6),
    "share": (0.1, 1.0, 0.4),
    "buy": (0.2, 0.9, 0.6),
    "report": (-0.7, 0.1, 0.7),
}
_OBSERVED = {"click": 1.0, "finish": 0.5, "like": 0.1, "share": 0.3, "buy": 0.05, "report": 0.05}
_DENSE, _ITEMS, _HIDDEN = 12, 400, 16


@dataclass(frozen=True)
class SixTasks:
    """A log, cut in three, and what no model can beat.

    Attributes:
        splits: Rows to train on, and two fifths as many each to validate and to test.
        probabilities_NT: The true ones, of the test rows.
    """

    splits: Splits
    probabilities_NT: np.ndarray


def six_tasks(rows: int, seed: int) -> SixTasks:
    """Draws rows of dense features and an item; a label is missing where it is not observed.

    What the signals are is the same for every seed, so that seeds repeat one experiment.
    """
    truth, rng = np.random.default_rng(11), np.random.default_rng(seed)
    total = rows + 2 * (2 * rows // 5)
    numbers_NF = rng.normal(size=(total, _DENSE))
    items_N = np.minimum(rng.zipf(1.3, total), _ITEMS) - 1
    tastes = truth.normal(size=(_ITEMS, 3))
    signals = []
    for _ in range(2 + len(TASKS)):
        inner, outer = truth.normal(size=(_DENSE, _HIDDEN)), truth.normal(size=_HIDDEN)
        signal_N = np.tanh(numbers_NF @ inner / np.sqrt(_DENSE)) @ outer
        signals.append(signal_N / signal_N.std())
    columns: dict[str, object] = {f"x{i}": numbers_NF[:, i] for i in range(_DENSE)}
    columns["item"] = items_N
    probabilities_NT = np.zeros((total, len(TASKS)))
    for t, task in enumerate(TASKS):
        one, two, own = _OF_SIGNALS[task]
        item_N = tastes[items_N] @ np.array([one, two, own]) / 2
        logit_N = 1.5 * (one * signals[0] + two * signals[1] + own * signals[2 + t]) + item_N - 1
        probabilities_NT[:, t] = 1 / (1 + np.exp(-logit_N))
        label_N = (rng.random(total) < probabilities_NT[:, t]).astype(np.float64)
        label_N[rng.random(total) >= _OBSERVED[task]] = np.nan
        columns[task] = pa.array(label_N, from_pandas=True)
    table, first, second = pa.table(columns), rows, rows + 2 * rows // 5
    splits = Splits(
        train=table[:first], validation=table[first:second], test=table[second:], origin="six tasks"
    )
    return SixTasks(splits, probabilities_NT[second:])


def raw_config(tasks: tuple[str, ...], seed: int, **model: object) -> dict[str, object]:
    """Of an MMoE of these tasks."""
    return {
        "name": "six-tasks",
        "seed": seed,
        "features": [
            *({"kind": "numeric", "name": f"x{i}"} for i in range(_DENSE)),
            {"kind": "categorical", "name": "item"},
        ],
        "tasks": [{"name": task, "label": task} for task in tasks],
        "model": {
            "num_experts": 4,
            "expert": {"hidden": [64, 32]},
            "tower": {"hidden": [16]},
            **model,
        },
        "training": {
            "epochs": 4,
            "batch_size": 1024,
            "embedding_backend": "plain",
            "monitor": "mean.logloss",
            "optimizer": {"learning_rate": 0.003},
        },
    }
