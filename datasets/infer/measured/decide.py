"""Which columns are ids and which are numbers: by what predicts, else by shape and name.

Reasons for and against add up. In units of standard errors of what a label says, so that a hint
(2 to 4) decides where the labels say nothing (below 2), and gives way where they are sure.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from mmoe.datasets.infer.measured.evidence import Evidence
from mmoe.datasets.infer.measured.names import hint, stems
from mmoe.datasets.infer.measured.shape import Shape

# Of z, where each column is tried once or twice: one of a thousand by chance
SURE = 3.3
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
    """What is known of a column of whole numbers.

    Attributes:
        name: The column.
        distinct: Values.
        shape: Of its values, where there are enough.
        evidence: Of its labels, where there are enough.
        is_key: Whether other columns follow from it.
    """

    name: str
    distinct: int
    shape: Shape | None
    evidence: Evidence | None
    is_key: bool


@dataclass(frozen=True)
class Verdict:
    """What a column is.

    Attributes:
        kind: What it is read as.
        measured: Whether its labels alone are sure.
        unsure: Whether nothing is.
        why: What decided, in a few words.
    """

    kind: Literal["ids", "number"]
    measured: bool = False
    unsure: bool = False
    why: str = ""


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


def _is_quantity(facts: Facts) -> bool:
    """Whether name or values can be nothing else, whatever the labels say."""
    line = facts.shape is not None and (facts.shape.negative or facts.shape.rounded)
    return line or hint(facts.name) < 0


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
        return _WEIGHT_OF_LABELS if _favours_ids(evidence) else -_WEIGHT_OF_LABELS
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


def _favours_ids(evidence: Evidence) -> bool:
    return evidence.share < _SMOOTH and evidence.z > 0


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
    """What the labels and shapes of C1, …, C20 say together; nothing where they contradict.

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
    if total > 0 and _is_quantity(facts):
        # Its values predict more than their neighbours do (round sums, 40 hours a week), but they
        # are sums and hours: they get buckets of their own, or ids beside the number
        return Verdict(kind="number", why=_WORDS["quantity"])
    kind: Literal["ids", "number"] = "ids" if total > 0 else "number"
    measured = _measured(facts.evidence) and (scores["labels"] > 0) == (total > 0)
    weights = {name: score for name, score in scores.items() if (score > 0) == (total > 0)}
    why = max(weights, key=lambda name: abs(weights[name]), default="") if weights else ""
    unsure = not measured and abs(total) < _DOUBT and facts.distinct > _ALIKE
    return Verdict(kind=kind, measured=measured, unsure=unsure, why=_WORDS.get(why, why))
