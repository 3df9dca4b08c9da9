"""Ids in one canonical form, whatever type the file stored them in, and their places in a table.

Hashes of whole rows too: the same for the same values, in memory and streamed, in any version.
"""

from collections.abc import Collection, Iterable
from threading import Lock
from typing import Any, Literal, cast

import numpy as np
import pandas as pd
import pyarrow as pa

from mmoe.datasets.values import text
from mmoe.datasets.values.arrow import decoded, is_binary, is_list, is_text, list_lengths, pc, plain
from mmoe.datasets.values.hashing import hash_one, hash_text, mix64

_DATETIME = r"^\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d([.,]\d+)?)?( ?(Z|[+-]\d\d:?\d\d))?$"
_SHORTEST_MOMENT = len("2025-01-01 00:00")
_ZERO_OFFSET = r" ?(Z|[+-]00:?00)$"
_OFFSET = r" ?[+-]\d\d:?\d\d$"


def datetimes_to_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Writes timestamps as `2025-01-01 00:00:32.5`, midnight as its day, zones as Z.

    Down to the microsecond: what is finer is cut off.

    Example:
        >>> seconds = pa.chunked_array([pa.array([0, 32], pa.timestamp("s"))])
        >>> datetimes_to_text(seconds).to_pylist()
        ['1970-01-01', '1970-01-01 00:00:32']
    """
    micros = column.cast(pa.timestamp("us", column.type.tz), safe=False)
    written = micros.cast(pa.timestamp("us")).cast(pa.large_string())  # what has a zone, in UTC
    if column.type.tz is not None:
        written = pc.replace_substring_regex(written, "$", "Z")
    return _shorten(written)


def canonical_datetimes(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Rewrites text that is an ISO 8601 datetime as `datetimes_to_text` does.

    Example:
        >>> values = pa.chunked_array([["2025-01-01T00:00:32.500", "2025-01-01 00:00:00", "2 T"]])
        >>> canonical_datetimes(values).to_pylist()
        ['2025-01-01 00:00:32.5', '2025-01-01', '2 T']
    """
    if not pc.any(pc.greater_equal(pc.binary_length(values), _SHORTEST_MOMENT)).as_py():
        return values
    is_datetime = pc.fill_null(pc.match_substring_regex(values, _DATETIME), False)
    if not pc.any(is_datetime).as_py():
        return values
    found = values.filter(is_datetime)
    found = pc.replace_substring_regex(found, r"^(.{10})T", r"\1 ")
    found = pc.replace_substring_regex(found, r"^(.{10} \d\d:\d\d)($|[^:\d])", r"\1:00\2")
    found = pc.replace_substring_regex(found, r"[.,](\d{1,6})\d*", r".\1")
    found = pc.replace_substring_regex(found, _ZERO_OFFSET, "Z")
    return _put(values, is_datetime, _shorten(_to_utc(found)))


def decimals_to_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Writes decimals without zeros at the end: 1.00 as `1`, 1.50 as `1.5`.

    Example:
        >>> prices = pa.chunked_array([pa.array(["1.00", "1.50", "20"]).cast(pa.decimal128(9, 2))])
        >>> decimals_to_text(prices).to_pylist()
        ['1', '1.5', '20']
    """
    wide = column.cast(pa.decimal256(76, max(column.type.scale, 0)))
    floor = pc.floor(wide)
    digits = floor.cast(pa.decimal256(76, 0)).cast(pa.large_string())
    fractions = pc.replace_substring_regex(
        wide.cast(pa.large_string()), r"(\.\d*[1-9])0+($|E)", r"\1\2"
    )
    return pc.if_else(pc.equal(wide, floor), digits, fractions)


def _shorten(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """No zeros behind the seconds; a midnight without a zone is a day, as pandas writes it."""
    values = pc.replace_substring_regex(values, r"\.0+(Z?)$", r"\1")
    values = pc.replace_substring_regex(values, r"(\.\d*[1-9])0+(Z?)$", r"\1\2")
    return pc.replace_substring_regex(values, r" 00:00:00$", "")


def _to_utc(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Datetimes with an offset (+01:00) in UTC; text of an impossible day stays as it is."""
    shifted = pc.match_substring_regex(values, _OFFSET)
    if not pc.any(shifted).as_py():
        return values
    found = pc.replace_substring_regex(values.filter(shifted), r" ([+-])", r"\1")
    moved = datetimes_to_text(text.cast_each(found, pa.timestamp("us", "UTC")))
    moved = pc.coalesce(moved, found.cast(pa.large_string()))
    return _put(values, shifted, moved)


