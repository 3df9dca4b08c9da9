"""What is wrong with files is said in one line that names the file and the way out."""

import datetime
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mmoe.datasets.files import parquet_files
from mmoe.datasets.files.data_file import DataFile
from mmoe.datasets.files.parquet_files import Footers, iter_parquet
from mmoe.datasets.rows.sources import load_splits
from mmoe.datasets.stream import open_stream, wants_stream
from tests.small_configs import click_config

GOOD = pa.table(
    {
        "user": pa.array(range(40)),
        "at": pa.array([1_700_000_000 + n for n in range(40)]),
        "tags": [[n % 3, None] if n % 2 else None for n in range(40)],
        "price": [n / 2 for n in range(40)],
        "click": [n % 2 for n in range(40)],
    }
)


def configured(path, **split):
    return click_config(
        {"kind": "categorical", "name": "user"},
        {"kind": "list", "name": "tags"},
        {"kind": "numeric", "name": "price"},
        data={"path": str(path), "split": split, "input": "stream"},
    )


def changed(name, values):
    position = GOOD.column_names.index(name)
    return GOOD.set_column(position, name, pa.array(values))


def write(folder, *tables):
    for n, table in enumerate(tables):
        pq.write_table(table, folder / f"{n}.parquet", row_group_size=16)
    return folder


def error_of(config):
    with pytest.raises(ValueError, match=r"^.+$") as raised:
        open_stream(config).fit()
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize(("name", "values", "kinds"), [
    ("user", [f"u{n}" for n in range(40)], "large_string, but int64"),
    ("price", [str(n) for n in range(40)], "large_string, but double"),
    ("tags", list(range(40)), "int64, but list<"),
])  # fmt: skip
def test_types_that_differ_from_file_to_file(tmp_path, name, values, kinds):
    write(tmp_path, GOOD, changed(name, values))
    said = error_of(configured(tmp_path))
    assert f"1.parquet: column {name!r} holds {kinds}" in said
    assert "0.parquet; write the column with one type" in said


def test_columns_that_differ_from_file_to_file(tmp_path):
    write(tmp_path, GOOD, GOOD.drop_columns(["price"]))
    said = error_of(configured(tmp_path))
    assert "1.parquet: there is no column 'price', which feature 'price' needs" in said
    write(tmp_path, GOOD, changed("price", list(range(40))))  # numbers widen
    assert len(open_stream(configured(tmp_path)).train) == 64
    tables = [
        changed("at", pa.array([datetime.datetime(2024, 1, 1)] * 40, pa.timestamp(unit)))
        for unit in ("ms", "us")
    ]
    said = error_of(configured(write(tmp_path, *tables), by="time", column="at"))
    assert "1.parquet: column 'at' holds timestamp[us], but timestamp[ms] in" in said


def test_numbers_in_two_units_of_time(tmp_path):
    write(tmp_path, GOOD, changed("at", [(1_700_000_050 + n) * 1000 for n in range(40)]))
    said = error_of(configured(tmp_path, by="time", column="at"))
    assert "1.parquet: column 'at' looks like milliseconds since 1970, but like seconds in" in said


def test_files_without_rows_are_passed_over(tmp_path):
    config = configured(write(tmp_path, GOOD, GOOD[:0], GOOD))
    splits, memory = open_stream(config), load_splits(config)
    assert len(splits.train) == memory.train.num_rows
    said = error_of(configured(write(tmp_path, GOOD[:0], GOOD[:0], GOOD[:0])))
    assert said == f"{tmp_path}: holds no rows, only columns; nothing can be trained on it"


@pytest.mark.parametrize("harm", ["cut", "flip"])
def test_damaged_row_groups_are_named(tmp_path, harm):
    write(tmp_path, GOOD, GOOD)
    path = tmp_path / "1.parquet"
    content = bytearray(path.read_bytes())
    if harm == "cut":
        path.write_bytes(content[:-30])
        assert "1.parquet: is truncated or no Parquet file" in error_of(configured(tmp_path))
        return
    start = pq.ParquetFile(path).metadata.row_group(1).column(0).dictionary_page_offset
    content[start : start + 60] = b"\xff" * 60
    path.write_bytes(content)
    assert "1.parquet: row group 1: is truncated or no Parquet" in error_of(configured(tmp_path))


@pytest.mark.parametrize(("name", "value", "says"), [
    ("price", float("inf"), r"1.parquet: row 31: column 'price' .* is inf, expected a finite"),
    ("click", 3, r"1.parquet: row 31: column 'click' of task 'click' is 3, expected 0 or 1"),
])  # fmt: skip
def test_a_bad_value_is_named_wherever_its_row_lands(tmp_path, name, value, says):
    values = GOOD[name].to_pylist()
    values[30] = value
    config = configured(write(tmp_path, GOOD, changed(name, values)))
    for seed in range(4):
        config = config.model_copy(update={"split_seed": seed})
        with pytest.raises(ValueError, match=says):
            open_stream(config).fit()


