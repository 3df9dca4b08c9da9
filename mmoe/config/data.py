"""Data of a run: where rows come from, when they happened, and how they are split."""

import re
from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from mmoe.config.features import DatetimeFormat, Feature, TimeUnit
from mmoe.config.kinds import Strict

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_LONGEST = 36_500 * _SECONDS["d"]  # far below where microseconds leave 64 bits
_WRITTEN = re.compile(r"\s*(\d{1,12}(?:\.\d{1,9})?)\s*([smhdw])\s*")


def _is_window(given: Any) -> str:
    """Refuses what is no number with a unit, in words that say how one is written."""
    found = _WRITTEN.fullmatch(given) if isinstance(given, str) else None
    if found is None:
        raise ValueError(
            f"expected a number with a unit (s, m, h, d or w), such as 7d or 36h, got {given!r}"
        )
    if not 0 < float(found[1]) * _SECONDS[found[2]] <= _LONGEST:
        raise ValueError(f"expected more than 0s and at most 36500d, got {given!r}")
    return f"{found[1]}{found[2]}"


def microseconds(window: str) -> int:
    """Returns the length of a window in microseconds.

    Example:
        >>> microseconds("90m") == 90 * 60 * 1_000_000
        True
    """
    found = _WRITTEN.fullmatch(window)
    assert found is not None, "a config holds no others"
    return round(float(found[1]) * _SECONDS[found[2]] * 1_000_000)


def _as_text(given: Any) -> Any:
    """YAML reads 2024-01-31 as a date, and 2024-01-31T00:00:00 as a datetime."""
    return given.isoformat() if isinstance(given, date) else given


def _is_moment(text: str) -> str:
    try:
        moment_of(text)
    except ValueError:
        raise ValueError(f"expected a datetime such as 2024-01-31T00:00, got {text!r}") from None
    return text


