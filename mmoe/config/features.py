"""Features: a kind is a class with its own keys, and a line in `FEATURES`."""

import difflib
import re
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal
from zoneinfo import available_timezones

from pydantic import AfterValidator, Field, model_validator

from mmoe.config.experts import SequenceEncoderConfig
from mmoe.config.kinds import HasKinds, Kinds, Name, OrName
from mmoe.config.tables import ENCODINGS, TableEncoding, TableSettings, VectorTable

NAME_OF_FEATURE = "of the feature, in reports and files of a run"

LEVEL = (
    "with data.requests, whose value it is: request, the same for all candidates of one and "
    "computed once for them; or row. Default: row; with data.requests.candidates that of its column"
)

Level = Literal["request", "row"]
Outside = Literal["clip", "keep"]

Column = Annotated[str | None, Field(description="column in the data; default: the feature's name")]

OUTSIDE = (
    "numbers more than one width of training's range below or above it: clip takes them as that "
    "end, keep as they are; what never varied in training stays what it was either way"
)


class Feature(HasKinds):
    """Feature of any kind, as a run asks for it; a kind overrides what differs.

    It says its `source_columns`, and has a key `name`; `dim` where it looks tables up whose width
    may be chosen; `level` where it may be of a request.
    """

    if TYPE_CHECKING:  # each kind has them at its own place in the run's files
        kind: Any
        name: Any
        dim: Any = None
        level: Any = None

    grows: ClassVar[bool] = False  # whether another feature may read new ids of its column
    makes_numbers: ClassVar[bool] = False  # whether it makes numbers of its columns
    of_single_rows: ClassVar[bool] = False  # whether it cannot read rows that share a request
    derived_are: ClassVar[str] = "parts"  # what `derived_names` are names of, in an error

    @property
    def asked_level(self) -> Level | None:
        """Its key `level`; None where it has none, or leaves it to the data."""
        return self.level if "level" in type(self).model_fields else None

    @property
    def source_columns(self) -> list[str]:
        """Names of all columns that it is read from."""
        raise NotImplementedError

    @property
    def text_columns(self) -> list[str]:
        """Names of those whose text it reads in a way of its own, so that it has to stay text."""
        return []

    @property
    def derived_names(self) -> list[str]:
        """Names of further features and tables that it makes."""
        return []

    @property
    def table_names(self) -> list[str]:
        """Names of the embedding tables that it looks up."""
        return self.derived_names

    @property
    def id_columns(self) -> int:
        """Number of columns that one of its ids is made of."""
        return 1

    @property
    def missing_texts(self) -> set[str] | None:
        """Texts that are missing numbers in its columns alone; None: it makes no numbers."""
        words = dict(self).get("missing_values", ())
        return {str(value).strip() for value in words} if self.makes_numbers else None

    @property
    def table_encoding(self) -> TableEncoding | None:
        """Encoding of its ids to rows; None: it has none, or not of its own."""
        return None

    @property
    def known_elsewhere(self) -> Sequence[str]:
        """Tables whose ids count as unseen here, since other features look them up."""
        return ()

    def check_tables(self, shared: Collection[str]) -> None:
        """Refuses tables under `tables` that it does not go with."""

    def check_among(self, features: "Sequence[Feature]") -> None:
        """Refuses features of a run, this one among them, that it does not go with."""


class ColumnFeature(Feature):
    """A feature of one column: that of its key `column`, or of its own name."""

    if TYPE_CHECKING:
        column: Any

    @property
    def source_column(self) -> str:
        """Name of the column that it is read from."""
        return self.column or self.name

    @property
    def source_columns(self) -> list[str]:
        """Names of all columns that it is read from."""
        return [self.source_column]


PaddingValue = int | float | str