def _put(
    values: pa.ChunkedArray, where: pa.ChunkedArray, found: pa.ChunkedArray
) -> pa.ChunkedArray:
    """`values` with those of `found`, in order, where `where` is true."""
    whole, mask, new = (array.combine_chunks() for array in (values, where, found))
    return pa.chunked_array([pc.replace_with_mask(whole, mask, new.cast(whole.type))])


KeyKind = Literal["int", "float", "text"]

ARROW_TYPES: dict[KeyKind, pa.DataType] = {
    "int": pa.int64(),
    "float": pa.float64(),
    "text": pa.large_string(),
}
_EXACT = 2.0**53  # whole numbers up to here are exact in float64
_FLOAT_DIGITS = 15  # decimals of so many digits keep apart as float64


def key_kind(column: pa.ChunkedArray, label: str) -> KeyKind:
    """Returns what a training column's ids are: int (whole floats too), float or text.

    Raises:
        ValueError: The ids came as float64 and have lost digits, or are no ids at all.
    """
    kind = column.type
    if pa.types.is_null(kind) or pa.types.is_boolean(kind):
        return "int"
    if pa.types.is_integer(kind):
        if kind == pa.uint64() and (pc.max(column).as_py() or 0) >= 2**63:
            return "text"
        return "int"
    if pa.types.is_floating(kind):
        return "int" if _refuse_lost_digits(_floats(column), label) else "float"
    refuse_nested(column, label)
    return _decimal_kind(column) if pa.types.is_decimal(kind) else "text"


def widest(kinds: Iterable[KeyKind]) -> KeyKind:
    """Returns the kind that a table shared by columns of these kinds has."""
    found = set(kinds)
    if "text" in found:
        return "text"
    return "float" if "float" in found else "int"


def to_keys(column: pa.ChunkedArray, kind: KeyKind, label: str) -> pa.ChunkedArray:
    """Reads a column's ids as `kind`; null where missing, or no id of that kind.

    Integers, floats such as 3.0 (pandas makes integers with gaps floats), decimals such as 3.00 and
    text such as "3" all become the same key; so do a datetime and its ISO 8601 text. Missing are
    null, NaN and "".
    """
    refuse_nested(column, label)
    if kind == "int":
        return _to_int(column, label)
    if kind == "float":
        return _to_float(column)
    return _to_text(column, label)


def own_key(value: object, kind: KeyKind, words: Collection[str]) -> int | str | None:
    """Returns a cell that is its own key, at a glance; None: another one, or a missing value.

    Args:
        value: Of a column that holds such values.
        kind: As for `to_keys`.
        words: Those that mean a missing value.
    """
    if kind == "int":
        return value if type(value) is int and -(2**63) <= value < 2**63 else None
    if kind == "float" or type(value) is not str or not value or value in words:
        return None
    # Blanks of other kinds are not printable
    plain = value.isascii() and value.isprintable() and value[0] != " " != value[-1]
    # What `canonical_datetimes` leaves as it is
    return value if plain and (len(value) < _SHORTEST_MOMENT or value[4] != "-") else None


def missing_mask(column: pa.ChunkedArray, kind: KeyKind) -> np.ndarray:
    """Returns where a row has no id at all, as opposed to an unknown one, bool [N]."""
    if is_text(column.type):
        if kind == "text":
            return pc.fill_null(pc.equal(column, ""), True).to_numpy()
        return pc.is_null(text.blank_to_null(column)).to_numpy()
    return pc.is_null(column, nan_is_null=True).to_numpy()


