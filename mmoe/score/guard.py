"""Guard: counts scored rows and scores (`ScoreCounts`), and judges them before publishing.

Counts of parts add up to those of all; `Guard` holds them beside training.
"""

import base64
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
from pydantic import Field, PlainSerializer, PlainValidator, TypeAdapter, ValidationError

from mmoe.alarms import Column, Distribution, TrainingColumns, shift_of
from mmoe.config import Count, Stored
from mmoe.config.scoring import OF_COLUMNS, Expectation, expectations_of
from mmoe.datasets import EncodedFeatures, FeatureEncoder
from mmoe.datasets.features.numeric import NumericCodec
from mmoe.datasets.rows.columns import UnseenIds, columns_of
from mmoe.datasets.values.arrow import is_text, pc, plain
from mmoe.errors import Rejected
from mmoe.run import RunDirectory

KEY = b"mmoe.counts"  # of the metadata of a Parquet file of scores
_COUNTS = TypeAdapter(list[Count])


def _as_bins(counts: Any) -> np.ndarray:
    """Counts as numbers that add up fast, checked."""
    if isinstance(counts, np.ndarray):
        return counts
    return np.array(_COUNTS.validate_python(counts), np.int64)


# A list in JSON
_Bins = Annotated[np.ndarray, PlainValidator(_as_bins), PlainSerializer(np.ndarray.tolist)]


class ColumnCounts(Stored):
    """Counts of one column that the model reads.

    Attributes:
        items: Its values that are there; of lists, of all rows together.
        missing: Rows without a value; of a list, without any.
        bins: Items in each bin of training (`StoredColumn`), int64; none where training is not
            known.
        unseen: Items that training had not.
    """

    items: Count
    missing: Count
    bins: _Bins = Field(default_factory=lambda: _as_bins([]))
    unseen: Count = 0

    def __eq__(self, other: object) -> bool:
        """Returns whether all counts are the same."""
        if not isinstance(other, ColumnCounts) or not np.array_equal(self.bins, other.bins):
            return False
        return self.model_dump(exclude={"bins"}) == other.model_dump(exclude={"bins"})

    def __add__(self, other: "ColumnCounts") -> "ColumnCounts":
        """Returns the counts of the rows of both."""
        return ColumnCounts.model_construct(
            items=self.items + other.items,
            missing=self.missing + other.missing,
            bins=self.bins + other.bins,
            unseen=self.unseen + other.unseen,
        )


class ScoreCounts(Stored):
    """Counts of rows that were scored.

    Attributes:
        rows: All of them.
        unseen: Feature → rows with an id that training had not; see `UnseenIds`.
        outside: Feature → rows with a number far outside training's range, or with anything else
            than what all training rows had; of features whose range the run knows.
        columns: That the model reads.
        scores: Numbers that were written, predicted or fused.
        classes: Of columns that hold classes: class → rows.
    """

    rows: Count = 0
    unseen: dict[str, Count] = Field(default_factory=dict)
    outside: dict[str, Count] = Field(default_factory=dict)
    columns: dict[str, ColumnCounts] = Field(default_factory=dict)
    scores: dict[str, Distribution] = Field(default_factory=dict)
    classes: dict[str, dict[str, Count]] = Field(default_factory=dict)

    def __add__(self, other: "ScoreCounts") -> "ScoreCounts":
        """Returns the counts of the rows of both."""
        if not self.rows or not other.rows:
            return self if self.rows else other
        classes = (_sum(self.classes[name], other.classes[name]) for name in self.classes)
        return ScoreCounts.model_construct(
            rows=self.rows + other.rows,
            unseen=_sum(self.unseen, other.unseen),
            outside=_sum(self.outside, other.outside),
            columns={n: self.columns[n] + other.columns[n] for n in self.columns},
            scores={n: self.scores[n] + other.scores[n] for n in self.scores},
            classes=dict(zip(self.classes, classes, strict=True)),
        )

    def unseen_ids(self) -> dict[str, dict[str, Any]]:
        """Returns rows with unseen ids and their share, by feature, for JSON."""
        return {
            name: {"rows": count, "share": count / max(self.rows, 1)}
            for name, count in self.unseen.items()
        }

    def as_metadata(self) -> dict[bytes, bytes]:
        """Returns them as metadata of a Parquet file, packed: some kB a hundred columns."""
        text = self.model_dump_json().encode()
        return {KEY: base64.b64encode(zlib.compress(text))}

    @classmethod
    def in_metadata(cls, metadata: Mapping[bytes, bytes] | None) -> "ScoreCounts | None":
        """Reads them; None where a file has none, or they cannot be read."""
        packed = (metadata or {}).get(KEY)
        if packed is None:
            return None
        try:
            return cls.model_validate_json(zlib.decompress(base64.b64decode(packed)))
        except (ValueError, zlib.error, ValidationError):
            return None


