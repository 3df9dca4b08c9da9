"""Features from columns: what each becomes, and why."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from mmoe.config import (
    CategoricalFeature,
    DatetimeFeature,
    FeatureConfig,
    ListFeature,
    NumericFeature,
    Part,
    VectorFeature,
)
from mmoe.datasets.features.datetime import part_ids
from mmoe.datasets.infer.coded import Coded, Folds, Sample, one_to_one
from mmoe.datasets.infer.crosses import Together
from mmoe.datasets.infer.decide import Verdict
from mmoe.datasets.infer.evidence import BUCKETS, SURE, Evidence, outdated, weigh
from mmoe.datasets.infer.profile import ColumnProfile, TimeLike, time_like, unit_of
from mmoe.datasets.infer.sizes import FEW_ROWS, USUAL_BUCKETS, encodings_for
from mmoe.datasets.values.datetimes import has_hours, local_datetimes

_FEW = 20  # numbers of so few values need no logarithm
_MANY = 1_000_000  # more ids than this are hashed, so that the table does not grow with the data
# An embedding row learned from a handful of labels repeats them. On an invented log with 1.5 rows
# an id, which said next to nothing, a minimum of 20 raised the test AUC from 0.772 to 0.786 (click)
# and from 0.848 to 0.857 (purchase), one run each. Where ids do predict, see `least_rows`.
ROWS_PER_ID = 20
# Longer vectors are projected, where there are so many rows to learn the projection from. Test AUCs
# on invented logs, as they are and with dim 32: of 64 numbers 0.683 and 0.690 (2,000 rows), 0.730
# and 0.724 (10,000), 0.748 and 0.754 (40,000); of 256 numbers 0.651 and 0.636 (2,000), 0.717 and
# 0.714 (10,000). One run each.
_WIDEST = 32
_ROWS_TO_PROJECT = 20_000
_ENOUGH_ROWS = 10_000  # below, an id seen 20 times is no rare one
_LONG_TAIL = 5.0  # 99th percentile over the median of what is not zero
_NEVER_RAW = 50.0  # the same: beyond, a few numbers as they are would drown all others
# Standard errors that a curve gains over a line, where buckets pay in small logs: of a sine
# 22 (4,000 rows: AUC 0.875 instead of 0.834); of wells 5 (1,500 rows: 0.789 instead of 0.800)
_BENDS = 12.0
_DRIFTS = 0.25  # of what ids gain: their numbers predict so much by themselves
_USER_NAME = re.compile(
    r"(^|_)(user|member|customer|visitor|viewer|buyer|client|account|uid|msno|profile)"
    r"(_?(id|no|nr|key))?$"
)
_GROUP_NAME = re.compile(r"(^|_)(session|search|query|request|impression)(_?(id|no|nr|key))?$")


@dataclass(frozen=True)
class GuessedFeature:
    """A feature and the reason for its kind; and the column's other reading where both help."""

    feature: FeatureConfig
    reason: str
    beside: tuple[str, str] | None = None  # what the other one is called, and the reason


def group_column(profiles: list[ColumnProfile]) -> ColumnProfile | None:
    """Guesses the key of GAUC: a user's id that comes back, else a session's or query's."""
    for pattern in (_USER_NAME, _GROUP_NAME):
        for profile in profiles:
            is_id = profile.nature in ("integer", "text") and profile.distinct > 1
            if (
                is_id
                and pattern.search(profile.name.lower())
                and profile.distinct <= profile.rows / 2
            ):
                return profile
    return None


def least_rows(shrinkage: float) -> int:
    """Returns how often an id must be seen to have a row of its own.

    An id's rows are worth as much as all others' where there are as many as the measured shrinkage;
    with an eighth of them it has a row. Test AUC of an invented log (20,000 rows, 6,777 ids, Zipf's
    law with 0.5), by what an id's logits deviate and by the least number of rows:

    ```
    deviation   shrinkage   least 1   3       6       12      20
    0.5         32          0.681     0.680   0.683   0.681   0.679
    1           8           0.694     0.691   0.678   0.668   0.665
    2           2           0.789     0.735   0.676   0.644   0.632
    ```
    """
    return round(min(max(shrinkage / 8, 1), ROWS_PER_ID))