def codes_of(column: pa.ChunkedArray) -> tuple[np.ndarray, int]:
    """Numbers values by first appearance, int64 [N], −1 where missing; and how many there are."""
    values, codes_N = _coded(column)
    return codes_N, len(values)


class GroupCodes:
    """Numbers values by first appearance over the chunks of one column."""

    def __init__(self) -> None:
        self.known: dict[Any, int] = {}

    def codes(self, column: pa.ChunkedArray) -> np.ndarray:
        """Numbers the chunk's values by first appearance in any chunk, −1 where missing."""
        values, codes_N = _coded(column)
        known = [self.known.setdefault(value, len(self.known)) for value in values.to_pylist()]
        return np.array([*known, -1], np.int64)[codes_N]


def _coded(column: pa.ChunkedArray) -> tuple[pa.Array, np.ndarray]:
    """The distinct values and, for every row, the number of its own; −1 where missing."""
    encoded = column.combine_chunks().dictionary_encode()
    codes_N = pc.fill_null(encoded.indices.cast(pa.int64()), -1).to_numpy(zero_copy_only=False)
    missing_N = pc.is_null(column, nan_is_null=True).to_numpy()
    return encoded.dictionary, np.where(missing_N, -1, codes_N)


def refuse_rounding(column: pa.ChunkedArray, kind: KeyKind, label: str) -> None:
    """Refuses whole numbers beyond 2⁵³ as keys of a table whose other ids have fractions."""
    if kind == "float" and pa.types.is_integer(column.type):
        span = pc.min_max(column).as_py()
        for end in (span["max"], span["min"]):
            if end is not None and abs(end) > _EXACT:
                raise ValueError(
                    f"{label} holds the id {end}, beyond 2^53, but shares a table with numbers "
                    "that have fractions, and float64 would round it; give it another table, or "
                    "store the ids as text"
                )


def refuse_nested(column: pa.ChunkedArray, label: str) -> None:
    """Refuses lists, structs and intervals as ids."""
    if pa.types.is_nested(column.type) or pa.types.is_interval(column.type):
        raise ValueError(
            f"{label} holds {column.type}, expected ids; make it a list feature or convert it"
        )


def _decimal_kind(column: pa.ChunkedArray) -> KeyKind:
    """Int where all are whole, float where float64 keeps them apart."""
    written = decimals_to_text(column)
    if text.to_integers(written).null_count == column.null_count:
        return "int"
    digits = pc.replace_substring_regex(written, r"^-?0\.0*|E.*|\D", "")
    return "float" if (pc.max(pc.binary_length(digits)).as_py() or 0) <= _FLOAT_DIGITS else "text"


def _to_int(column: pa.ChunkedArray, label: str) -> pa.ChunkedArray:
    kind = column.type
    if pa.types.is_null(kind) or pa.types.is_boolean(kind):
        return column.cast(pa.int64())
    if pa.types.is_integer(kind):
        if kind == pa.uint64():
            fits = pc.less(column, pa.scalar(2**63, pa.uint64()))
            column = pc.if_else(fits, column, None)
        return column.cast(pa.int64())
    if pa.types.is_floating(kind):
        floats_N = _floats(column)
        _refuse_lost_digits(floats_N, label)
        with np.errstate(invalid="ignore"):
            whole_N = (floats_N == np.floor(floats_N)) & (np.abs(floats_N) < _EXACT)
        integers = np.where(whole_N, floats_N, 0).astype(np.int64)
        return pa.chunked_array([pa.array(integers, mask=~whole_N)])
    return text.to_integers(_as_text(column))


