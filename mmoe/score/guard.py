"""`Guard`: judges what a scoring's rows and scores are like, beside training, before publishing."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from mmoe.alarms import Distribution, TrainingColumns
from mmoe.alarms.drift import shift_of
from mmoe.config.scoring import OF_COLUMNS, Expectation
from mmoe.errors import Rejected
from mmoe.score.counts import ColumnCounts, ScoreCounts

Figures = dict[str, float | None]  # measure → number; None where no row says anything


@dataclass(frozen=True)
class Finding:
    """What came of an expectation.

    Attributes:
        expectation: As it was written.
        name: Of the column that differs most from it; None: it is of all rows.
        found: What was measured there; None: nothing could be.
        training: The same of training, where it is compared with that.
        holds: Whether all columns hold it.
        failing: How many do not.
    """

    expectation: str
    name: str | None
    found: float | None
    training: float | None
    holds: bool
    failing: int = 0

    def text(self) -> str:
        """Says it in a line."""
        what = "" if self.name is None else f"{self.name}: "
        found = "no row to tell by" if self.found is None else f"{self.found:.4g}"
        beside = "" if self.training is None else f", {self.training:.4g} in training"
        others = f", and {self.failing - 1} more" if self.failing > 1 else ""
        return f"{self.expectation} ({what}{found}{beside}{others})"


@dataclass(frozen=True)
class Summary:
    """Figures of scored rows; see `mmoe/score/README.md` for what they mean.

    Attributes:
        rows: That were scored.
        repeated: Share of them that come from files that earlier scores were made of; None: there
            are none to compare with.
        columns: Of each column that the model reads: missing, unseen, psi, those that apply.
        parts: Names of those that are parts of a datetime, whose psi differs from day to day: it is
            judged where somebody names it.
        scores: Of each column of numbers that is written: mean, quantiles, nan, null.
        classes: Of columns of classes: the share of each.
        of_training: The same figures of training, as far as they are known.
        findings: What came of each expectation.
    """

    rows: int
    repeated: float | None
    columns: dict[str, Figures]
    parts: frozenset[str]
    scores: dict[str, Figures]
    classes: dict[str, dict[str, float]]
    of_training: dict[str, Figures]
    findings: list[Finding] = field(default_factory=list)

    @property
    def failed(self) -> list[Finding]:
        """The expectations that do not hold."""
        return [finding for finding in self.findings if not finding.holds]

    def as_dict(self) -> dict[str, Any]:
        """Returns what `_summary.json` holds."""
        return {
            "rows": self.rows,
            "repeated": self.repeated,
            "passed": not self.failed,
            "expectations": [
                {
                    "expectation": finding.expectation,
                    "holds": finding.holds,
                    "column": finding.name,
                    "found": finding.found,
                    "training": finding.training,
                    "failing": finding.failing,
                }
                for finding in self.findings
            ],
            "columns": self._with_training(self.columns),
            "scores": self._with_training(self.scores),
            "classes": self.classes,
        }

    def _with_training(self, figures: Mapping[str, Figures]) -> dict[str, Any]:
        return {
            name: {**measured, "training": self.of_training.get(name)}
            for name, measured in figures.items()
        }


SummaryCallback = Callable[[Summary], None]


@dataclass(frozen=True)
class Guard:
    """What scores are compared with, and what is expected of them.

    Attributes:
        expectations: That have to hold.
        training: What the run knows of its training rows; None: nothing.
        predicted: How predictions of the test split were distributed.
        on_summary: Is given the summary before scores are rejected, or when they are published.
    """

    expectations: Sequence[Expectation]
    training: TrainingColumns | None
    predicted: dict[str, Distribution]
    on_summary: SummaryCallback | None = None

    def judge(self, counts: ScoreCounts, repeated: float | None = None) -> Summary:
        """Returns the figures of all rows, and what came of the expectations.

        Args:
            counts: Of all rows; of none, to see whether expectations name what there is.
            repeated: Share of the rows that earlier scores were made of.

        Raises:
            ValueError: An expectation names no column, or nothing that training knows.
        """
        summary = summary_of(counts, self.training, self.predicted, repeated)
        return replace(summary, findings=judged(summary, self.expectations))

    def conclude(
        self, summary: Summary, output: str, rejected: str | None, *, was_whole: bool = True
    ) -> None:
        """Shows the summary.

        Args:
            summary: Of scores that are published now, or put aside.
            output: Where they were to go.
            rejected: Where they lie if they are not as expected; None: they were published before.
            was_whole: Whether no earlier call had died while it replaced what was at `output`.

        Raises:
            Rejected: They are not.
        """
        if self.on_summary is not None:
            self.on_summary(summary)
        failed = summary.failed
        if not failed:
            return
        why = (
            f"{len(failed)} of {len(summary.findings)} expectations do not hold: "
            f"{'; '.join(finding.text() for finding in failed)}"
        )
        if rejected is None:
            raise Rejected(f"{output}: was published before, and {why}")
        before = (
            f"what was at {output} is as it was"
            if was_whole
            else f"what was at {output} had been replaced in part, by a call that died"
        )
        raise Rejected(f"{output}: not published, as {why}. The scores lie in {rejected}; {before}")


def summary_of(
    counts: ScoreCounts,
    training: TrainingColumns | None,
    predicted: Mapping[str, Distribution],
    repeated: float | None = None,
) -> Summary:
    """Works out the figures of counted rows.

    The stability index is over groups of bins, less what two samples of one distribution would
    show of it.

    Args:
        counts: Of all rows.
        training: What the run knows of its training rows; None: nothing.
        predicted: How predictions of the test split were distributed.
        repeated: Share of the rows whose files earlier scores were made of.
    """
    columns = {
        name: _column(name, column, counts, training) for name, column in counts.columns.items()
    }
    scores = {name: numbers.figures() for name, numbers in counts.scores.items()}
    stored = {} if training is None else training.columns
    of_training: dict[str, Figures] = {
        name: {"missing": column.missing, "unseen": column.unseen}
        for name, column in stored.items()
        if name in columns
    }
    of_training |= {name: predicted[name].figures() for name in scores if name in predicted}
    return Summary(
        rows=counts.rows,
        repeated=repeated,
        columns=columns,
        parts=frozenset(name for name in columns if name in stored and stored[name].kind == "part"),
        scores=scores,
        classes={
            name: {which: n / max(sum(found.values()), 1) for which, n in found.items()}
            for name, found in counts.classes.items()
        },
        of_training=of_training,
    )


def _column(
    name: str, column: ColumnCounts, counts: ScoreCounts, training: TrainingColumns | None
) -> Figures:
    figures: Figures = {"missing": column.missing / counts.rows if counts.rows else None}
    if name in counts.unseen:
        figures["unseen"] = column.unseen / column.items if column.items else None
    if name in counts.outside:
        figures["outside"] = counts.outside[name] / counts.rows if counts.rows else None
    stored = None if training is None else training.columns.get(name)
    if training is None or stored is None or not len(column.bins):
        return figures
    items = column.bins
    if not items.sum() or not sum(stored.counts):
        figures["psi"] = None
        return figures
    psi, chance, _ = shift_of(stored, items, 1 / training.judged_by + 1 / counts.rows)
    figures["psi"] = max(psi - chance, 0.0)
    return figures


def judged(summary: Summary, expectations: Sequence[Expectation]) -> list[Finding]:
    """Compares a summary with what was expected of it.

    Raises:
        ValueError: An expectation names no column that has such a figure, or training says
            nothing of what it is compared with.
    """
    return [_finding(summary, expectation) for expectation in expectations]


def _finding(summary: Summary, expected: Expectation) -> Finding:
    if expected.names is None:
        found = summary.rows if expected.measure == "rows" else summary.repeated
        holds = True if found is None else expected.holds(found)  # nothing to be repeated
        return Finding(expected.text, None, found, None, holds, int(not holds))
    worst: Finding | None = None
    failing = 0
    for name, found, training in _measured(summary, expected):
        holds = found is not None and expected.holds(found, training)
        failing += not holds
        if worst is None or (worst.holds and not holds):
            shown = training if expected.relation else None
            worst = Finding(expected.text, name, found, shown, holds)
    if worst is None:  # of `usual`, and no column has it
        return Finding(expected.text, None, None, None, True)
    return Finding(worst.expectation, worst.name, worst.found, worst.training, worst.holds, failing)


def _measured(
    summary: Summary, expected: Expectation
) -> list[tuple[str, float | None, float | None]]:
    """Each column that an expectation names: its figure, and that of training."""
    measure, pattern = expected.measure, expected.names or "*"
    figures = summary.columns if measure in OF_COLUMNS else summary.scores
    named = [name for name in figures if name == pattern] or [
        name for name in figures if fnmatchcase(name, pattern)
    ]
    if measure == "psi":
        named = [name for name in named if name == pattern or name not in summary.parts]
    having = [name for name in named if measure in figures[name]]
    if expected.is_usual:
        having = [name for name in having if _is_comparable(summary, expected, name)]
    elif not having:
        raise ValueError(_names_nothing(expected, named, figures))
    found: list[tuple[str, float | None, float | None]] = []
    for name in having:
        training = summary.of_training.get(name, {}).get(measure)
        if expected.relation is None or training is not None:
            found.append((name, figures[name][measure], training))
        elif name == pattern:
            raise ValueError(_not_known(expected, name))
    if having and not found and not expected.is_usual:
        raise ValueError(_not_known(expected, having[0]))
    return found


def _not_known(expected: Expectation, name: str) -> str:
    return (
        f"expectation {expected.text!r}: the run does not know {expected.measure}({name}) of its "
        "training; name a number instead, or train again if an earlier mmoe did"
    )


def _is_comparable(summary: Summary, expected: Expectation, name: str) -> bool:
    """Whether training says something of what `usual` compares."""
    if expected.relation is None:
        return True
    known = summary.of_training.get(name, {})
    if known.get(expected.measure) is None:
        return False
    # A mean of numbers of both signs may be near 0, where half and twice of it mean nothing
    return expected.relation == "above" or (known.get("min") or 0.0) >= 0


def _names_nothing(
    expected: Expectation, named: Sequence[str], figures: Mapping[str, Figures]
) -> str:
    there = [name for name in figures if expected.measure in figures[name]]
    text = f"expectation {expected.text!r}: "
    some = ", ".join(there[:8]) + (", …" if len(there) > 8 else "")
    if named:
        why = {
            "unseen": "its ids are hashed, managed or none, so that none is unseen",
            "outside": "the run does not know its range in training",
            "psi": "the run does not know its distribution in training",
        }[expected.measure]
        return f"{text}{named[0]} has no {expected.measure}: {why}; there: {some or 'none'}"
    close = get_close_matches(expected.names or "", there, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"there: {some or 'none'}"
    return f"{text}no column {expected.names!r} has {expected.measure} ({hint})"
