"""Faults of columns and rows: gone, renamed, twice, empty, labels of one class."""

import pyarrow as pa

from benchmarks.faults.inputs.draft import FEATURES, UNREAD, Draft, Expect, either, error, right


def drop_column(draft: Draft) -> Expect:
    """A column is gone from one file."""
    column = draft.draw.choice([*FEATURES, "click", "buy", UNREAD])
    part = draft.part()
    draft.tables[part] = draft.tables[part].drop_columns([column])
    if draft.command == "init" and column in (*FEATURES, UNREAD):
        return either(column)
    return error(column) if draft.reads(column) else right("clean")


def rename_column(draft: Draft) -> Expect:
    """A column has another name in every file."""
    column = draft.draw.choice([*FEATURES, "click"])
    other = draft.draw.choice([column.upper(), column + "_", column[:-1], "x"])
    draft.tables = [
        t.rename_columns([other if n == column else n for n in t.column_names])
        for t in draft.tables
    ]
    if draft.command == "init" and column in FEATURES:
        return right()
    return error(column) if draft.reads(column) else right()


def shuffled_columns(draft: Draft) -> Expect:
    """The columns of one file stand in another order."""
    part = draft.part()
    names = list(draft.tables[part].column_names)
    draft.draw.shuffle(names)
    draft.tables[part] = draft.tables[part].select(names)
    return either() if draft.command == "init" else right("clean")


def extra_column(draft: Draft) -> Expect:
    """One file has a column that the others have not."""
    part = draft.part()
    values = pa.array([draft.draw.random() for _ in range(draft.tables[part].num_rows)])
    draft.tables[part] = draft.tables[part].append_column("surprise", values)
    return either() if draft.command == "init" else right("clean")


def duplicate_column(draft: Draft) -> Expect:
    """Two columns have one name."""
    column = draft.draw.choice([*FEATURES, UNREAD])
    for part, table in enumerate(draft.tables):
        other = pa.nulls(table.num_rows, table[column].type)
        draft.tables[part] = table.append_column(column, other)
    return either(column, reference="clean")


def no_rows_in_one(draft: Draft) -> Expect:
    """One file has columns, but no rows."""
    if len(draft.tables) == 1:
        return no_rows(draft)
    part = draft.part()
    draft.tables[part] = draft.tables[part].slice(0, 0)
    return right()


def no_rows(draft: Draft) -> Expect:
    """No file has a row."""
    draft.tables = [table.slice(0, 0) for table in draft.tables]
    return either("no row") if draft.command == "score" else error("no row")


def few_rows(draft: Draft) -> Expect:
    """One to five rows."""
    draft.tables = [draft.tables[0].slice(0, draft.draw.randint(1, 5))]
    return right() if draft.command == "score" else either()


def all_null(draft: Draft) -> Expect:
    """A column holds nothing, in one file or in all."""
    column = draft.draw.choice([*FEATURES, "click", "buy"])
    typed = draft.draw.random() < 0.5
    whole = draft.draw.random() < 0.5
    parts = range(len(draft.tables)) if whole else [draft.part()]
    for part in parts:
        table = draft.tables[part]
        kind = table[column].type if typed else pa.null()
        draft.replace(part, column, pa.nulls(table.num_rows, kind))
    if column in FEATURES:
        return either(column) if draft.command == "init" else right()
    return either(column) if draft.reads(column) else right("clean")


def one_class(draft: Draft) -> Expect:
    """Every label is the same."""
    value = draft.draw.choice([0, 1])
    for part, table in enumerate(draft.tables):
        draft.replace(part, "click", pa.array([value] * table.num_rows))
    if draft.command == "train":
        return error(("click", "buy"))
    return either(("click", "buy")) if draft.command == "init" else right()


def stray_label(draft: Draft) -> Expect:
    """One label is neither 0 nor 1."""
    part = draft.part()
    labels = draft.tables[part]["click"].to_pylist()
    stray = draft.draw.choice([2, -1, 7, 0.5, "maybe", "yes?", 1e300])
    labels[draft.draw.randrange(len(labels))] = stray
    whole = not isinstance(stray, str) and stray in (2, -1, 7)
    if isinstance(stray, str):
        labels = [str(value) for value in labels]
    draft.replace(part, "click", pa.array(labels if whole or isinstance(stray, str) else
                                          [float(v) for v in labels]))  # fmt: skip
    if draft.command == "init":
        return either()
    return error("click") if draft.reads("click") else right("clean")


COLUMN_FAULTS = (
    drop_column,
    rename_column,
    shuffled_columns,
    extra_column,
    duplicate_column,
    no_rows_in_one,
    no_rows,
    few_rows,
    all_null,
    one_class,
    stray_label,
)
