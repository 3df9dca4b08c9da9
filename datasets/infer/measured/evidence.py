"""What a column's own labels say of its kind: ids, a number, or both."""

from dataclasses import dataclass

import numpy as np

from mmoe.datasets.infer.measured.coded import FOLDS, Coded, Sample, Target
from mmoe.datasets.infer.measured.readings import (
    Gain,
    Sums,
    as_buckets,
    as_ids,
    as_number,
    best_ids,
    fine_buckets,
    gain,
    held_out_auc,
    straight_lines,
    total_gain,
)

# A value of more rows than this has a bucket of its own whatever the kind: it says nothing of it
_HEAVY = 1 / 20
_FEW = 12  # values that are not heavy; fewer, and all are looked at
_GROUPS = 3000  # values of more distinct numbers are looked at in so many groups
UNREPEATED = 0.7  # distinct values a row, from which on ids say nothing of others
_SOME = 2.0  # standard errors; a column that says less is not looked at further
_FINER = 2.0  # standard errors that more buckets must gain over fewer
BUCKETS = (10, 20, 50, 100, 200, 500)


@dataclass(frozen=True)
class Evidence:
    """How well a column predicts one label, read in both ways.

    Attributes:
        task: The label's task.
        is_event: Whether it is 0 and 1.
        ids: AUC as ids, on rows held out; of a regression the share of variance.
        number: The same as a number.
        z: Of what ids gain over a number, in standard errors.
        z_ids: Of what ids gain over the mean.
        z_number: Of what a number gains over the mean, values drawn anew.
        share: What a number gains, of what ids gain.
        shrinkage: Rows at which a value's own mean weighs as much as that of all.
        buckets: How many quantile buckets predict best.
        z_beyond: Of what ids gain over the best buckets.
        z_log: Of what a line through logarithms gains over one through the numbers themselves.
    """

    task: str
    is_event: bool
    ids: float
    number: float
    z: float
    z_ids: float
    z_number: float
    share: float
    shrinkage: float
    buckets: int
    z_beyond: float
    z_log: float

    @property
    def strength(self) -> float:
        """How surely the column says anything of the label."""
        return max(self.z_ids, self.z_number)


@dataclass(frozen=True)
class _Compared:
    """Both readings of a column, in the rows of one label."""

    target: Target
    sums: Sums
    light_V: np.ndarray
    ids_VK: np.ndarray
    number_V1: np.ndarray
    shrinkage: float
    over_mean: Gain
    smooth: Gain
    z_log: float

    @property
    def strength(self) -> float:
        return max(self.over_mean.z, self.smooth.z_values)


def weigh(coded: Coded, sample: Sample, folds_S: np.ndarray) -> Evidence | None:
    """Weighs both readings of a column, by the label of which it says most.

    Args:
        coded: The column.
        sample: Its rows, and the labels.
        folds_S: Which rows are held out together.

    Returns:
        None where there is nothing to compare. Of a column without order the reading as ids alone.
    """
    if coded.size < 2:
        return None
    repeats = coded.size <= UNREPEATED * len(coded.codes_S)
    if not repeats and coded.values_V is not None:
        coded = _coarse(coded)
    found = [_compare(coded, target, folds_S, repeats) for target in sample.targets]
    best = max(found, key=lambda one: one.strength)
    buckets, z_beyond = _best_buckets(coded, best)
    z_beyond *= repeats
    light = best.sums.take(np.append(best.light_V, False))
    gains = best.over_mean.total, best.smooth.total
    ids, number = _scores(coded, best, folds_S)
    return Evidence(
        task=best.target.task,
        is_event=best.target.is_event,
        ids=ids,
        number=number,
        z=gain(light, best.ids_VK, best.number_V1).z,
        z_ids=best.over_mean.z,
        z_number=best.smooth.z_values,
        share=gains[1] / max(*gains, 1e-12),
        shrinkage=best.shrinkage,
        buckets=buckets,
        z_beyond=z_beyond,
        z_log=best.z_log,
    )