class PaddedLists(Feature):
    """Keys that say which items of a padded list are padding: a value, a length or a mask.

    Only the run at one end is padding; it is removed before lists are cut to `max_length`.
    """

    padding: PaddingValue | list[PaddingValue] | None = Field(
        default=None,
        description="a value, or several, that lists are padded with; removed at one end alone; "
        '"" stands for items that are empty',
    )
    padding_side: Literal["left", "right"] | None = Field(
        default=None,
        description="the end with the padding; default: either one, and a row with padding at both "
        "ends is refused",
    )
    length: str | None = Field(
        default=None, description="column with the number of items that are no padding"
    )
    mask: str | None = Field(
        default=None,
        description="column of lists with a 1 for each item, and a 0 where it is padding",
    )

    @property
    def weight_mark(self) -> str | None:
        """Separator of an item and its weight in text; None: there are no weights."""
        return None

    @property
    def padding_values(self) -> list[PaddingValue]:
        """The values of `padding`, [] where there are none."""
        if self.padding is None:
            return []
        return self.padding if isinstance(self.padding, list) else [self.padding]

    @property
    def padding_columns(self) -> list[str]:
        """Names of the columns that say which items are padding."""
        return [column for column in (self.length, self.mask) if column is not None]

    def _ensure_one_way_to_say_it(self) -> None:
        said = [key for key in ("padding", "length", "mask") if getattr(self, key) is not None]
        if len(said) > 1:
            raise ValueError(
                f"{' and '.join(said)} each say which items are padding; remove all but one"
            )
        if self.padding == []:
            raise ValueError("padding names no value; name one, or remove it")
        if self.padding_side is not None and not said:
            raise ValueError(
                "padding_side has no effect without padding, length or mask; add one of them, or "
                "remove it"
            )


class NumericFeature(ColumnFeature):
    """A number: scaled, and if asked its quantile bucket's embedding and its pieces as well."""

    makes_numbers = True
    derived_are: ClassVar[str] = "buckets"

    kind: Literal["numeric"] = "numeric"
    name: Name = Field(description=NAME_OF_FEATURE)
    column: Column = None
    log: bool = Field(default=False, description="sign(x)·log(1 + |x|) before scaling")
    standardise: bool = Field(
        default=True, description="zero mean, unit variance on the training split"
    )
    buckets: int = Field(
        default=0,
        ge=0,
        le=10_000,
        description="quantile buckets embedded beside the number; 0 = none",
    )
    dim: int | None = Field(
        default=None, ge=4, le=4096, multiple_of=4, description="width of the bucket embedding"
    )
    # A position among 1,000 keeps 14 bits behind the point as float32
    pieces: int | None = Field(
        default=None,
        ge=2,
        le=1000,
        description="piecewise linear encoding beside the number: a column for each piece between "
        "quantiles, from −0.5 to 0.5 as the number goes through it",
    )
    decimal: Literal[".", ","] = Field(
        default=".", description="decimal mark of numbers in text: `,` in 1.234,50"
    )
    thousands: Literal[",", ".", " ", "'"] | None = Field(
        default=None,
        description="what parts thousands of numbers in text: `,` in 1,234.50; ' ' is any blank",
    )
    unit: str | None = Field(
        default=None,
        min_length=1,
        description="before or behind numbers in text: $, EUR, kg; a number may go without it, but "
        "not without %",
    )
    missing_values: list[int | float | str] = Field(
        default=[], description="numbers and words that mean a missing value: [-999, unknown]"
    )
    outside: Outside = Field(default="clip", description=OUTSIDE)
    level: Level | None = Field(default=None, description=LEVEL)

    @property
    def text_columns(self) -> list[str]:
        """Its column, where a key says how its text is read."""
        written = (self.decimal, self.thousands, self.unit) != (".", None, None)
        return [self.source_column] if written else []

    @property
    def derived_names(self) -> list[str]:
        """Name of the feature and table that embed the number's bucket."""
        return [f"{self.name}__bucket"] if self.buckets else []

    def _ensure_marks_differ(self) -> None:
        if self.decimal == self.thousands:
            raise ValueError(
                f"decimal and thousands are both {self.decimal!r}; a number such as 1,234.50 has "
                "decimal: '.' and thousands: ','"
            )
        if self.unit is not None and (any(map(str.isdigit, self.unit)) or not self.unit.strip()):
            raise ValueError(f"unit {self.unit!r}: expected what is no number, such as $ or kg")