class Counter:
    """Counts rows as they are scored, from any number of threads.

    Args:
        encoder: Of the run.
        training: What the run knows of its training rows; None: nothing.
    """

    def __init__(self, encoder: FeatureEncoder, training: TrainingColumns | None) -> None:
        self.encoder, self.training = encoder, training
        self._stored = {} if training is None else training.columns
        self._numeric = {
            codec.feature.name: codec for codec in encoder.codecs if isinstance(codec, NumericCodec)
        }
        self._ranged = encoder.ranged
        self._sources = [
            (codec.feature.name, codec.feature.source_columns) for codec in encoder.codecs
        ]

    def count(
        self,
        features: EncodedFeatures,
        table: pa.Table,
        scores: Mapping[str, pa.Array],
        origin: str,
    ) -> ScoreCounts:
        """Counts some rows.

        Args:
            features: The rows, encoded.
            table: As they were read.
            scores: What is written of them, beside kept columns.
            origin: What the user calls them.
        """
        unseen = UnseenIds(self.encoder)
        unseen.add(features)
        columns = {
            column.name: self._column(column, table, origin)
            for column in columns_of(features, self.encoder)
        }
        # Of vectors and the like it is known whether they are there
        there = set(table.column_names)
        for name, sources in self._sources:
            if name not in columns and there.issuperset(sources):
                columns[name] = _without_bins(table, sources)
        numbers = {n: x for n, x in scores.items() if pa.types.is_floating(x.type)}
        others = {n: x for n, x in scores.items() if n not in numbers}
        return ScoreCounts.model_construct(
            rows=table.num_rows,
            unseen=dict(unseen.by_feature),
            outside=_outside(features, self._ranged),
            columns=columns,
            scores={
                name: Distribution.of(x.drop_null().to_numpy(zero_copy_only=False), x.null_count)
                for name, x in numbers.items()
            },
            classes={
                name: {str(one["values"]): one["counts"] for one in pc.value_counts(x).to_pylist()}
                for name, x in others.items()
            },
        )

    def _column(self, column: Column, table: pa.Table, origin: str) -> ColumnCounts:
        stored = self._stored.get(column.name)
        fits = stored is not None and stored.kind == column.kind
        there = len(column.items) - int(np.count_nonzero(column.missing))
        return ColumnCounts.model_construct(
            items=there,
            missing=self._missing(column, table, origin),
            bins=stored.counted(column) if stored is not None and fits else _as_bins([]),
            unseen=round((column.unseen or 0.0) * there),
        )

    def _missing(self, column: Column, table: pa.Table, origin: str) -> int:
        if column.kind == "list":
            return round((column.empty_rows or 0.0) * column.rows)
        codec = self._numeric.get(column.name)
        if column.at_zero is None or codec is None:
            return int(np.count_nonzero(column.missing))
        # Once it is scaled, a number that is missing looks like the mean
        cells = plain(table[codec.feature.source_column])
        if is_text(cells.type) or codec.feature.missing_values:
            return int(np.count_nonzero(np.isnan(codec.numbers(table, origin)[0])))
        return _nulls(cells)


def added(counts: Iterable[ScoreCounts]) -> ScoreCounts:
    """Returns the counts of all rows together."""
    total = ScoreCounts()
    for some in counts:
        total += some
    return total


def _outside(features: EncodedFeatures, names: Iterable[str]) -> dict[str, int]:
    """Rows of each of these features that hold what training never did."""
    found = {name: int(of.sum()) for name, of in features.outside.items()}
    if features.requests is not None:
        rows_M = np.bincount(features.requests.request_N, minlength=len(features.requests))
        shared = features.requests.features.outside
        found |= {name: int(rows_M[of_M].sum()) for name, of_M in shared.items()}
    return {name: found.get(name, 0) for name in names}


def _without_bins(table: pa.Table, sources: Sequence[str]) -> ColumnCounts:
    missing = max((_nulls(plain(table[source])) for source in sources), default=0)
    return ColumnCounts.model_construct(items=table.num_rows - missing, missing=missing)