@dataclass(frozen=True)
class InputColumn:
    """A column that becomes an input, and what is known of its kind."""

    profile: ColumnProfile
    verdict: Verdict
    evidence: Evidence | None  # of its labels
    # Why its ids are too rare to foretell anything; "": they are not
    rare: str = ""
    sampled: bool = False  # whether the rows are a part of the log, which repeats ids more often

    def guess(self, name: str, *, one_value: bool) -> GuessedFeature:
        """Makes its feature; `one_value`: text with separators is no list."""
        profile = self.profile
        if profile.vector is not None:
            length = profile.vector.length
            dim = _WIDEST if length > _WIDEST and profile.rows >= _ROWS_TO_PROJECT else None
            reason = f"vectors of {length} numbers" + (f"; projected to {dim}" if dim else "")
            feature = VectorFeature(name=name, column=self.key(name), dim=dim)
            return GuessedFeature(feature, reason + self._missing)
        if profile.nature == "list" or (profile.separator and not one_value):
            feature = ListFeature(name=name, column=self.key(name), **profile.keys)
            return GuessedFeature(feature, (profile.said or "a list column") + self._missing)
        number = self.verdict.kind == "number" or self.verdict.counts
        return self._number(name) if number else self._ids(name)

    def beside(self, guessed: GuessedFeature, name: str) -> FeatureConfig:
        """Makes the feature beside another one of it: ids of numbers, numbers of ids."""
        if isinstance(guessed.feature, NumericFeature):
            return self._as_ids(name)[0]
        return self._as_number(name, encodings_for(self.profile.rows))

    def key(self, name: str) -> str | None:
        """Returns the key `column` of a feature of this name."""
        return None if name == self.profile.name else self.profile.name

    def _ids(self, name: str) -> GuessedFeature:
        profile, evidence = self.profile, self.evidence
        kinds = {"boolean": "true or false", "text": "texts", "integer": "whole numbers"}
        kind = kinds.get(profile.nature, "values")
        facts = kind if profile.nature == "boolean" else f"{profile.distinct} different {kind}"
        feature, note = self._as_ids(name)
        beside, measured = None, self.verdict.measured
        if evidence and measured and evidence.z_number > SURE and evidence.share > _DRIFTS:
            beside = f"{name}_as_number", f"numbers of {name} that are near each other are alike"
        return GuessedFeature(feature, self._because(facts) + note, beside)

    def _number(self, name: str) -> GuessedFeature:
        profile, evidence, numbers_N = self.profile, self.evidence, self.profile.numbers_N
        assert numbers_N is not None
        # More buckets than usual where they predict better
        cut, counts = encodings_for(profile.rows), self.verdict.counts
        small = profile.rows < FEW_ROWS
        # A wide part sees a line where there are no buckets
        bends = small and evidence is not None and evidence.z_curve > _BENDS
        if counts or bends:
            cut = {**cut, "buckets": USUAL_BUCKETS}
        sure = evidence is not None and evidence.strength > SURE and not (counts and small)
        if evidence is not None and sure and evidence.buckets > USUAL_BUCKETS:
            cut = {**cut, "buckets": evidence.buckets}
        feature = self._as_number(name, cut)
        kind = "whole numbers" if profile.nature == "integer" else "numbers"
        facts = f"{profile.distinct} different {kind}, {np.nanmin(numbers_N):g} to "
        facts += f"{np.nanmax(numbers_N):g}"
        facts += "; long tail: its logarithm" if feature.log else ""
        facts += f"; {profile.said}" if profile.said else ""
        facts += "; it counts: frequent ones have a bucket each, and all are a number" * counts
        beside, told = None, self.verdict.why.startswith("--")
        # Values come back, and ids predict better than the finest buckets
        repeated = BUCKETS[-1] < profile.distinct <= profile.rows / 2
        apart = evidence is not None and min(evidence.z_beyond, evidence.z_ids) > SURE
        if apart and repeated and not told:
            beside = f"{name}_as_id", f"values of {name} differ from their neighbours"
        return GuessedFeature(feature, self._because(facts), beside)

    def _as_ids(self, name: str) -> tuple[CategoricalFeature, str]:
        """Its feature of ids, and what is said of it.

        Ids are hashed where they are too many; those that come too seldom share a row.
        """
        profile, evidence, note = self.profile, self.evidence, ""
        settings: dict[str, Any] = {}
        if profile.distinct > _MANY:
            size = 1 << int(np.ceil(np.log2(profile.distinct)))
            settings = {"encoding": "hash", "hash_size": size}
            note = "; hashed, as there are so many"
        elif self.rare and self.sampled:
            settings = {"min_count": "auto"}
            note = f"; {self.rare}: if so in all rows, rare ones share a row"
        elif profile.distinct > profile.rows / ROWS_PER_ID:
            enough = profile.rows >= _ENOUGH_ROWS or self.rare
            least = ROWS_PER_ID if enough else 1
            if evidence is not None and evidence.z_ids > SURE and not self.rare:
                least = least_rows(evidence.shrinkage)
            if least > 1:
                settings = {"min_count": least}
                why = f"{self.rare}: " if self.rare else ""
                note = f"; {why}those seen fewer than {least} times share a row"
        return CategoricalFeature(name=name, column=self.key(name), **settings), note

    def _as_number(self, name: str, cut: dict[str, int]) -> NumericFeature:
        """Its feature of numbers, cut into so many pieces and buckets where they differ."""
        profile = self.profile
        how: dict[str, Any] = {"log": self._wants_log(), **(cut if profile.distinct > 2 else {})}
        return NumericFeature(name=name, column=self.key(name), **{**how, **profile.keys})

    def _wants_log(self) -> bool:
        """Whether a long tail has to be drawn in; not where the numbers themselves do better."""
        assert self.profile.numbers_N is not None
        present = np.abs(self.profile.numbers_N[np.isfinite(self.profile.numbers_N)])
        nonzero = present[present > 0]
        if not len(nonzero) or self.profile.distinct <= _FEW:
            return False
        tail = float(np.quantile(nonzero, 0.99) / np.median(nonzero))
        if tail <= _LONG_TAIL:
            return False
        return tail > _NEVER_RAW or self.evidence is None or self.evidence.z_log > -SURE

    def _because(self, facts: str) -> str:
        """Says what decided, such as `ids: AUC 0.71 as ids, 0.55 as a number (z 14); 500 …`."""
        facts, verdict, evidence = facts + self._missing, self.verdict, self.evidence
        if not verdict.why or evidence is None:
            return facts
        if not verdict.measured:
            unsure = ", unsure" if verdict.unsure else ""
            return f"{verdict.kind} by {verdict.why}{unsure}; {facts}"
        two = f"{evidence.ids:.2f} as ids, {evidence.number:.2f} as a number"
        if verdict.kind == "number":
            two = f"{evidence.number:.2f} as a number, {evidence.ids:.2f} as ids"
        unit = "AUC" if evidence.is_event else "R²"
        z = abs(evidence.z) if (evidence.z > 0) == (verdict.kind == "ids") else 0.0
        sure = f"z {z:.0f}" if z >= 2 else "no clear difference, and near values are alike"
        return f"{verdict.kind}: {unit} {two} ({sure}); {facts}"

    @property
    def _missing(self) -> str:
        share = self.profile.missing / self.profile.rows if self.profile.missing else 0.0
        return f", {100 * share:.2g} % missing" if share else ""


