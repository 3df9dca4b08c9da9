"""Samples of large files: whole rows from everywhere, the same ones every time."""

import bz2
import gzip

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mmoe.datasets.files import csv_files, sampling
from mmoe.datasets.files.sampling import sample_table
from mmoe.datasets.rows.locations import ROW_COLUMN

ROWS = 10_000
MOST, BYTES = 1000, 1 << 16


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(0)
    notes = [f'"{n}",\nand "more"' if n % 3 == 0 else f"plain {n}" for n in range(ROWS)]
    return pd.DataFrame({"note": notes, "n": range(ROWS), "x": rng.normal(size=ROWS).round(3)})


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(sampling, "_LEAST_BLOCK", 4096)


def check(sample, frame, columns):
    """Rows are those of the file, in its order, from everywhere."""
    n = sample.table["n"].to_numpy()
    assert 0.3 * MOST < len(n) < 1.5 * MOST and n.dtype == np.int64
    assert (np.diff(n) > 0).all()
    assert (np.histogram(n, 4, (0, ROWS))[0] > 0.1 * len(n)).all()
    for column in columns:
        assert sample.table[column].to_pylist() == frame[column].iloc[n].tolist()
    assert abs(sample.rows - ROWS) < 0.05 * ROWS
    assert sample.note == f"looked at {len(n):,} of about {sample.rows:,} rows, from everywhere"
    assert ROW_COLUMN not in sample.table.column_names


@pytest.mark.parametrize("written", [
    {},
    {"lineterminator": "\r\n", "sep": ";"},
    {"columns": ["x", "n", "note"]},
    {"quoting": 1},  # every cell
])  # fmt: skip
def test_plain_csv_with_line_breaks_in_cells(frame, tmp_path, written):
    frame.to_csv(tmp_path / "log.csv", index=False, **written)
    sample = sample_table(tmp_path / "log.csv", MOST, BYTES)
    frame = frame.replace({"note": {"\n": written.get("lineterminator", "\n")}}, regex=True)
    columns = ["x", "note"] if "lineterminator" not in written else ["x"]
    check(sample, frame, columns)
    assert sample.table.equals(sample_table(tmp_path / "log.csv", MOST, BYTES).table)


def test_rows_longer_than_a_block_are_read_from_the_start(tmp_path):
    """Where no way to cut a block gives rows, nothing is guessed."""
    cell = '"' + "a verse\n" * 3000 + '"'
    (tmp_path / "log.csv").write_text("a,b\n" + "".join(f"{cell},{n}\n" for n in range(30)))
    sample = sample_table(tmp_path / "log.csv", 10, 1 << 12)
    assert sample.table["b"].to_pylist() == list(range(30))
    assert (sample.rows, sample.note) == (30, "")


@pytest.mark.parametrize("group_rows", [500, ROWS])
def test_parquet(frame, tmp_path, group_rows):
    pq.write_table(pa.Table.from_pandas(frame), tmp_path / "g.parquet", row_group_size=group_rows)
    check(sample_table(tmp_path / "g.parquet", MOST, 1 << 30), frame, ["x", "note"])


def test_of_packed_files_the_start_alone(frame, tmp_path, monkeypatch):
    text = frame.to_csv(index=False).encode()
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(text))
    (tmp_path / "a.csv.bz2").write_bytes(bz2.compress(text))
    for name in ("a.csv.gz", "a.csv.bz2"):
        sample = sample_table(tmp_path / name, MOST, BYTES)
        assert (sample.rows, sample.note) == (ROWS, "")  # one block of the reader
        with monkeypatch.context() as patched:
            patched.setattr(sampling, "START", 1 << 17)
            patched.setattr(csv_files, "_BLOCK_BYTES", 1 << 14)
            sample = sample_table(tmp_path / name, MOST, BYTES)
            assert "of about" in sample.note and f"{name} the first 0 MB alone" in sample.note
            assert 0.5 * ROWS < sample.rows < 1.5 * ROWS and sample.table.num_rows < 4 * MOST


def test_of_many_files_some_of_each(frame, tmp_path):
    for number in range(100):
        folder = tmp_path / f"day=2024-01-{1 + number % 28:02d}"
        folder.mkdir(exist_ok=True)
        part = frame.iloc[number * 200 : (number + 1) * 200]
        part.to_csv(folder / f"part-{number}.csv", index=False)
    sample = sample_table(tmp_path, MOST, BYTES)
    assert sample.table.column_names == ["note", "n", "x", "day"]
    assert len(set(sample.table["day"].to_pylist())) > 20
    assert " rows of 64 of 100 files, from everywhere" in sample.note
    assert abs(sample.rows - ROWS) < 0.1 * ROWS


def test_small_files_are_read_whole(frame, tmp_path):
    for name, write in (("a.csv", frame.to_csv), ("a.parquet", frame.to_parquet)):
        write(tmp_path / name, index=False)
        sample = sample_table(tmp_path / name)
        assert (sample.rows, sample.table.num_rows, sample.note) == (ROWS, ROWS, "")
        assert ROW_COLUMN in sample.table.column_names


def test_init_says_what_it_looked_at(frame, tmp_path, mmoe, monkeypatch):
    table = frame.assign(click=np.arange(ROWS) % 7 == 0, user=np.arange(ROWS) % 321)
    table.drop(columns=["note", "n"]).to_csv(tmp_path / "log.csv", index=False)
    monkeypatch.setattr(sampling.sample_table, "__defaults__", (MOST, BYTES))
    config = tmp_path / "config.yaml"
    code, out, err = mmoe("init", tmp_path / "log.csv", "--label", "click", "--out", config)
    assert code == 0, err
    assert "log.csv: looked at " in out and "from everywhere" in out
    assert "# sizes for about " in config.read_text()


def test_names_that_rows_are_numbered_by_are_refused(tmp_path):
    for name in ("__mmoe_row__", "__mmoe_request__", "__mmoe_times__"):
        pq.write_table(pa.table({name: [0, 0], "click": [0, 1]}), tmp_path / "a.parquet")
        with pytest.raises(ValueError, match=rf"a\.parquet: column '{name}' has a name that rows"):
            sample_table(tmp_path)


def test_files_of_other_columns_are_both_named(tmp_path):
    for odd, column in ((0, "<html>404</html>"), (1, "a")):
        for number in range(3):
            text = "a,b\n1,2\n" if number != odd else "<html>404</html>\nnot found\n"
            (tmp_path / f"part-{number}.csv").write_text(text)
        says = rf"part-1\.csv: there is no column '{column}'.*first file, .*part-0\.csv, has it"
        with pytest.raises(ValueError, match=says):
            sample_table(tmp_path)
