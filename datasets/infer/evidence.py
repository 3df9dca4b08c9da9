"""Evidence of a column's kind by labels, on rows held out: ids, a number, or both.

Rows are held out at random, or, under a split by time, forwards: each block of rows is predicted by
earlier ones alone, and its labels are taken less their mean there, for a level that moves on is no
column's doing. An id that the future does not have then gains nothing, nor does a number's curve
that does not go on.

A reading gives each value of a column, in each fold, a prediction that was made without that
fold's labels. All that is needed of the rows are their sums by value and fold, so a reading costs
as much as there are values, not rows. Labels have mean 0 and deviation 1, and what a reading
gains is the squared error that it takes off: Σ y² - (y - p)².
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from mmoe.datasets.features.fit_numbers import bucket_edges
from mmoe.datasets.infer.coded import FOLDS, Coded, Folds, Sample, Target

# Of z, where each column is tried once or twice: one of a thousand by chance
SURE = 3.3
# Rows of the mean that a value's own rows are weighed against
_SHRINKAGES = (2.0, 8.0, 32.0, 128.0, 512.0)
_WINDOWS = (1, 2, 5, 12, 30, 80, 200, 500, 1500)  # neighbours on each side
_RIDGE = 1e-3  # rows' worth, of a polynomial's coefficients


@dataclass(frozen=True)
class Sums:
    """Rows, labels and squared labels of each value in each fold, float64 [V, FOLDS]."""

    rows_VK: np.ndarray
    labels_VK: np.ndarray
    squares_VK: np.ndarray
    forward: bool = False  # whether a fold is predicted by earlier ones alone

    @classmethod
    def of(
        cls,
        codes_L: np.ndarray,
        size: int,
        labels_L: np.ndarray,
        folds_L: np.ndarray,
        forward: bool = False,
    ) -> "Sums":
        """Adds up rows."""
        cells_L = codes_L * FOLDS + folds_L
        return cls(
            *(
                np.bincount(cells_L, weights=weights, minlength=size * FOLDS)
                .astype(np.float64)
                .reshape(size, FOLDS)
                for weights in (None, labels_L, labels_L * labels_L)
            ),
            forward=forward,
        )

    def elsewhere(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns rows and labels by which a fold is predicted, float64 [V, FOLDS] each."""
        rows_VK, labels_VK = (known(x, self.forward) for x in (self.rows_VK, self.labels_VK))
        return rows_VK, labels_VK

    def _each(self, change: Callable[[np.ndarray], np.ndarray]) -> "Sums":
        parts = map(change, (self.rows_VK, self.labels_VK, self.squares_VK))
        return Sums(*parts, forward=self.forward)

    def take(self, some: np.ndarray | slice) -> "Sums":
        """Returns those of some values."""
        return self._each(lambda part: part[some])

    def over_folds(self) -> "Sums":
        """Returns the sums over all folds, float64 [V, 1]."""
        return self._each(lambda part: part.sum(axis=1, keepdims=True))

    def grouped(self, groups_V: np.ndarray) -> "Sums":
        """Returns the sums of groups of values."""
        size = int(groups_V.max(initial=-1)) + 1
        cells = (groups_V[:, None] * FOLDS + np.arange(FOLDS)).ravel()
        return self._each(
            lambda part: np.bincount(cells, part.ravel(), minlength=size * FOLDS).reshape(
                size, FOLDS
            )
        )


def known(sums_VK: np.ndarray, forward: bool) -> np.ndarray:
    """Returns what is known where a fold is predicted: sums over all others, or over earlier ones.

    Example:
        >>> known(np.array([[1.0, 2.0, 4.0]]), False), known(np.array([[1.0, 2.0, 4.0]]), True)
        (array([[6., 5., 3.]]), array([[0., 1., 3.]]))
    """
    over = sums_VK.cumsum(axis=1) if forward else sums_VK.sum(axis=1, keepdims=True)
    return over - sums_VK


@dataclass(frozen=True)
class Gain:
    """Gain of one reading over another."""

    total: float  # squared error taken off, over all rows
    z: float  # in standard errors, rows drawn anew
    # In standard errors, values drawn anew: what a few values with many rows each agree on says
    # little about the others
    z_values: float