def _nulls(cells: pa.ChunkedArray) -> int:
    if not pa.types.is_floating(cells.type):
        return int(cells.null_count)
    return int(pc.sum(pc.is_null(cells, nan_is_null=True)).as_py() or 0)


def _sum(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in dict.fromkeys([*one, *other])}


Figures = dict[str, float | None]  # measure → number; None where no row says anything


@dataclass(frozen=True)
class Finding:
    """Result of an expectation.

    Attributes:
        expectation: As it was written.
        holds: Whether all columns hold it.
        column: That differs most from it; None: it is of all rows.
        found: What was measured there; None: nothing could be.
        training: The same of training, where it is compared with that.
        failing: How many do not.
    """

    expectation: str
    holds: bool
    column: str | None = None
    found: float | None = None
    training: float | None = None
    failing: int = 0

    def text(self) -> str:
        """Says it in a line."""
        what = "" if self.column is None else f"{self.column}: "
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
            "expectations": [asdict(finding) for finding in self.findings],
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
    """Guard of scores: what they are compared with, and what is expected of them.

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

    @classmethod
    def of_run(
        cls,
        run: RunDirectory,
        expect: Sequence[str] | None = None,
        on_summary: SummaryCallback | None = None,
    ) -> "Guard":
        """Returns one that knows what a run does of its training; `expect` None: the config's.

        Raises:
            ValueError: An expectation cannot be read.
        """
        texts = run.config().score.expect if expect is None else expect
        columns = run.training_columns()
        return cls(expectations_of(texts), columns, run.predicted(), on_summary)

    def check_names(
        self, encoder: FeatureEncoder, none: pa.Table, written: pa.Schema, origin: str
    ) -> None:
        """Refuses expectations that name nothing, before a row is scored.

        Args:
            encoder: Of the run.
            none: No rows, of the columns that are read.
            written: Names and types of the columns that are written.
            origin: What the user calls the rows.
        """
        scores = {field.name: pa.array([], field.type) for field in written}
        features = encoder.encode(none, origin, to_score=True)
        self.judge(Counter(encoder, self.training).count(features, none, scores, origin))

    def judge(self, counts: ScoreCounts, repeated: float | None = None) -> Summary:
        """Returns the figures of all rows, and what came of the expectations.

        The stability index is over groups of bins, less what two samples of one distribution would
        show of it.

        Args:
            counts: Of all rows; of none, to see whether expectations name what there is.
            repeated: Share of the rows that earlier scores were made of.

        Raises:
            ValueError: An expectation names no column, or nothing that training knows.
        """
        stored = {} if self.training is None else self.training.columns
        columns = {
            name: _figures(name, column, counts, self.training)
            for name, column in counts.columns.items()
        }
        scores = {name: numbers.figures() for name, numbers in counts.scores.items()}
        of_training: dict[str, Figures] = {
            name: {"missing": column.missing, "unseen": column.unseen}
            for name, column in stored.items()
            if name in columns
        }
        known = [name for name in scores if name in self.predicted]
        of_training |= {name: self.predicted[name].figures() for name in known}
        parts = {name for name in columns if name in stored and stored[name].kind == "part"}
        classes = {
            name: {which: n / max(sum(found.values()), 1) for which, n in found.items()}
            for name, found in counts.classes.items()
        }
        summary = Summary(
            counts.rows, repeated, columns, frozenset(parts), scores, classes, of_training
        )
        found = [_finding(summary, expectation) for expectation in self.expectations]
        return replace(summary, findings=found)

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


def _figures(
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


def _finding(summary: Summary, expected: Expectation) -> Finding:
    if expected.names is None:
        found = summary.rows if expected.measure == "rows" else summary.repeated
        holds = True if found is None else expected.holds(found)  # nothing to be repeated
        return Finding(expected.text, holds, None, found, failing=int(not holds))
    each = [
        Finding(expected.text, holds, name, found, training if expected.relation else None)
        for name, found, training in _measured(summary, expected)
        for holds in [found is not None and expected.holds(found, training)]
    ]
    if not each:  # of `usual`, and no column has it
        return Finding(expected.text, True)
    failing = [finding for finding in each if not finding.holds]
    return replace((failing or each)[0], failing=len(failing))


def _measured(
    summary: Summary, expected: Expectation
) -> list[tuple[str, float | None, float | None]]:
    """Returns the figure of each column that an expectation names, and that of training."""
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
