"""Who is ahead on a task, and by how much."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

from mmoe.metrics import auc_difference_interval

_NEAR = 0.002  # AUC by which a win may be missed
_LOWEST = -0.005  # that the lower end of an interval may reach
_GAP = 0.005  # between the better rival and the oracle, from which a share of it is taken
_NORMAL_95 = 1.959964


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One task of one log.

    Attributes:
        log: Its name.
        family: Of the log.
        task: Name of the label.
        auc: Ours, mean over the seeds.
        better: The best rival's name.
        better_auc: Its AUC on the test rows.
        oracle: Of the true probabilities; NaN where nobody knows them.
        difference: Ours less the better, mean over the seeds.
        low: Lower end of its 95 % interval.
        high: Upper end.
    """

    log: str
    family: str
    task: str
    auc: float
    better: str
    better_auc: float
    oracle: float
    difference: float
    low: float
    high: float

    @property
    def won(self) -> bool:
        """Whether ours is at least the better one, but for what is within the noise."""
        tied = self.low <= 0 <= self.high and self.low >= _LOWEST
        return self.difference >= -_NEAR or tied

    @property
    def share_of_gap(self) -> float | None:
        """What part of the way from the better rival to the oracle ours goes."""
        gap = self.oracle - self.better_auc
        return self.difference / gap if gap >= _GAP else None

    def as_json(self) -> dict[str, Any]:
        """Returns every figure, rounded."""
        return {k: round(v, 5) if isinstance(v, float) else v for k, v in asdict(self).items()}


def paired_difference(
    labels_N: np.ndarray, ours: Sequence[np.ndarray], other_N: np.ndarray
) -> tuple[float, float, float, float]:
    """Returns our mean AUC, its difference to the other's, and both ends of the interval.

    Two things vary: the test rows, which all seeds share (DeLong's variance, not averaged away),
    and the seed: `Var = mean(se²) + sd² / seeds`.
    """
    pairs = [auc_difference_interval(labels_N, own_N, other_N) for own_N in ours]
    differences = [pair.difference for pair in pairs]
    variance = statistics.fmean(pair.standard_error**2 for pair in pairs)
    if len(pairs) > 1:
        variance += statistics.variance(differences) / len(pairs)
    mean, reach = statistics.fmean(differences), _NORMAL_95 * variance**0.5
    return statistics.fmean(pair.auc_a for pair in pairs), mean, mean - reach, mean + reach


def judged(
    labels_N: np.ndarray,
    ours: Sequence[np.ndarray],
    rivals: Mapping[str, np.ndarray],
    *,
    log: str,
    family: str,
    task: str,
    true_N: np.ndarray | None = None,
) -> Verdict:
    """Returns how our scores, one array a seed, stand against the better of the rivals'.

    Args:
        labels_N: Of the rows whose label is known; all other arrays are of these rows.
        ours: Scores of each seed.
        rivals: Name → scores.
        log: The log's name.
        family: Of the log.
        task: Name of the label.
        true_N: The true probabilities, where somebody knows them.
    """
    aucs = {name: auc(labels_N, scores_N) for name, scores_N in rivals.items()}
    better = max(aucs, key=aucs.__getitem__)
    mean, difference, low, high = paired_difference(labels_N, ours, rivals[better])
    return Verdict(
        log=log,
        family=family,
        task=task,
        auc=mean,
        better=better,
        better_auc=aucs[better],
        oracle=float("nan") if true_N is None else auc(labels_N, true_N),
        difference=difference,
        low=low,
        high=high,
    )


def auc(labels_N: np.ndarray, scores_N: np.ndarray) -> float:
    """Returns the AUC of scores of rows that all have a label."""
    return float(roc_auc_score(labels_N, scores_N))


def summary(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Returns the keys that the targets name, over all tasks of all logs."""
    shares = [v.share_of_gap for v in verdicts if v.share_of_gap is not None]
    families = sorted({v.family for v in verdicts})
    return {
        "wins": round(statistics.fmean(v.won for v in verdicts), 4),
        "worst_gap": round(min(v.difference for v in verdicts), 5),
        "share_of_gap": round(statistics.median(shares), 4) if shares else None,
        "mean_gain": {
            family: round(statistics.fmean(v.difference for v in verdicts if v.family == family), 5)
            for family in families
        },
    }
