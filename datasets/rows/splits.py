"""Training, validation and test rows: how a table is cut into the three."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa

from mmoe.config import RequestsConfig, SplitConfig
from mmoe.config.data import RepeatedRows
from mmoe.datasets.features.id_map import KindFit
from mmoe.datasets.rows.locations import HIDDEN, REQUEST_COLUMN, find_column, place, rows_by_file
from mmoe.datasets.rows.repeats import later_copies
from mmoe.datasets.rows.requests import RowRequests, find_requests
from mmoe.datasets.values.arrow import is_text
from mmoe.datasets.values.columns import to_times
from mmoe.datasets.values.datetimes import TimeUnits
from mmoe.datasets.values.hashing import hash_keys, mix64
from mmoe.datasets.values.keys import missing_mask, row_hashes, to_keys

_ROWS = 1 << 17  # hashed at a time
_SHIFT = np.uint64(48)  # the top 16 bits choose one of 65,536 bins


def smallest_hashes(num_rows: int, seed: int, ranks: Sequence[int]) -> list[int]:
    """Returns for each rank the hash with just so many of `mix64(0 … num_rows − 1)` below.

    Two passes over the row numbers: bins of equal width are counted, then the hashes of the bins
    that hold an answer are sorted (num_rows / 65,536 of them on average).

    Args:
        num_rows: N.
        seed: Of `mix64`, which has no equal hashes.
        ranks: Below N.

    Example:
        >>> hashes = mix64(np.arange(100, dtype=np.uint64), 7)
        >>> [int((hashes < np.uint64(h)).sum()) for h in smallest_hashes(100, 7, [0, 30, 99])]
        [0, 30, 99]
    """
    if not num_rows:
        return [0 for _ in ranks]
    counts = np.zeros(1 << 16, np.int64)
    for hashes in _hashes(num_rows, seed):
        counts += np.bincount((hashes >> _SHIFT).astype(np.int64), minlength=1 << 16)
    ends = np.cumsum(counts)
    bins = [int(np.searchsorted(ends, rank, side="right")) for rank in ranks]
    members: dict[int, list[np.ndarray]] = {number: [] for number in bins}
    for hashes in _hashes(num_rows, seed):
        of_bin = (hashes >> _SHIFT).astype(np.int64)
        for number, found in members.items():
            found.append(hashes[of_bin == number])
    result = []
    for rank, number in zip(ranks, bins, strict=True):
        ordered = np.sort(np.concatenate(members[number]))
        result.append(int(ordered[rank - (ends[number] - counts[number])]))
    return result


def _hashes(num_rows: int, seed: int):
    for start in range(0, num_rows, _ROWS):
        yield mix64(np.arange(start, min(start + _ROWS, num_rows), dtype=np.uint64), seed)


_DAY = 86_400_000_000  # microseconds
_EPOCH = date(1970, 1, 1).toordinal()
# Whole numbers from here on are seconds, milli-, micro- or nanoseconds since 1970 (1973 to 2286)
_FIRST_MOMENT = 10**8
_PER_DAY = ((10**8, 86_400), (10**11, 86_400_000), (10**14, _DAY), (10**17, _DAY * 1000))

NO_SPLIT = 3  # of rows on other days


@dataclass(frozen=True, order=True)
class Day:
    """A day of rows: `dated`, days since 1970; else a number as the data has it (3, or 20240131).

    Example:
        >>> str(Day.parse("2024-01-31")), str(Day.parse("20240131")), Day.parse("7").number
        ('2024-01-31', '20240131', 7)
    """

    number: int
    dated: bool

    def __str__(self) -> str:
        return (
            date.fromordinal(self.number + _EPOCH).isoformat() if self.dated else f"{self.number}"
        )

    @classmethod
    def parse(cls, text: str) -> "Day":
        """Reads a day that `str` wrote.

        Raises:
            ValueError: It is neither an ISO date nor a whole number.
        """
        try:
            return cls(int(text), False)
        except ValueError:
            pass
        try:
            return cls(date.fromisoformat(text).toordinal() - _EPOCH, True)
        except ValueError:
            raise ValueError(
                f"data.split: {text!r} is no day; write 2024-01-31, or a whole number"
            ) from None


def days_of(
    table: pa.Table, name: str, origin: str, form: str | None = None
) -> tuple[np.ndarray, bool]:
    """Returns the day of every row.

    Dates, datetimes and text are dated; so are whole numbers that look like times since 1970, or
    that have a format. Other whole numbers are days as they are.

    Args:
        table: N rows.
        name: The column.
        origin: Starts error messages.
        form: As for `to_times`.

    Returns:
        int64 [N] as `Day.number`, and whether they are dated.

    Raises:
        ValueError: The column is missing, holds an empty cell, or no days.

    Example:
        >>> table = pa.table({"at": ["1970-01-02T23:59:00", "1970-01-03"], "n": [7, 8]})
        >>> days_of(table, "at", "log.csv"), days_of(table, "n", "log.csv")
        ((array([1, 2]), True), (array([7, 8]), False))
    """
    times_N = to_times(table, name, origin, form)
    column = find_column(table, name, origin, "data.split.column")
    kind = column.type
    dated = pa.types.is_date(kind) or pa.types.is_timestamp(kind) or form is not None
    if is_text(kind) and len(column):  # no whole number: `to_times` has found it is ordered
        dated |= not str(column[0].as_py()).strip().lstrip("+-").isdigit()
    if dated:
        return times_N // _DAY, True
    if times_N.dtype.kind == "f":
        if not np.array_equal(times_N, np.floor(times_N)):
            raise ValueError(
                f"{origin}: column {name!r} holds numbers with a fraction, expected days; write "
                "dates (2024-01-31), moments or whole numbers"
            )
        times_N = times_N.astype(np.int64)
    if not len(times_N) or int(times_N.max()) < _FIRST_MOMENT:
        return times_N.astype(np.int64), False
    if int(times_N.min()) < _FIRST_MOMENT:
        raise ValueError(
            f"{origin}: column {name!r} holds {int(times_N.min())} as well as "
            f"{int(times_N.max())}: days, or moments since 1970? Write one of them"
        )
    per_day = max(unit for first, unit in _PER_DAY if int(times_N.min()) >= first)
    return times_N.astype(np.int64) // per_day, True


def day_splits(
    table: pa.Table,
    split: SplitConfig,
    seed: int,
    origin: str,
    first: int = 0,
    drawn_N: np.ndarray | None = None,
) -> np.ndarray:
    """Assigns splits by day, int8 [N]: 0 = training, 1 = validation, 2 = test, 3 = none.

    Args:
        table: N rows that are number `first` and up of the data set.
        split: `train_days`, of whose rows a random share is validation, and `test_days`.
        seed: Which rows validate.
        origin: Starts error messages.
        first: See `table`.
        drawn_N: What rows that validate are drawn by, uint64; None: by their numbers.

    Raises:
        ValueError: The column holds no days, or days of another kind than the config's.
    """
    assert split.column is not None
    days_N, dated = days_of(table, split.column, origin, split.format)
    train, test = (
        [Day.parse(d) for d in days or ()] for days in (split.train_days, split.test_days)
    )
    for day in (*train, *test):
        if day.dated != dated:
            kinds = ("numbers", "dates")
            raise ValueError(
                f"{origin}: column {split.column!r} holds {kinds[dated]}, but data.split names the "
                f"day {day}; write the config's days as {kinds[dated]}"
            )
    if drawn_N is None:
        drawn_N = np.arange(first, first + len(days_N), dtype=np.uint64)
    uniform_N = _uniform(drawn_N, seed)
    split_N = np.full(len(days_N), NO_SPLIT, np.int8)
    split_N[np.isin(days_N, [day.number for day in test])] = 2
    train_N = np.isin(days_N, [day.number for day in train])
    split_N[train_N] = (uniform_N[train_N] < split.validation).astype(np.int8)
    return split_N


def request_splits(found: RowRequests, split: SplitConfig, split_seed: int) -> np.ndarray:
    """Assigns rows to splits at random, int8 [N], those of a request together."""
    return splits_by_hash(found.keys_M, split, split_seed)[found.request_N]


def refuse_cut(
    split_N: np.ndarray, found: RowRequests, table: pa.Table, split: SplitConfig, origin: str
) -> None:
    """Raises ValueError where rows of one request are in two splits."""
    first_N = found.first_M[found.request_N]
    cut_N = split_N != split_N[first_N]
    if not cut_N.any():
        return
    row = int(cut_N.argmax())
    rows = " and ".join(place(table, origin, index) for index in (int(first_N[row]), row))
    mend = (
        f"split: {{by: hash, column: {found.column}}}"
        if found.column is not None
        else "split: {by: random}, which draws requests"
    )
    raise ValueError(
        f"{rows} are candidates of one request, but the split by {split.by} (column "
        f"{split.column!r}) puts them into two; say {mend}, or split by a column that is the same "
        "for all candidates of a request"
    )


def refuse_empty(counts: Sequence[int] | np.ndarray, split: SplitConfig, origin: str) -> None:
    """Raises ValueError where training, validation or, if there is one, test has no row."""
    for name, count in zip(("training", "validation", "test"), counts, strict=False):
        if count:
            continue
        mend = "give more rows"
        if split.by == "hash":
            mend = (
                f"column {split.column!r} has too few distinct keys; split by random or raise "
                "shares"
            )
        elif split.by == "day":
            days = split.test_days if name == "test" else split.train_days
            mend = f"column {split.column!r} has no rows, or too few, on {', '.join(days or ())}"
        rows = int(sum(counts))
        raise ValueError(f"{origin}: the {name} split is empty, out of {rows} rows; {mend}")


def random_cuts(num_rows: int, split: SplitConfig, split_seed: int) -> tuple[int, int]:
    """Returns the hashes of row numbers below which validation lies, and validation and test.

    Just as many rows lie below them as the two shall have: exact shares, rounded, and at least one
    row each where there are three rows or more.
    """
    least = 1 if num_rows >= 3 else 0
    num_validation = max(least, round(num_rows * split.validation))
    num_test = max(least, round(num_rows * split.test))
    while num_rows and num_validation + num_test >= num_rows and num_validation + num_test > 0:
        if num_validation >= num_test:
            num_validation -= 1
        else:
            num_test -= 1
    ranks = [num_validation, num_validation + num_test]
    below = smallest_hashes(num_rows, split_seed, ranks)
    return below[0], below[1]


def splits_by_hash(hashes_N: np.ndarray, split: SplitConfig, split_seed: int) -> np.ndarray:
    """Assigns splits, int8 [N], by hashes of what lands together, uint64."""
    uniform_N = _uniform(hashes_N, split_seed)
    validates_N = uniform_N < split.validation + split.test
    return np.where(uniform_N < split.test, 2, validates_N).astype(np.int8)


def _uniform(hashes_N: np.ndarray, seed: int) -> np.ndarray:
    """Numbers in [0, 1), float64: the top 53 bits make them exact."""
    return (mix64(hashes_N, seed) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def time_cuts(
    times: np.ndarray, counts: np.ndarray, split: SplitConfig, origin: str
) -> tuple[Any, Any]:
    """Finds the times at which validation and test begin, so that the shares are nearest.

    Raises:
        ValueError: There are fewer than three times.
    """
    if len(times) < 3:
        raise ValueError(
            f"{origin}: column {split.column!r} holds {len(times)} distinct time(s), but a split "
            "by time needs at least 3; split by random, or name another column"
        )
    before = np.cumsum(counts)[:-1]  # rows before time 1, 2, …
    rows = int(counts.sum())
    first_test = 2 + int(np.abs(before[1:] - rows * (1 - split.test)).argmin())
    earlier, wanted = before[: first_test - 1], rows * (1 - split.test - split.validation)
    first_validation = 1 + int(np.abs(earlier - wanted).argmin())
    return times[first_validation], times[first_test]


_MOST = 1 << 20  # distinct times of a stream kept apart; 16 MB
_LEAST = 1 << 16  # times that wait before they are added up
_SIGN = np.int64(-(2**63))
_TOP = np.uint64(2**63)


class TimeFit:
    """Counts rows by time; beyond 2²⁰ distinct ones (16 MB) neighbours are counted as one.

    Neighbours share all but their last `coarse` bits, and stand for the first of them: a split then
    cuts between two such times, at most a few millionths of the whole time away from the exact
    place. `coarse` depends on all the times alone, never on their chunks.

    Args:
        name: The column.
        most: Distinct times kept apart; None: 2²⁰.
    """

    def __init__(self, name: str, most: int | None = None) -> None:
        self.most = _MOST if most is None else most
        self.times = np.zeros(0, np.int64)
        self.counts = np.zeros(0, np.int64)
        self.pending: list[tuple[np.ndarray, np.ndarray]] = []  # times and counts, not added up
        self.waiting = 0  # times in them
        self.coarse = 0
        self.real = self.unsigned = False
        self.units = TimeUnits(name)

    def add(self, times_N: np.ndarray, file: str) -> None:
        """Counts more rows of `file`: int64 or float64, as `to_times` gives them.

        Raises:
            ValueError: They are in another unit than those of another file.
        """
        self.units.add(times_N, file)
        if times_N.dtype.kind == "f":
            self.real = True
            bits = (times_N + 0.0).view(np.int64)  # in the order of the numbers:
            times_N = np.where(bits < 0, ~bits ^ _SIGN, bits)
        elif times_N.dtype == np.uint64:
            self.unsigned, times_N = True, (times_N ^ _TOP).view(np.int64)
        found, counts = np.unique(self._coarser(times_N.astype(np.int64)), return_counts=True)
        self.pending.append((found, counts))
        self.waiting += len(found)
        if self.waiting > max(len(self.times), _LEAST):
            self._add_up()

    def finish(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns ascending times and the number of rows of each."""
        self._add_up()
        if self.unsigned:
            return self.times.view(np.uint64) ^ _TOP, self.counts
        if not self.real:
            return self.times, self.counts
        bits = np.where(self.times < 0, ~(self.times ^ _SIGN), self.times)
        return bits.view(np.float64), self.counts

    def _coarser(self, times_N: np.ndarray) -> np.ndarray:
        return times_N >> self.coarse << self.coarse

    def _add_up(self) -> None:
        times = np.concatenate([self.times, *(m for m, _ in self.pending)])
        counts = np.concatenate([self.counts, *(c for _, c in self.pending)])
        self.pending, self.waiting = [], 0
        while True:
            self.times, place = np.unique(self._coarser(times), return_inverse=True)
            self.counts = np.bincount(place, weights=counts).astype(np.int64)
            if len(self.times) <= self.most:
                return
            self.coarse += 1
            times, counts = self.times, self.counts


