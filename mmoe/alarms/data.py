"""Alarms about the data: columns that drift, have rare ids or leak the label, rows that repeat."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from mmoe.alarms.alarm import Alarm
from mmoe.alarms.columns import Column, StoredColumn, TrainingColumns
from mmoe.metrics.one_column import (
    SURE,
    TOO_GOOD,
    auc_by_order,
    auc_by_rates,
    enough_to_tell,
    implies_label,
    same_order,
)

# Population stability index: a tenth is called a small shift, a quarter a large one (the custom of
# credit scoring, where the index comes from). What two samples of one distribution would show is
# taken off first.
LARGE_PSI = 0.25
# Differences of shares, in parts of the rows: below, a model hardly notices
MORE_MISSING = 0.1
MORE_UNSEEN = 0.2
# Standard deviations: once in three million columns by chance
_SURE = 5.0
_FEWEST_TO_JUDGE = 100
# A group of bins has at least this share of the rows of both sides together, else it joins others:
# a tenth for numbers (ten groups), a fiftieth for ids
_GROUP_OF_NUMBERS = 0.1
_GROUP_OF_IDS = 0.02
_FEWEST_IN_A_GROUP = 10
# A value of a datetime's part that so few training rows had is as good as new
_UNTRAINED = 0.001


def drifts(
    training: TrainingColumns, columns: Iterable[Column], judged_by: int, where: str
) -> list[Alarm]:
    """Finds columns that differ from training in size and beyond chance.

    In turn: the share of rows without a value, the share of ids that training did not know (against
    what training rows themselves would show, held out one by one), and the population stability
    index `Σ_b (q_b − p_b) ln(q_b / p_b)` over groups of bins. Parts of a datetime differ by nature
    where rows are of other days: they count where training hardly had these values.

    Args:
        training: What the columns were like there.
        columns: Of the rows that are evaluated.
        judged_by: Rows that count as independent: groups where rows have groups.
        where: What these rows are called.

    Returns:
        An alarm for each column that differs, the largest difference first.
    """
    found: list[tuple[float, Alarm]] = []
    for column in columns:
        stored = training.columns.get(column.name)
        if stored is None or stored.kind != column.kind:
            continue
        if min(training.rows, column.rows) < _FEWEST_TO_JUDGE or not len(column.items):
            continue
        unit = 1 / training.judged_by + 1 / judged_by
        counts = stored.counted(column)
        result = (
            _missing(stored, column, counts, unit, where)
            or _unseen(stored, column, unit, where)
            or _untrained(stored, column, counts, unit, where)
            or _shifted(stored, column, counts, unit, where)
        )
        if result is not None:
            size, finding, mend = result
            alarm = Alarm(kind="drift", about=column.name, finding=finding, mend=mend)
            found.append((size, alarm))
    return [alarm for _, alarm in sorted(found, key=lambda pair: -pair[0])]


_Found = tuple[float, str, str] | None


def _missing(
    stored: StoredColumn, column: Column, counts: np.ndarray, unit: float, where: str
) -> _Found:
    before, now = stored.shares[0], counts[0] / counts.sum()
    if stored.at_zero is not None and column.at_zero is not None:
        before, now = stored.at_zero, column.at_zero
    if abs(now - before) < MORE_MISSING or not _beyond_chance(before, now, unit):
        return None
    finding = (
        f"column {column.name} is {column.empty} in {now:.1%} of the {where} rows, {before:.1%} in "
        "training"
    )
    return abs(now - before) * 4, finding, "find what fills it, or leave the feature out"


def _unseen(stored: StoredColumn, column: Column, unit: float, where: str) -> _Found:
    before, now = stored.unseen, column.unseen
    if before is None or now is None:
        return None
    if now - before < MORE_UNSEEN or not _beyond_chance(before, now, unit):
        return None
    finding = (
        f"column {column.name} has ids that training did not know in {now:.1%} of the {where} "
        f"rows, where {before:.1%} were to be expected"
    )
    mend = (
        "train on rows as recent as these, add what such ids have in common (a category, an age), "
        "or leave the feature out"
    )
    return (now - before) * 4, finding, mend


def _untrained(
    stored: StoredColumn, column: Column, counts: np.ndarray, unit: float, where: str
) -> _Found:
    if column.kind != "part":
        return None
    now = float(counts[1:][stored.shares[1:] < _UNTRAINED].sum() / counts.sum())
    if now < MORE_UNSEEN or not _beyond_chance(0.0, now, unit):
        return None
    finding = (
        f"feature {column.name} has values that training hardly had in {now:.1%} of the {where} "
        "rows"
    )
    return now * 4, finding, "leave this part of the datetime out, or train on rows of such times"


def _shifted(
    stored: StoredColumn, column: Column, counts: np.ndarray, unit: float, where: str
) -> _Found:
    if column.kind == "part":
        return None
    psi, chance, freedom = shift_of(stored, counts, unit)
    if psi - chance < LARGE_PSI or chi2_deviations(psi / unit, freedom) < _SURE:
        return None
    finding = (
        f"column {column.name} has another distribution in the {where} rows than in training "
        f"({_difference(stored, column, counts)}; PSI {psi:.2f})"
    )
    mend = (
        "train on rows like these, or leave the feature out; metrics here hold for such rows only"
    )
    return psi, finding, mend


class Shift(NamedTuple):
    """Distance that a column has moved since training.

    Attributes:
        psi: The stability index over groups of bins.
        chance: What two samples of one distribution would show of it.
        freedom: Groups less one.
    """

    psi: float
    chance: float
    freedom: int


def shift_of(stored: StoredColumn, counts: np.ndarray, unit: float) -> Shift:
    """Measures how far a column has moved since training.

    Args:
        stored: The column in training.
        counts: Items in each of its bins now.
        unit: 1 / independent rows of training + 1 / rows now.
    """
    groups = _groups(stored, counts, unit)
    before = np.bincount(groups, weights=stored.counts)
    now = np.bincount(groups, weights=counts)
    freedom = len(before) - 1
    return Shift(stability_index(before, now), freedom * unit, freedom)


def _difference(stored: StoredColumn, column: Column, counts: np.ndarray) -> str:
    """Describes where it lies, or which value differs most: training against now."""
    if column.kind == "number" and stored.median is not None:
        present = column.items[~column.missing]
        if len(present):
            now = float(column.unscale(np.median(present, keepdims=True))[0])
            if f"{now:.4g}" != f"{stored.median:.4g}":
                return f"median {stored.median:.4g} in training, {now:.4g} here"
    before_B, now_B = stored.shares, counts / counts.sum()
    b = int(np.abs(now_B - before_B).argmax())
    shares = f"{before_B[b]:.1%} of training, {now_B[b]:.1%} here"
    if b == 0:
        return f"empty: {shares}"
    if column.kind == "number":
        return f"its values {_range(stored, column, b)}: {shares}"
    return f"{'all other ids' if b == 1 else column.shown(stored.ids[b - 2])}: {shares}"


def _range(stored: StoredColumn, column: Column, b: int) -> str:
    """Bin b of a number, in the file's units."""
    ends = [f"{x:.4g}" for x in column.unscale(np.array(stored.edges, np.float32))]
    if not ends:
        return "that are there"
    if b == 1:
        return f"up to {ends[0]}"
    return f"above {ends[-1]}" if b > len(ends) else f"from {ends[b - 2]} to {ends[b - 1]}"