Part = Literal[
    "minute", "hour", "weekday", "hour_of_week", "day", "day_of_year", "week", "month", "quarter"
]
TimeUnit = Literal["s", "ms", "us", "ns"]

_NO_ZONES = {"localtime", "Factory"}  # another one on every machine; none

# Directives of strptime that mean the same on every machine
_DIRECTIVES = "aAbBdmyYHIpMSfzj%"

_PROBE = datetime(2024, 11, 24, 13, 5, 9, tzinfo=UTC)


def _says_a_day(form: str) -> str:
    """Refuses a format that leaves year, month or day open."""
    mend = "write such as %d/%m/%Y, %m/%d/%Y %H:%M or %Y%m%d"
    for directive in re.findall(r"%(.?)", form):
        if directive not in _DIRECTIVES or not directive:
            known = " ".join(f"%{one}" for one in _DIRECTIVES)
            raise ValueError(
                f"format {form!r} holds %{directive}, expected of strptime's directives {known}; "
                f"{mend}"
            )
    try:
        read = datetime.strptime(_PROBE.strftime(form), form)
    except (ValueError, re.error) as error:
        raise ValueError(f"format {form!r} cannot be read ({error}); {mend}") from None
    if read.date() != _PROBE.date():
        raise ValueError(f"format {form!r} leaves year, month or day open; {mend}")
    return form


# How text says a datetime, in strptime's directives
DatetimeFormat = Annotated[str, AfterValidator(_says_a_day)]


def _is_a_zone(name: str) -> str:
    if name == "UTC":  # also where no time zones are installed
        return name
    known = available_timezones() - _NO_ZONES
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise ValueError(
            f"there is no time zone {name!r}{hint}; expected a name of the IANA database, such as "
            "Europe/Berlin"
        )
    return name


class DatetimeFeature(ColumnFeature):
    """Parts of a datetime: hour, weekday, …, each looked up in a small table of its own.

    The datetime itself may be a number beside them, by which what rises or falls goes on.
    """

    makes_numbers = True

    kind: Literal["datetime"] = "datetime"
    name: Name = Field(description="of the feature, in reports and files of a run")
    column: Column = None
    parts: list[Part] = Field(default=[], description="each becomes a feature NAME__PART")
    elapsed: bool = Field(
        default=False,
        description="days that have passed as a number as well: what rises or falls in training "
        "goes on in later rows, for a quarter of its length",
    )
    timezone: Annotated[str, AfterValidator(_is_a_zone)] = Field(
        default="UTC",
        description="whose clock and calendar are read, such as Europe/Berlin; datetimes without a "
        "zone are UTC, dates stay the days they are",
    )
    unit: TimeUnit | None = Field(
        default=None, description="of numbers since 1970; text and timestamps say it themselves"
    )
    format: DatetimeFormat | None = Field(
        default=None,
        description="how text (or a number such as 20231124) says it, such as %d/%m/%Y %H:%M in "
        "strptime's directives; default: ISO 8601",
    )
    missing_values: list[str] = Field(
        default=[], description="words that mean a missing value, such as 0000-00-00"
    )
    cyclic: bool = Field(
        default=False, description="sine and cosine of each part as inputs as well"
    )
    dim: int | None = Field(
        default=None, ge=4, le=4096, multiple_of=4, description="width of each embedding"
    )
    level: Level | None = Field(default=None, description=LEVEL)

    @property
    def text_columns(self) -> list[str]:
        """Its column, where `format` says how its text is read."""
        return [self.source_column] if self.format is not None else []

    @property
    def derived_names(self) -> list[str]:
        """Names of the features and tables of its parts."""
        return [f"{self.name}__{part}" for part in self.parts]

    @property
    def elapsed_name(self) -> str:
        """Name of the number of days that passed."""
        return f"{self.name}__elapsed"

    def check_among(self, features: Sequence[Feature]) -> None:
        """Refuses another feature of the name of its number.

        Raises:
            ValueError: There is one.
        """
        if self.elapsed and self.elapsed_name in {feature.name for feature in features}:
            raise ValueError(
                f"the days that passed of feature {self.name!r} are called {self.elapsed_name}; "
                "give the feature of that name another name"
            )

    def _ensure_one_way_to_read(self) -> None:
        if self.unit is not None and self.format is not None:
            raise ValueError(
                "unit (of numbers since 1970) and format (of text) both say how the column is "
                "read; remove one of them"
            )

    def _ensure_parts_differ(self) -> None:
        for part in self.parts:
            if self.parts.count(part) > 1:
                raise ValueError(f"parts names {part!r} twice; remove one of them")

    def _ensure_something_is_read(self) -> None:
        if not (self.parts or self.elapsed):
            raise ValueError("parts is empty; name one, such as hour, or set elapsed: true")