def _to_float(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Adding 0.0 makes -0.0 and 0.0 one key."""
    kind = column.type
    if pa.types.is_boolean(kind):
        column = column.cast(pa.int8())
    elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return pc.add(text.to_reals(_as_text(column)), 0.0)
    floats_N = _floats(column) + 0.0
    return pa.chunked_array([pa.array(floats_N, mask=np.isnan(floats_N))])


def _to_text(column: pa.ChunkedArray, label: str) -> pa.ChunkedArray:
    kind = column.type
    if is_text(kind):
        return canonical_datetimes(text.empty_to_null(column))
    if pa.types.is_boolean(kind):
        return pc.if_else(column, "True", "False").cast(pa.large_string())
    if pa.types.is_floating(kind):
        integers = _to_int(column, label).cast(pa.large_string())
        floats = _to_float(column).cast(pa.large_string())
        return pc.coalesce(integers, floats)
    return _as_text(column)


def _as_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_timestamp(column.type):
        return datetimes_to_text(column)
    if pa.types.is_decimal(column.type):
        return decimals_to_text(column)
    if pa.types.is_date(column.type):
        column = column.cast(pa.date32())
    column = decoded(column)
    if not is_binary(column.type):
        return column.cast(pa.large_string())

    def as_text(value: bytes) -> str:  # of bytes that are no UTF-8 the hexadecimal digits
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            return f"0x{value.hex()}"

    values = [None if value is None else as_text(value) for value in column.to_pylist()]
    return pa.chunked_array([pa.array(values, pa.large_string())])


def _floats(column: pa.ChunkedArray) -> np.ndarray:
    return pc.fill_null(column.cast(pa.float64(), safe=False), float("nan")).to_numpy()


def _refuse_lost_digits(floats_N: np.ndarray, label: str) -> bool:
    """Whether all are whole numbers; refuses those that float64 cannot hold apart."""
    present = floats_N[~np.isnan(floats_N)]
    whole = np.array_equal(present, np.floor(present))
    large = np.abs(present) >= _EXACT
    if not whole:
        large &= np.isfinite(present)
    if large.any():
        raise ValueError(
            f"{label} holds ids as floating point, and {present[large.argmax()]:.0f} is beyond "
            "2^53, where float64 loses digits; store the ids as integers or text"
        )
    return whole


_ROWS = 1 << 16  # hashed at a time: the work of hashing text is many times its size
_FEW_KEYS = 2048  # Arrow's table of so many is made before a call for another one has ended


class KeyIndex:
    """Index of keys of one kind: integers, floats or text.

    Arrow makes its hash table anew in every call. That is no loss where there are few keys, or a
    call brings as many values; for fewer values a table is made in the first such call and kept.
    Numbers are found by themselves, text by 64-bit hashes, and each text found is compared with its
    key. Any number of threads may ask at once.

    Args:
        keys: K distinct keys, none of them null.

    Example:
        >>> index = KeyIndex(pa.array([30, 10, 20]))
        >>> index.indices(pa.chunked_array([[10, None], [40, 30]])).tolist()
        [1, -1, -1, 0]
    """

    def __init__(self, keys: pa.Array) -> None:
        self.keys = keys
        self._lock = Lock()
        self._table: pd.Index | None = None

    def __reduce__(self) -> tuple[type["KeyIndex"], tuple[pa.Array]]:
        """Copies and pickles make a table of their own, when they need one."""
        return KeyIndex, (self.keys,)

    def indices(self, values: pa.ChunkedArray) -> np.ndarray:
        """Finds where in `keys` each value stands, int64 [N], −1: null or none of them."""
        if len(self.keys) <= max(len(values), _FEW_KEYS):
            return self._by_arrow(values)
        if is_text(values.type):
            return self._by_hash(values)
        index_N = self._kept().get_indexer(pc.fill_null(values, 0).to_numpy())
        return np.where(pc.is_null(values).to_numpy(), -1, index_N)

    def index(self, value: int | str) -> int:
        """Finds where one value stands, −1: none of them; a call of Arrow's takes longer.

        Example:
            >>> index = KeyIndex(pa.array(["b", "a"], pa.large_string()))
            >>> index.index("a"), index.index("c")
            (1, -1)
        """
        table, code = self._kept(), hash_one(value) if isinstance(value, str) else value
        try:
            found = cast("int", table.get_loc(code))  # of one entry: they are unique
        except KeyError:
            return -1
        if isinstance(value, str) and self.keys[found].as_py() != value:  # of the same hash
            return int(self._by_arrow(pa.chunked_array([pa.array([value], self.keys.type)]))[0])
        return found

    def _by_arrow(self, values: pa.ChunkedArray) -> np.ndarray:
        found = pc.index_in(values, self.keys, skip_nulls=True)
        return pc.fill_null(found, -1).to_numpy().astype(np.int64)

    def _by_hash(self, values: pa.ChunkedArray) -> np.ndarray:
        index_N = self._kept().get_indexer(hash_text(values))
        found_N = (index_N >= 0) & pc.is_valid(values).to_numpy()
        there = values.filter(pa.array(found_N))
        same_F = pc.equal(self.keys.take(pa.array(index_N[found_N])), there).to_numpy()
        index_N[~found_N] = -1
        if not same_F.all():  # another text of the same hash
            other_F = np.flatnonzero(found_N)[~same_F]
            index_N[other_F] = self._by_arrow(there.filter(pa.array(~same_F)))
        return index_N

    def _kept(self) -> pd.Index:
        with self._lock:
            if self._table is None:
                self._table = self._make()
            return self._table

    def _make(self) -> pd.Index:
        text = is_text(self.keys.type)
        parts = range(0, len(self.keys), _ROWS) if text else ()
        hashed = [hash_text(self.keys[start : start + _ROWS]) for start in parts]
        codes_K = np.concatenate(hashed) if text else self.keys.to_numpy()
        table = pd.Index(codes_K)
        if not table.is_unique:  # of one hash the first key has it, and Arrow finds the others
            free = np.setdiff1d(np.arange(2 * len(codes_K), dtype=np.uint64), codes_K)
            again = np.flatnonzero(table.duplicated())
            codes_K[again] = free[: len(again)]
            table = pd.Index(codes_K)
        table.get_indexer(codes_K[:1])  # pandas hashes the entries in the first call
        return table


def first_seen(codes_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Finds distinct numbers in the order in which they come first, and each one's place.

    Example:
        >>> first_seen(np.array([7, 3, 7, 5]))
        (array([7, 3, 5]), array([0, 1, 0, 2]))
    """
    coded = pa.array(codes_N).dictionary_encode()
    return coded.dictionary.to_numpy(), coded.indices.to_numpy().astype(np.int64)


def first_rows(index_N: np.ndarray, count: int) -> np.ndarray:
    """Returns the first row of each place, int64 [count], of places by first appearance.

    Example:
        >>> first_rows(np.array([0, 1, 0, 2]), 3)
        array([0, 1, 3])
    """
    first_M = np.empty(count, np.int64)
    first_M[index_N[::-1]] = np.arange(len(index_N))[::-1]  # the last one assigned stays
    return first_M


_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
MISSING_HASH = np.uint64(0x2545F4914F6CDD1D)


def row_hashes(table: pa.Table, columns: Iterable[str]) -> np.ndarray:
    """Hashes rows by their values: uint64 [N], the same in whatever order columns are named.

    Example:
        >>> table = pa.table({"a": [1, 1, 2], "b": ["x", "x", "x"]})
        >>> hashes_N = row_hashes(table, ["b", "a"])
        >>> bool(hashes_N[0] == hashes_N[1]), bool(hashes_N[0] == hashes_N[2])
        (True, False)
    """
    total_N = np.zeros(table.num_rows, np.uint64)
    for place, name in enumerate(sorted(columns)):
        total_N += column_part(table[name], place)
    return total_N


def column_part(column: pa.ChunkedArray, place: int) -> np.ndarray:
    """Returns what a column adds to its rows' hashes, uint64 [N]; `place` is its number."""
    parts = [
        mix64(value_hashes(chunk.slice(start, _ROWS)), seed=place + 1)
        for chunk in plain(column).chunks
        for start in range(0, len(chunk), _ROWS)
    ]
    return np.concatenate(parts) if parts else np.zeros(0, np.uint64)


def value_hashes(values: pa.Array) -> np.ndarray:
    """Returns numbers for values, uint64 [N]: equal ones have the same, in any type."""
    kind = values.type
    if is_list(kind):
        return _list_hashes(values)
    if pa.types.is_struct(kind):
        return sum(
            (mix64(value_hashes(part), seed=n + 1) for n, part in enumerate(values.flatten())),
            np.zeros(len(values), np.uint64),
        )
    if is_text(kind):
        coded = values.dictionary_encode()
        of_values = np.append(_text_hashes(coded.dictionary), MISSING_HASH)
        return of_values[pc.fill_null(coded.indices.cast(pa.int64()), -1).to_numpy()]
    missing_N = pc.is_null(values, nan_is_null=True).to_numpy(zero_copy_only=False)
    no_values = (pa.types.is_null, pa.types.is_map, pa.types.is_union, pa.types.is_interval)
    if any(is_kind(kind) for is_kind in no_values):
        found_N = np.zeros(len(values), np.uint64)
    elif pa.types.is_floating(kind):
        found_N = _real_hashes(pc.fill_null(values.cast(pa.float64()), 0.0).to_numpy())
    elif pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        whole = values.cast(pa.int64(), safe=False)
        found_N = pc.fill_null(whole, 0).to_numpy(zero_copy_only=False).view(np.uint64)
    elif pa.types.is_temporal(kind):
        whole = values.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
        found_N = pc.fill_null(whole, 0).to_numpy().astype(np.int64).view(np.uint64)
    else:  # decimals, bytes
        found_N = hash_text(to_keys(pa.chunked_array([values]), "text", "a row"))
    return np.where(missing_N, MISSING_HASH, found_N)


def _real_hashes(reals_N: np.ndarray) -> np.ndarray:
    """The bits of whole numbers as integers, as integers have them, of others their own."""
    with np.errstate(invalid="ignore"):
        whole_N = (reals_N == np.floor(reals_N)) & (np.abs(reals_N) < 2.0**53)
    integers_N = np.where(whole_N, reals_N, 0).astype(np.int64)
    return np.where(whole_N, integers_N.view(np.uint64), reals_N.view(np.uint64))


def _text_hashes(distinct: pa.Array) -> np.ndarray:
    """Numbers in text as numbers have them: test files of a split by file stay text."""
    column = text.blank_to_null(pa.chunked_array([distinct]))
    found_N = np.where(pc.is_null(column).to_numpy(), MISSING_HASH, hash_text(distinct))
    looks_N = pc.fill_null(pc.match_substring_regex(column, _NUMBER), False).to_numpy()
    if looks_N.any():
        written = column.filter(pa.array(looks_N))
        integers, reals = text.to_integers(written), text.to_reals(written)
        whole = pc.fill_null(integers, 0).to_numpy().view(np.uint64)
        other = _real_hashes(pc.fill_null(reals, 0.0).to_numpy())
        found_N[looks_N] = np.where(pc.is_null(integers).to_numpy(), other, whole)
    return found_N


def _list_hashes(values: pa.Array) -> np.ndarray:
    """Σ of items mixed with their places, and their number; a missing list is no empty one."""
    counts_N = list_lengths(values)
    items_V = value_hashes(plain(pa.chunked_array([values.flatten()])).combine_chunks())
    ends_N = np.cumsum(counts_N)
    places_V = np.arange(len(items_V)) - np.repeat(ends_N - counts_N, counts_N)
    sums = np.zeros(len(items_V) + 1, np.uint64)
    mixed_V = mix64(mix64(items_V) + mix64(places_V.astype(np.uint64), seed=1))
    np.cumsum(mixed_V, out=sums[1:])
    found_N = sums[ends_N] - sums[ends_N - counts_N] + counts_N.astype(np.uint64)
    return np.where(values.is_null().to_numpy(zero_copy_only=False), MISSING_HASH, found_N)
