"""What the bias tower has learnt of its features' values: the `bias` section of curves.json."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from mmoe.alarms import Column
from mmoe.config import RunConfig
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.rows.columns import columns_of
from mmoe.datasets.rows.encoded import EncodedFeatures
from mmoe.metrics.task_kinds import kind_of
from mmoe.models.bias_tower import own_lookups

# Values of a feature that are shown, of those seen most
_MOST_VALUES = 20
_FEWEST_ROWS = 20  # of a value, below which its mean says little
_TINY = 1e-7


def learnt_bias(
    config: RunConfig, encoder: FeatureEncoder, rows: EncodedFeatures, seen_NT: np.ndarray
) -> list[dict[str, Any]]:
    """Returns for each feature how much likelier an event is at each value than at the first.

    With d the mean over the rows of a value of the logit with bias less that of the score, and z
    the scores' logits of all rows, a value's ratio is `Σ σ(z + d) / Σ σ(z + d₁)`.

    Args:
        config: Of the run, with `model.bias`.
        encoder: Fitted.
        rows: Some rows, N.
        seen_NT: Their predictions (`prediction_columns`), then those with the display as logged.

    Returns:
        `[{feature, values, rows, tasks: {name: [ratio of each value]}}]`; regressions are left out.
    """
    bias, tasks = config.model.bias, config.tasks
    assert bias is not None, "asked for where there is one"
    names = own_lookups(bias, encoder) | {*bias.features}
    columns = [c for c in columns_of(rows, encoder) if c.name in names and c.kind != "list"]
    # Of each half the tasks' own numbers; what some predict beside them stands behind these
    halves = np.split(_logit(seen_NT.astype(np.float64)), 2, axis=1)
    z_NT, with_bias_NT = (half_NT[:, : len(tasks)] for half_NT in halves)
    biased = [
        t
        for t, task in enumerate(tasks)
        if kind_of(task.kind).is_event and task.name in (bias.tasks or [task.name])
    ]
    found = []
    for column in columns:
        shown, masks = _values(column)
        if len(shown) < 2:
            continue
        ratios = {
            tasks[t].name: _ratios(z_NT[:, t], with_bias_NT[:, t] - z_NT[:, t], masks)
            for t in biased
        }
        counts = [int(mask_N.sum()) for mask_N in masks]
        found.append({"feature": column.name, "values": shown, "rows": counts, "tasks": ratios})
    return found


def _ratios(z_N: np.ndarray, added_N: np.ndarray, masks: Sequence[np.ndarray]) -> list[float]:
    means = [float((1 / (1 + np.exp(-z_N - added_N[mask_N].mean()))).mean()) for mask_N in masks]
    return [mean / max(means[0], _TINY) for mean in means]


def _values(column: Column) -> tuple[list[str], list[np.ndarray]]:
    """Values seen often enough, smallest number or most frequent text first, and their rows."""
    items, counts = np.unique(column.items[~column.missing], return_counts=True)
    often = items[np.argsort(-counts, kind="stable")][:_MOST_VALUES]
    often = [item for item in often if (column.items == item).sum() >= _FEWEST_ROWS]
    if column.kind == "number":
        named = [f"{float(column.unscale(np.asarray([item]))[0]):.6g}" for item in often]
    else:
        named = [column.shown(int(item)).strip("'") for item in often]
    pairs = list(zip(named, often, strict=True))
    if all(_is_number(name) for name in named):
        pairs.sort(key=lambda pair: float(pair[0]))
    masks = [(column.items == item) & ~column.missing for _, item in pairs]
    return [name for name, _ in pairs], masks


def _is_number(text: str) -> bool:
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False


def _logit(p: np.ndarray) -> np.ndarray:
    p = np.clip(p, _TINY, 1 - _TINY)
    return np.log(p) - np.log1p(-p)
