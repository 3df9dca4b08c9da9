"""Lists in text as JSON, Python and NumPy write them: ["a", "b"], ['a', 'b'], [1 2]."""

import ast
import json
import re
from typing import Any

import pyarrow as pa

from mmoe.datasets.values.arrow import list_lengths, offsets_of, pc
from mmoe.datasets.values.text import blank_to_null

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
    """['a' 'b'], which Python would read as one text."""
    if re.match(_QUOTED_BY_BLANKS, cell) is None:
        return None
    return [one or two for one, two in re.findall(r"""'([^']*)'|"([^"]*)\"""", cell)]


def _plain(value: Any) -> list[str | None] | None:
    if not isinstance(value, list | tuple):
        return None
    if any(isinstance(item, list | tuple | dict | set) for item in value):
        return None
    return [None if item is None else _text(item) for item in value]


def _text(item: Any) -> str:
    return str(item).lower() if isinstance(item, bool) else str(item)