def total_gain(sums: Sums, p_VK: np.ndarray) -> float:
    """Returns what predictions gain over the mean, without its error: for picking one of many."""
    if p_VK.shape[1] == 1:  # the same in all folds
        sums = sums.over_folds()
    return float(2 * np.vdot(p_VK, sums.labels_VK) - np.vdot(p_VK * p_VK, sums.rows_VK))


def gain(sums: Sums, p_VK: np.ndarray, over_VK: np.ndarray | float = 0.0) -> Gain:
    """Compares predictions p with others, by default with the mean.

    Each row's (y - q)² - (y - p)² is (p - q)(2y - p - q).
    """
    difference, both = p_VK - over_VK, p_VK + over_VK
    n, s, q = sums.rows_VK, sums.labels_VK, sums.squares_VK
    gains_VK = difference * (2 * s - both * n)
    total = float(gains_VK.sum())
    rows = float((difference**2 * (4 * q - 4 * both * s + both**2 * n)).sum())
    values = float((gains_VK.sum(axis=1) ** 2).sum())
    return Gain(total, total / np.sqrt(rows or 1.0), total / np.sqrt(values or 1.0))


def as_ids(sums: Sums, shrinkage: float) -> np.ndarray:
    """Returns the mean of each value's rows in the other folds, drawn to 0: float64 [V, FOLDS]."""
    rows_VK, labels_VK = sums.elsewhere()
    return labels_VK / (rows_VK + shrinkage)


def best_ids(sums: Sums) -> tuple[np.ndarray, float]:
    """Returns the best of several shrinkages, and which; the mean alone (inf) where none gains.

    What is left of noise grows as the shrinkage falls, so one stops where it gets worse.
    """
    rows_VK, labels_VK = sums.elsewhere()
    best, best_VK, chosen = 0.0, np.zeros_like(rows_VK), np.inf
    for shrinkage in reversed(_SHRINKAGES):
        p_VK = labels_VK / (rows_VK + shrinkage)
        total = total_gain(sums, p_VK)
        if total <= best:
            break
        best, best_VK, chosen = total, p_VK, shrinkage
    return best_VK, chosen


def as_number(sums: Sums, values_V: np.ndarray) -> np.ndarray:
    """Returns what each value's neighbours predict, without its own rows: float64 [V, FOLDS].

    The best of means over windows and of polynomials, in ranks and in logarithms. Of ids it says
    nothing, whatever their rates, for a neighbour's rate is a stranger's. Folds at random have one
    prediction (float64 [V, 1]): neighbours of every fold.
    """
    if sums.forward:
        rows_VK, labels_VK = sums.elsewhere()
    else:
        sums = sums.over_folds()
        rows_VK, labels_VK = sums.rows_VK, sums.labels_VK
    curves = [_smooth(*one, values_V) for one in zip(rows_VK.T, labels_VK.T, strict=True)]
    best, most = np.zeros_like(rows_VK), 0.0
    for p_KV in zip(*curves, strict=True):
        p_VK = np.stack(p_KV, axis=1)
        total = total_gain(sums, p_VK)
        if total > most:
            best, most = p_VK, total
    return best