def moment_of(text: str) -> int:
    """Returns microseconds since 1970 of a datetime in ISO 8601; without a zone it is UTC.

    Raises:
        ValueError: It is none.

    Example:
        >>> moment_of("1970-01-02T00:00"), moment_of("1970-01-01T01:00+01:00")
        (86400000000, 0)
    """
    read = datetime.fromisoformat(text.strip())
    since = (read if read.tzinfo else read.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


Window = Annotated[str, BeforeValidator(_is_window)]
Moment = Annotated[str, BeforeValidator(_as_text), AfterValidator(_is_moment)]


class TimeConfig(Strict):
    """Times of rows and of their labels' collection: for `matures_after` of tasks."""

    column: str | None = Field(
        default=None,
        min_length=1,
        description="of each row's time; default: the column of a split by time or day",
    )
    unit: TimeUnit | None = Field(
        default=None,
        description="of numbers since 1970; default: told by their size, from 1973 on; text and "
        "timestamps say it themselves",
    )
    format: DatetimeFormat | None = Field(
        default=None,
        description="how text (or a number such as 20231124) says it, such as %d/%m/%Y %H:%M; "
        "default: that of the split where the column is the split's, else ISO 8601",
    )
    as_of: Moment | None = Field(
        default=None,
        description="when the labels were collected, such as 2024-01-31T00:00 (UTC); default: the "
        "newest time of all rows",
    )

    def _ensure_one_way_to_read(self) -> None:
        if self.unit is not None and self.format is not None:
            raise ValueError(
                "unit (of numbers since 1970) and format (of text) both say how the column is "
                "read; remove one of them"
            )


Paths = str | list[str]
RepeatedRows = Literal["keep", "drop", "together"]
Day = Annotated[str, BeforeValidator(str)]  # YAML reads 2024-01-31 as a date, 7 as a number


class SplitConfig(Strict):
    """Split of rows: those that train, choose the checkpoint, and are reported.

    `random` permutes the rows with `split_seed`; `hash` keeps all rows of one key together; `time`
    trains on the past and tests on the future; `day` trains on some days and tests on others;
    `file` reads data.train, data.validation, data.test.
    """

    by: Literal["random", "hash", "time", "day", "file"] = Field(
        default="random", description="what decides which rows a split has"
    )
    column: str | None = Field(default=None, description="the key (hash) or the time (time, day)")
    format: DatetimeFormat | None = Field(
        default=None,
        description="time, day: how the column's text (or 20231124) says it, such as "
        "%d/%m/%Y %H:%M; default: ISO 8601, or numbers",
    )
    validation: float = Field(
        default=0.1, gt=0, lt=1, description="share of the rows (day: of those of train_days)"
    )
    test: float = Field(default=0.1, gt=0, lt=1, description="share of the rows (day: not used)")
    train_days: list[Day] | None = Field(
        default=None, description="day: 2024-01-31 (datetimes are cut at midnight UTC), or numbers"
    )
    test_days: list[Day] | None = Field(default=None, description="day: as train_days")

    def _ensure_consistent(self) -> None:
        taken_by = {
            "column": ("hash", "time", "day"),
            "format": ("time", "day"),
            "train_days": ("day",),
            "test_days": ("day",),
        }
        for key, kinds in taken_by.items():
            value = getattr(self, key)
            if self.by not in kinds and value is not None:
                raise ValueError(f"split by {self.by} takes no `{key}`; remove it")
            if self.by in kinds and value in (None, []) and key != "format":
                such_as = "" if key == "column" else ", such as [2024-01-31]"
                raise ValueError(f"split by {self.by} needs `{key}`{such_as}")
        if shared := set(self.train_days or ()) & set(self.test_days or ()):
            raise ValueError(f"{min(shared)} is among train_days and test_days; choose one")
        if self.validation + self.test >= 1:
            raise ValueError("validation + test must leave rows to train on (be below 1)")


class StreamingConfig(Strict):
    """Streaming of rows from files that do not fit into memory.

    Row groups come in another order in every epoch, a few side by side; their rows fill a buffer
    and leave it in random order. Reading and encoding go on in the background.
    """

    shuffle_buffer_rows: int = Field(
        default=131_072,
        ge=1,
        description="rows mixed with each other (rounded up to whole batches); while they are "
        "trained on, as many are made ready: memory holds the encoded features of both",
    )
    interleave: int = Field(
        default=4,
        ge=1,
        description="row groups (or whole files of another kind) read side by side: the more, the "
        "better rows are mixed that lie far apart, and the more files are open",
    )
    chunk_rows: int = Field(
        default=16_384, ge=1, le=2**31 - 1, description="rows decoded and encoded at a time"
    )
    read_ahead_batches: int = Field(
        default=4, ge=1, description="batches that wait ready for the training step"
    )
    lanes: int = Field(
        default=1,
        ge=1,
        le=4096,
        description="parts that an epoch's rows are cut into, each read apart, with its part of "
        "buffer and interleave: as many ranks (torchrun) or fewer read their own ones; more read "
        "the same rows. Batches depend on this number, never on that of the ranks; rows are those "
        "in memory with 1 alone. Row groups should be many more: two lanes may decode one",
    )
    above_mb: int = Field(
        default=2048,
        ge=0,
        description="input: auto streams when the columns used hold more megabytes than this "
        "(Parquet and Arrow: decompressed; CSV: the files)",
    )


class RequestsConfig(Strict):
    """Rows that are candidates of one request, whose user and context they share.

    Features with `level: request` are read, looked up and computed once for all of them.
    """

    column: str | None = Field(
        default=None, description="a row is a candidate: the column that says of which request"
    )
    candidates: str | None = Field(
        default=None,
        description="a row of the files is a request: the column with the list of its candidates, "
        "structs whose fields are columns as others are (Parquet, Arrow, JSON lines, DataFrames)",
    )
    exact: bool = Field(
        default=False,
        description="score bit for bit what the same rows get without requests; some layers are "
        "then computed for each row",
    )

    def _ensure_one_of_both(self) -> None:
        if (self.column is None) == (self.candidates is None):
            both = "both are set" if self.column is not None else "neither is set"
            raise ValueError(
                f"expected column (a row is a candidate) or candidates (a row is a request), but "
                f"{both}; set one of them"
            )

    def check_among(self, features: Sequence[Feature]) -> None:
        """Refuses features where none can be a request's, or one needs rows of its own.

        Raises:
            ValueError: None of them can be, or one reads single rows.
        """
        alone = next((feature for feature in features if feature.of_single_rows), None)
        if alone is not None:
            raise ValueError(
                f"feature {alone.name!r}: {alone.kind} read single rows, not data.requests; "
                "remove one of them"
            )
        levels = [feature.asked_level for feature in features]
        if "request" not in levels and (self.column is not None or None not in levels):
            raise ValueError(NOTHING_SHARED)


NOTHING_SHARED = (
    "data.requests is set, but no feature is of a request, so nothing would be computed once for "
    "its candidates; say level: request in features of user and context, or remove data.requests"
)

# What pandas, Spark and databases write for what is missing: all that `pandas.read_csv` takes so
MISSING_WORDS = (
    "NA", "N/A", "n/a", "#N/A", "#N/A N/A", "#NA", "nan", "NaN", "NAN", "-nan", "-NaN", "null",
    "NULL", "Null", "None", "none", "<NA>", "\\N", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN",
)  # fmt: skip


def check_column_names(names: list[str]) -> list[str]:
    """Returns the names.

    Raises:
        ValueError: There is none, one is empty, or one comes twice.
    """
    if not names:
        raise ValueError("expected the names of all columns, such as a,b,c")
    for place, name in enumerate(names):
        if not name.strip():
            raise ValueError(f"column {place + 1} has no name; name every column")
        if name in names[:place]:
            raise ValueError(f"{name!r} comes twice; give each column a name of its own")
    return names


def check_delimiter(delimiter: str) -> str:
    """Returns what parts cells; a tab may be written as a backslash and a t.

    Raises:
        ValueError: It is empty, or holds a quote or an end of line.
    """
    delimiter = delimiter.replace("\\t", "\t")
    if not delimiter or any(character in '"\r\n\0' for character in delimiter):
        raise ValueError(f"expected characters without quotes or ends of lines, got {delimiter!r}")
    return delimiter


def check_encoding(encoding: str) -> str:
    """Returns the name of an encoding.

    Raises:
        ValueError: Python knows no encoding of text of that name.
    """
    try:
        "".encode(encoding)
    except (LookupError, ValueError):
        raise ValueError(
            f"expected an encoding of text, such as latin-1, cp1252 or utf-16, got {encoding!r}"
        ) from None
    return encoding


ColumnNames = Annotated[list[str], Field(min_length=1), AfterValidator(check_column_names)]
Delimiter = Annotated[str, Field(min_length=1, max_length=20), AfterValidator(check_delimiter)]


class DataConfig(Strict):
    """`source: files` reads `path` (or train, validation, test); other sources are bundled."""

    source: str = Field(
        default="files",
        description="files, or a bundled source: synthetic-funnel, census-income, hillstrom",
    )
    path: Paths | None = Field(
        default=None,
        description="file, folder, glob or fsspec address; CSV or JSON lines (.gz, .bz2, .zip), "
        "Parquet or Arrow; or a Delta or Iceberg table, FOLDER@12 at version 12",
    )
    column_names: ColumnNames | None = Field(
        default=None,
        description="of CSV files that have no header line: what their columns are called, in "
        "order; a first line of just these names is a header all the same",
    )
    delimiter: Delimiter | None = Field(
        default=None,
        description="between cells of CSV files, such as '::'; \\t is a tab. Where it has several "
        "characters, quotes are characters like any other; null: a comma, tab, semicolon or bar, "
        "by the first line",
    )
    encoding: Annotated[str, AfterValidator(check_encoding)] | None = Field(
        default=None,
        description="of the text of CSV files, as Python calls it: latin-1, cp1252, utf-16; null: "
        "UTF-8",
    )
    header: bool | None = Field(
        default=None,
        description="whether the first line of CSV files has the columns' names: false: it is a "
        "row, and without column_names the columns are column_1, column_2, …; true: it has, and "
        "column_names replace them; null: it has, unless column_names are others",
    )
    missing_words: list[str] | None = Field(
        default=[*MISSING_WORDS],
        description="cells of text that mean a missing value, like empty ones: in features, items "
        "of lists, labels and keys, on every road by which rows come; blanks around text do not "
        "count. null: ids keep them, numbers know those",
    )
    train: Paths | None = Field(
        default=None, description="as path, for the training rows: where the files are the split"
    )
    validation: Paths | None = Field(
        default=None, description="as train; left out: a share of the training rows"
    )
    test: Paths | None = Field(default=None, description="as train")
    split: SplitConfig = Field(default=SplitConfig(), description="which rows are held out")
    repeated_rows: RepeatedRows = Field(
        default="keep",
        description="rows that are the same in every column that the run reads: keep them (an "
        "alarm says where test rows were trained on), drop all but the first, or together: copies "
        "stay in one split",
    )
    input: Literal["auto", "memory", "stream"] = Field(
        default="auto",
        description="memory: read everything first; stream: read while training; auto: by size",
    )
    streaming: StreamingConfig = Field(
        default=StreamingConfig(), description="how rows are streamed, where they are"
    )
    time: TimeConfig | None = Field(
        default=None, description="the rows' times, for tasks with matures_after"
    )
    group_column: str | None = Field(
        default=None, description="key of GAUC, ndcg and recall, usually the user"
    )
    requests: RequestsConfig | None = Field(
        default=None, description="which rows are candidates of one request"
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="arguments of a bundled source, e.g. rows of a generator"
    )

    @property
    def row_time(self) -> TimeConfig | None:
        """`time`, where need be with the column of a split by time or day; None: there is none."""
        time = self.time or TimeConfig()
        if time.column is not None:
            return time
        if self.split.by not in ("time", "day"):
            return None
        written = time.format or (self.split.format if time.unit is None else None)
        return time.model_copy(update={"column": self.split.column, "format": written})

    def unsplit(self) -> "DataConfig":
        """Returns the section for rows that are not split; their times are found as before."""
        return self.model_copy(update={"split": SplitConfig(), "time": self.row_time or self.time})

    @property
    def csv_keys(self) -> list[str]:
        """Keys that say how CSV files are written, of those that are set."""
        keys = ("column_names", "delimiter", "encoding", "header")
        return [key for key in keys if getattr(self, key) is not None]

    def _ensure_csv_is_of_files(self) -> None:
        if self.csv_keys and self.source != "files":
            key = self.csv_keys[0]
            raise ValueError(f"{key} is for files, but source is {self.source}; remove {key}")

    def _ensure_repeats_are_of_rows(self) -> None:
        asked = f"repeated_rows: {self.repeated_rows}"
        if self.repeated_rows != "keep" and self.source != "files":
            raise ValueError(f"{asked} is for files, but source is {self.source}; set keep")
        if self.repeated_rows == "together" and self.split.by == "file":
            raise ValueError(f"{asked}: the files say which split a row is in; set drop, or keep")
        if self.repeated_rows != "keep" and self.requests and self.requests.candidates:
            raise ValueError(
                f"{asked}: rows of requests.candidates are requests, whose copies are not looked "
                "for; set keep, and drop copies from the files"
            )

    def _ensure_candidates_are_of_files(self) -> None:
        if self.requests is None or self.requests.candidates is None or self.source == "files":
            return
        raise ValueError(
            f"requests.candidates is for files, but source is {self.source}; set requests.column"
        )
