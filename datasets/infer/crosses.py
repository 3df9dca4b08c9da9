"""Joint effects of columns: an additive model, crosses, products and trees beyond it, drift.

An embedding of an id meets another one only in the layers above, which learn each one's own rate
long before they learn a product of two. On an invented log where pairs have rates of their own
(40,000 rows, 60 × 90 ids) the one cross found here raised the test AUC of the same network from
0.675 to 0.725 and from 0.602 to 0.670; on another (100,000 rows) from 0.694 to 0.697 and from 0.651
to 0.653; two seeds each.

A pair of a user and an item is seldom seen twice, so it has no rate of its own that could be
measured. But where tastes are a few hidden numbers of each, what an additive model leaves over, as
a matrix of users by items, has a few directions that come again in other rows.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import lsqr

from mmoe.datasets.features.fit_numbers import bucket_edges
from mmoe.datasets.infer.coded import FOLDS, Coded, Sample, Target
from mmoe.datasets.infer.evidence import auc_of_sums, known

_PASSES = 2  # over the columns; a third changes AUCs by less than 0.001
_BUCKETS = 30  # of a column of numbers
_RIDGE = 4.0  # in units of a row's information


def additive(
    columns: Sequence[tuple[np.ndarray, int]],
    labels_L: np.ndarray,
    training_L: np.ndarray,
    is_event: bool,
) -> np.ndarray:
    """Fits a logistic (or linear) additive model to some rows, and predicts all: float64 [L].

    Newton's steps, a column at a time, drawn to 0.

    Args:
        columns: For each its levels, int64 [L], and how many there are.
        labels_L: Labels, float64.
        training_L: Which rows to learn from, bool.
        is_event: Whether labels are 0 and 1.

    Returns:
        Probabilities of events, else values.
    """
    base = float(labels_L[training_L].mean())
    base = min(max(base, 1e-6), 1 - 1e-6) if is_event else base
    scores_L = np.full(len(labels_L), np.log(base / (1 - base)) if is_event else base)
    index = np.flatnonzero(training_L)
    labels, chosen = labels_L[index], [codes_L[index] for codes_L, _ in columns]
    weights = [np.zeros(size) for _, size in columns]
    scores = scores_L[index]
    for _ in range(_PASSES):
        for codes, weight in zip(chosen, weights, strict=True):
            p = 1 / (1 + np.exp(-scores)) if is_event else scores
            information = p * (1 - p) if is_event else None
            slope = np.bincount(codes, weights=labels - p, minlength=len(weight)) - _RIDGE * weight
            curve = np.bincount(codes, weights=information, minlength=len(weight)) + _RIDGE
            step = np.clip(slope / curve, -3, 3)
            weight += step
            scores += step[codes]
    for (codes_L, _), weight in zip(columns, weights, strict=True):
        scores_L += weight[codes_L]
    return 1 / (1 + np.exp(-scores_L)) if is_event else scores_L


_COLUMNS = 14  # of ids, that are paired: those of the most values that rows can tell apart
_MOST = 4  # crosses of a config
_ROWS_PER_PAIR = 2.0  # fewer, and a pair is not seen again
# 91 pairs are tried: one of 10,000 columns of noise reaches this
_SURE = 4.5
# Of what the columns themselves take off the loss: less is not worth a table
_WORTH = 0.02
_SHRINKAGES = (2.0, 8.0, 32.0)  # in units of a row's information


@dataclass(frozen=True)
class Cross:
    """Two columns that belong together."""

    columns: tuple[str, str]  # their names
    task: str  # the label that they predict
    share: float  # what they take off the loss, of what all columns alone do
    z: float  # in standard errors
    pairs: int  # different pairs in the sample
    shrinkage: float  # rows at which a pair's own mean weighs as much as what its columns say


@dataclass(frozen=True)
class Leftover:
    """Residual of an additive model of all columns, in rows that it was not fitted on."""

    task: str  # name of the label
    index_L: np.ndarray  # int64 [L], which of the sampled rows
    half_L: np.ndarray  # bool [L], which of the two halves a row is of
    # int64 [L], by which parts a pair's means are judged: these halves, or blocks of time
    parts_L: np.ndarray
    forward: bool  # whether each part is judged by earlier ones alone
    left_L: np.ndarray  # float64 [L], the label less its prediction
    information_L: np.ndarray  # float64 [L], of each row: the curvature of its loss
    explained: float  # what the predictions take off the loss, over all rows

    def take(self, some_L: np.ndarray) -> "Leftover":
        """Returns some of the rows; `explained` stays that of all."""
        return replace(
            self,
            index_L=self.index_L[some_L],
            half_L=self.half_L[some_L],
            parts_L=self.parts_L[some_L],
            left_L=self.left_L[some_L],
            information_L=self.information_L[some_L],
        )


@dataclass(frozen=True)
class Product:
    """Two columns whose hidden numbers predict a label together."""

    columns: tuple[str, str]  # their names
    task: str  # the label
    z: float  # in standard errors


_MULTIPLIED = 6  # of ids, that are paired: those of the most values that rows can tell apart
_VALUES = 20  # a column of fewer has crosses
_DIRECTIONS = 4
_ROUNDS = 4  # of the power iteration
_SHRINKAGE = 8.0  # in units of a row's information
_SURE_OF_PRODUCTS = 5.0

_FUTURE = 0.2  # of the rows, the last ones, as the split has them
_PAST = 0.5  # of the rows, before them: what both models learn from
_LEAST = 100  # positive and negative rows of the test, at least
# Below, chance: two standard errors of an AUC with 100 positives are 0.05, with 10,000 0.005
_ERRORS = 2.0


@dataclass(frozen=True)
class Together:
    """Columns that are inputs together, in the sampled rows."""

    columns: Mapping[str, Coded]
    numbers: Collection[str]  # which of them are numbers
    sample: Sample

    def levels(self, index_L: np.ndarray) -> list[tuple[np.ndarray, int]]:
        """Returns of each column the levels of rows: of ids their value, of numbers their bucket.

        Args:
            index_L: Which of the sampled rows.

        Returns:
            int64 [L], and the number of levels with that of missing values.
        """
        found = []
        for name, coded in self.columns.items():
            codes_S, size = coded.codes_S, coded.cells
            if name in self.numbers and coded.values_V is not None and coded.size > _BUCKETS:
                counts_V = np.bincount(codes_S, minlength=coded.cells)[:-1]
                edges = bucket_edges(coded.values_V, counts_V, _BUCKETS)
                bucket_V = np.append(np.searchsorted(edges, coded.values_V), len(edges) + 1)
                codes_S, size = bucket_V[codes_S], len(edges) + 2
            found.append((codes_S[index_L], size))
        return found

    def ids(self, least: int, most: int) -> list[str]:
        """Returns columns of ids with so many values: those of the most that rows tell apart."""
        rows = len(self.sample.rows_S)
        ids = [n for n, coded in self.columns.items() if coded.size >= least]
        ids = [name for name in ids if name not in self.numbers]
        return sorted(ids, key=lambda name: -min(self.columns[name].size, rows / 20))[:most]

    def leftovers(self) -> Iterator[Leftover]:
        """Yields what is left of each label that has rows enough.

        Halves of the sample are predicted by models of the other half.
        """
        half_S, folds = self.sample.folds_S % 2 == 0, self.sample.folds
        parts_S = folds.parts_S if folds.forward else half_S.astype(np.int64)
        for target in self.sample.targets:
            index_L, half_L = target.index_L, half_S[target.index_L]
            labels_L = target.raw_L if target.is_event else target.labels_L
            halves = labels_L[half_L], labels_L[~half_L]
            if not all(len(part) > 50 and part.std() > 0 for part in halves):
                continue
            found = self.levels(index_L)
            ends = [
                additive(found, labels_L, some_L, target.is_event) for some_L in (~half_L, half_L)
            ]
            p_L = np.where(half_L, *ends)
            yield Leftover(
                task=target.task,
                index_L=index_L,
                half_L=half_L,
                parts_L=parts_S[index_L],
                forward=folds.forward,
                left_L=labels_L - p_L,
                information_L=p_L * (1 - p_L) if target.is_event else np.ones_like(p_L),
                explained=_explained(labels_L, p_L, target.is_event),
            )

    @staticmethod
    def beyond(coded: Coded, fewest: int, over: Sequence[Leftover]) -> float:
        """Measures what rare ids of one more column foretell, in standard errors.

        Args:
            coded: The column, which is none of those that `over` comes from.
            fewest: Rows from which on an id is not rare.
            over: What an additive model of the other columns leaves of every label.

        Returns:
            Of the label of which they tell most.
        """
        rows_V = np.bincount(coded.codes_S, minlength=coded.cells)
        rare_S = (rows_V < fewest)[coded.codes_S] & (coded.codes_S < coded.size)
        found = [0.0]
        for one in over:
            some_L = rare_S[one.index_L]
            if some_L.any():
                found.append(_gain(coded.codes_S, coded.cells, one.take(some_L))[1])
        return max(found)

    def adds(self, coded: Coded) -> bool:
        """Returns whether the ids of one more column add to an additive model of these."""
        for one in self.leftovers():
            gain, z, _ = _gain(coded.codes_S, coded.cells, one)
            if z > _SURE and gain > _WORTH * one.explained:
                return True
        return False

    def crosses(self, over: Sequence[Leftover]) -> list[Cross]:
        """Finds pairs of id columns whose cross adds to an additive model of all columns.

        Pairs are predicted by means of what is left in the other half of the sample.

        Args:
            over: What an additive model leaves of every label.
        """
        rows, ids = len(self.sample.rows_S), self.ids(2, _COLUMNS)
        paired = {}
        for names in combinations([name for name in self.columns if name in ids], 2):
            left, right = (self.columns[name] for name in names)
            codes_S, size = _pairs(left, right)
            if size * _ROWS_PER_PAIR <= rows and size > 1.05 * max(left.size, right.size):
                paired[names] = codes_S, size
        best: dict[tuple[str, str], Cross] = {}
        for one in over if paired else ():
            for names, (codes_S, size) in paired.items():
                gain, z, shrinkage = _gain(codes_S, size, one)
                known = best.get(names)
                worth = z > _SURE and gain > _WORTH * one.explained
                if worth and (known is None or known.z < z):
                    share = gain / max(one.explained, gain)
                    best[names] = Cross(names, one.task, share, z, size, shrinkage)
        return sorted(best.values(), key=lambda cross: -cross.share)[:_MOST]

    def product(self, over: Sequence[Leftover]) -> Product | None:
        """Finds the pair of id columns whose products predict a label best; None: there is none.

        Directions come from one half of the sample, and are judged on the other.

        Args:
            over: What an additive model leaves of every label.

        Source: the power iteration with a few vectors: Halko, Martinsson & Tropp, "Finding
            structure with randomness" (SIAM Review 2011), algorithm 4.4.
        """
        found = [
            Product((one, two), label.task, _z(self.columns[one], self.columns[two], label))
            for label in over
            for one, two in combinations(self.ids(_VALUES, _MULTIPLIED), 2)
        ]
        best = max(found, key=lambda product: product.z, default=None)
        return best if best is not None and best.z > _SURE_OF_PRODUCTS else None

    def deep(self, over: Sequence[Leftover], *, many: bool) -> tuple[str, float] | None:
        """Returns the task where trees gain most over any sum of columns, and how surely.

        Trees are fitted to what is left of each half, and judged on the other.

        Args:
            over: What an additive model leaves of every label.
            many: Whether the log has rows enough for experts to learn most of it themselves.

        Returns:
            None where they find nothing that is worth it.
        """
        best, share = None, _WORTH_OF_MANY if many else _WORTH_OF_TREES
        for one in over if len(self.columns) > 1 else ():
            gain, z = _gain_of_trees(self.levels(one.index_L), one)
            worth = z > _SURE and gain > share * one.explained
            if worth and (best is None or best[1] < z):
                best = one.task, z
        return best

    def extrapolates(self) -> bool:
        """Returns whether a line through time beside these columns does no harm in later rows.

        Ridge regression of each label on the levels of columns of few values, with the time and
        without, predicts later blocks: a season that is taken for a trend loses far more there
        than a trend that ends.
        """
        return all(_lost(self, target) < _HARM for target in self.sample.targets)

    def flattered(self) -> str:
        """Says how much better a random split would look, of the label where it is most; or ""."""
        found = [self._flattered(target) for target in self.sample.targets]
        best = max((one for one in found if one is not None), default=None)
        if best is None:
            return ""
        _, random, future, task = best
        return (
            f"a random split would overstate: an additive model's AUC on {task!r} is {random:.3f} "
            f"there, {future:.3f} on the future"
        )

    def _flattered(self, target: Target) -> tuple[float, float, float, str] | None:
        """Gap, AUC at random, AUC on the future, task; None where that may be chance."""
        times_S = self.sample.times_S
        if not target.is_event or times_S is None:
            return None
        index_L, labels_L = target.index_L, target.raw_L
        order = np.argsort(times_S[index_L], kind="stable")
        place_L = np.empty(len(order))
        place_L[order] = np.arange(len(order)) / len(order)
        future_L = place_L >= 1 - _FUTURE
        past_L = (place_L >= 1 - _FUTURE - _PAST) & ~future_L
        drawn_L = np.random.default_rng(0).permutation(place_L)
        chosen = self.levels(index_L)

        def auc(training_L: np.ndarray, test_L: np.ndarray) -> float | None:
            positives = labels_L[test_L].sum()
            if min(positives, test_L.sum() - positives) < _LEAST or not training_L.any():
                return None
            if not 0 < labels_L[training_L].mean() < 1:
                return None
            p = additive(chosen, labels_L, training_L, True)[test_L]
            return auc_of_sums(labels_L[test_L], 1 - labels_L[test_L], p)

        future = auc(past_L, future_L)
        random_L = drawn_L >= 1 - _FUTURE
        random = auc((drawn_L >= 1 - _FUTURE - _PAST) & ~random_L, random_L)
        if future is None or random is None:
            return None
        rarest = min(labels_L[future_L].sum(), (1 - labels_L[future_L]).sum())
        if random - future <= _ERRORS * 0.25 / np.sqrt(rarest):
            return None
        return random - future, random, future, target.task


_MOST_OF_TREES = 20_000  # rows, of both halves
_STEEPEST = 20.0  # steps of logits, of rows that an additive model was sure of and wrong about
# Of what the columns themselves take off the loss. Trees of hotel bookings take 0.09 to 0.17, of
# other logs that gain by them 0.10 to 1.4; where they take 0.06 the experts learn it themselves.
# Of 80,000 rows (funnel) experts learn what takes 0.18, a little better than with trees; of 269,000
# flights trees that take 0.28 of arr_delay add 0.025 of R², and 0.004 and 0.005 of AUC
_WORTH_OF_TREES, _WORTH_OF_MANY = 0.08, 0.2


def _gain_of_trees(
    columns: Sequence[tuple[np.ndarray, int]], over: Leftover
) -> tuple[float, float]:
    """Computes what trees of several columns take off the loss beyond trees of one column each.

    To second order, over all rows; and in standard errors.
    """
    from sklearn.ensemble import HistGradientBoostingRegressor

    rows = len(over.left_L)
    some = np.arange(0, rows, -(-rows // _MOST_OF_TREES))
    half_R, left_R = over.half_L[some], over.left_L[some]
    information_R = np.maximum(over.information_L[some], 1e-6)
    steps_R = np.clip(left_R / information_R, -_STEEPEST, _STEEPEST)
    gains_R = np.zeros(len(some))
    for mine_R in (half_R, ~half_R):
        x_RC = np.empty((len(some), len(columns)), np.float32)
        for place, (codes_L, size) in enumerate(columns):
            codes, own = codes_L[some], codes_L[some][mine_R]
            if size > _BUCKETS + 2:  # many ids, by what is left of them
                sums = np.bincount(own, left_R[mine_R], size)
                weights = np.bincount(own, information_R[mine_R], size)
                codes = (sums / (weights + _SHRINKAGE))[codes]
            x_RC[:, place] = codes
        for sign, together in ((1, None), (-1, "no_interactions")):
            trees: Any = HistGradientBoostingRegressor(
                max_iter=40, max_leaf_nodes=15, random_state=0, interaction_cst=together
            )
            trees.fit(x_RC[mine_R], steps_R[mine_R], sample_weight=information_R[mine_R])
            found = trees.predict(x_RC[~mine_R])
            gains = left_R[~mine_R] * found - information_R[~mine_R] * found**2 / 2
            gains_R[~mine_R] += sign * gains
    spread, total = float(np.sqrt((gains_R**2).sum())), float(gains_R.sum())
    return total * rows / len(some), total / spread if spread > 0 else 0.0


# Of a label's variance, that a line through time may lose in a later block. Rows of bookings, of
# two years with a season, lose 0.29 to 0.51 (R² of prices with it .44, without .76); loads, tickets
# and flights, which gain .01 to .09 of R² or AUC by it, 0.15 at most
_HARM = 0.2
_ENDS = (0.4, 0.55, 0.7, 0.85, 1.0)  # of the blocks: shares of the rows
_FEW_LEVELS, _MOST_ROWS, _MOST_STEPS = 300, 10_000, 300
_RIDGE_ROWS = 30_000  # rows beside which `_RIDGE` is


def _lost(together: Together, target: Target) -> float:
    """Computes what the time loses in the block where it is most, of the label's variance."""
    times_S = together.sample.times_S
    assert times_S is not None, "asked under a split by time"
    order = np.argsort(times_S[target.index_L], kind="stable")
    rows, order = len(order), order[:: -(-len(order) // _MOST_ROWS)]
    ridge = _RIDGE * len(order) / min(max(rows, 1), _RIDGE_ROWS)
    index_R, labels_R = target.index_L[order], target.labels_L[order]
    times_R = times_S[index_R].astype(np.float64)
    found = [one for one in together.levels(index_R) if one[1] <= _FEW_LEVELS]
    places_R, lost = np.arange(len(order)) / max(len(order), 1), [0.0]
    ones_R = np.ones(len(order))
    levels = [
        sparse.csr_array((ones_R, (np.arange(len(order)), codes_R)), shape=(len(order), size))
        for codes_R, size in [*found, (np.zeros(len(order), np.int64), 1)]
    ]
    x = sparse.csr_array(sparse.hstack(levels, format="csr"))
    for low, high in pairwise(_ENDS):
        past, later = slice(0, int(low * len(order))), (places_R >= low) & (places_R < high)
        spread = times_R[past].std()
        if not spread or not later.any():
            continue
        time_R = ((times_R - times_R[past].mean()) / spread)[:, None]
        both = sparse.csr_array(sparse.hstack([x, sparse.csr_array(time_R)], format="csr"))
        errors = []
        for columns in (x, both):  # no matrix of all pairs of levels, which may be ten thousand
            weights, *_ = lsqr(columns[past], labels_R[past], damp=ridge**0.5, iter_lim=_MOST_STEPS)
            errors.append((labels_R[later] - columns[later] @ weights) ** 2)
        lost.append(float((errors[1] - errors[0]).mean()))
    return max(lost)


def _pairs(left: Coded, right: Coded) -> tuple[np.ndarray, int]:
    values, codes_S = np.unique(left.codes_S * right.cells + right.codes_S, return_inverse=True)
    return codes_S, len(values)


def _explained(labels_L: np.ndarray, p_L: np.ndarray, is_event: bool) -> float:
    """Computes what predictions take off the loss of the mean, over all rows."""
    base = labels_L.mean()
    if not is_event:
        return max(float(((labels_L - base) ** 2 - (labels_L - p_L) ** 2).sum() / 2), 0.0)
    p_L = np.clip(p_L, 1e-6, 1 - 1e-6)
    gains = labels_L * np.log(p_L / base) + (1 - labels_L) * np.log((1 - p_L) / (1 - base))
    return max(float(gains.sum()), 0.0)


def _gain(codes_S: np.ndarray, size: int, over: Leftover) -> tuple[float, float, float]:
    """Computes what pairs' means take off the loss, to second order; in standard errors; by m."""
    codes_L = codes_S[over.index_L]
    parts = FOLDS if over.forward else 2
    cells_L = codes_L * parts + over.parts_L
    sums, weights = (
        known(np.bincount(cells_L, of_L, parts * size).reshape(size, parts), over.forward).ravel()
        for of_L in (over.left_L, over.information_L)
    )
    best = (0.0, 0.0, np.inf)
    for shrinkage in _SHRINKAGES:
        step_L = np.clip((sums / (weights + shrinkage))[cells_L], -3, 3)
        gains_L = over.left_L * step_L - over.information_L * step_L**2 / 2
        total = float(gains_L.sum())
        if total > best[0]:
            best = total, total / float(np.sqrt((gains_L**2).sum())), shrinkage
    return best


def _z(one: Coded, two: Coded, left: Leftover) -> float:
    """Tests how well the leading directions of each half predict what is left of the other.

    In time those of the earlier half alone do.
    """
    u_L, i_L = one.codes_S[left.index_L], two.codes_S[left.index_L]
    sizes = one.cells, two.cells
    earlier_L = left.parts_L < FOLDS // 2
    halves = (earlier_L,) if left.forward else (left.half_L, ~left.half_L)
    gains = [left.left_L[~half_L] * _predicted(u_L, i_L, sizes, left, half_L) for half_L in halves]
    gains_L = np.concatenate(gains)
    spread = float(np.sqrt((gains_L**2).sum()))
    return float(gains_L.sum()) / spread if spread > 0 else 0.0


def _predicted(
    u_L: np.ndarray, i_L: np.ndarray, sizes: tuple[int, int], left: Leftover, half_L: np.ndarray
) -> np.ndarray:
    """Predicts other rows by a half's directions, up to a factor."""
    weights = [
        np.sqrt(np.bincount(codes_L[half_L], left.information_L[half_L], size) + _SHRINKAGE)
        for codes_L, size in ((u_L, sizes[0]), (i_L, sizes[1]))
    ]
    values = left.left_L[half_L] / (weights[0][u_L[half_L]] * weights[1][i_L[half_L]])
    matrix = sparse.csr_array((values, (u_L[half_L], i_L[half_L])), shape=sizes)
    right = np.random.default_rng(0).normal(size=(sizes[1], min(_DIRECTIONS, *sizes)))
    across = np.linalg.qr(matrix @ right)[0]
    for _ in range(_ROUNDS):
        across = np.linalg.qr(matrix @ np.linalg.qr(matrix.T @ across)[0])[0]
    right = matrix.T @ across  # its columns are as long as the singular values
    u, i = u_L[~half_L], i_L[~half_L]
    return np.einsum("nk,nk->n", across[u], right[i]) / (weights[0][u] * weights[1][i])
