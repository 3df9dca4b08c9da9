"""Cells of text: numbers, flags, words for what is missing, lists."""

import ast
import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from typing import Any

import pyarrow as pa

from mmoe.config.data import MISSING_WORDS
from mmoe.datasets.values.arrow import (
    decoded,
    is_text,
    list_lengths,
    offsets_of,
    one_chunk,
    pc,
    plain,
    recoded,
)

_TRUE = ("true", "True", "TRUE")
_FALSE = ("false", "False", "FALSE")
_EXACT = 2.0**53  # whole numbers below are exact in float64
_WITH_POWER = r"^[+-]?(\d+\.?\d*|\.\d+)[eE][+-]?\d+$|^[+-]?\.0+$"
_GLANCE = 200  # values looked at before whole columns are tried


def is_missing(value: str) -> bool:
    """Returns whether a cell is empty, or a word for that."""
    return not value or value in MISSING_WORDS


def blank_to_null(values: pa.ChunkedArray, words: Sequence[str] = MISSING_WORDS) -> pa.ChunkedArray:
    """Turns empty text, and words that mean "missing", into null."""
    missing = pc.is_in(values, pa.array(["", *words], values.type))
    return pc.if_else(missing, pa.scalar(None, values.type), values)


def settle(values: pa.ChunkedArray, words: Sequence[str] = MISSING_WORDS) -> pa.ChunkedArray:
    """Casts text to the narrowest type that keeps every value: bool, int64, float64, text.

    Integers that would not print back the same (zip code 00501, +1) keep the column text, and so
    does 00501 where others are written as 1e+05. Dates stay text: ISO dates sort and compare as
    they are.

    Args:
        values: large_string [N].
        words: Those that mean "missing".

    Returns:
        The same values as bool, int64, float64 or large_string; missing words are null in the
        first three, only "" is in the last.
    """
    kind = TextKind(words)
    kind.add(values.slice(0, _GLANCE))  # casts of whole columns that fail take twenty times as long
    # The common cases need no search for missing words
    if kind.integers and (whole := cast_or_none(values, pa.int64())) is not None:
        return whole if is_canonical(values) else empty_to_null(values)
    if kind.reals and (real := cast_or_none(values, pa.float64())) is not None:
        lossy = loses_digits(values, real) or loses_zeros(values, real)
        return empty_to_null(values) if lossy else real
    kind.add(values)
    return as_settled(values, kind.type, words)


def is_canonical(values: pa.ChunkedArray) -> bool:
    """Returns whether all numbers are written plainly, not as 007, -0 or 0x1F."""
    padded = pc.and_(pc.starts_with(values, "0"), pc.greater(pc.binary_length(values), 1))
    odd = pc.or_(padded, pc.starts_with(values, "-0"))
    return not pc.any(odd, min_count=0).as_py()