_PARTS: tuple[Part, ...] = ("hour", "weekday", "month")
# Parts that have to add to these: the day itself (as far as later rows know it), salaries on the
# first, hours that differ by weekday. Of the flights out of New York with a split at random the day
# of the year adds 45 % to what all other columns tell of late (z 18), hours of the week nothing.
_FINER: tuple[Part, ...] = ("day_of_year", "day", "hour_of_week")
_SEASON: Part = "month"
_NEW = 0.1  # of the test rows, at most, in a season that training does not know


def guess_moment(
    table: pa.Table,
    profile: ColumnProfile,
    sample: Sample,
    known: Collection[Coded],
    measured: bool,
    origin: str,
) -> tuple[DatetimeFeature, str] | None:
    """Makes a feature of a datetime's parts, and the reason.

    Args:
        table: All rows.
        profile: The column.
        sample: The rows that are looked at.
        known: Columns that are inputs; a part that one of them holds is none.
        measured: Whether a part must predict a label; if not, it has but to differ.
        origin: Starts error messages.

    Returns:
        None where the column is no datetime that can be read, or no part is worth it.
    """
    if not reads_moments(profile):
        return None
    keys = _keys(profile)
    some = table.select([profile.name]).take(pa.array(sample.rows_S))
    found: dict[Part, str] = {}
    chosen: dict[str, Coded] = {}
    for part in (*_PARTS, *_FINER):
        coded = _coded(some, profile.name, part, keys, origin)
        if coded is None or any(one_to_one(coded, other) for other in known):
            continue
        folds = sample.folds
        if part == _SEASON and _comes_again(coded, sample):
            folds = Folds(sample.folds_S)
        elif outdated(coded, sample, ids=True):
            continue
        evidence, finer = weigh(coded, sample, folds), part in _FINER
        if evidence is None or ((measured or finer) and evidence.z_ids <= SURE):
            continue
        if finer and chosen and not Together(chosen, (), sample).adds(coded):
            continue
        unit_of_it = "AUC" if evidence.is_event else "of the variance"
        found[part], chosen[part] = f"{part}: {evidence.ids:.2f} {unit_of_it}", coded
    if not found:
        return None
    feature = DatetimeFeature(name="moment", column=profile.name, parts=list(found), **keys)
    return feature, "; ".join(filter(None, (profile.said, ", ".join(found.values()))))