class IdFeature(TableSettings, Feature):
    """Base of features that look ids up: in a table of their own, or a shared one."""

    name: Name = Field(description=NAME_OF_FEATURE)
    table: Name | None = Field(default=None, description="a table of `tables` to share")

    @property
    def table_name(self) -> str:
        """Name of the table that is looked up."""
        return self.table or self.name

    @property
    def table_names(self) -> list[str]:
        """Names of the tables that are looked up: one."""
        return [self.table_name]

    def check_tables(self, shared: Collection[str]) -> None:
        """Refuses a shared table that is not under `tables`, and an own one that is.

        Raises:
            ValueError: Names the table, and those that there are.
        """
        if self.table is not None and self.table not in shared:
            raise ValueError(
                f"feature {self.name!r} names the table {self.table!r}, which is not "
                f"under `tables`; there: {', '.join(sorted(shared)) or 'none'}"
            )
        if self.table is None and self.name in shared:
            raise ValueError(
                f"feature {self.name!r} and a shared table have the same name; "
                f"rename the table, or say `table: {self.name}` in the feature"
            )

    @model_validator(mode="after")
    def _settings_belong_to_the_table(self) -> "IdFeature":
        if self.table is not None:
            encoding = self.table_encoding
            inline = ["encoding"] * (encoding.encoding != ENCODINGS.default)
            inline += encoding.model_dump(exclude_defaults=True)
            keys = ("dim", "learning_rate", "vectors")
            inline += [key for key in keys if getattr(self, key, None) is not None]
            if inline:
                raise ValueError(
                    f"feature {self.name!r} uses the shared table {self.table!r}, so "
                    f"{', '.join(inline)} must be set on that table under `tables`"
                )
        return self


class CategoricalFeature(VectorTable, IdFeature, ColumnFeature):
    """One id (integer or string) a row."""

    grows = True

    kind: Literal["categorical"] = "categorical"
    column: Column = None
    beyond: list[str] = Field(
        default_factory=list,
        description="written by `mmoe train` with training.extend_ids: tables whose ids have no "
        "row here, but share that of unseen ones",
    )
    level: Level | None = Field(default=None, description=LEVEL)

    @property
    def known_elsewhere(self) -> Sequence[str]:
        """Tables named by `beyond`."""
        return self.beyond


