"""Words that mean a missing value, made null on every road by which rows come."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache

import pyarrow as pa

from mmoe.config.data import MISSING_WORDS
from mmoe.datasets.values.arrow import decoded, is_text, one_chunk, pc, plain

# Of so few all columns of text are one: a call of Arrow's costs more than what it does to them
_FEW_ROWS = 256


@dataclass(frozen=True, kw_only=True)
class TextCells:
    """Rules by which a run takes cells of text as something else.

    Attributes:
        as_text: Columns that stay text in any case, where types are inferred.
        words: `data.missing_words`; None: numbers know words of their own, keys are not cleaned.
        keys: Columns of keys, in which the words are null.
    """

    as_text: frozenset[str] = frozenset()
    words: Sequence[str] | None = None
    keys: frozenset[str] = frozenset()

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
        kind = column.type
        chunks = [
            pa.DictionaryArray.from_arrays(
                chunk.indices, _of_dictionary(chunk, tuple(words)), ordered=kind.ordered
            )
            for chunk in column.chunks
        ]
        kind = pa.dictionary(kind.index_type, pa.large_string(), kind.ordered)
        return pa.chunked_array(chunks, kind)
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


def _of_dictionary(chunk: pa.DictionaryArray, words: tuple[str, ...]) -> pa.Array:
    found = _without(plain(pa.chunked_array([chunk.dictionary])), words)
    return one_chunk(found)


def _without(values: pa.ChunkedArray, words: tuple[str, ...]) -> pa.ChunkedArray:
    trimmed = pc.utf8_trim_whitespace(values)
    missing = pc.is_in(trimmed, _listed(("", *words), values.type))
    return pc.if_else(missing, pa.scalar(None, values.type), trimmed)


@cache
def _listed(words: tuple[str, ...], kind: pa.DataType) -> pa.Array:
    return pa.array(words, kind)
