"""Choice of the columns that are inputs, and as what, by everything known of them."""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from mmoe.config import CrossFeature, DatetimeFeature, FeatureConfig, NumericFeature, TreesFeature
from mmoe.datasets.infer.coded import (
    Coded,
    Folds,
    Relations,
    Sample,
    code,
    copies_of,
    folds_of,
    relate,
    same_order,
)
from mmoe.datasets.infer.crosses import Leftover, Product, Together
from mmoe.datasets.infer.decide import (
    LARGE_ID,
    Facts,
    Shape,
    Verdict,
    are_counts,
    decide,
    hint,
    shape_of,
)
from mmoe.datasets.infer.evidence import SURE, Evidence, light_values, outdated, weigh
from mmoe.datasets.infer.guess_features import (
    ROWS_PER_ID,
    InputColumn,
    elapsed,
    guess_moment,
    least_rows,
    reads_moments,
)
from mmoe.datasets.infer.leaks import lists_that_tell, look_at, pairs_that_tell, too_good
from mmoe.datasets.infer.profile import ColumnProfile, TimeLike, is_coarse, time_like
from mmoe.datasets.infer.sizes import is_rare
from mmoe.datasets.infer.told import Told
from mmoe.datasets.values.arrow import pc, plain


class Names:
    """Names that a config takes, out of whatever the columns are called."""

    def __init__(self) -> None:
        self.features: set[str] = set()
        self.tasks: set[str] = set()

    def feature(self, column: str) -> str:
        """Returns a feature's name."""
        return self._unique(column, "feature", self.features)

    def task(self, label: str) -> str:
        """Returns a task's name."""
        return self._unique(label, "task", self.tasks)

    @staticmethod
    def run(name: str) -> str:
        """Returns a run's name."""
        cleaned = re.sub(r"[^A-Za-z0-9_\-]+", "-", name).strip("-")
        return cleaned if re.match(r"^[A-Za-z_]", cleaned) else f"run-{cleaned}".rstrip("-")

    @staticmethod
    def _unique(column: str, kind: str, taken: set[str]) -> str:
        """ASCII letters, digits and _; distinct even where case is ignored.

        Letters lose their accents (Künstler: Kunstler). Never two underscores in a row, as in the
        names of bucket tables.
        """
        plain = unicodedata.normalize("NFKD", column.replace("ß", "ss"))
        plain = "".join(letter for letter in plain if not unicodedata.combining(letter))
        base = re.sub(r"[^A-Za-z0-9]+", "_", plain).strip("_")[:100] or f"{kind}_{len(taken) + 1}"
        base = base if re.match(r"^[A-Za-z_]", base) else f"{kind[0]}_{base}"
        base = "mean_value" if kind == "task" and base == "mean" else base
        name, number = base, 1
        while name.lower() in taken:
            number += 1
            name = f"{base}_{number}"
        taken.add(name.lower())
        return name


_STRONGEST = 50  # columns of a model of all columns
_LEAST = 12  # values that have a shape
# Share of the rows that, held out, would have an unseen id: from here on ids are asked what they
# tell beyond the other columns
_RARE = 0.25
_SPLIT = "the time that the split is made by"
_RISES = "it rises with time, and its values do not come again"
_MOMENT = "a moment in time, which does not come again; kind: datetime takes its hour and weekday"
_MANY_FOR_TREES = 60_000  # rows
_QUANTITY = {"unit", "decimal", "thousands"}  # $5 is no id