def to_reals(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Parses text to float64, null where it is missing or no number."""
    blanked = blank_to_null(values)
    real = cast_or_none(blanked, pa.float64())
    if real is not None:
        return real
    trimmed = _flags_to_digits(pc.utf8_trim_whitespace(blanked))
    # Arrow stops at the first bad value, so only what looks like a number is cast.
    looks = pc.match_substring_regex(
        trimmed, r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$|(?i)^[+-]?inf(inity)?$"
    )
    return pc.if_else(looks, trimmed, pa.scalar(None, values.type)).cast(pa.float64())


def to_integers(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Parses text to int64 (7, 007, 7.0, 7e+00, true), null where missing or no integer.

    A value is what it is on its own, whatever stands beside it.
    """
    blanked = blank_to_null(values)
    whole = cast_or_none(blanked, pa.int64())
    hexadecimal = pc.match_substring_regex(blanked, r"^-?0[xX]")  # Arrow takes 0x1F for 31
    if whole is not None and not pc.any(hexadecimal, min_count=0).as_py():
        return whole
    text = _flags_to_digits(pc.utf8_trim_whitespace(blanked))
    text = pc.replace_substring_regex(text, r"(\d)\.0*$", r"\1")
    text = pc.replace_substring_regex(text, r"^\+", "")
    short = pc.match_substring_regex(text, r"^-?\d{1,18}$")
    result = pc.if_else(short, text, pa.scalar(None, values.type)).cast(pa.int64())
    # 19 digits may or may not fit; they are rare here, so Python settles them one by one.
    long = pc.match_substring_regex(text, r"^-?0*[1-9]\d{18}$")
    if pc.any(long).as_py():
        result = pc.coalesce(result, _long_integers(text, long))
    powers = pc.match_substring_regex(text, _WITH_POWER)  # as R and spreadsheets write 100000
    return pc.coalesce(result, _of_powers(text, powers)) if pc.any(powers).as_py() else result


def to_booleans(values: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """Parses text to bool where every value is true or false (or null), else None."""
    true = pc.is_in(values, pa.array(_TRUE, values.type))
    known = pc.or_(true, pc.is_in(values, pa.array(_FALSE, values.type)))
    if not pc.all(pc.or_(known, pc.is_null(values)), min_count=0).as_py():
        return None
    return pc.if_else(pc.is_null(values), pa.scalar(None, pa.bool_()), true)


def _flags_to_digits(values: pa.ChunkedArray) -> pa.ChunkedArray:
    for words, digit in ((_TRUE, "1"), (_FALSE, "0")):
        is_word = pc.is_in(values, pa.array(words, values.type))
        values = pc.if_else(is_word, pa.scalar(digit, values.type), values)
    return values


def _of_powers(text: pa.ChunkedArray, powers: pa.ChunkedArray) -> pa.ChunkedArray:
    """Integers of texts such as 1e+05, 1.5E3 and 7.0; from 2⁵³ on digit by digit."""
    reals = pc.if_else(powers, text, pa.scalar(None, text.type)).cast(pa.float64())
    whole = pc.and_(pc.equal(reals, pc.floor(reals)), pc.less(pc.abs(reals), _EXACT))
    result = pc.if_else(whole, reals, pa.scalar(None, pa.float64())).cast(pa.int64())
    large = pc.and_(pc.greater_equal(pc.abs(reals), _EXACT), pc.less_equal(pc.abs(reals), 2.0**63))
    if pc.any(large).as_py():
        result = pc.coalesce(result, _long_integers(text, large))
    return result


def _long_integers(text: pa.ChunkedArray, long: pa.ChunkedArray) -> pa.ChunkedArray:
    chosen = pc.if_else(long, text, pa.scalar(None, text.type)).to_pylist()
    numbers = [None if value is None else Decimal(value) for value in chosen]
    fits = [
        int(n) if n is not None and -(2**63) <= n < 2**63 and n == n.to_integral_value() else None
        for n in numbers
    ]
    return pa.chunked_array([pa.array(fits, pa.int64())])


def cast_or_none(values: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray | None:
    """Casts the values to `kind`, or returns None where one of them cannot be."""
    try:
        return values.cast(kind)
    except pa.ArrowInvalid:
        return None


def cast_each(values: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Casts the values to `kind`, null where one cannot be: Arrow stops at the first of these."""
    found = cast_or_none(values, kind)
    if found is not None:
        return found

    def one(cell: pa.Scalar) -> pa.Scalar | None:
        try:
            return cell.cast(kind)
        except pa.ArrowInvalid:
            return None

    return pa.chunked_array([pa.array([one(cell) for cell in values], kind)])


def loses_digits(text: pa.ChunkedArray, real: pa.ChunkedArray) -> bool:
    """Returns whether ids of many digits parse as float64, but no longer differ."""
    if not pc.any(pc.greater_equal(pc.abs(real), 2.0**53)).as_py():
        return False
    return bool(pc.any(pc.match_substring_regex(text, r"^-?\d{16,}$")).as_py())


def loses_zeros(text: pa.ChunkedArray, real: pa.ChunkedArray) -> bool:
    """Returns whether ids such as 00501 stand among whole numbers written as 1e+05 or 7.0.

    Measurements may be padded: beside a fraction, 007 is 7.
    """
    if not is_whole(real):
        return False
    return bool(pc.any(pc.match_substring_regex(text, r"^[+-]?0\d+$"), min_count=0).as_py())


def is_whole(real: pa.ChunkedArray) -> bool:
    """Returns whether no number is a fraction."""
    return bool(pc.all(pc.equal(real, pc.floor(real)), min_count=0).as_py())


def empty_to_null(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Turns empty text into null."""
    return pc.if_else(pc.equal(values, ""), pa.scalar(None, values.type), values)


def words_to_null(column: pa.ChunkedArray, words: Sequence[str]) -> pa.ChunkedArray:
    """Makes these words null, with blanks around them or without."""
    if not words:
        return column
    trimmed = pc.utf8_trim_whitespace(column)
    wanted = pa.array([word.strip() for word in words], column.type)
    return pc.if_else(pc.is_in(trimmed, wanted), pa.scalar(None, column.type), column)


_LONG = 16  # digits that float64 may lose


class TextKind:
    """Finds the type of one text column from its chunks.

    Args:
        words: Those that mean "missing".

    Example:
        >>> kind = TextKind()
        >>> for chunk in (["1", "2"], ["NA", "2.5"]):
        ...     kind.add(pa.chunked_array([pa.array(chunk, pa.large_string())]))
        >>> kind.type
        DataType(double)
    """

    def __init__(self, words: Sequence[str] = MISSING_WORDS) -> None:
        self.words = words
        self.integers = self.canonical = self.reals = self.flags = True
        self.whole = True  # all numbers are whole
        self.large = self.long = self.padded = False

    def add(self, values: pa.ChunkedArray) -> None:
        """Looks at more rows, large_string."""
        if not (self.reals or self.flags):
            return  # words: nothing changes that
        present = blank_to_null(values, self.words).drop_null()
        if not len(present):
            return
        if self.reals:
            self._add_numbers(present)
        self.flags = self.flags and not self.reals and to_booleans(present) is not None

    @property
    def type(self) -> pa.DataType:
        """Returns bool, int64, float64 or large_string."""
        if self.integers:
            return pa.int64() if self.canonical else pa.large_string()
        if self.reals:
            lossy = (self.large and self.long) or (self.whole and self.padded)
            return pa.large_string() if lossy else pa.float64()
        return pa.bool_() if self.flags else pa.large_string()

    def _add_numbers(self, present: pa.ChunkedArray) -> None:
        whole = cast_or_none(present, pa.int64()) if self.integers else None
        self.integers = whole is not None
        self.canonical = self.canonical and (whole is None or is_canonical(present))
        if whole is not None and self.canonical:  # sooner than to read the text again
            reals = whole.cast(pa.float64(), safe=False)
        else:
            reals = cast_or_none(present, pa.float64())
        self.reals = reals is not None
        if reals is None:
            return
        self.whole = self.whole and is_whole(reals)
        if self.whole and not self.padded and not (self.integers and self.canonical):
            self.padded = loses_zeros(present, reals)
        self.large = self.large or pc.any(pc.greater_equal(pc.abs(reals), 2.0**53)).as_py()
        if not self.long and pc.max(pc.binary_length(present)).as_py() >= _LONG:
            self.long = bool(pc.any(pc.match_substring_regex(present, r"^-?\d{16,}$")).as_py())


def as_settled(
    values: pa.ChunkedArray, kind: pa.DataType, words: Sequence[str] = MISSING_WORDS
) -> pa.ChunkedArray:
    """Casts text to the type that `TextKind` found; missing words become null."""
    if pa.types.is_large_string(kind):
        return empty_to_null(values)
    blanked = blank_to_null(values, words)
    if pa.types.is_boolean(kind):
        flags = to_booleans(blanked)
        if flags is None:
            raise pa.ArrowInvalid("a value is neither true nor false")
        return flags
    return blanked.cast(kind)


# Of so few all columns of text are one: a call of Arrow's costs more than what it does to them
_FEW_ROWS = 256


@dataclass(frozen=True, kw_only=True)
class TextCells:
    """Rules by which a run takes cells of text as something else."""

    # Columns that stay text in any case, where types are inferred
    as_text: frozenset[str] = frozenset()
    # `data.missing_words`; None: numbers know words of their own, keys are not cleaned
    words: Sequence[str] | None = None
    keys: frozenset[str] = frozenset()  # columns of keys, in which the words are null

    @property
    def known(self) -> Sequence[str]:
        """Words that are no reason to take a column of numbers for text."""
        return MISSING_WORDS if self.words is None else self.words

    def cleaned(self, table: pa.Table) -> pa.Table:
        """Returns rows whose keys are null where they mean a missing value."""
        return cleaned(table, self.keys, self.words)


PLAIN_CELLS = TextCells()


def without_words(column: pa.ChunkedArray, words: Sequence[str] | None) -> pa.ChunkedArray:
    """Returns text without blanks around it, null where it is empty or one of the words.

    Args:
        column: N rows of any type; what is no text stays as it is, and so do lists, whose items
            their features read.
        words: `data.missing_words`; None: nothing is done.

    Example:
        >>> cells = pa.chunked_array([["NA", " de", "", "Nancy"]])
        >>> without_words(cells, ["NA"]).to_pylist()
        [None, 'de', None, 'Nancy']
    """
    if words is None or pa.types.is_primitive(column.type):
        return column
    if isinstance(column.type, pa.DictionaryType) and is_text(column.type.value_type):
        index, ordered = column.type.index_type, column.type.ordered
        kind = pa.dictionary(index, pa.large_string(), ordered)
        return recoded(
            column, kind, lambda v: one_chunk(_without(plain(pa.chunked_array([v])), tuple(words)))
        )
    if isinstance(column.type, pa.DictionaryType):
        return column
    text = decoded(plain(column))
    return _without(text, tuple(words)) if is_text(text.type) else column


def cleaned(table: pa.Table, names: Collection[str], words: Sequence[str] | None) -> pa.Table:
    """Returns a table in which `without_words` has been at these columns."""
    if words is None:
        return table
    names = set(names)
    columns, alike = table.columns, table.num_rows <= _FEW_ROWS
    kept, kinds = table.schema.names, table.schema.types
    groups: dict[pa.DataType | int, list[int]] = {}
    for place, (name, kind) in enumerate(zip(kept, kinds, strict=True)):
        if name in names and not pa.types.is_primitive(kind):
            groups.setdefault(kind if alike and is_text(kind) else place, []).append(place)
    if not groups:
        return table
    for places in groups.values():
        chunks = [chunk for place in places for chunk in columns[place].chunks]
        found = without_words(pa.chunked_array(chunks, kinds[places[0]]), words)
        for number, place in enumerate(places):
            columns[place] = found.slice(number * table.num_rows, table.num_rows)
    # At once: a table that changes one column copies the list of all others
    return pa.Table.from_arrays(columns, kept, metadata=table.schema.metadata)


def first_word(table: pa.Table, name: str, words: Sequence[str]) -> int | None:
    """Returns the first row whose text is one of the words; None where there is none."""
    column = decoded(plain(table[name])) if name in table.column_names else None
    if column is None or not is_text(column.type) or not words:
        return None
    found = pc.is_in(pc.utf8_trim_whitespace(column), _listed(tuple(words), column.type))
    index = pc.index(found, True).as_py()
    return None if index < 0 else index


def words_met(column: pa.ChunkedArray, words: Sequence[str]) -> dict[str, int]:
    """Counts the words in a column of text, the most frequent first.

    Example:
        >>> words_met(pa.chunked_array([["NA", "de", "", "null", "NA"]]), ["NA", "null"])
        {'NA': 2, 'null': 1}
    """
    if not is_text(column.type):
        return {}
    trimmed = pc.utf8_trim_whitespace(column)
    found = pc.value_counts(trimmed.filter(pc.is_in(trimmed, _listed(tuple(words), column.type))))
    counts = {str(pair["values"]): int(pair["counts"]) for pair in found.to_pylist()}
    return dict(sorted(counts.items(), key=lambda pair: -pair[1]))


def _without(values: pa.ChunkedArray, words: tuple[str, ...]) -> pa.ChunkedArray:
    trimmed = pc.utf8_trim_whitespace(values)
    missing = pc.is_in(trimmed, _listed(("", *words), values.type))
    return pc.if_else(missing, pa.scalar(None, values.type), trimmed)


@cache
def _listed(words: tuple[str, ...], kind: pa.DataType) -> pa.Array:
    return pa.array(words, kind)


# Brackets around items without quotes, commas or brackets in them: read without a parser
_ITEM = r"""(?:"[^"\\,\[\]{}()]*"|'[^'\\,\[\]{}()]*'|[^"'\\,\[\]{}()]+)"""
_SIMPLE = rf"^[\[({{]\s*(?:{_ITEM}\s*(?:,\s*{_ITEM}\s*)*,?)?\s*[\])}}]$"
# NumPy writes numbers with blanks, and text as 'a' 'b'
_BY_BLANKS = r"^\[\s*[+\-.\w]+(?:\s+[+\-.\w]+)+\s*\]$"
_QUOTED_BY_BLANKS = r"""^\[\s*(?:'[^']*'|"[^"]*")(?:\s+(?:'[^']*'|"[^"]*"))+\s*\]$"""
_NO_ITEMS = ("null", "None", "nan", "NaN", "NA", "<NA>", "")
_TYPE = pa.large_list(pa.large_string())


def parse_lists(values: pa.ChunkedArray) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """Parses lists in text; items without their quotes, null where they are null.

    Args:
        values: large_string [N].

    Returns:
        large_list<large_string> [N], null where missing or no list; and which rows are no list.

    Example:
        >>> cells = pa.chunked_array([pa.array(['["a, b", null]', "[1, 2]", "[1 2]", "", "a|b"],
        ...                                    "large_string")])
        >>> lists, wrong = parse_lists(cells)
        >>> lists.to_pylist(), wrong.to_pylist()
        ([['a, b', None], ['1', '2'], ['1', '2'], None, None], [False, False, False, False, True])
    """
    present = blank_to_null(pc.utf8_trim_whitespace(values)).combine_chunks()
    blanks = pc.match_substring_regex(present, _BY_BLANKS)
    if pc.any(blanks, min_count=0).as_py():
        commas = pc.replace_substring_regex(present, r"\s+", ",")  # items that are empty go
        present = pc.if_else(blanks, commas, present)
    simple = pc.match_substring_regex(present, _SIMPLE)
    quoted = pc.match_substring_regex(present, _QUOTED_BY_BLANKS)
    simple = pc.and_(simple, pc.invert(quoted))
    lists = _split(pc.if_else(simple, present, pa.scalar(None, present.type)))
    others = pc.and_(pc.is_valid(present), pc.invert(simple))
    found, wrong = _one_by_one(pc.if_else(others, present, pa.scalar(None, present.type)))
    if found is not None:
        lists = pc.if_else(pc.fill_null(others, False), found, lists)
    return pa.chunked_array([lists]), pa.chunked_array([wrong])


def _split(cells: pa.Array) -> pa.Array:
    """Items of cells that need no parser."""
    inside = pc.utf8_trim_whitespace(pc.utf8_slice_codeunits(cells, 1, stop=-1))
    inside = pc.utf8_trim_whitespace(pc.utf8_rtrim(inside, ","))
    lists = pc.split_pattern(inside, ",").cast(_TYPE)
    # "" is split into one item that is empty; [] has none
    lists = pc.if_else(pc.equal(inside, ""), pa.scalar([], _TYPE), lists)
    items = pc.utf8_trim_whitespace(lists.flatten())
    bare = pc.is_in(items, pa.array(_NO_ITEMS, pa.large_string()))
    items = pc.if_else(bare, pa.scalar(None, items.type), pc.utf8_trim(items, "'\""))
    offsets = pa.array(offsets_of(list_lengths(lists)))
    return pa.LargeListArray.from_arrays(offsets, items, mask=lists.is_null())


def _one_by_one(cells: pa.Array) -> tuple[pa.Array | None, pa.Array]:
    """The few that hold commas in quotes, escapes or other brackets; and which are no lists."""
    if cells.null_count == len(cells):
        return None, pa.repeat(pa.scalar(False), len(cells))
    found = [None if cell is None else _parse(cell) for cell in cells.to_pylist()]
    wrong = [
        cell is not None and one is None for cell, one in zip(cells.to_pylist(), found, strict=True)
    ]
    return pa.array(found, _TYPE), pa.array(wrong, pa.bool_())


def _parse(cell: str) -> list[str | None] | None:
    """Items as text, or None where the cell is no list of plain values."""
    if len(cell) > 1 and cell[0] == "[" and cell[-1] == "]":
        try:
            return _plain(json.loads(cell, parse_int=str, parse_float=str))
        except (ValueError, RecursionError):
            pass
        quoted = _quoted_by_blanks(cell)
        if quoted is not None:
            return quoted
    try:
        value = ast.literal_eval(cell)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return None
    return _plain(sorted(value, key=str) if isinstance(value, set) else value)


def _quoted_by_blanks(cell: str) -> list[str | None] | None:
    """Separates texts quoted side by side: Python would join ['a' 'b'] to one."""
    if re.match(_QUOTED_BY_BLANKS, cell) is None:
        return None
    return [one or two for one, two in re.findall(r"""'([^']*)'|"([^"]*)\"""", cell)]


def _plain(value: Any) -> list[str | None] | None:
    if not isinstance(value, list | tuple):
        return None
    if any(isinstance(item, list | tuple | dict | set) for item in value):
        return None
    return [
        None if item is None else str(item).lower() if isinstance(item, bool) else str(item)
        for item in value
    ]