def _groups(stored: StoredColumn, counts: np.ndarray, unit: float) -> np.ndarray:
    """Group of each bin: neighbours of a number until they are enough, rare ids with the rest."""
    both = (stored.shares + counts / counts.sum()) / 2
    least = max(
        _GROUP_OF_NUMBERS if stored.kind == "number" else _GROUP_OF_IDS, _FEWEST_IN_A_GROUP * unit
    )
    if stored.kind != "number":
        own = both >= least
        own[0], own[1] = True, False
        return np.where(own, np.cumsum(own), 0)
    groups, held = np.zeros(len(both), int), 0.0
    for b in range(1, len(both)):
        groups[b] = groups[b - 1] + (b == 1 or held >= least)
        held = both[b] if b == 1 or held >= least else held + both[b]
    if held < least and groups[-1] > 1:  # the last one joins its neighbour
        groups[groups == groups[-1]] -= 1
    return groups


def stability_index(before_G: np.ndarray, now_G: np.ndarray) -> float:
    """Returns `Σ (q − p) ln(q / p)` of two counts; half a row is added to each, so that none is 0.

    Example:
        >>> stability_index(np.array([50, 50]), np.array([50, 50]))
        0.0
        >>> round(stability_index(np.array([900, 100]), np.array([100, 900])), 1)
        3.5
    """
    p, q = ((counts + 0.5) / (counts + 0.5).sum() for counts in (before_G, now_G))
    return float(((q - p) * np.log(q / p)).sum())