@dataclass
class Inputs:
    """The columns, and what was found out about them."""

    table: pa.Table  # all rows
    profiles: list[ColumnProfile]  # columns that may be inputs
    sample: Sample  # the rows that are looked at
    told: Told  # what a person said
    group: str | None  # column that the rows belong to
    time_column: str | None  # what the split is made by
    splits: bool  # whether a split is made; if not, a datetime is an input
    sampled: bool = False  # whether the table is a part of the rows
    coded: dict[str, Coded] = field(default_factory=dict)  # column → its sampled rows
    evidence: dict[str, Evidence | None] = field(default_factory=dict)  # column → of its labels
    verdicts: dict[str, Verdict] = field(default_factory=dict)  # column → what it is read as
    numbers: set[str] = field(default_factory=set)  # columns that are read as numbers
    together: Together = field(init=False)  # those of `coded` that predict most
    product: Product | None = None  # two of them whose hidden numbers multiply
    # Datetimes of which parts are inputs, and the reasons
    moments: dict[str, tuple[DatetimeFeature, str]] = field(default_factory=dict)
    features: list[FeatureConfig] = field(default_factory=list)  # the outcome
    reasons: dict[str, str] = field(default_factory=dict)  # feature → reason
    left_out: list[tuple[str, str]] = field(default_factory=list)  # column and reason
    unsure: list[str] = field(default_factory=list)  # columns whose kind is a guess

    def choose(self, names: Names, origin: str) -> None:
        """Fills in features, reasons and what is left out."""
        inputs = {profile.name for profile in self.profiles if self._is_input(profile)}
        inputs |= {one.name for one in self.profiles if self._is_moment(one, origin)}
        kept = self._without_joint_leaks([one for one in self.profiles if one.name in inputs])
        relations = relate(self.coded)
        for name, coded in self.coded.items():
            owner = relations.owner.get(name)  # rows of one are held out together
            folds = self.sample.folds
            if owner is not None:
                folds = Folds(folds_of(self.coded[owner].codes_S))
            self.evidence[name] = weigh(coded, self.sample, folds)
        self._decide(kept, relations)
        for name, reason in self._copies().items():
            self._leave_out(name, reason)
        self._leave_behind(relations)
        self._multiplied()
        rare = self._too_rare(kept)
        for profile in kept:
            if (verdict := self.verdicts.get(profile.name)) is not None:
                about = self.evidence.get(profile.name), rare.get(profile.name, ""), self.sampled
                self._add(InputColumn(profile, verdict, *about), names)
        self.together = Together(self._strongest(), self.numbers, self.sample)
        self._cross(names)
        self._read_elapsed(names)

    @property
    def most_ids(self) -> int:
        """Different values of the column of ids that has most."""
        ids = {feature.name for feature in self.features if feature.kind == "categorical"}
        return max((one.distinct for one in self.profiles if one.name in ids), default=0)

    def _is_input(self, profile: ColumnProfile) -> bool:
        """Whether a column is an input as it is; else it gets its reason."""
        reason = self._useless(profile)
        if reason is None:
            coded = code(profile, self.table[profile.name], self.sample.rows_S)
            if coded is not None:
                if profile.name not in self.told.kept:
                    reason = too_good(coded, self.sample)
                if reason is None:
                    self.coded[profile.name] = coded
        if reason is not None:
            self.left_out.append((profile.name, reason))
        return reason is None

    def _without_joint_leaks(self, kept: list[ColumnProfile]) -> list[ColumnProfile]:
        """The columns without lists of what came after, and pairs that give a label away."""
        lists = [p.name for p in kept if p.nature == "list" or p.separator]
        profiles = {profile.name: profile for profile in self.profiles}
        looked_at = look_at(self.sample)
        found = lists_that_tell(self.table, profiles, lists, self.sample, looked_at)
        found |= pairs_that_tell(self.coded, looked_at)
        found = {name: why for name, why in found.items() if name not in self.told.kept}
        for name, reason in found.items():
            self._leave_out(name, reason)
        return [profile for profile in kept if profile.name not in found]

    def _is_moment(self, profile: ColumnProfile, origin: str) -> bool:
        """Whether parts of a datetime that was left out are inputs."""
        reason = dict(self.left_out).get(profile.name)
        if reason not in (_MOMENT, _RISES, _SPLIT):
            return False
        known = list(self.coded.values())
        found = guess_moment(self.table, profile, self.sample, known, self.splits, origin)
        if found is not None:
            self.moments[profile.name] = found
            self.left_out.remove((profile.name, reason))
        return found is not None

    def _useless(self, profile: ColumnProfile) -> str | None:
        if profile.missing == profile.rows:
            return "empty in every row"
        if profile.numbers_N is not None and np.isinf(profile.numbers_N).any():
            return "it holds infinity; clip it"
        if profile.name in self.told.kept:
            return None
        if self.splits and profile.name == self.time_column:
            return _SPLIT
        if profile.no_input:
            return profile.no_input
        if profile.vector is not None:
            return profile.vector.problem or None
        if profile.nature == "other":
            kind, reason = (
                self.table[profile.name].type,
                "neither numbers, text, dates nor lists of them",
            )
            if pa.types.is_struct(kind):
                return f"{reason}; what it holds can be columns of their own"
            if pa.types.is_duration(kind):
                return f"{reason}, but a duration; its seconds can be a column of numbers"
            return reason
        if profile.nature != "list" and profile.distinct <= 1 and not profile.missing:
            return "the same value in every row"
        time = time_like(profile)
        if time in (TimeLike.DATES, TimeLike.SINCE_1970):
            return _MOMENT
        if time and self.splits and self._is_over(profile):
            return _RISES if time == TimeLike.RISES else _MOMENT
        if profile.unique_per_row and not _measures(profile):
            return "its value is different in every row"
        return None

    def _is_over(self, profile: ColumnProfile) -> bool:
        """Whether values that rise with time are unlike those of the rows that will be judged.

        Years are not, where rows are drawn at random.
        """
        return self.sample.times_S is not None or not is_coarse(profile)

    @property
    def _read_as_numbers(self) -> set[str]:
        return {name for name, verdict in self.verdicts.items() if verdict.kind == "number"}

    def _leave_out(self, name: str, reason: str) -> None:
        """Leaves out what was an input until now."""
        self.left_out.append((name, reason))
        self.coded.pop(name, None)
        self.verdicts.pop(name, None)

    def _decide(self, kept: list[ColumnProfile], relations: Relations) -> None:
        """Decides what each column is read as."""
        facts = {}
        for profile in kept:
            name = profile.name
            own = self.evidence.get(name)
            clear = self._clear(profile)
            if clear is not None:
                self.verdicts[name] = clear
            elif profile.nature == "real":
                sure = own is not None and own.z_number > SURE and own.share >= 0.5
                self.verdicts[name] = Verdict("number", measured=sure, why="labels" if sure else "")
            else:
                shape = self._shape(name, relations)
                facts[name] = Facts(name, profile.distinct, shape, own, name in relations.keys)
        decided = decide(facts)
        for name, verdict in decided.items():
            coded = self.coded[name]
            rows_V = np.bincount(coded.codes_S, minlength=coded.cells)[: coded.size]
            assert coded.values_V is not None, "only whole numbers are decided of"
            if verdict.kind == "ids" and are_counts(name, coded.values_V, rows_V):
                decided[name] = replace(verdict, counts=True)
        self.unsure = [name for name, verdict in decided.items() if verdict.unsure]
        self.verdicts |= decided

    def _clear(self, profile: ColumnProfile) -> Verdict | None:
        """The kind of a column that nothing need be measured for."""
        if profile.name in self.told.numeric:
            return Verdict("number", why="--numeric")
        if profile.name in self.told.categorical:
            return Verdict("ids", why="--categorical")
        if profile.name == self.group:
            return Verdict("ids", why="the group column")
        if pa.types.is_dictionary(self.table.schema.field(profile.name).type):
            return Verdict("ids", why="its type")
        if _QUANTITY & profile.keys.keys():
            return Verdict("number")
        coded = self.coded.get(profile.name)
        if profile.nature == "real":
            return None
        if profile.nature != "integer" or coded is None or coded.values_V is None:
            return Verdict("ids")
        return Verdict("ids") if profile.distinct <= 2 else None

    def _shape(self, name: str, relations: Relations) -> Shape | None:
        """Describes a column's values, each counted once for all rows of what it follows from."""
        coded = self.coded[name]
        assert coded.values_V is not None
        codes = coded.codes_S
        if name in relations.owner:
            _, firsts = np.unique(self.coded[relations.owner[name]].codes_S, return_index=True)
            codes = codes[firsts]
        counts_V = np.bincount(codes, minlength=coded.cells)[: coded.size]
        light_V = light_values(counts_V)
        if light_V.sum() < _LEAST:
            return None
        return shape_of(coded.values_V[light_V], counts_V[light_V], float(coded.values_V[0]))

    def _copies(self) -> dict[str, str]:
        """Columns to leave out: of ids those with as many names, of numbers those in one order."""
        out = {}
        for name, earlier in copies_of(self.coded).items():
            kinds = {self.verdicts[name].kind, self.verdicts[earlier].kind}
            if name in self.told.kept or kinds == {"ids", "number"}:
                continue
            if kinds == {"number"} and not same_order(self.coded[name], self.coded[earlier]):
                continue
            if name == self.group:
                name, earlier = earlier, name
            if name not in self.told.kept:
                out[name] = f"a copy of {earlier!r}: one to one with it in every row"
        return out

    def _leave_behind(self, relations: Relations) -> None:
        """Leaves out columns that do not carry over to later rows, or keeps them as numbers alone.

        Of columns that follow from no other the evidence was measured forwards.
        Texts that are read as lists stay: their words come again. Where nothing else is left, all
        stay: a config has to train.
        """
        found, lists = {}, {profile.name for profile in self.profiles if profile.separator}
        for name, verdict in self.verdicts.items():
            if name in self.told.kept or name in lists or name not in self.coded:
                continue
            later = None if name in relations.owner else self.evidence.get(name)
            ids = verdict.kind == "ids"
            finding = outdated(self.coded[name], self.sample, ids=ids, later=later)
            if finding is not None:
                found[name] = finding
        if len(found) == len(self.verdicts) and not any(one.as_number for one in found.values()):
            return
        for name, finding in found.items():
            if finding.as_number:
                why = f"what carries over, as {finding.reason}"
                self.verdicts[name] = Verdict("number", why=why)
            else:
                self._leave_out(name, finding.reason)

    def _multiplied(self) -> None:
        """Reads unsure numbers as ids where their products with other ids predict a label.

        Items numbered by how often they come look like a quantity, and tastes that cancel out over
        all users say nothing of one item alone.
        """
        numbers = self._read_as_numbers
        unsure = [name for name in self.unsure if name in self.coded and name in numbers]
        if not unsure:
            return
        strongest = self._strongest()
        over = list(Together(strongest, numbers, self.sample).leftovers())
        for name in unsure:
            together = Together(strongest, numbers - {name}, self.sample)
            product = together.product(over)
            if product is not None and name in product.columns:
                (other,) = set(product.columns) - {name}
                self.verdicts[name] = Verdict("ids", why=f"its products with {other!r}")
                self.unsure.remove(name)

    def _too_rare(self, kept: list[ColumnProfile]) -> dict[str, str]:
        """Finds ids that repeat too rarely to foretell anything beyond the other columns.

        The ids of a survey's weights tell the cell that a row was drawn from, which age and sex
        tell as well; an embedding of each learns its few rows by heart. Where none is frequent and
        the values measure something, the verdict becomes a number.

        Returns:
            Column → the finding in words.
        """
        looked_at = {one.name: one for one in kept if self._may_be_too_rare(one.name)}
        if not looked_at:
            return {}
        others = {n: one for n, one in self._strongest().items() if n not in looked_at}
        over = list(Together(others, self._read_as_numbers, self.sample).leftovers())
        found = {}
        for name, profile in looked_at.items():
            coded = self.coded[name]
            z = Together.beyond(coded, ROWS_PER_ID, over)
            if not over or z > SURE:
                continue
            share = f"{100 * coded.unseen:.0f} % of rows, held out, have unseen ids"
            found[name] = f"{share}, rare ones tell nothing beyond the other columns (z {z:.1f})"
            most = np.bincount(coded.codes_S)[: coded.size].max()
            all_rare = most < ROWS_PER_ID and not self.sampled
            if self.verdicts[name].kind == "ids" and all_rare and _measures(profile):
                self.verdicts[name] = Verdict("number", why=f"its spread, as {found[name]}")
        return found

    def _may_be_too_rare(self, name: str) -> bool:
        """Whether a column may get a table although many ids of held-out rows are not in it."""
        coded, own, verdict = self.coded.get(name), self.evidence.get(name), self.verdicts.get(name)
        if name in self.told.kept or coded is None or own is None or verdict is None:
            return False
        if verdict.kind == "number" and (verdict.why.startswith("--") or own.z_ids <= SURE):
            return False
        return coded.unseen > _RARE

    def _add(self, column: InputColumn, names: Names) -> None:
        profile = column.profile
        name = names.feature(profile.name)
        if profile.name in self.moments:
            moment, reason = self.moments[profile.name]
            update = {"name": name, "column": column.key(name)}
            self._take(moment.model_copy(update=update), reason)
            return
        guessed = column.guess(name, one_value=profile.name in self.told.kept)
        reason = self._all_rare(profile, guessed.feature)
        if reason:
            self._leave_out(profile.name, reason)
            return
        self._take(guessed.feature, guessed.reason)
        if isinstance(guessed.feature, NumericFeature):
            self.numbers.add(profile.name)
        if guessed.beside is not None:
            other, why = guessed.beside
            self._take(column.beside(guessed, names.feature(other)), f"as well: {why}")

    def _all_rare(self, profile: ColumnProfile, feature: FeatureConfig) -> str:
        """Says why ids that never repeat often enough are left out: keys of requests, sessions."""
        encoding = feature.table_encoding
        least = 1 if encoding is None else encoding.least_seen
        if least <= 1 or self.sampled or profile.name in self.told.kept:
            return ""
        counts = pc.value_counts(plain(self.table[profile.name]).drop_null()).field("counts")
        most = pc.max(counts).as_py()
        return f"ids of which none comes {least} times (at most {most})" if most < least else ""

    def _take(self, feature: FeatureConfig, reason: str) -> None:
        self.features.append(feature)
        self.reasons[feature.name] = reason

    def _strongest(self) -> dict[str, Coded]:
        """The columns that predict most, in their order: enough for models of all columns."""
        strength = {
            name: one.strength if (one := self.evidence.get(name)) else 0.0 for name in self.coded
        }
        chosen = set(sorted(self.coded, key=lambda name: -strength[name])[:_STRONGEST])
        return {name: coded for name, coded in self.coded.items() if name in chosen}

    def _read_by_trees(self, over: Sequence[Leftover], names: Names) -> None:
        """Lets boosted trees read all columns, where they find more than crosses of two do.

        Not where later rows are judged: what trees of other rows say of a day is worth less then.
        Two thirds of many rows tell about as much as four fifths, in half of the time.
        """
        if self.sample.times_S is not None:
            return
        many = self.sampled or self.table.num_rows > _MANY_FOR_TREES
        deep = self.together.deep(over, many=many)
        if deep is not None:
            why = f"they predict {deep[0]!r} beyond any sum of columns (z {deep[1]:.0f})"
            feature = TreesFeature(name=names.feature("trees"), folds=3 if many else 5)
            self._take(feature, f"boosted trees: {why}")

    def _read_elapsed(self, names: Names) -> None:
        """Makes the time that the split is made by a number too, where lines through it go on."""
        profile = next((one for one in self.profiles if one.name == self.time_column), None)
        if self.sample.times_S is None or profile is None or not reads_moments(profile):
            return
        if not self.together.extrapolates():
            return
        why = "days that passed, so that a trend goes on in later rows; elapsed: false if not"
        for place, feature in enumerate(self.features):
            if feature.kind == "datetime" and feature.source_columns == [profile.name]:
                self.features[place] = feature.model_copy(update={"elapsed": True})
                self.reasons[feature.name] += f"; {why}"
                return
        if (profile.name, _SPLIT) not in self.left_out:
            return  # the user says what becomes of it
        self.left_out.remove((profile.name, _SPLIT))
        name = names.feature(profile.name)
        self._take(elapsed(profile, name), f"the time that the split is made by; {why}")

    def _cross(self, names: Names) -> None:
        over = list(self.together.leftovers())
        self._read_by_trees(over, names)
        rows = len(self.sample.rows_S)
        self.product = self.together.product(over)
        for cross in self.together.crosses(over):
            left, right = cross.columns
            if self.product is not None and is_rare(cross.pairs, rows):
                continue
            name = names.feature(f"{left}_x_{right}")
            least = least_rows(cross.shrinkage)
            rare = least > 1 and cross.pairs > rows / ROWS_PER_ID
            settings: dict[str, Any] = {"min_count": least} if rare else {}
            feature = CrossFeature(name=name, columns=[left, right], **settings)
            reason = f"together they predict {cross.task!r} (z {cross.z:.0f}), "
            self._take(feature, f"{reason}better than by a sum of both; {cross.pairs} pairs")


def _measures(profile: ColumnProfile) -> bool:
    """Whether whole numbers that never come again may still be a quantity, such as an income.

    Not row numbers (dense), nor keys (evenly spread, large, or named so).
    """
    numbers_N = profile.numbers_N
    if profile.nature != "integer" or numbers_N is None:
        return False
    values_V = np.unique(numbers_N[~np.isnan(numbers_N)])
    if len(values_V) < _LEAST or np.abs(values_V).max() >= 2**53:
        return False
    shape = shape_of(values_V, np.ones(len(values_V), np.int64), float(values_V[0]))
    sound = hint(profile.name)
    if sound > 0 or shape.density > 0.5 or shape.largest >= LARGE_ID:
        return False
    return sound < 0 or shape.negative or shape.uneven > 0.2