def _smooth(rows_V: np.ndarray, labels_V: np.ndarray, values_V: np.ndarray) -> Iterator[np.ndarray]:
    size = len(rows_V)
    below_V = np.concatenate([[0.0], np.cumsum(rows_V)])
    sums_V = np.concatenate([[0.0], np.cumsum(labels_V)])
    at = np.arange(size)
    for window in _WINDOWS:
        if window > max(1, size // 6):
            break
        low, high = np.maximum(at - window, 0), np.minimum(at + window + 1, size)
        rows, labels = below_V[high] - below_V[low] - rows_V, sums_V[high] - sums_V[low] - labels_V
        for shrinkage in (8.0, 128.0):
            yield labels / (rows + shrinkage)
    ranks_V = (below_V[:-1] + rows_V / 2) / max(below_V[-1], 1.0)
    logs_V = np.copysign(np.log1p(np.abs(values_V)), values_V)
    for x_V, degrees in ((ranks_V, (1, 2, 4)), (logs_V, (1, 2)), (values_V, (1, 2))):
        for degree in degrees:
            if size > degree + 2:
                yield _polynomial(rows_V, labels_V, x_V, degree)


def _polynomial(
    rows_V: np.ndarray, labels_V: np.ndarray, x_V: np.ndarray, degree: int
) -> np.ndarray:
    """A weighted fit's prediction for each value as if its rows had been left out.

    With leverages h the fit without a value predicts (fit - h · mean) / (1 - h) there.
    """
    low, high = float(x_V.min()) / 2, float(x_V.max()) / 2  # half of it all: 2e308 is infinite
    x_V = 2 * ((x_V / 2 - low) / (high - low or 1.0)) - 1
    basis_VP = np.polynomial.chebyshev.chebvander(x_V, degree)
    gram_PP = (basis_VP * rows_V[:, None]).T @ basis_VP
    gram_PP += _RIDGE * np.eye(degree + 1)
    inverse_PP = np.linalg.inv(gram_PP)
    fit_V = basis_VP @ (inverse_PP @ (basis_VP.T @ labels_V))
    leverage_V = np.einsum("vp,pq,vq->v", basis_VP, inverse_PP, basis_VP)
    own_V = np.minimum(leverage_V * rows_V, 1 - 1e-9)
    return np.clip((fit_V - leverage_V * labels_V) / (1 - own_V), -10, 10)


def straight_lines(sums: Sums, values_V: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns a line through logarithms and one through the numbers: float64 [V, 1] each."""
    rows_V, labels_V = sums.rows_VK.sum(axis=1), sums.labels_VK.sum(axis=1)
    logs_V = np.copysign(np.log1p(np.abs(values_V)), values_V)
    logs_V, values_V = (_polynomial(rows_V, labels_V, x_V, 1) for x_V in (logs_V, values_V))
    return logs_V[:, None], values_V[:, None]


def fine_buckets(rows_V: np.ndarray, values_V: np.ndarray, most: int) -> np.ndarray:
    """Returns the bucket of each value, int64 [V], of at most so many."""
    if len(values_V) <= most:
        return np.arange(len(values_V))
    edges = bucket_edges(values_V, rows_V.astype(np.int64), most)
    return np.searchsorted(edges, values_V)


def as_buckets(sums: Sums, values_V: np.ndarray, buckets: int) -> np.ndarray:
    """Returns means of quantile buckets in the other folds: float64 [V, FOLDS]."""
    bucket_V = fine_buckets(sums.rows_VK.sum(axis=1), values_V, buckets)
    return as_ids(sums.grouped(bucket_V), 8.0)[bucket_V]


def held_out_auc(positives_VK: np.ndarray, negatives_VK: np.ndarray, p_VK: np.ndarray) -> float:
    """Returns the mean over folds of the AUC, ties counting half; NaN where no fold has any.

    Fold by fold: predictions of different folds are of different means.
    """
    found = []
    for positives_V, negatives_V, p_V in zip(positives_VK.T, negatives_VK.T, p_VK.T, strict=True):
        value = auc_of_sums(positives_V, negatives_V, p_V)
        if not np.isnan(value):
            found.append(value)
    return float(np.mean(found)) if found else float("nan")


def auc_of_sums(positives_V: np.ndarray, negatives_V: np.ndarray, p_V: np.ndarray) -> float:
    """Returns the AUC of predictions that so many positives and negatives have."""
    total = positives_V.sum() * negatives_V.sum()
    if not total:
        return float("nan")
    order = np.argsort(p_V, kind="stable")
    ordered = p_V[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=np.nan) != 0)
    positives = np.add.reduceat(positives_V[order], starts)
    negatives = np.add.reduceat(negatives_V[order], starts)
    below = np.cumsum(negatives) - negatives / 2
    return float((positives * below).sum() / total)


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
    """Evidence of how well a column predicts one label, read in both ways."""

    is_event: bool  # whether the label is 0 and 1
    ids: float  # AUC as ids, on rows held out; of a regression the share of variance
    number: float  # the same as a number
    z: float  # of what ids gain over a number, in standard errors
    z_ids: float  # of what ids gain over the mean
    z_number: float  # of what a number gains over the mean, values drawn anew
    share: float  # what a number gains, of what ids gain
    shrinkage: float  # rows at which a value's own mean weighs as much as that of all
    buckets: int  # how many quantile buckets predict best
    z_beyond: float  # of what ids gain over the best buckets
    z_log: float  # of what a line through logarithms gains over one through the numbers themselves
    z_curve: float  # of what a number gains over the better of both lines

    @property
    def strength(self) -> float:
        """Certainty that the column says anything of the label."""
        return max(self.z_ids, self.z_number)


def weigh(coded: Coded, sample: Sample, folds: Folds) -> Evidence | None:
    """Weighs both readings of a column by the label that it tells most about.

    Args:
        coded: The column.
        sample: Its rows, and the labels.
        folds: Which rows are held out together.

    Returns:
        None where there is nothing to compare. Of a column without order the reading as ids alone.
    """
    if coded.size < 2:
        return None
    repeats = coded.size <= UNREPEATED * len(coded.codes_S)
    if not repeats and coded.values_V is not None:
        coded = _coarse(coded)
    found = [_Compared(coded, target, folds, repeats) for target in sample.targets]
    return max(found, key=lambda one: one.strength).evidence()


def _coarse(coded: Coded) -> Coded:
    """The column in groups of neighbouring values, for those that never come again."""
    assert coded.values_V is not None
    rows_V = np.bincount(coded.codes_S, minlength=coded.cells)[: coded.size]
    group_V = np.append(fine_buckets(rows_V, coded.values_V, _GROUPS), 0)
    size = int(group_V.max()) + 1
    group_V[-1] = size
    firsts = np.flatnonzero(np.diff(group_V, prepend=-1))[:size]
    return Coded(group_V[coded.codes_S], coded.values_V[firsts], size)


def light_values(rows_V: np.ndarray) -> np.ndarray:
    """Returns the values by which a kind is told: without those of very many rows, bool [V]."""
    light_V = (rows_V > 0) & (rows_V <= _HEAVY * rows_V.sum())
    return light_V if light_V.sum() >= _FEW else rows_V > 0


def _less_mean(labels_L: np.ndarray, folds_L: np.ndarray) -> np.ndarray:
    """Takes labels less the mean of their block."""
    rows_K = np.bincount(folds_L, minlength=FOLDS)
    return labels_L - (np.bincount(folds_L, labels_L, FOLDS) / np.maximum(rows_K, 1))[folds_L]


class _Compared:
    """Both readings of a column, in the rows of one label; light values are told apart alone."""

    def __init__(self, coded: Coded, target: Target, folds: Folds, repeats: bool) -> None:
        self.coded, self.target, self.repeats = coded, target, repeats
        self.codes_L, self.folds_L = coded.codes_S[target.index_L], folds.parts_S[target.index_L]
        labels_L = target.labels_L
        if folds.forward:
            labels_L = _less_mean(labels_L, self.folds_L)
        self.sums = Sums.of(self.codes_L, coded.cells, labels_L, self.folds_L, folds.forward)
        rows_V = self.sums.rows_VK[: coded.size].sum(axis=1)
        self.light_V = light_values(rows_V)
        self.light = some = self.sums.take(np.append(self.light_V, False))
        self.ids_VK, self.shrinkage = np.zeros_like(some.rows_VK), np.inf
        if repeats:
            self.ids_VK, self.shrinkage = best_ids(some)
        self.over_mean = gain(some, self.ids_VK)
        self.number_VK, self.z_log, self.z_curve = np.zeros((len(self.ids_VK), 1)), 0.0, 0.0
        self.smooth = Gain(0.0, 0.0, 0.0)
        if coded.values_V is not None and len(self.ids_VK):
            values_V = coded.values_V[self.light_V]
            group_V = fine_buckets(rows_V[self.light_V], values_V, _GROUPS)
            groups, firsts = some.grouped(group_V), np.flatnonzero(np.diff(group_V, prepend=-1))
            number_GK = as_number(groups, values_V[firsts])
            self.smooth = gain(groups if folds.forward else groups.over_folds(), number_GK)
            whole, lines = groups.over_folds(), straight_lines(groups, values_V[firsts])
            self.z_log = gain(whole, *lines).z
            self.z_curve = min(gain(whole, number_GK, line).z for line in lines)
            self.number_VK = number_GK[group_V]

    @property
    def strength(self) -> float:
        """Certainty that the column says anything of the label."""
        return max(self.over_mean.z, self.smooth.z_values)

    def evidence(self) -> Evidence:
        """Returns what is known of the column by this label."""
        buckets, z_beyond = self._best_buckets()
        ids, number = self._scores()
        return Evidence(
            is_event=self.target.is_event,
            ids=ids,
            number=number,
            z=gain(self.light, self.ids_VK, self.number_VK).z,
            z_ids=self.over_mean.z,
            z_number=self.smooth.z_values,
            share=self.smooth.total / max(self.over_mean.total, self.smooth.total, 1e-12),
            shrinkage=self.shrinkage,
            buckets=buckets,
            z_beyond=z_beyond * self.repeats,
            z_log=self.z_log,
            z_curve=self.z_curve,
        )

    def _best_buckets(self) -> tuple[int, float]:
        """How many buckets predict best, 0 where none do; by how much ids are better than they."""
        coded = self.coded
        if coded.values_V is None or self.strength < _SOME:
            return 0, 0.0
        sums = self.sums.take(slice(coded.size))
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

    def _scores(self) -> tuple[float, float]:
        """AUC as ids and as a number, or shares of variance; heavy and missing values as is."""
        target, sums = self.target, self.sums
        p_VK = as_ids(sums, 8.0)
        cells_L = self.codes_L * FOLDS + self.folds_L
        positives_VK = np.bincount(cells_L, weights=target.raw_L, minlength=p_VK.size)
        positives_VK = positives_VK.reshape(p_VK.shape)
        found = []
        for light_VK in (self.ids_VK, self.number_VK):
            p_VK[: self.coded.size][self.light_V] = light_VK
            if target.is_event:
                held = slice(int(sums.forward), None)  # nothing is earlier than the first block
                events_VK, others_VK = positives_VK, sums.rows_VK - positives_VK
                found.append(held_out_auc(events_VK[:, held], others_VK[:, held], p_VK[:, held]))
            else:
                found.append(total_gain(sums, p_VK) / max(len(target.index_L), 1))
        return found[0], found[1]


_MOST_UNKNOWN = 0.5  # of the test rows
_OFTENER = 2.0  # than where rows are held out at random
_NEARLY_ALL = 0.9  # of them: a few rows of one known id agree by chance
# What a column tells of rows drawn at random, in standard errors, and the share of it that has to
# be left forwards. Of the flights' columns 0.49 (temperature) to 1 is left, of the day of the month
# 0.04
_PLAIN, _LASTS = 2 * SURE, SURE / 2


@dataclass(frozen=True)
class Finding:
    """A column that does not carry over to later rows: one year's month, a batch, a running number.

    A split by time trains on the past. A column whose values the future does not have, or whose ids
    tell the rows between those that they were learned from but none that come later, is the time in
    disguise: its embedding learns what happened then, and stands in the way of what lasts. On an
    eighth of the flights out of New York, 2013 (42,097 rows by time, one seed; test AUC of
    cancelled), with month, the month of the moment and month × day: 0.900; without them: 0.916.
    """

    reason: str
    as_number: bool  # whether its numbers do


def outdated(
    coded: Coded, sample: Sample, *, ids: bool, later: Evidence | None = None
) -> Finding | None:
    """Finds out whether a column does not carry over to later rows.

    Args:
        coded: The column.
        sample: Its rows, and when each was.
        ids: Whether it is read as ids; else as numbers.
        later: Its evidence forwards, where that is known.

    Returns:
        None where it does, or where no split by time is made.
    """
    if sample.times_S is None:
        return None
    future = sample.future
    unseen, beyond = future.unseen(coded)
    ordered = coded.values_V is not None
    # Ids that are rare at any time are none that time leaves behind
    if (unseen > max(_MOST_UNKNOWN, _OFTENER * coded.unseen)) if ids else beyond > _MOST_UNKNOWN:
        ahead = weigh(coded, future.sample, future.folds)
        if ids and unseen < _NEARLY_ALL and ahead is not None and ahead.z_ids > SURE:
            return None  # the known ones tell enough
        share = f"{100 * (unseen if ids else beyond):.0f} % of the test rows have a value"
        reason = f"{share} {'that' if ids else 'beyond all that'} training does not know"
        return Finding(reason, ordered and beyond <= _MOST_UNKNOWN and _tells(ahead))
    drawn = weigh(coded, sample, Folds(sample.folds_S))
    later = later or weigh(coded, sample, sample.folds)
    if drawn is None or later is None or drawn.strength < _PLAIN:
        return None
    if later.strength >= _LASTS or (not ids and _tells(later)):
        return None
    reason = f"tells rows drawn at random (z {drawn.strength:.0f}), but not later ones (z "
    return Finding(f"{reason}{later.strength:.0f})", ordered and _tells(later))


def _tells(evidence: Evidence | None) -> bool:
    return evidence is not None and evidence.z_number > SURE