def _comes_again(season: Coded, sample: Sample) -> bool:
    """Whether training knows the seasons of the rows that a split by time tests.

    Then rows drawn at random judge them: blocks of less than a year hold others each, and less
    their means say nothing of one another.
    """
    return sample.times_S is not None and sample.future.unseen(season)[0] < _NEW


def reads_moments(profile: ColumnProfile) -> bool:
    """Returns whether a feature of datetimes can read a column."""
    return time_like(profile) in (TimeLike.DATES, TimeLike.SINCE_1970)


def elapsed(profile: ColumnProfile, name: str) -> DatetimeFeature:
    """Makes a feature of the days that passed alone.

    Args:
        profile: A column of datetimes.
        name: Of the feature.
    """
    column = None if name == profile.name else profile.name
    return DatetimeFeature(name=name, column=column, elapsed=True, **_keys(profile))


def _coded(
    table: pa.Table, column: str, part: Part, keys: dict[str, Any], origin: str
) -> Coded | None:
    feature = DatetimeFeature(name="moment", column=column, parts=[part], **keys)
    try:
        ids_S = part_ids(local_datetimes(table, feature, origin), part)
    except ValueError:  # a date has no hour, and not all text is what it looks like
        return None
    values, codes_S = np.unique(ids_S, return_inverse=True)
    return Coded(codes_S, None, len(values)) if len(values) > 1 else None


def offered(profile: ColumnProfile, name: str) -> list[FeatureConfig]:
    """Lists features that a person may make of a column of datetimes, one for each reading of it.

    Only where text has a format that one would have to find out.
    """
    column = None if name == profile.name else profile.name
    known = [profile.keys] if profile.nature == "datetime" and "format" in profile.keys else []
    features = []
    for keys in profile.offered or known:
        hours = has_hours(keys["format"])
        parts: list[Part] = ["hour", "weekday"] if hours else ["weekday", "month"]
        features.append(DatetimeFeature(name=name, column=column, parts=parts, **keys))
    return features


def _keys(profile: ColumnProfile) -> dict[str, Any]:
    """Returns the keys by which the feature reads the column: a format, or a unit."""
    if profile.nature == "datetime":
        return dict(profile.keys)
    # Of numbers they are numbers, of datetimes words
    fillers = [str(value) for value in profile.keys.get("missing_values", [])]
    return {"unit": unit_of(profile)} | ({"missing_values": fillers} if fillers else {})