@dataclass(frozen=True)
class RowSource:
    """Rows that are read as often as wanted, in memory or from files."""

    origin: str  # what the user calls them
    schema: pa.Schema  # the user's columns
    num_rows: int
    # Yields all rows in order, with these columns, each table with the file that it is of
    tables: Callable[[list[str]], Iterable[tuple[str, pa.Table]]]
    in_memory: bool = False  # where what is read of each row may be kept


@dataclass(frozen=True)
class Splitter:
    """Assigns the rows of any chunk of a source to splits."""

    # Given rows, the number of the first one in the source and how many they are, returns their
    # splits, int8 [rows]. Without columns that it looks at the rows may be None.
    of: Callable[[Any, int, int], np.ndarray]
    # Names of the columns that it looks at; none: the row's number is enough
    columns: Sequence[str] = ()

    def without_test(self) -> "Splitter":
        """Returns the same, whose test rows train."""

        def of(table: Any, first: int, rows: int) -> np.ndarray:
            split_N = self.of(table, first, rows)
            return np.where(split_N == 2, 0, split_N).astype(np.int8)

        return Splitter(of, self.columns)

    def without_copies(self, copies_N: np.ndarray | None) -> "Splitter":
        """Returns the same, but for rows that come before already; `copies_N`: which these are."""
        if copies_N is None:
            return self

        def of(table: Any, first: int, rows: int) -> np.ndarray:
            split_N = self.of(table, first, rows)
            split_N[copies_N[first : first + rows]] = NO_SPLIT
            return split_N

        return Splitter(of, self.columns)


