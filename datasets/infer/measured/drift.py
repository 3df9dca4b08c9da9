"""How far a random split overstates: one additive model, tested on the future and at random."""

from collections.abc import Collection, Mapping

import numpy as np

from mmoe.datasets.infer.measured.additive import additive, levels
from mmoe.datasets.infer.measured.coded import Coded, Sample, Target
from mmoe.datasets.infer.measured.readings import auc_of_sums

_FUTURE = 0.2  # of the rows, the last ones, as the split has them
_PAST = 0.5  # of the rows, before them: what both models learn from
_LEAST = 100  # positive and negative rows of the test, at least
# Below, chance: two standard errors of an AUC with 100 positives are 0.05, with 10,000 0.005
_ERRORS = 2.0


def flattered(
    columns: Mapping[str, Coded], numbers: Collection[str], sample: Sample, times_S: np.ndarray
) -> str:
    """Says how much better a random split would look, of the label where it is most; or nothing.

    Args:
        columns: All that are inputs.
        numbers: Which of them are numbers.
        sample: The rows, and the labels.
        times_S: When each row was, in any unit that sorts.
    """
    found = [_of_label(columns, numbers, target, times_S) for target in sample.targets]
    best = max((one for one in found if one is not None), default=None)
    if best is None:
        return ""
    _, random, future, task = best
    return (
        f"a random split would overstate: an additive model's AUC on {task!r} is {random:.3f} "
        f"there, {future:.3f} on the future"
    )


def _of_label(
    columns: Mapping[str, Coded], numbers: Collection[str], target: Target, times_S: np.ndarray
) -> tuple[float, float, float, str] | None:
    """Gap, AUC at random, AUC on the future, task; None where that may be chance."""
    if not target.is_event:
        return None
    index_L, labels_L = target.index_L, target.raw_L
    order = np.argsort(times_S[index_L], kind="stable")
    place_L = np.empty(len(order))
    place_L[order] = np.arange(len(order)) / len(order)
    future_L = place_L >= 1 - _FUTURE
    past_L = (place_L >= 1 - _FUTURE - _PAST) & ~future_L
    drawn_L = np.random.default_rng(0).permutation(place_L)
    found = [(*levels(coded, name in numbers), name) for name, coded in columns.items()]
    chosen = [(codes_S[index_L], size) for codes_S, size, _ in found]
    future = _auc(chosen, labels_L, past_L, future_L)
    random_L = drawn_L >= 1 - _FUTURE
    random = _auc(chosen, labels_L, (drawn_L >= 1 - _FUTURE - _PAST) & ~random_L, random_L)
    if future is None or random is None:
        return None
    rarest = min(labels_L[future_L].sum(), (1 - labels_L[future_L]).sum())
    gap = random - future
    return (gap, random, future, target.task) if gap > _ERRORS * 0.25 / np.sqrt(rarest) else None


def _auc(
    columns: list[tuple[np.ndarray, int]],
    labels_L: np.ndarray,
    training_L: np.ndarray,
    test_L: np.ndarray,
) -> float | None:
    positives = labels_L[test_L].sum()
    if min(positives, test_L.sum() - positives) < _LEAST or not 0 < labels_L[training_L].mean() < 1:
        return None
    p = additive(columns, labels_L, training_L, True)[test_L]
    return auc_of_sums(labels_L[test_L], 1 - labels_L[test_L], p)