def chi2_deviations(value: float, freedom: int) -> float:
    """Returns how many standard deviations of a normal a chi-square value amounts to.

    With samples of n and m rows of one distribution, stability index / (1/n + 1/m) is about
    chi-square with a degree of freedom less than groups.

    Example:
        >>> round(chi2_deviations(3.84, 1), 1)
        1.7

    Source: Wilson & Hilferty, PNAS 17, 1931; the index's distribution: Yurdakul, Statistical
    Properties of Population Stability Index, 2018.
    """
    if freedom < 1:
        return 0.0
    spread = 2 / (9 * freedom)
    return float(((value / freedom) ** (1 / 3) - (1 - spread)) / spread**0.5)


def _beyond_chance(before: float, now: float, unit: float) -> bool:
    """Whether two shares differ by more than samples of one distribution do."""
    pooled = np.clip((before + now) / 2, 0.01, 0.99)
    return bool(abs(now - before) > _SURE * np.sqrt(pooled * (1 - pooled) * unit))


# Of the training rows. On a census of 32,561 rows a column with 52 % had an embedding that learned
# its rows by heart: the validation AUC fell from 0.884 to 0.855 in the epochs after the first
_RARELY = 0.5
_FEWEST_RARE = 100


def rare_ids(columns: Iterable[Column]) -> list[Alarm]:
    """Finds columns whose ids would be unseen in most training rows, were the row held out.

    Those whose rare ids share a row already are left alone.

    Args:
        columns: Of training rows, with `expected_unseen`.
    """
    found = []
    for column in columns:
        unseen = column.expected_unseen
        if unseen is None or unseen <= _RARELY or column.shares_rare:
            continue
        if len(column.items) < _FEWEST_RARE:
            continue
        finding = (
            f"column {column.name} has ids that repeat too rarely to learn from: {unseen:.1%} of "
            "the training rows, held out, would have an unseen one"
        )
        mend = (
            "say min_count: auto, which gives the rare ones one row, kind: numeric where near "
            "values are alike, or leave the feature out"
        )
        found.append(Alarm(kind="rare_ids", about=column.name, finding=finding, mend=mend))
    return found


# Of a regression: the same order but for ties, as `mmoe init` asks
_SAME_ORDER = 0.999
_FEWEST_NUMBERS = 20
# A value per row or nearly so: rates of the other half say nothing, and cost a sort
_MANY_VALUES = 0.5

_MEND_LEAK = (
    "is it known before the event? If not, remove the feature: the model cannot have it when it "
    "scores"
)


def leaks_in(
    columns: Iterable[Column],
    labels_NT: np.ndarray,
    observed_NT: np.ndarray,
    tasks: Sequence[tuple[str, bool]],
    half_N: np.ndarray,
) -> list[Alarm]:
    """Finds columns that alone predict a label with an AUC above `TOO_GOOD`, or imply it.

    Args:
        columns: Of N rows; lists are not looked at.
        labels_NT: Labels.
        observed_NT: Where they are.
        tasks: Name of each, and whether its labels are 0 and 1.
        half_N: Two halves of the rows, bool.
    """
    found = []
    for column in columns:
        if column.kind == "list":
            continue
        coded, reasons = column.coded, []
        for t, (task, is_event) in enumerate(tasks):
            rows = np.flatnonzero(observed_NT[:, t])
            labels_N = labels_NT[rows, t].astype(np.float64)
            of_task = (
                _of_event(column, coded, labels_N, rows, half_N, task)
                if is_event
                else _of_number(column, labels_N, rows, task)
            )
            reasons += [] if of_task is None else [of_task]
        if reasons:  # one line a column, of the label that it tells best
            finding = f"column {column.name} {max(reasons)[1]}"
            found.append(Alarm(kind="leak", about=column.name, finding=finding, mend=_MEND_LEAK))
    return found