ALL_TRAIN = Splitter(lambda _, first, rows: np.zeros(rows, np.int8))
"""Assigns every row to training."""


def copies_in(sources: Sequence[RowSource]) -> list[np.ndarray]:
    """Finds rows that come before already, in a pass over sources: bool, for each of them.

    It takes some 24 bytes a row while it looks, and one then.
    """
    hashes = []
    for source in sources:
        names = list(source.schema.names)
        parts = [row_hashes(table, names) for _, table in source.tables(names)]
        hashes.append(np.concatenate(parts))
    return later_copies(hashes)


def fit_splitter(
    source: RowSource,
    split: SplitConfig,
    seed: int,
    requests: RequestsConfig | None = None,
    repeated: RepeatedRows = "keep",
) -> Splitter:
    """Returns what cuts the rows of a source as `split` says, each request into one."""
    together = source.schema.names if repeated == "together" else []
    found = _fitted(source, split, seed, requests, together)
    return found.without_copies(copies_in([source])[0] if repeated == "drop" else None)


def _fitted(
    source: RowSource,
    split: SplitConfig,
    seed: int,
    requests: RequestsConfig | None,
    together: Sequence[str],
) -> Splitter:
    if split.by == "random" and requests is not None:

        def by_request(table: pa.Table, first: int, rows: int) -> np.ndarray:
            found = find_requests(requests, table, source.origin)
            return request_splits(found, split, seed)

        return Splitter(by_request, [request_column(requests)])
    if split.by == "random" and together:

        def by_content(table: pa.Table, first: int, rows: int) -> np.ndarray:
            return splits_by_hash(row_hashes(table, together), split, seed)

        return Splitter(by_content, together)
    if split.by == "random":
        cuts = random_cuts(source.num_rows, split, seed)

        def by_number(_: Any, first: int, rows: int) -> np.ndarray:
            hashes_N = mix64(np.arange(first, first + rows, dtype=np.uint64), seed)
            validates_N, held_N = (hashes_N < np.uint64(cut) for cut in cuts)
            return np.where(validates_N, 1, 2 * held_N).astype(np.int8)

        return Splitter(by_number)
    if split.by == "hash":
        return _by_key(source, split, seed, together)
    if split.by == "time":
        return _by_time(source, split)
    if split.by == "day":

        def by_day(table: pa.Table, first: int, rows: int) -> np.ndarray:
            drawn_N = None
            if requests is not None:
                drawn_N = find_requests(requests, table, source.origin).keys_N
            elif together:
                drawn_N = row_hashes(table, together)
            return day_splits(table, split, seed, source.origin, first, drawn_N)

        own = [*(together or [split.column or ""])]
        return Splitter(by_day, own if requests is None else [*own, request_column(requests)])
    raise ValueError(
        f"{source.origin}: a split by {split.by} cannot be streamed from one path; split by "
        "random, hash, time, day or file, or set data.input: memory"
    )


