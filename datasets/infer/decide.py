"""Decision between ids and numbers: by what predicts, else by shape and name.

Reasons for and against add up. In units of standard errors of what a label says, so that a hint
(2 to 4) decides where the labels say nothing (below 2), and gives way where they are sure.

Quantities lie on a line: as often as one value comes, so often, about, comes the next. Ids are
names: one comes a thousand times and its neighbour twice, or never.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from mmoe.datasets.infer.evidence import SURE, Evidence

_QUANTITIES = """
price cost fee tax amount amt total sum revenue income salary wage spend spent budget bid gain
gains loss losses profit balance margin discount score rating rate ratio pct percent percentage
share prob probability duration length len size width height weight area volume depth distance
dist age ages count counts cnt num nb qty quantity visits views clicks impressions pageviews
purchases orders times freq frequency hours minute minutes mins seconds secs days weeks months years
year dwell latency delay speed temperature temp humidity wind pressure lat lon lng latitude
longitude avg mean median min max std var variance popularity likes followers comments reviews
tenure recency points stars degree population capacity interest offset elapsed
"""
_IDS = """
user item ad ads video product query cat category categorical brand shop store seller campaign
creative author channel device city country region state zip postcode zipcode os tag topic slot
position site domain app customer member visitor buyer client account publisher advertiser
merchant vendor supplier carrier browser language lang genre segment cluster gender sex
occupation profession page article movie song track artist book game hotel property station
airport airline model make type class group host ip cookie session
"""
# After these a quantity is none: tax_filer_status, price_band
_SORTS = "status stat type group class kind category cat segment flag band bucket"
# What a compound ends on says what it is: price_id is an id, item_price a price
_KEYS = """
id ids uid uuid guid gid key hash code sku asin ean isbn upc msno zipcode postcode
"""
_QUANTITY_WORDS, _ID_WORDS, _KEY_WORDS, _SORT_WORDS = (
    frozenset(words.split()) for words in (_QUANTITIES, _IDS, _KEYS, _SORTS)
)
_ENDINGS = re.compile(r"(id|ids|uuid|key|code|no|nr)$")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_]+")
_COUNTED = re.compile(r"^(n|num|nb|no|number)[_ .-]?of[_ .-]|^(n|num|nb)_", re.IGNORECASE)


def hint(name: str) -> int:
    """Returns 2 where a name says ids, 1 where it sounds so, −1 like a quantity, 0 like nothing.

    A quantity word beats an id word, but the last word says what a compound is.

    Example:
        >>> [hint(name) for name in ("item_price", "price_id", "userid", "c12", "age_group")]
        [-1, 2, 2, 0, 1]
    """
    words = [word.lower() for word in _WORD.findall(name) if not word.isdigit()]
    if not words:
        return 0
    last = words[-1]
    if last in _KEY_WORDS:
        return 2
    if last in _SORT_WORDS:
        return 1
    if _COUNTED.search(name) or any(word in _QUANTITY_WORDS for word in words):
        return -1
    if any(word in _ID_WORDS or word in _KEY_WORDS for word in words):
        return 1
    stem = _ENDINGS.sub("", last)
    return 2 * int(stem != last and stem in _ID_WORDS)


def stems(names: Iterable[str]) -> dict[str, str]:
    """Returns of each column of a numbered family (C1, C2, … or cat_0 to cat_9) what they share.

    Example:
        >>> stems(["C1", "C2", "C13", "age", "x1"])
        {'C1': 'C', 'C2': 'C', 'C13': 'C'}
    """
    found = {name: re.sub(r"\d+$", "", name) for name in names if re.search(r"\d$", name)}
    counts = Counter(found.values())
    return {name: stem for name, stem in found.items() if counts[stem] >= 3}


# Neighbours are looked for at these distances as well: people round to fives, tens and thousands
_LAGS = (1, 2, 5, 7, 10, 12, 50, 100, 500, 1000, 5000, 10_000)
_NEXT = 2  # the first lags, at which only what is not rounded has neighbours
_CLUMPED = 1.4  # of clumping: steep counts and sorted popularity have up to 1.3
_TENTHS = 10
_TOP = 0.95  # of the way to the largest value


@dataclass(frozen=True)
class Shape:
    """The distribution of whole numbers."""

    distinct: int  # values
    # Values over the whole numbers between the ends (in units of the common divisor)
    density: float
    negative: bool  # whether some are below 0 (−1 alone is a missing value)
    lowest: float
    largest: float
    uneven: float  # how far the values are from evenly spread between the ends, 0 to 1
    flat: bool  # whether the rows are evenly spread between the ends
    # Whether pairs of rows of one value are more, beyond chance, than pairs of rows of neighbouring
    # values: as many on a line, Σλ² / (Σλ)² times as many of ids that come λ times. 2.7 where ids'
    # popularity is log-normal with σ = 1, 1.3 to 4 for Zipf's law in any order; 1.00 to 1.05 for
    # ages, counts, cents and rounded salaries (50,000 invented rows each).
    clumped: bool
    rounded: bool  # whether it would be, but for neighbours tens, hundreds or thousands away
    # Whether the values near the upper end still come often, without gaps, and then no more: a
    # quantity's tail fades away, ids numbered by how often they come just end
    cut_off: bool


def shape_of(values_V: np.ndarray, counts_V: np.ndarray, lowest: float) -> Shape:
    """Describes whole numbers.

    Args:
        values_V: Distinct values, ascending; without those of very many rows.
        counts_V: Rows of each.
        lowest: The lowest value of all.
    """
    steps = np.diff(values_V).astype(np.int64)
    unit = int(np.gcd.reduce(steps)) if len(steps) else 1
    units_V = ((values_V - values_V[0]) / unit).round()
    span = float(units_V[-1]) + 1
    tenths = np.minimum(units_V * _TENTHS / span, _TENTHS - 1).astype(np.int64)
    rows = float(counts_V.sum())
    top_V = units_V >= _TOP * (span - 1)
    same, next_to, near = _pairs(units_V, counts_V.astype(np.float64))
    clumped = _more(same, near)
    # By the median, for where numbers are clipped many are at the end itself
    usual = float(np.median(counts_V[top_V])) if top_V.any() else 0.0
    numbers, mean = span - np.ceil(_TOP * (span - 1)), rows / len(values_V)
    return Shape(
        distinct=len(values_V),
        density=len(values_V) / span,
        negative=bool((values_V < -1).any()),
        lowest=lowest,
        largest=float(values_V[-1]),
        uneven=_unevenness(np.bincount(tenths, minlength=_TENTHS), span),
        flat=_unevenness(np.bincount(tenths, weights=counts_V, minlength=_TENTHS), span)
        < 0.03 + 2 / np.sqrt(rows),
        clumped=clumped,
        rounded=not clumped and near > 3 * next_to and _more(same, next_to),
        cut_off=bool(
            top_V.sum() >= 0.8 * numbers and usual >= 3 and 0.15 * mean < usual < 0.9 * mean
        ),
    )


def _unevenness(per_tenth: np.ndarray, span: float) -> float:
    """Total variation from what each tenth of the whole numbers between the ends would hold."""
    if span < _TENTHS:
        return 0.0
    ends = np.ceil(np.arange(_TENTHS + 1) * span / _TENTHS)
    return float(np.abs(per_tenth / per_tenth.sum() - np.diff(ends) / span).sum() / 2)


def _pairs(units_V: np.ndarray, counts_V: np.ndarray) -> tuple[float, float, float]:
    """Pairs of rows of one value, of the next ones, and of those at the lag that has most."""
    same = float((counts_V * (counts_V - 1)).sum())
    span = units_V[-1] + 1
    found = [0.0]
    for lag in _LAGS:
        if lag > span / 6:
            break
        at = np.minimum(np.searchsorted(units_V, units_V + lag), len(units_V) - 1)
        there_V = units_V[at] == units_V + lag
        pairs = float((counts_V * counts_V[at])[there_V].sum())
        found.append(pairs * span / (span - lag))
    return same, max(found[: _NEXT + 1]), max(found)


def _more(same: float, near: float) -> bool:
    return same > _CLUMPED * near + 4 * np.sqrt(same + near) + 10


def whole(values_V: np.ndarray) -> bool:
    """Returns whether all are whole numbers."""
    return bool((values_V == np.floor(values_V)).all())


# What a number gains, of what ids gain. Of ids it gains nothing, so but for chance 0; of numbers
# that ids tell apart well (72 ages in 20,000 rows) 1.0 and more. In between lie ids that drift (a
# user's number tells when he came) and numbers with values of their own (40 hours).
_SMOOTH = 0.5
_WEIGHT_OF_LABELS = 7.0
_BY_CHANCE = 1.5
_MOST_UNSURE = 2.0
LARGE_ID = 2**31
# Seconds, minutes, hours, days, degrees, per cent: from, to
_SCALES = {
    (0, 59), (0, 1439), (0, 3599), (0, 86_399), (0, 167), (1, 365), (1, 366), (0, 365), (0, 359),
    (0, 360), (0, 100),
}  # fmt: skip
_FEW = 20  # values, each of which may have a bucket or a row of its own: ids and numbers are alike
_NAMES = {-1: -4.0, 0: 0.0, 1: 2.0, 2: 3.5}
_FAMILY = 2.0
_AGREE = 0.85  # share of a family that is of one kind
_ENOUGH = 40  # values that make a line of themselves
_ALIKE = 31  # values (hours, days of a month) up to which nobody need ask
_WORDS = {
    "labels": "weak evidence of the label",
    "name": "the name",
    "shape": "the distribution of its values",
    "few values": "its few values",
    "key": "the columns that follow from it",
    "quantity": "its name or values, though single values predict better",
    "its family": "columns of similar names",
}
_DOUBT = 1.5  # reasons of less than this leave a column unsure


@dataclass(frozen=True)
class Facts:
    """Facts about a column of whole numbers."""

    name: str  # the column
    distinct: int  # values
    shape: Shape | None  # of its values, where there are enough
    evidence: Evidence | None  # of its labels, where there are enough
    is_key: bool  # whether other columns follow from it


@dataclass(frozen=True)
class Verdict:
    """Verdict on a column's kind."""

    kind: Literal["ids", "number"]  # what it is read as
    measured: bool = False  # whether its labels alone are sure
    unsure: bool = False  # whether nothing is
    why: str = ""  # what decided, in a few words
    counts: bool = False  # whether the ids are counts, which have an order too


