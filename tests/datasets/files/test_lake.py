import io
import json
import shutil
import sys
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

pytest.importorskip("deltalake", reason="needs deltalake: pip install 'mmoe[delta]'")
pytest.importorskip("pyiceberg", reason="needs pyiceberg: pip install 'mmoe[iceberg]'")

from benchmarks.inputs.lake_tables import (
    delta_with_vector,
    hudi_table,
    made_tables,
    rows_of,
    rows_wrong,
)
from mmoe.datasets.files import lake
from mmoe.datasets.files.fingerprint import data_changes, print_files
from mmoe.datasets.files.formats import cut_file
from mmoe.datasets.files.readers import iter_tables, read_table
from mmoe.datasets.files.resolve import resolve_files
from mmoe.datasets.files.sampling import sample_table
from mmoe.datasets.stream.source import survey


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    found = {}
    for table in made_tables(tmp_path_factory.mktemp("lake")):
        try:
            found[table.name] = table, read_table(table.path)
        except ValueError as error:
            found[table.name] = table, str(error)
    return found


def test_live_rows_alone_are_read(made):
    for table, read in made.values():
        if table.rows is not None:
            assert rows_wrong(read, table.rows) == 0, (table.name, read)


def test_what_cannot_be_read_is_refused_by_its_name(made):
    refused = [(table, read) for table, read in made.values() if table.refused_for]
    assert len(refused) >= 13
    for table, read in refused:
        assert isinstance(read, str) and table.refused_for.lower() in read.lower(), table.name
        assert "\n" not in read


def test_chunks_samples_and_surveys_have_the_same_rows(tmp_path):
    path = delta_with_vector(tmp_path / "t", rows_of(0, 50), [0, 7, 49])
    whole = read_table(path)
    chunks = [t.drop_columns(["__mmoe_row__"]) for t in iter_tables(path, None, 5) if t.num_rows]
    assert max(chunk.num_rows for chunk in chunks) <= 5
    assert pa.concat_tables(chunks).to_pylist() == whole.to_pylist()
    assert sample_table(path).rows == 47
    assert sum(piece.rows for piece in survey(path, {"row": "it"}, 5).pieces) == 47
    assert cut_file(resolve_files(path)[0], 5) == []


def test_files_of_a_table_at_an_address_are_not_read_without_its_log():
    filesystem = fsspec.filesystem("memory")
    sink = io.BytesIO()
    pq.write_table(rows_of(0, 5), sink)
    filesystem.pipe_file("/lake/t/day=1/a.parquet", sink.getvalue())
    filesystem.pipe_file("/lake/t/_delta_log/0.json", b"{}")
    for path in ("memory://lake/t/*/*.parquet", "memory://lake/t/day=1/a.parquet"):
        with pytest.raises(ValueError, match="is inside the Delta table memory:///lake/t"):
            resolve_files(path)
    with pytest.raises(ValueError, match="holds a lake table"):
        resolve_files("memory://lake")
    with pytest.raises(ValueError, match="the Delta table cannot be read"):
        resolve_files("memory://lake/t")


