"""Rows that the caller holds are read as files are, and refused by row and column."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mmoe.config import config_from_dict
from mmoe.datasets.labels.encode import encode_labels
from mmoe.datasets.rows.frames import as_table, holds_rows
from mmoe.datasets.rows.locations import visible_columns
from mmoe.datasets.rows.sources import load_splits, load_test


class OtherFrame:
    """A DataFrame of another library, by Arrow's C interface alone."""

    def __init__(self, table):
        self.table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self.table.__arrow_c_stream__(requested_schema)


KINDS = {
    "DataFrame": lambda table: table.to_pandas(),
    "Table": lambda table: table,
    "dict": lambda table: {name: table[name].to_pylist() for name in table.column_names},
    "OtherFrame": OtherFrame,
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_splits_are_those_of_a_file(funnel_config, funnel_table, tmp_path, kind):
    table = funnel_table[:300]
    pq.write_table(table, tmp_path / "log.parquet")
    config = config_from_dict(funnel_config)
    of_file = load_splits(config, tmp_path / "log.parquet")
    of_rows = load_splits(config, KINDS[kind](table))
    assert of_rows.origin == kind
    for name in ("train", "validation", "test"):
        mine, theirs = getattr(of_rows, name), getattr(of_file, name)
        assert visible_columns(mine) == visible_columns(theirs)
        assert mine.to_pylist() == theirs.to_pylist()
    assert load_test(config, KINDS[kind](table)).table.num_rows == 300


def test_missing_values_are_those_of_a_file():
    frame = pd.DataFrame({1: [1.0, np.nan], "kind": pd.Categorical(["a", None])})
    table = as_table(frame)
    assert [table[name].null_count for name in ("1", "kind")] == [1, 1]


def test_a_value_is_refused_by_its_row(funnel_config, funnel_table):
    frame = funnel_table.to_pandas()
    frame.loc[16, "click"] = 7
    config = config_from_dict(funnel_config)
    for which in ("train", "validation", "test"):
        part = getattr(load_splits(config, frame), which)
        if 16 in part["__mmoe_row__"].to_pylist():
            with pytest.raises(ValueError, match=r"^DataFrame: row 17: column 'click' .*7"):
                encode_labels(config, part, "DataFrame")
            return
    pytest.fail("row 17 is in no split")


def test_a_column_that_nobody_reads_may_be_anything(funnel_config, funnel_table):
    frame = funnel_table.to_pandas()
    splits = load_splits(config_from_dict(funnel_config), frame.assign(what=object()))
    assert "what" not in splits.train.column_names
    with pytest.raises(ValueError, match=r"^DataFrame: column 'price' \(dtype object\) cannot be"):
        load_splits(config_from_dict(funnel_config), frame.assign(price=object()))


def test_columns_of_other_libraries_are_made_plain_as_those_of_files(funnel_config, funnel_table):
    views = funnel_table.set_column(2, "item", funnel_table["item"].cast(pa.string_view()))
    config = config_from_dict(funnel_config)
    items = [load_splits(config, rows).train["item"].to_pylist() for rows in (funnel_table, views)]
    assert items[0] == items[1]


REFUSED = {
    "records": ([{"age": 1}], "data: expected a path, a DataFrame, an Arrow table or a mapping"),
    "Series": (pd.Series([1.0]), "data: expected a path, a DataFrame, an Arrow table or a mapping"),
    "names": ({"1": [1], 1: [2]}, "dict: two columns are called '1'; rename one"),
    "type": (7, "data: expected a path, a DataFrame, an Arrow table or a mapping"),
    "no rows": ({"age": []}, "dict: holds no rows"),
    "lengths": ({"age": [1, 2], "x": [1]}, "dict: column 'x' has 1 rows, but 'age' has 2"),
    "kinds": ({"age": [1, "a"]}, r"dict: column 'age' \(dtype list\) cannot be read"),
    "twice": (
        pd.DataFrame([[1, 2]], columns=["age", "age"]),
        "DataFrame: two columns are called 'age'; rename one",
    ),
}


@pytest.mark.parametrize("rows", REFUSED)
def test_what_is_no_rows_is_refused(rows):
    assert holds_rows(REFUSED[rows][0])
    with pytest.raises(ValueError, match=REFUSED[rows][1]):
        as_table(REFUSED[rows][0])


def test_a_missing_column_is_named_with_what_needs_it(funnel_config, funnel_table):
    frame = funnel_table.to_pandas().drop(columns="price")
    with pytest.raises(ValueError, match=r"^DataFrame: there is no column 'price', which feature"):
        load_splits(config_from_dict(funnel_config), frame)


SETTINGS = {
    "source": ({"source": "hillstrom"}, r"^data\.source: hillstrom makes its own rows"),
    "file": ({"split": {"by": "file"}}, r"^data\.split\.by: file reads data\.train"),
    "stream": ({"input": "stream"}, r"^data\.input: stream reads files; set auto or memory"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_that_rows_in_memory_leave_unread(funnel_config, name):
    data, words = SETTINGS[name]
    with pytest.raises(ValueError, match=words):
        load_splits(config_from_dict({**funnel_config, "data": data}), pa.table({"user": [1]}))


def test_a_matrix_holds_a_vector_in_each_row():
    table = as_table({"age": [1, 2], "title": np.array([[0.5, 1.0], [2.0, 3.0]])})
    assert table["title"].to_pylist() == [[0.5, 1.0], [2.0, 3.0]]
    with pytest.raises(ValueError, match="'title' has 1 rows, but 'age' has 2"):
        as_table({"age": [1, 2], "title": np.zeros((1, 3))})