# Rank correlation of values with their rows: nights, adults and days ahead of the hotel bookings
# have -0.80 to -1.00, ids of agents and companies, hours, flights and days above -0.36
_FALLS, _LEAST_COUNTED = -0.7, 3
_STEEP = 4  # times the rows of the largest value, at least, that the most frequent has


def are_counts(name: str, values_V: np.ndarray, rows_V: np.ndarray) -> bool:
    """Returns whether whole numbers count something: from 0 or 1, the more the rarer.

    Args:
        name: Of the column; that of ids speaks against it.
        values_V: Distinct values, ascending.
        rows_V: Rows of each.

    Example:
        >>> nights = np.arange(6)
        >>> [are_counts(name, nights, 100 // (nights + 1)) for name in ("nights", "store")]
        [True, False]
    """
    if hint(name) > 0 or len(values_V) < _LEAST_COUNTED or values_V[0] not in (0, 1):
        return False
    if rows_V[-1] * _STEEP > rows_V.max():
        return False
    ranks_V = np.unique(rows_V, return_inverse=True)[1]
    return float(np.corrcoef(np.arange(len(ranks_V)), ranks_V)[0, 1]) <= _FALLS


def decide(facts: Mapping[str, Facts]) -> dict[str, Verdict]:
    """Decides of all columns of whole numbers; those of one stem are judged together."""
    scores = {name: _scores(one) for name, one in facts.items()}
    families = stems(facts)
    together: dict[str, list[dict[str, float]]] = {}
    for name, family in families.items():
        together.setdefault(family, []).append(scores[name])
    of_family = {family: _of_family(members) for family, members in together.items()}
    verdicts = {}
    for name, one in facts.items():
        score = dict(scores[name])
        family = families.get(name)
        if family is not None and not _measured(one.evidence):
            score["its family"] = of_family[family]
        verdicts[name] = _verdict(one, score)
    return verdicts