def test_without_the_packages_a_line_says_what_to_install(tmp_path, monkeypatch):
    path = delta_with_vector(tmp_path / "t", rows_of(0, 5), [0])
    (tmp_path / "ice/metadata").mkdir(parents=True)
    (tmp_path / "ice/metadata/v1.metadata.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "deltalake", None)
    monkeypatch.setitem(sys.modules, "pyiceberg", None)
    with pytest.raises(ValueError, match=r"is a Delta table.*pip install 'mmoe\[delta\]'"):
        resolve_files(path)
    with pytest.raises(ValueError, match=r"is an Iceberg table.*pip install 'mmoe\[iceberg\]'"):
        resolve_files(tmp_path / "ice")
    with pytest.raises(ValueError, match="export its rows"):
        resolve_files(hudi_table(tmp_path / "hudi").path)


def test_the_version_is_part_of_the_fingerprint(tmp_path):
    from deltalake import DeltaTable, write_deltalake

    path = str(tmp_path / "t")
    write_deltalake(path, rows_of(0, 10))
    before = print_files({"all": path})
    assert before.versions == {path: 0}
    DeltaTable(path).delete("row = 3")
    now = print_files({"all": path})
    assert before.digest() != now.digest()
    assert (
        "is at version 1, and was at 0 (--as-of 0 reads it as it was)"
        in (data_changes(before, now)[0])
    )
    assert data_changes(before, print_files({"all": f"{path}@0"})) == []


def _log(rows, flipped):
    rng = np.random.default_rng(rows + flipped)
    user, item = rng.integers(0, 50, rows), rng.integers(0, 40, rows)
    click = rng.random(rows) < 1 / (1 + np.exp(-2 * ((user % 7) / 3 - (item % 5) / 2)))
    return pa.table(
        {
            "user_id": user,
            "item_id": item,
            "click": (click ^ flipped).astype(int),
            "old": np.full(rows, int(flipped)),
            "day": rng.integers(1, 4, rows),
        }
    )


@pytest.fixture
def log(tmp_path, monkeypatch):
    """A table whose removed rows say the opposite of its live ones."""
    from deltalake import DeltaTable, write_deltalake

    monkeypatch.chdir(tmp_path)
    write_deltalake("log", _log(2000, True))
    write_deltalake("log", _log(2000, False), mode="append")
    DeltaTable("log").delete("old = 1")
    return "log"


def _mmoe(*arguments):
    from mmoe.cli.commands import app

    found = CliRunner().invoke(app, [str(one) for one in arguments], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return found.output


def _auc(output):
    return json.loads(output)["tasks"]["click"]["auc"]


def test_every_command_reads_the_table_through_its_log(log):
    from deltalake import DeltaTable, write_deltalake

    few = ("--set", "training.epochs=1", "--quiet")
    _mmoe("init", log, "--label", "click", "--drop", "old", "--out", "c.yaml")
    _mmoe("train", "c.yaml", "--out", "run", *few)
    first = _auc(_mmoe("evaluate", "run", "--json", "--quiet"))
    assert first > 0.75  # of the files' rows half say the opposite: 0.5
    write_deltalake(log, _log(500, True), mode="append")
    DeltaTable(log).delete("user_id = 3")
    # A run's own split is that of the version that it was trained on
    assert _auc(_mmoe("evaluate", "run", "--json", "--quiet")) == first
    _mmoe("train", "c.yaml", "--out", "run", "--resume", *few)
    assert _auc(_mmoe("evaluate", "run", "--data", log, "--as-of", 1, "--json", "-q")) < 0.6
    assert _auc(_mmoe("evaluate", "run", "--data", log, "--as-of", 2, "--json", "-q")) > 0.75
    _mmoe("score", "run", "--input", log, "--as-of", 2, "--output", "scores.parquet", "-q")
    assert read_table("scores.parquet").num_rows == 2000
    stream = ("--set", "data.input=stream", *few)
    _mmoe("train", "c.yaml", "--out", "streamed", "--as-of", 2, *stream)
    one = ("--set", "training.epochs=1", "--quiet", "--as-of", 2)
    _mmoe("backtest", "c.yaml", "--column", "day", "--days", 1, "--out", "walk", *one)
    _mmoe("compare", "c.yaml", "--models", "mmoe", "--seeds", 1, "--out", "compared", *one)
    assert "log@2" in Path("streamed/config.yaml").read_text()


@pytest.mark.parametrize(("arguments", "words"), [
    (("init", "log", "--label", "click", "--as-of", "x", "--out", "x.yaml"), "a whole number"),
    (("init", "log@1", "--label", "click", "--as-of", "1", "--out", "x.yaml"), "already"),
    (("init", "f.csv", "--label", "click", "--as-of", "1", "--out", "x.yaml"), "no version 1"),
])  # fmt: skip
def test_versions_that_mean_nothing_are_refused(log, arguments, words, tmp_path):
    from mmoe.cli.commands import app

    (tmp_path / "f.csv").write_text("a,click\n1,0\n")
    with pytest.raises(ValueError, match=words):
        CliRunner().invoke(app, arguments, catch_exceptions=False)


def test_two_versions_of_a_table_in_one_list_are_refused(tmp_path):
    import deltalake

    table = pa.table({"x": [1, 2]})
    deltalake.write_deltalake(str(tmp_path), table)
    deltalake.write_deltalake(str(tmp_path), table, mode="append")
    with pytest.raises(ValueError, match="is named at versions 0 and 1, which share files"):
        resolve_files([f"{tmp_path}@0", f"{tmp_path}@1"])


def test_a_folder_that_cannot_be_listed_is_not_taken_for_plain_files(tmp_path, monkeypatch):
    def refused(path, below):
        raise PermissionError("no right to list it")

    monkeypatch.setattr(lake, "names_in", refused)
    with pytest.raises(ValueError, match="cannot be reached"):
        lake.kind_of_table(str(tmp_path))


def test_a_folder_whose_name_deltalake_reads_as_another_is_refused(tmp_path):
    import deltalake

    for name, rows in (("a b", [1, 2]), ("a%20b", [7, 8, 9])):
        deltalake.write_deltalake(tmp_path / "made", pa.table({"x": rows}), mode="overwrite")
        shutil.copytree(tmp_path / "made", tmp_path / name)
        shutil.rmtree(tmp_path / "made")
    assert read_table(str(tmp_path / "a b"))["x"].to_pylist() == [1, 2]
    with pytest.raises(ValueError, match=r"a%20b: deltalake takes .*a b'; give the folder a name"):
        read_table(str(tmp_path / "a%20b"))
