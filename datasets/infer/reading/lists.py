"""Text that is a list, several words, or a row's own: separators, brackets, free text."""

import pyarrow as pa

from mmoe.datasets.values.arrow import pc
from mmoe.datasets.values.written_lists import parse_lists

SAMPLED = 20_000  # rows looked at
_SEPARATORS = ("|", ";", "^", "\t", "\x01", "\x02", ",")
_WEIGHT_MARKS = ("\x03", ":", "=")
_WEIGHT = r"\s*\d*\.?\d+([eE][+-]?\d+)?$"
_LEAST = 0.1  # share of rows that hold the separator
_LISTS = 0.99  # share of rows that are lists in brackets
_REPEATS = 20  # rows an item, where blanks part items that are words
_WORDS, _DIFFERENT = 5, 0.5  # words a row, share of different rows
_FEW_WORDS, _LONG, _OWN = 2.5, 30, 0.95  # words or characters a row: titles, addresses of pages
_ROWS = 20  # fewer say nothing
_FRACTION = r"^[+-]?\d*\.\d+([eE][+-]?\d+)?$"


def sampled(present: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns at most about SAMPLED of the rows, from everywhere."""
    step = -(-len(present) // SAMPLED)
    return present if step <= 1 else present.take(pa.array(range(0, len(present), step)))


def in_brackets(rows: pa.ChunkedArray) -> str | None:
    """Says what text in brackets is: "lists", "fractions" (vectors), "nested"; None: no brackets.

    Example:
        >>> in_brackets(pa.chunked_array([pa.array(["[1, 2]", "[]"], pa.large_string())]))
        'lists'
    """
    looks = pc.match_substring_regex(rows, r"(?s)^\s*[\[({].*[\])}]\s*$")
    if _share(looks) < _LISTS:
        return None
    lists, wrong = parse_lists(rows)
    if _share(wrong) > 1 - _LISTS:
        return "nested"
    return "fractions" if _are_fractions(pc.list_flatten(lists)) else "lists"


def separators_of(rows: pa.ChunkedArray) -> tuple[str, str | None] | None:
    """Returns what parts the items, where items come back in other combinations; else None.

    There are fewer items than texts, and each comes twice on average. Blanks part items only where
    these hold digits (N1234 N17), or come back often: else they part words. The second separator
    is that of a weight behind each item, if there are fractions: `sports:0.7|news:0.3`.
    """
    if len(rows) < 3:
        return None
    distinct = pc.count_distinct(rows).as_py()
    for separator in (*_SEPARATORS, " "):
        holds = pc.match_substring(rows, separator)
        if _share(holds) < _LEAST:
            continue
        items, mark = _without_weights(_items(rows, separator))
        kinds = pc.count_distinct(items).as_py()
        if not (kinds < distinct and kinds <= len(items) / 2) or _are_fractions(items):
            continue
        if separator == " ":
            digits = _share(pc.match_substring_regex(items, r"\d")) >= 0.9
            often = len(items) >= _REPEATS * kinds and distinct >= 2 * kinds
            if digits or often:
                return separator, mark
        elif _share(pc.match_substring(items, " ")) <= 0.5:
            return separator, mark
    return None


def _without_weights(items: pa.ChunkedArray) -> tuple[pa.ChunkedArray, str | None]:
    """Items, and what stands between them and their weights; whole numbers may be anything."""
    for mark in _WEIGHT_MARKS:
        if _share(pc.match_substring_regex(items, f"[^{mark}]{mark}{_WEIGHT}")) < 1:
            continue
        parts = pc.split_pattern(items, mark, max_splits=1, reverse=True)
        if _are_fractions(pc.list_element(parts, 1)):
            return pc.list_element(parts, 0), mark
    return items, None


def vector_separator(rows: pa.ChunkedArray) -> str | None:
    """Returns what parts numbers with fractions, as many in each row; else None."""
    for separator in ("|", ";", ",", " "):  # those that vectors are read with
        if _share(pc.match_substring(rows, separator)) < _LISTS:
            continue
        counts = pc.list_value_length(pc.split_pattern(rows, separator))
        if pc.count_distinct(counts).as_py() == 1 and _are_fractions(_items(rows, separator)):
            return separator
    return None


def length_of_all(present: pa.ChunkedArray, separator: str) -> int | None:
    """Returns how many items every row has, or None where they differ."""
    counts = pc.unique(pc.list_value_length(pc.split_pattern(present, separator)))
    return int(counts[0].as_py()) if len(counts) == 1 else None


def free_text(rows: pa.ChunkedArray, present: int, distinct: int) -> str:
    """Says why text is no id: sentences, or titles of which almost every row has its own; or "".

    Args:
        rows: Some of them.
        present: Rows that are not missing, of all.
        distinct: Different texts, of all.
    """
    if present < _ROWS:
        return ""
    words = pc.mean(pc.count_substring_regex(rows, r"\S+").cast(pa.float64())).as_py()
    share = distinct / present
    if words >= _WORDS and share >= _DIFFERENT:
        return f"free text: {words:.0f} words a row, {100 * share:.0f} % of the rows different"
    letters = pc.mean(pc.utf8_length(rows).cast(pa.float64())).as_py()
    if _OWN <= share < 1 and (words >= _FEW_WORDS or letters >= _LONG):
        return f"almost every row has a text of its own ({100 * share:.0f} % are different)"
    return ""


def _items(rows: pa.ChunkedArray, separator: str) -> pa.ChunkedArray:
    items = pc.utf8_trim_whitespace(pc.list_flatten(pc.split_pattern(rows, separator)))
    return items.filter(pc.not_equal(items, ""))


def _are_fractions(items: pa.ChunkedArray) -> bool:
    """Half of the items, of which an id has none."""
    return len(items) > 0 and _share(pc.match_substring_regex(items.drop_null(), _FRACTION)) > 0.5


def _share(flags: pa.ChunkedArray) -> float:
    return float(pc.mean(flags.cast(pa.float64())).as_py() or 0.0)


def shown(separator: str) -> str:
    """Returns it as a comment shows it."""
    return {" ": "a blank", "\t": "a tab"}.get(separator, repr(separator))