def test_words_in_a_csv_column_of_numbers(tmp_path):
    rows = "".join(f"{n},{n},{n % 2}\n" for n in range(50))
    (tmp_path / "a.csv").write_text("user,price,click\n" + rows)
    (tmp_path / "b.csv").write_text("user,price,click\n" + rows + "7,cheap,0\n")
    config = configured(tmp_path)
    config = config.model_copy(update={"features": [config.features[0], config.features[2]]})
    assert "b.csv: row 51: column 'price' (of feature 'price') is 'cheap'" in error_of(config)


def test_labels_of_one_class_and_splits_without_rows(tmp_path):
    write(tmp_path, changed("click", [0] * 40))
    assert "task 'click' has one class only: all 32 observed" in error_of(configured(tmp_path))
    write(tmp_path, changed("user", [1] * 40))
    config = configured(tmp_path, by="hash", column="user")
    assert "split is empty, out of 40 rows" in error_of(config)


def test_streams_need_files():
    config = configured("x")
    data = config.data.model_copy(update={"source": "synthetic-funnel"})
    with pytest.raises(ValueError, match=r"data\.input: stream reads files, but data\.source is"):
        wants_stream(config.model_copy(update={"data": data}))


ROWS = 10  # of a row group


def table_of(groups):
    rows = groups * ROWS
    rng = np.random.default_rng(1)
    return pa.table({"user": rng.integers(0, 9, rows), "click": np.arange(rows) % 2})


@pytest.fixture(name="parsed")
def _parsed(monkeypatch):
    """The footers that are parsed, by file."""
    found, parse = [], parquet_files._footer

    def parsing(path, source, size):
        found.append(path.name)
        return parse(path, source, size)

    monkeypatch.setattr(parquet_files, "_footer", parsing)
    return found


def read_everything(folder):
    config = click_config(
        {"kind": "categorical", "name": "user"},
        data={"path": str(folder), "input": "stream"},
        training={"batch_size": 32},
    )
    splits = open_stream(config)
    encoder = splits.fit()
    rows = [splits.rows(name, encoder) for name in ("train", "validation")]
    for epoch in range(2):
        batches = list(rows[0].epoch_batches(0, epoch, 32))
        assert len(batches) == -(-len(rows[0]) // 32)
    assert sum(len(chunk) for chunk in rows[1].chunks()) == len(rows[1])


def test_a_footer_is_not_parsed_for_every_row_group(tmp_path, parsed):
    counted = []
    for groups in (10, 40):
        folder = tmp_path / str(groups)
        folder.mkdir()
        for part in range(2):
            pq.write_table(table_of(groups), folder / f"{part}.parquet", row_group_size=ROWS)
        read_everything(folder)
        counted.append(sorted(parsed))
        parsed.clear()
    assert counted[0] == counted[1]
    assert len(counted[0]) < 20


def test_only_so_many_bytes_of_footers_are_kept(tmp_path, parsed):
    files = []
    for n in range(3):
        pq.write_table(table_of(4), tmp_path / f"{n}.parquet", row_group_size=ROWS)
        files.append(DataFile(str(tmp_path / f"{n}.parquet")))
    size = pq.read_metadata(files[0].address).serialized_size
    footers = Footers(most_bytes=2 * size + size // 2)

    def read(*numbers):
        parsed.clear()
        for number in numbers:
            list(iter_parquet(files[number], ["user"], 100, 1, footers))
        return [name.removesuffix(".parquet") for name in parsed]

    assert read(0, 1, 0, 1) == ["0", "1"]
    assert read(0, 2, 0, 1, 2) == ["2", "1", "2"]
    alone = Footers(most_bytes=1)
    for _ in range(2):
        list(iter_parquet(files[0], ["user"], 100, 1, alone))
    assert read() == []


def test_a_file_that_was_written_anew_is_read_anew(tmp_path):
    path, footers = tmp_path / "x.parquet", Footers()
    found = []
    for moment, groups in enumerate((4, 6)):
        pq.write_table(table_of(groups), path, row_group_size=ROWS * groups)
        os.utime(path, ns=(moment, moment))
        tables = iter_parquet(DataFile(str(path)), ["user"], 1_000, 0, footers)
        found.append(sum(table.num_rows for table in tables))
    assert found == [4 * ROWS, 6 * ROWS]