def _scores(facts: Facts) -> dict[str, float]:
    """Reasons, above 0 for ids."""
    scores = {"labels": _of_labels(facts.evidence), "name": _NAMES[hint(facts.name)]}
    if facts.shape is not None:
        scores["shape"] = _of_shape(facts.shape)
    if facts.distinct <= _FEW:
        scores["few values"] = 1.0
    if facts.is_key:
        scores["key"] = 3.0
    return scores


def _of_labels(evidence: Evidence | None) -> float:
    if evidence is None:
        return 0.0
    if _measured(evidence):
        favours_ids = evidence.share < _SMOOTH and evidence.z > 0
        return _WEIGHT_OF_LABELS if favours_ids else -_WEIGHT_OF_LABELS
    # The best of a dozen curves reaches 1.5 by chance
    if evidence.share >= _SMOOTH:
        return -min(max(evidence.z_number - _BY_CHANCE, 0.0), _MOST_UNSURE)
    return min(max(evidence.z - _BY_CHANCE, 0.0), _MOST_UNSURE)


def _measured(evidence: Evidence | None) -> bool:
    if evidence is None:
        return False
    ids = evidence.z_ids > SURE and evidence.z > SURE
    number = evidence.z_number > SURE and evidence.share >= _SMOOTH
    return number or (ids and evidence.share < _SMOOTH)