def _by_key(source: RowSource, split: SplitConfig, seed: int, together: Sequence[str]) -> Splitter:
    """Splits by key; keys are read here only where their type does not say it all."""
    name, origin = split.column, source.origin
    assert name is not None
    label = f"{origin}: column {name!r}"
    fit = KindFit(label)
    kind = find_column(source.schema.empty_table(), name, origin, "data.split.column").type
    if is_text(kind) or (pa.types.is_integer(kind) and kind != pa.uint64()):
        fit.add(pa.chunked_array([], kind))
    else:
        for _, table in source.tables([name]):
            fit.add(find_column(table, name, origin, "data.split.column"))
    of_keys = fit.finish()

    def of(table: pa.Table, first: int, rows: int) -> np.ndarray:
        column = find_column(table, name, origin, "data.split.column")
        hashes_N = hash_keys(to_keys(column, of_keys, label))
        missing_N = missing_mask(column, of_keys)  # rows without a key are drawn one by one
        numbers_N = np.arange(first, first + rows, dtype=np.uint64)
        drawn_N = row_hashes(table, together) if together else numbers_N
        hashes_N[missing_N] = mix64(drawn_N[missing_N], 1)
        return splits_by_hash(hashes_N, split, seed)

    return Splitter(of, together or [name])


def _by_time(source: RowSource, split: SplitConfig) -> Splitter:
    """The past trains, the future tests: the column of times is read once to find where to cut."""
    name, origin = split.column, source.origin
    assert name is not None
    fit, kept = TimeFit(name, source.num_rows if source.in_memory else None), []
    for file, table in source.tables([name]):
        fit.add(times_N := to_times(table, name, origin, split.format), file)
        kept += [times_N] * source.in_memory
    cuts, held_N = time_cuts(*fit.finish(), split, origin), np.concatenate(kept) if kept else None

    def of(table: pa.Table, first: int, rows: int) -> np.ndarray:
        if held_N is None:
            times_N = to_times(table, name, origin, split.format)
        else:
            times_N = held_N[first : first + rows]
        return (times_N >= cuts[0]).astype(np.int8) + (times_N >= cuts[1])

    return Splitter(of, [name])


