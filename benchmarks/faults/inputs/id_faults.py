"""Faults of ids and of lists of ids."""

import pyarrow as pa

from benchmarks.faults.inputs.draft import Draft, Expect, either, error, right
from benchmarks.faults.inputs.number_faults import word_among_numbers


def ids_of_two_kinds(draft: Draft) -> Expect:
    """Integers in one file, text in another; CSV settles to text."""
    part = draft.part()
    users = [f"u{user}" for user in draft.tables[part]["user"].to_pylist()]
    draft.replace(part, "user", pa.array(users))
    if draft.is_csv or len(draft.tables) == 1:
        return right("files" if draft.is_csv else "tables")
    return either("user", "part-")


def other_integers(draft: Draft) -> Expect:
    """The same ids in another type."""
    kind = draft.draw.choice([pa.int32(), pa.uint16(), pa.float64(), pa.decimal128(21, 2),
                              pa.uint64(), pa.float32(), pa.int16()])  # fmt: skip
    for part, table in enumerate(draft.tables):
        draft.replace(part, "user", table["user"].cast(kind))
    return right("clean")


def other_types_in_one(draft: Draft) -> Expect:
    """One file has wider or narrower numbers than the others."""
    column = draft.draw.choice(["user", "click", "price"])
    kinds = {"user": [pa.int32(), pa.uint32(), pa.float64()], "click": [pa.int8(), pa.float32(),
             pa.bool_()], "price": [pa.float32(), pa.decimal128(20, 2)]}[column]  # fmt: skip
    part = draft.part()
    kind = draft.draw.choice(kinds)
    cast = draft.tables[part][column].cast(kind, safe=False)
    draft.replace(part, column, cast)
    if kind != pa.float32() or column == "click":
        return either(column, reference="clean")
    return either(column, reference="files" if draft.is_csv else "tables")


def other_text(draft: Draft) -> Expect:
    """The same words in another type."""
    kinds = [pa.large_string(), pa.dictionary(pa.int32(), pa.string()), pa.binary(),
             pa.large_binary(), pa.string_view()]  # fmt: skip
    kind = draft.draw.choice(kinds[:2] if draft.is_csv else kinds)
    parts = [draft.part()] if draft.draw.random() < 0.5 else range(len(draft.tables))
    for part in parts:
        draft.replace(part, "item", draft.tables[part]["item"].cast(kind))
    return either("item", reference="clean")


def odd_words(draft: Draft) -> Expect:
    """Ids that are empty, long, with line ends, quotes, zeros or from other scripts."""
    part = draft.part()
    items = draft.tables[part]["item"].to_pylist()
    odd = ["", " ", "a\nb", 'say "hi"', "äöü", "日本語", "x" * 100_000, "a,b", "007", "\u202e", "'",
           "i1", "NA", "\ufeffi1", "a\rb"]  # fmt: skip
    for _ in range(3):
        items[draft.draw.randrange(len(items))] = draft.draw.choice(odd)
    draft.replace(part, "item", pa.array(items))
    # Blanks around a CSV value go: compared by what another reader finds
    return either("item", reference="files" if draft.is_csv else "tables")


def bytes_as_ids(draft: Draft) -> Expect:
    """Ids that are bytes, some of them no UTF-8."""
    if draft.is_csv:
        return odd_words(draft)
    for part, table in enumerate(draft.tables):
        items = [item.encode() for item in table["item"].to_pylist()]
        items[draft.draw.randrange(len(items))] = b"\xff\xfe\x00"
        draft.replace(part, "item", pa.array(items, pa.binary()))
    return either("item")


def huge_ids(draft: Draft) -> Expect:
    """Ids at the end of 64 bits."""
    part = draft.part()
    users = draft.tables[part]["user"].to_pylist()
    big = draft.draw.choice([2**63 - 1, -(2**63), 2**53 + 1, 2**63, 2**64 - 1])
    users[draft.draw.randrange(len(users))] = big
    kind = pa.uint64() if big >= 2**63 else pa.int64()
    draft.replace(part, "user", pa.array(users, kind))
    return either("user", reference="files" if draft.is_csv else "tables")


def missing_lists(draft: Draft) -> Expect:
    """Lists that are null, empty, or hold nulls."""
    part = draft.part()
    lists = draft.tables[part]["history"].to_pylist()
    for _ in range(5):
        lists[draft.draw.randrange(len(lists))] = draft.draw.choice([None, [], [None], [None, 3]])
    draft.replace(part, "history", pa.array(lists, pa.list_(pa.int64())))
    return right()


def other_lists(draft: Draft) -> Expect:
    """The same lists in another type."""
    kinds = [pa.large_list(pa.int32()), pa.list_(pa.int16()), pa.list_(pa.float64()),
             pa.list_(pa.string()), pa.list_(pa.dictionary(pa.int8(), pa.int64()))]  # fmt: skip
    kind = draft.draw.choice(kinds[:2] if draft.is_csv else kinds)
    parts = [draft.part()] if draft.draw.random() < 0.5 else range(len(draft.tables))
    for part in parts:
        lists = draft.tables[part]["history"].to_pylist()
        if pa.types.is_string(kind.value_type):
            lists = [[str(value) for value in row] for row in lists]
        draft.replace(part, "history", pa.array(lists, kind))
    as_words = pa.types.is_string(kind.value_type)  # then ids of a vocabulary are words
    return either("history", reference="tables" if as_words else "clean")


def nested_ids(draft: Draft) -> Expect:
    """Lists of lists, structs or maps where ids belong."""
    if draft.is_csv:
        return word_among_numbers(draft)
    column = draft.draw.choice(["history", "item", "user", "price"])
    values, kind = draft.draw.choice([
        ([[1], [2, 3]], pa.list_(pa.list_(pa.int64()))),
        ({"a": 1, "b": "x"}, pa.struct([("a", pa.int64()), ("b", pa.string())])),
        ([("k", 1)], pa.map_(pa.string(), pa.int64())),
        ([{"a": 1}], pa.list_(pa.struct([("a", pa.int64())]))),
    ])  # fmt: skip
    parts = [draft.part()] if draft.draw.random() < 0.5 else range(len(draft.tables))
    for part in parts:
        draft.replace(part, column, pa.array([values] * draft.tables[part].num_rows, kind))
    return either(column) if draft.command == "init" else error(column)


ID_FAULTS = (
    ids_of_two_kinds,
    other_integers,
    other_types_in_one,
    other_text,
    odd_words,
    bytes_as_ids,
    huge_ids,
    missing_lists,
    other_lists,
    nested_ids,
)