_Reason = tuple[float, str] | None  # how well it tells the label, and the words


def _of_event(
    column: Column,
    coded: tuple[np.ndarray, int],
    labels_N: np.ndarray,
    rows: np.ndarray,
    half_N: np.ndarray,
    task: str,
) -> _Reason:
    codes_N, size = coded[0][rows], coded[1]
    positives = int(labels_N.sum())
    if enough_to_tell(positives, len(labels_N) - positives, TOO_GOOD, SURE):
        values = [auc_by_order((codes_N > 0).astype(np.int64), 2, labels_N)]
        if column.kind == "number":
            values.append(auc_by_order(codes_N, size, labels_N))
        if size <= _MANY_VALUES * len(rows):
            values.append(auc_by_rates(codes_N, size, labels_N, half_N[rows]))
        best = max(max(value, 1 - value) for value in values)
        if best > TOO_GOOD:
            return best, f"alone predicts {task} with an AUC of {best:.4f}"
    if column.zero is None:
        return None
    items_N = column.items[rows]
    nonzero_N = ~column.missing[rows] & (items_N != np.float32(column.zero))
    if column.at_zero is not None:
        nonzero_N &= items_N != 0  # it may be missing
    if not implies_label(nonzero_N, labels_N):
        return None
    return 0.5, f"is not 0 in {int(nonzero_N.sum()):,} rows, and {task} is 1 in every one of them"


def _of_number(column: Column, labels_N: np.ndarray, rows: np.ndarray, task: str) -> _Reason:
    if column.kind != "number":
        return None
    there = ~column.missing[rows]
    if there.sum() < _FEWEST_NUMBERS:
        return None
    order = abs(same_order(column.items[rows][there], labels_N[there]))
    if order <= _SAME_ORDER:
        return None
    return order, f"orders the rows as the label of {task} does"


# Of validation or test rows; fewer hardly move a metric
_LEAST = 0.01
_MEND_REPEATED = "set data.repeated_rows: {keys}, or mend the log if rows were delivered twice"
_KEYS = "together (copies stay in one split) or drop"


class Effect(NamedTuple):
    """A metric of one task on all test rows, and on those that are no copies of training rows.

    Attributes:
        task: Its name.
        metric: As people read it, such as `AUC`.
        of_all: On all test rows.
        of_others: On test rows that are no copies.
    """

    task: str
    metric: str
    of_all: float
    of_others: float


def repeated_rows(
    validation: float, test: float, effects: Sequence[Effect] = (), *, by_file: bool = False
) -> Alarm | None:
    """Returns an alarm where training has rows of the other splits; None: it has hardly any.

    Args:
        validation: Share of the validation rows that training has too.
        test: Likewise of the test rows.
        effects: What that does to metrics, where it is known.
        by_file: Files are the splits, which no row leaves.

    Example:
        >>> repeated_rows(0.28, 0.29, [Effect("click", "AUC", 0.776, 0.501)]).finding[:51]
        '29.0% of the test rows, 28.0% of the validation row'
    """
    if max(validation, test) < _LEAST:
        return None
    finding = (
        f"{100 * test:.1f}% of the test rows, {100 * validation:.1f}% of the validation rows are "
        "copies of training rows"
    )
    if effects:
        shown = "; ".join(
            f"{one.task} has {one.metric} {one.of_all:.4g}, without the copies {one.of_others:.4g}"
            for one in effects
        )
        finding += f" ({shown})"
    mend = _MEND_REPEATED.format(keys="drop" if by_file else _KEYS)
    return Alarm(kind="repeated_rows", about="rows", finding=finding, mend=mend)