def _coarse(coded: Coded) -> Coded:
    """The column in groups of neighbouring values, for those that never come again."""
    assert coded.values_V is not None
    rows_V = np.bincount(coded.codes_S, minlength=coded.cells)[: coded.size]
    group_V = np.append(fine_buckets(rows_V, coded.values_V, _GROUPS), 0)
    size = int(group_V.max()) + 1
    group_V[-1] = size
    firsts = np.flatnonzero(np.diff(group_V, prepend=-1))[:size]
    return Coded(group_V[coded.codes_S], coded.values_V[firsts], size)


def _compare(coded: Coded, target: Target, folds_S: np.ndarray, repeats: bool) -> _Compared:
    codes_L, folds_L = coded.codes_S[target.index_L], folds_S[target.index_L]
    sums = Sums.of(codes_L, coded.cells, target.labels_L, folds_L)
    rows_V = sums.rows_VK[: coded.size].sum(axis=1)
    light_V = light_values(rows_V)
    some = sums.take(np.append(light_V, False))
    ids_VK, shrinkage = best_ids(some) if repeats else (np.zeros_like(some.rows_VK), np.inf)
    number_V1, smooth, z_log = np.zeros((len(ids_VK), 1)), Gain(0.0, 0.0, 0.0), 0.0
    if coded.values_V is not None and len(ids_VK):
        group_V = fine_buckets(rows_V[light_V], coded.values_V[light_V], _GROUPS)
        groups, firsts = some.grouped(group_V), np.flatnonzero(np.diff(group_V, prepend=-1))
        values = coded.values_V[light_V][firsts]
        number_G1 = as_number(groups, values)
        smooth = gain(groups.over_folds(), number_G1)
        z_log = gain(groups.over_folds(), *straight_lines(groups, values)).z
        number_V1 = number_G1[group_V]
    return _Compared(
        target=target,
        sums=sums,
        light_V=light_V,
        ids_VK=ids_VK,
        number_V1=number_V1,
        shrinkage=shrinkage,
        over_mean=gain(some, ids_VK),
        smooth=smooth,
        z_log=z_log,
    )


def light_values(rows_V: np.ndarray) -> np.ndarray:
    """Returns the values by which a kind is told: without those of very many rows, bool [V]."""
    light_V = (rows_V > 0) & (rows_V <= _HEAVY * rows_V.sum())
    return light_V if light_V.sum() >= _FEW else rows_V > 0


def _best_buckets(coded: Coded, compared: _Compared) -> tuple[int, float]:
    """How many buckets predict best, 0 where none do, and by how much ids are better than they."""
    if coded.values_V is None or compared.strength < _SOME:
        return 0, 0.0
    sums = compared.sums.take(slice(coded.size))
    group_V = fine_buckets(sums.rows_VK.sum(axis=1), coded.values_V, _GROUPS)
    groups = sums.grouped(group_V)
    values = np.arange(len(groups.rows_VK), dtype=np.float64)
    chosen, chosen_GK = 0, np.zeros_like(groups.rows_VK)
    for buckets in sorted({*BUCKETS, min(coded.size, BUCKETS[-1])}):
        p_GK = as_buckets(groups, values, buckets)
        if gain(groups, p_GK, chosen_GK).z > _FINER:
            chosen, chosen_GK = buckets, p_GK
        if buckets >= len(values):
            break
    return chosen, gain(sums, best_ids(sums)[0], chosen_GK[group_V]).z


def _scores(coded: Coded, compared: _Compared, folds_S: np.ndarray) -> tuple[float, float]:
    """AUC as ids and as a number, or shares of variance; heavy and missing values as they are."""
    target, sums = compared.target, compared.sums
    p_VK = as_ids(sums, 8.0)
    positives_VK = np.zeros(0)
    if target.is_event:
        codes_L, folds_L = coded.codes_S[target.index_L], folds_S[target.index_L]
        cells_L = codes_L * FOLDS + folds_L
        positives_VK = np.bincount(cells_L, weights=target.raw_L, minlength=p_VK.size)
        positives_VK = positives_VK.reshape(p_VK.shape)
    found = []
    for light_VK in (compared.ids_VK, compared.number_V1):
        p_VK[: coded.size][compared.light_V] = light_VK
        if target.is_event:
            found.append(held_out_auc(positives_VK, sums.rows_VK - positives_VK, p_VK))
        else:
            found.append(total_gain(sums, p_VK) / max(len(target.index_L), 1))
    return found[0], found[1]
