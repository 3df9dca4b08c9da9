"""Scoring: what `mmoe score` does by itself, and what it expects of a night's rows."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf, isfinite
from typing import Literal

from pydantic import Field, field_validator

from mmoe.config.kinds import Name, Strict

# Measures of all rows, of the columns that a model reads, and of those that scoring writes
OF_ROWS = ("rows", "repeated")
OF_COLUMNS = ("missing", "unseen", "outside", "psi")
OF_SCORES = ("mean", "min", "p1", "p5", "p25", "p50", "p75", "p95", "p99", "max", "nan", "null")

# Has no meaning, or grows with it, where the training rows are another number
_NOT_IN_TRAINING = ("rows", "repeated", "psi")

USUAL = "usual"

# What `usual` stands for. A tenth of the rows, a fifth, a quarter are what alarms speak of too
_USUAL = (
    "rows > 0",
    "nan(*) == 0",
    "missing(*) < 0.1 above training",
    "unseen(*) < 0.2 above training",
    "outside(*) < 0.1",
    "psi(*) < 0.25",
    "mean(*) in [0.5, 2] of training",
)

Relation = Literal["of", "above"]
_RELATIONS: dict[str | None, Relation | None] = {"of": "of", "above": "above", None: None}
_NUMBER = r"([-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(%?)"
_LEFT = r"(?P<measure>[A-Za-z]\w*)\s*(?:\(\s*(?P<names>.+?)\s*\))?"
_COMPARED = re.compile(
    rf"{_LEFT}\s*(?P<sign><=|>=|==|<|>)\s*{_NUMBER}(?:\s+(?P<relation>of|above)\s+training)?"
)
_BETWEEN = re.compile(
    rf"{_LEFT}\s+in\s*\[\s*{_NUMBER}\s*,\s*{_NUMBER}\s*\](?:\s+(?P<relation>of|above)\s+training)?"
)


@dataclass(frozen=True)
class Expectation:
    """One condition on what a scoring has measured.

    Attributes:
        text: As it was written.
        measure: What is measured, such as psi.
        names: Of columns, with `*` for any letters; None: of all rows.
        low: The least that is right.
        high: The most.
        without_ends: Whether `low` and `high` themselves are wrong.
        relation: To training: `of` it as a factor, `above` it as a difference; None: to nothing.
        is_usual: Whether it is one of `usual`: columns of which training says nothing may be there.
    """

    text: str
    measure: str
    names: str | None
    low: float = -inf
    high: float = inf
    without_ends: bool = False
    relation: Relation | None = None
    is_usual: bool = False

    def holds(self, found: float, training: float | None = None) -> bool:
        """Returns whether a measured number is right.

        Args:
            found: The number.
            training: The same of training; needed where there is a `relation`.

        Example:
            >>> expectation_of("mean(pred_click) in [0.5, 2] of training").holds(0.3, 0.1)
            False
        """
        if self.relation == "above":
            found -= training or 0.0
        elif self.relation == "of" and training is not None:
            # In this way a training value of 0, or below it, needs no division
            ends = sorted(limit * training for limit in (self.low, self.high) if isfinite(limit))
            low = ends[0] if isfinite(self.low) else -inf
            high = ends[-1] if isfinite(self.high) else inf
            return self._between(low, found, high)
        return self._between(self.low, found, self.high)

    def _between(self, low: float, found: float, high: float) -> bool:
        return low < found < high if self.without_ends else low <= found <= high


def expectations_of(texts: Iterable[str]) -> list[Expectation]:
    """Reads expectations; `usual` among them stands for several.

    Raises:
        ValueError: One cannot be read.

    Example:
        >>> [one.text for one in expectations_of(["usual", "rows > 1e6"])][-2:]
        ['mean(*) in [0.5, 2] of training', 'rows > 1e6']
    """
    found: list[Expectation] = []
    for text in texts:
        if text.strip() == USUAL:
            found += [expectation_of(one, is_usual=True) for one in _USUAL]
        else:
            found.append(expectation_of(text))
    return found


def expectation_of(text: str, *, is_usual: bool = False) -> Expectation:
    """Reads an expectation: MEASURE(COLUMN) < NUMBER, or … in [LOW, HIGH], … of training.

    Raises:
        ValueError: It cannot be read, or there is no such measure.

    Example:
        >>> expectation_of("unseen(user_id) < 20%").high
        0.2
    """
    stripped = text.strip()
    compared, between = _COMPARED.fullmatch(stripped), _BETWEEN.fullmatch(stripped)
    match = compared or between
    if match is None:
        raise ValueError(
            f"expectation {text!r}: expected MEASURE(COLUMN) < NUMBER, or MEASURE(COLUMN) in "
            "[LOW, HIGH], then `of training` or `above training` if you like; such as 'psi(*) < "
            "0.25', 'rows > 1e6' or 'mean(pred_click) in [0.5, 2] of training'"
        )
    measure, names = match["measure"], match["names"]
    relation: Relation | None = _RELATIONS[match["relation"]]
    _check_measure(text, measure, names, relation)
    # Names may hold digits, and stand before the numbers
    right = stripped[match.end("names" if names is not None else "measure") :]
    values = [
        float(number.replace("_", "")) / (100 if percent else 1)
        for number, percent in re.findall(_NUMBER, right)
    ]
    if not all(map(isfinite, values)) or (measure == "rows" and "%" in right):
        raise ValueError(
            f"expectation {text!r}: expected finite numbers, and no share of {measure}"
        )
    if compared is None:
        low, high = values
        if low > high:
            raise ValueError(f"expectation {text!r}: [{low:g}, {high:g}] is empty; swap its ends")
        ends, strict = (low, high), False
    else:
        sign, value = match["sign"], values[0]
        ends = {"<": (-inf, value), ">": (value, inf), "=": (value, value)}[sign[0]]
        strict = sign in ("<", ">")
    return Expectation(
        text=stripped,
        measure=measure,
        names=names,
        low=ends[0],
        high=ends[1],
        without_ends=strict,
        relation=relation,
        is_usual=is_usual,
    )


def _check_measure(text: str, measure: str, names: str | None, relation: str | None) -> None:
    of_names = (*OF_COLUMNS, *OF_SCORES)
    if measure not in (*OF_ROWS, *of_names):
        raise ValueError(
            f"expectation {text!r}: there is no measure {measure!r}; there are "
            f"{', '.join(OF_ROWS)}, of columns that the model reads {', '.join(OF_COLUMNS)}, and "
            f"of those that are written {', '.join(OF_SCORES)}"
        )
    if measure in OF_ROWS and names is not None:
        raise ValueError(f"expectation {text!r}: {measure} is of all rows; leave ({names}) out")
    if measure in of_names and names is None:
        raise ValueError(
            f"expectation {text!r}: {measure} of what? Name a column, such as {measure}(price), or "
            f"{measure}(*) for all of them"
        )
    if relation is not None and measure in _NOT_IN_TRAINING:
        raise ValueError(
            f"expectation {text!r}: {measure} is not compared with training; leave "
            f"`{relation} training` out"
        )


class ScoreConfig(Strict):
    """Defaults of `mmoe score`; its options go before them."""

    fused: dict[Name, str] = Field(
        default_factory=dict,
        description="further columns, by name: expressions over tasks and columns of the input, "
        'such as `value: "click^0.7 * purchase"`',
    )
    budget: int | None = Field(
        default=None,
        ge=1,
        description="experts that scoring computes for a row at most, on each level and over all "
        "its gates, however they were trained; `--budget` replaces it; null: as trained",
    )
    expect: list[str] = Field(
        default_factory=list,
        description="what has to hold before scores are published, such as `unseen(user_id) < "
        "0.2`; `usual` stands for what most nights hold; `--expect` replaces them",
    )

    @field_validator("expect")
    @classmethod
    def _can_be_read(cls, texts: list[str]) -> list[str]:
        expectations_of(texts)
        return texts