def _of_shape(shape: Shape) -> float:
    if shape.negative or shape.rounded:
        return -4.0
    if shape.largest >= LARGE_ID:
        return 6.0
    if shape.clumped:
        return 3.0 if shape.uneven < 0.35 else 0.7
    if (shape.lowest, shape.largest) in _SCALES:
        return -0.7
    if shape.flat:
        # Numbers drawn evenly up to an end are rare outside of clocks, but so are ids that come
        # equally often. Where there are more numbers between the ends than rows, and values do not
        # come back, ids could not be learned either
        return 0.7 if shape.density > 0.5 else -0.7
    if shape.cut_off:
        return 0.7
    return -2.0 * min(1.0, shape.distinct / _ENOUGH)


def _of_family(members: list[dict[str, float]]) -> float:
    """Judges C1, …, C20 by labels and shapes together; nothing where they contradict.

    c0 to c9 may be anything: only where nearly all are of one kind is the next one likely so.
    """
    own = np.array([score["labels"] + score.get("shape", 0.0) for score in members])
    clear = own[np.abs(own) >= 1]
    if len(clear) < 3:
        return 0.0
    ids = float((clear > 0).mean())
    return _FAMILY * (float(ids >= _AGREE) - float(ids <= 1 - _AGREE))


def _verdict(facts: Facts, scores: dict[str, float]) -> Verdict:
    total = sum(scores.values())
    # Whether name or values can be nothing else, whatever the labels say
    line = facts.shape is not None and (facts.shape.negative or facts.shape.rounded)
    if total > 0 and (line or hint(facts.name) < 0):
        # Its values predict more than their neighbours do (round sums, 40 hours a week), but they
        # are sums and hours: they get buckets of their own, or ids beside the number
        return Verdict(kind="number", why=_WORDS["quantity"])
    kind: Literal["ids", "number"] = "ids" if total > 0 else "number"
    measured = _measured(facts.evidence) and (scores["labels"] > 0) == (total > 0)
    weights = {name: score for name, score in scores.items() if (score > 0) == (total > 0)}
    why = max(weights, key=lambda name: abs(weights[name]), default="") if weights else ""
    unsure = not measured and abs(total) < _DOUBT and facts.distinct > _ALIKE
    return Verdict(kind=kind, measured=measured, unsure=unsure, why=_WORDS.get(why, why))