class ListFeature(PaddedLists, CategoricalFeature):
    """Any number of ids a row, pooled into one embedding, with a weight for each if there are.

    Without weights the embedding is Σ e (sum) or Σ e / n (mean); with weights w, none of them
    negative, Σ w·e or Σ w·e / Σ w, and 0 where all weights are 0.
    """

    kind: Literal["list"] = "list"  # type: ignore[assignment]  # pydantic discriminator
    pooling: Literal["sum", "mean"] = Field(
        default="mean", description="what becomes of a row's embeddings"
    )
    separator: str = Field(
        default="|", min_length=1, description="between ids where the column is text"
    )
    format: Literal["separated", "json"] = Field(
        default="separated",
        description="of lists in text: items with the separator between them, or lists as JSON, "
        'Python or NumPy write them: ["a", "b"], [1 2]',
    )
    max_length: int | None = Field(
        default=None, ge=1, le=2**31 - 1, description="most ids kept of a list"
    )
    keep: Literal["first", "last"] = Field(
        default="first", description="which ids of a list that is longer than max_length"
    )
    weights: str | None = Field(
        default=None,
        description="column with a number for each id: lists, or text with the same separator",
    )
    weight_separator: str | None = Field(
        default=None, min_length=1, description="between an id and its weight: `sports:0.7`"
    )

    outside: Outside = Field(
        default="clip",
        description="of weights, and of the number of ids that a sum is over: " + OUTSIDE,
    )

    @property
    def weight_mark(self) -> str | None:
        """Separator given as `weight_separator`."""
        return self.weight_separator

    @property
    def weighted(self) -> bool:
        """Whether every id has a weight."""
        return self.weights is not None or self.weight_separator is not None

    @property
    def source_columns(self) -> list[str]:
        """Names of the column of ids, and of those of weights and of padding."""
        weights = [self.weights] if self.weights is not None else []
        return [self.source_column, *weights, *self.padding_columns]

    def _ensure_list_keys_agree(self) -> None:
        if self.keep == "last" and self.max_length is None:
            raise ValueError(
                "keep is last, but no list is cut without max_length; say max_length, or remove "
                "keep"
            )
        if self.outside == "keep" and not self.weighted and self.pooling == "mean":
            raise ValueError("outside is keep, but a mean has no weights here; remove outside")
        if self.weights is not None and self.weight_separator is not None:
            raise ValueError(
                "weights and weight_separator both say where the weights are; remove one of them"
            )
        if self.weights is not None and self.weights == self.source_column:
            raise ValueError(
                f"weights names the column of the ids, {self.weights!r}; name the column of "
                "numbers, or say weight_separator where ids and weights share a column"
            )
        if self.weight_separator is not None and self.separator in self.weight_separator:
            raise ValueError(
                f"weight_separator {self.weight_separator!r} holds the separator "
                f"{self.separator!r}, so lists would be cut inside their items; use another"
            )


class CrossFeature(IdFeature):
    """The ids of several columns together as one id: user × hour, ad × position.

    It is missing where one of its columns is. The order of the columns matters.
    """

    kind: Literal["cross"] = "cross"
    columns: list[str] = Field(min_length=2, max_length=16, description="two or more")
    level: Level | None = Field(default=None, description=LEVEL)

    @property
    def source_columns(self) -> list[str]:
        """Names of all columns that it is read from."""
        return self.columns

    @property
    def id_columns(self) -> int:
        """Number of columns that one of its ids is made of: all."""
        return len(self.columns)

    def _ensure_columns_differ(self) -> None:
        for column in self.columns:
            if self.columns.count(column) > 1:
                raise ValueError(f"columns names {column!r} twice; a cross needs different ones")