def request_column(requests: RequestsConfig) -> str:
    """Returns the column that says which request a row is of."""
    return requests.column or REQUEST_COLUMN


@dataclass(frozen=True, kw_only=True)
class Splits:
    """The three tables of a run.

    Attributes:
        train: Rows that fit the encoder and the model.
        validation: Rows that choose the checkpoint.
        test: Rows that are reported.
        oracle: Task name → float64 [rows of test], the true P(label = 1 | label observed), where
            the source knows it.
        origin: What the user calls the data (a path, a recipe's name); starts error messages.
        newest: Newest time of the rows, those in no split among them, in microseconds since 1970;
            None: the three hold all rows.
    """

    train: pa.Table
    validation: pa.Table
    test: pa.Table
    oracle: dict[str, np.ndarray] | None = None
    origin: str = "data"
    newest: int | None = None


def split_table(
    table: pa.Table,
    split: SplitConfig,
    split_seed: int,
    origin: str,
    requests: RequestsConfig | None = None,
    repeated: RepeatedRows = "keep",
) -> tuple[pa.Table, pa.Table, pa.Table]:
    """Cuts a table into training, validation and test rows; each keeps the table's row order.

    The same rows, settings and seed give the same split on every machine and with every version of
    Python and NumPy: no library generator is used, only `mix64` of row numbers or keys.

    Args:
        table: N rows.
        split: by random, hash or time, with the shares of validation and test.
        split_seed: Which rows are held out (random and hash).
        origin: Starts error messages.
        requests: Whose rows are drawn together, and land in one split.
        repeated: What becomes of copies of rows, as `data.repeated_rows` says.

    Returns:
        The training, validation and test rows.

    Raises:
        ValueError: A split would be empty, or cut a request, or the key or time column cannot be
            used.

    Example:
        >>> table = pa.table({"day": [1, 1, 2, 3, 3, 4, 5, 5, 6, 7]})
        >>> split = SplitConfig(by="time", column="day", validation=0.2, test=0.2)
        >>> [rows["day"].to_pylist() for rows in split_table(table, split, 1, "log.csv")]
        [[1, 1, 2, 3, 3, 4], [5, 5], [6, 7]]
    """
    split_N = assign_splits(table, split, split_seed, origin, requests, repeated)
    train, validation, test = (table.filter(pa.array(split_N == number)) for number in range(3))
    return train, validation, test


def assign_splits(
    table: pa.Table,
    split: SplitConfig,
    split_seed: int,
    origin: str,
    requests: RequestsConfig | None = None,
    repeated: RepeatedRows = "keep",
) -> np.ndarray:
    """Assigns rows to splits: int8 [N], 0 = training, 1 = validation, 2 = test, 3 = none.

    Args and errors are those of `split_table`.
    """
    if split.by == "file":
        raise ValueError(f"{origin}: a split by {split.by} is not cut from one table")
    of_files = rows_by_file(table, origin)
    source = RowSource(
        origin,
        pa.schema([field for field in table.schema if field.name not in HIDDEN]),
        table.num_rows,
        lambda _: [(file, table[rows]) for file, rows in of_files],
        in_memory=True,
    )
    splitter = fit_splitter(source, split, split_seed, requests, repeated)
    split_N = splitter.of(table, 0, table.num_rows)
    refuse_empty(np.bincount(split_N, minlength=4)[:3], split, origin)
    if requests is not None and split.by != "random":
        refuse_cut(split_N, find_requests(requests, table, origin), table, split, origin)
    return split_N