class SequenceFeature(PaddedLists):
    """Events of the past in the order of time, encoded with a look at the target.

    An event is its ids side by side, one of each column. Columns and targets go together one by
    one, and share the targets' tables.
    """

    derived_are: ClassVar[str] = "events"

    kind: Literal["sequence"] = "sequence"
    name: Name = Field(description=NAME_OF_FEATURE)
    columns: list[str] = Field(
        min_length=1,
        max_length=16,
        description="columns of lists, of one length in each row: the events' items, categories, …",
    )
    target: list[Name] | None = Field(
        default=None,
        description="for each column the categorical feature that says the same of the candidate, "
        "whose table it shares; without it each column has a table of its own",
    )
    times: str | None = Field(
        default=None,
        description="column of lists with the events' times, which never run backwards: the time "
        "since then is embedded, in 64 buckets that grow by √2, and added to the event",
    )
    now: str | None = Field(
        default=None, description="column with the row's own time; default: that of the last event"
    )
    unit: TimeUnit | None = Field(
        default=None,
        description="of times that are numbers, s if left out; timestamps and text say it "
        "themselves",
    )
    max_length: int = Field(default=200, ge=1, le=100_000, description="the latest events are kept")
    newest: Literal["last", "first"] = Field(
        default="last", description="where the newest event of a list is"
    )
    separator: str = Field(
        default="|", min_length=1, description="between items where the column is text"
    )
    format: Literal["separated", "json"] = Field(
        default="separated", description="of lists in text, as that of a list feature"
    )
    encoder: OrName[SequenceEncoderConfig] = Field(
        default=SequenceEncoderConfig(),
        description="what makes a vector of events; a bare name is short for {kind: name}",
    )
    unpooled: int = Field(
        default=0,
        ge=0,
        le=256,
        description="so many of the latest events are read as they are beside that vector, side by "
        "side, zeros where there are fewer",
    )
    level: Level | None = Field(default=None, description=LEVEL)

    @property
    def source_columns(self) -> list[str]:
        """Names of the columns of events and times, of the row's time, and of padding."""
        times = [name for name in (self.times, self.now) if name is not None]
        return [*self.columns, *times, *self.padding_columns]

    @property
    def event_names(self) -> list[str]:
        """Names of what is looked up for each column; its number too where letters are not enough.

        Example:
            >>> SequenceFeature(name="h", columns=["item", "商品", "类目"]).event_names
            ['h__item', 'h_____2', 'h_____3']
        """
        cleaned = [re.sub("[^A-Za-z0-9_-]", "_", column) for column in self.columns]
        taken = set(cleaned)
        names = list(cleaned)
        for index, name in enumerate(cleaned):
            if cleaned.count(name) > 1:
                numbered = f"{name}_{index + 1}"
                while numbered in taken:
                    numbered += "_"
                taken.add(numbered)
                names[index] = numbered
        return [f"{self.name}__{name}" for name in names]

    @property
    def gap_name(self) -> str:
        """Name of the table of times since an event."""
        return f"{self.name}__gap"

    @property
    def derived_names(self) -> list[str]:
        """Names of the events, and of the times since them."""
        return [*self.event_names, *([self.gap_name] if self.times is not None else [])]

    @property
    def table_names(self) -> list[str]:
        """Names of its own tables: times, and events that no target shares its table with."""
        own = [] if self.target is not None else self.event_names
        return [*own, *([self.gap_name] if self.times is not None else [])]

    def check_among(self, features: Sequence[Feature]) -> None:
        """Refuses targets that are no features of one id a row.

        Raises:
            ValueError: Names the target, and features that could be one.
        """
        known = {feature.name: feature for feature in features}
        usable = [
            name
            for name, feature in known.items()
            if isinstance(feature, CategoricalFeature) and not isinstance(feature, ListFeature)
        ]
        for target in self.target or ():
            if target not in usable:
                found = known.get(target)
                what = "which is no feature" if found is None else f"which is of kind {found.kind}"
                raise ValueError(
                    f"feature {self.name!r} has the target {target!r}, {what}; expected one of "
                    f"kind categorical, with the candidate's id: {', '.join(usable) or 'add one'}"
                )

    def _ensure_keys_agree(self) -> None:
        for column in self.columns:
            if self.columns.count(column) > 1:
                raise ValueError(f"columns names {column!r} twice; an event has each column once")
        if self.target is not None and len(self.target) != len(self.columns):
            raise ValueError(
                f"target names {len(self.target)} features and columns {len(self.columns)} "
                "columns, but they go together one by one; name as many"
            )
        if self.encoder.reads_target and self.target is None:
            raise ValueError(
                f"encoder {self.encoder.kind} looks at events from the candidate's side, so it "
                "needs `target`: the features with the candidate's ids; add it, or say encoder: "
                "mean"
            )
        if self.now is not None and self.times is None:
            raise ValueError("now is the time up to which `times` are counted; add times")
        if self.unit is not None and self.times is None:
            raise ValueError("unit is that of `times`; add times, or remove unit")


class VectorFeature(ColumnFeature):
    """A list of numbers, as many in every row: a pretrained embedding."""

    makes_numbers = True

    kind: Literal["vector"] = "vector"
    name: Name = Field(description=NAME_OF_FEATURE)
    column: Column = None
    standardise: bool = Field(
        default=True,
        description="zero mean of each number on the training split, and one variance for all: "
        "1 / √length",
    )
    dim: int | None = Field(
        default=None,
        ge=1,
        le=4096,
        description="width that a linear layer projects the vector to; left out: it is read as "
        "it is",
    )
    outside: Outside = Field(default="clip", description=OUTSIDE)
    level: Level | None = Field(default=None, description=LEVEL)


class TreesFeature(Feature):
    """What boosted trees of all other features say: a number for each task, of trees of other rows.

    They find what holds together in three or four columns. Not with data.requests.
    """

    makes_numbers = True
    of_single_rows = True

    kind: Literal["trees"] = "trees"
    name: Name = Field(description=NAME_OF_FEATURE)
    trees: int = Field(
        default=200, ge=1, le=1000, description="at most; fewer where held-out rows gain no more"
    )
    leaves: int = Field(default=31, ge=2, le=32, description="of a tree, at most")
    learning_rate: float = Field(default=0.1, gt=0, le=1, description="of boosting")
    folds: int = Field(
        default=5,
        ge=2,
        le=16,
        description="parts of the training rows, each told by trees that have not seen it; other "
        "rows get the mean of all trees",
    )

    @property
    def source_columns(self) -> list[str]:
        """None of its own: it reads what the others become."""
        return []

    def check_among(self, features: Sequence[Feature]) -> None:
        """Refuses it alone.

        Raises:
            ValueError: There is no other feature to read.
        """
        if all(feature.kind == self.kind for feature in features):
            raise ValueError(f"feature {self.name!r} reads the others, but there are none; add one")


class _Features(Kinds[Feature]):
    """Kinds of features; each is implemented by a `Codec`."""

    def add(self, kind: str, config_class: type[Feature], implementation: Any) -> None:
        """Makes a kind of feature known.

        Raises:
            ValueError: There is such a kind, or the class is not one of a feature of this name.
        """
        if isinstance(config_class, type) and issubclass(config_class, Feature):
            lacks = "" if "name" in config_class.model_fields else "key `name`"
            if config_class.source_columns is Feature.source_columns:
                lacks = "property `source_columns`, the columns that it is read from"
            if lacks:
                raise ValueError(
                    f"feature {kind!r}: {config_class.__name__} has no {lacks}; add it"
                )
        super().add(kind, config_class, implementation)


# Config class → codec; what is not imported here needs NumPy and PyArrow
FEATURES = _Features("feature", Feature)
FEATURES.add("numeric", NumericFeature, "mmoe.datasets.features.numeric:NumericCodec")
FEATURES.add("categorical", CategoricalFeature, "mmoe.datasets.features.ids:CategoricalCodec")
FEATURES.add("list", ListFeature, "mmoe.datasets.features.list:ListCodec")
FEATURES.add("cross", CrossFeature, "mmoe.datasets.features.cross:CrossCodec")
FEATURES.add("datetime", DatetimeFeature, "mmoe.datasets.features.datetime:DatetimeCodec")
FEATURES.add("sequence", SequenceFeature, "mmoe.datasets.features.sequence:SequenceCodec")
FEATURES.add("vector", VectorFeature, "mmoe.datasets.features.vector:VectorCodec")
FEATURES.add("trees", TreesFeature, "mmoe.datasets.features.trees:TreesCodec")


FeatureConfig = Feature  # of any kind that there is
