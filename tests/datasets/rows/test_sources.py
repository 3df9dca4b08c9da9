import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mmoe.config import config_from_dict
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.labels.encode import encode_labels
from mmoe.datasets.recipes import is_path, load_recipe, recipe_names
from mmoe.datasets.rows.frames import as_table, holds_rows
from mmoe.datasets.rows.locations import visible_columns
from mmoe.datasets.rows.sources import load_splits, load_test, source_names
from mmoe.datasets.stream.open import open_stream


def configured(**data):
    return config_from_dict(
        {
            "features": [{"kind": "categorical", "name": "zip"}, {"kind": "numeric", "name": "x"}],
            "tasks": [{"name": "t", "label": "x > 50"}],
            "data": data,
        }
    )


def write_csv(path, first, last):
    rows = "".join(f"{i:05d},{i},unused\n" for i in range(first, last))
    path.write_text("zip,x,other\n" + rows)
    return str(path)


def test_files_are_projected_numbered_and_split(tmp_path):
    path = write_csv(tmp_path / "log.csv", 0, 100)
    splits = load_splits(configured(path=path))
    assert [t.num_rows for t in (splits.train, splits.validation, splits.test)] == [80, 10, 10]
    assert "other" not in splits.train.column_names
    assert splits.train["zip"].type == pa.large_string()
    assert splits.origin == path
    assert splits.oracle is None
    assert load_splits(configured(), path).test.equals(splits.test)


def test_split_by_file(tmp_path):
    for name, first, last in (("train", 0, 60), ("valid", 60, 70), ("test", 70, 90)):
        write_csv(tmp_path / f"{name}.csv", first, last)
    files = {"train": "train.csv", "validation": "valid.csv", "test": "test.csv"}
    config = configured(split={"by": "file"}, **files)
    splits = load_splits(config, tmp_path)
    assert [t.num_rows for t in (splits.train, splits.validation, splits.test)] == [60, 10, 20]
    # What training types as numbers and other files leave as text must encode alike.
    encoder = FeatureEncoder.fit(config, splits.train, splits.origin)
    encoded = encoder.encode(splits.test, splits.origin)
    assert len(encoded) == 20
    assert encode_labels(config, splits.test, splits.origin).labels_NT.sum() == 20
    del files["validation"]
    splits = load_splits(configured(split={"by": "file", "validation": 0.1}, **files), tmp_path)
    assert [t.num_rows for t in (splits.train, splits.validation, splits.test)] == [54, 6, 20]


@pytest.mark.parametrize("how", ["memory", "stream"])
@pytest.mark.parametrize("name", ["test", "validation"])
def test_a_file_of_training_is_no_file_of_another_split(tmp_path, how, name):
    for split in ("train", "test"):
        write_csv(tmp_path / f"{split}.csv", 0, 60)
    (tmp_path / "link.csv").symlink_to(tmp_path / "train.csv")
    train, test, link = (str(tmp_path / file) for file in ("train.csv", "test.csv", "l*.csv"))
    files = {"train": [train], "test": test} | {name: [test, link]}
    config = configured(split={"by": "file"}, input=how, **files)
    says = rf"data\.{name}: .*link\.csv is also in data\.train \(there .*train\.csv\)"
    with pytest.raises(ValueError, match=says):
        load_splits(config) if how == "memory" else open_stream(config)


def test_evaluating_other_files_or_the_own_test_split(tmp_path):
    path = write_csv(tmp_path / "new.csv", 0, 10)
    config = configured(path="old.csv", split={"by": "time", "column": "day"})
    held_out = load_test(config, path)  # which has no such column
    assert (held_out.table.num_rows, held_out.origin) == (10, path)
    assert encode_labels(config, held_out.table, path).labels_NT.sum() == 0
    path = write_csv(tmp_path / "log.csv", 0, 100)
    for rule in ({"by": "time", "column": "x"}, {"by": "random"}):
        config = configured(path=path, split=rule)
        assert load_test(config).table.equals(load_splits(config).test)
    # Training sees words among the codes, the new file digits only
    (tmp_path / "train.csv").write_text("zip,x\n" + "1.50,1\nA,99\n" * 20)
    (tmp_path / "new.csv").write_text("zip,x\n1.50,1\n")
    config = configured(path=str(tmp_path / "train.csv"))
    encoder = FeatureEncoder.fit(config, load_splits(config).train, "x")
    new = load_test(config, tmp_path / "new.csv").table
    assert encoder.encode(new, "x").ids_NC.min() >= 2


def test_errors(tmp_path):
    with pytest.raises(ValueError, match=r"data\.path: is missing; set it, or give --data PATH"):
        load_splits(configured())
    with pytest.raises(ValueError, match=r"data\.test: is missing, but the split is by file"):
        load_splits(configured(split={"by": "file"}, train="a.csv"))
    with pytest.raises(ValueError, match=r"data\.source: expected one of files, .*, got 'kafka'"):
        load_splits(configured(source="kafka"))
    (tmp_path / "empty.csv").write_text("zip,x\n")
    with pytest.raises(ValueError, match=r"empty\.csv: holds no rows; expected a header and data"):
        load_splits(configured(path=str(tmp_path / "empty.csv")))
    pq.write_table(pa.table({"zip": ["a"], "X": [1]}), tmp_path / "a.parquet")
    with pytest.raises(
        ValueError, match=r"a\.parquet: there is no column 'x', which feature 'x' needs \(did"
    ):
        load_splits(configured(path=str(tmp_path / "a.parquet")))


def test_a_missing_column_says_what_needs_it(tmp_path):
    path = write_csv(tmp_path / "log.csv", 0, 20)
    features = [{"kind": "numeric", "name": "x"}]
    data = {"path": path, "group_column": "user"}
    for label, column, what in (("bought > 0", "bought", "task 'buy'"), ("x > 9", "user", "data")):
        task = {"name": "buy", "label": label}
        config = config_from_dict({"features": features, "tasks": [task], "data": data})
        for read in (load_splits, lambda config: load_test(config, path)):
            with pytest.raises(ValueError, match=rf"log\.csv: .*'{column}', which {what}"):
                read(config)


@pytest.mark.parametrize(("data", "message"), [
    ({"options": {"rows": 5}}, r"data\.options: source files takes no options; remove rows"),
    ({"train": "a.csv"}, r"data\.train: is read only .* by random; set data\.split\.by: file"),
    ({"test": "a.csv"}, r"data\.test: is read only when the split is by file"),
    ({"split": {"by": "file"}, "train": "a.csv", "test": "b.csv"},
     r"data\.path: '.*log\.csv' is not read when the split is by file .*; remove it"),
])  # fmt: skip
def test_settings_that_would_not_be_read(tmp_path, data, message):
    path = write_csv(tmp_path / "log.csv", 0, 20)
    with pytest.raises(ValueError, match=message):
        load_splits(configured(path=path, **data))


@pytest.mark.parametrize(("data", "message"), [
    ({"source": "hillstrom"}, r"^data\.source: hillstrom makes its own rows"),
    ({"split": {"by": "file"}}, r"^data\.split\.by: file reads data\.train"),
    ({"input": "stream"}, r"^data\.input: stream reads files; set auto or memory"),
])  # fmt: skip
def test_settings_that_rows_in_memory_leave_unread(data, message):
    with pytest.raises(ValueError, match=message):
        load_splits(configured(**data), pa.table({"x": [1]}))


def test_recipes():
    names = recipe_names()
    assert {"census-income", "hillstrom", "synthetic-funnel"} <= set(names)
    for name in names:
        config = load_recipe(name, ["seed=7"])
        assert config.seed == 7
        assert config.data.source in source_names()
    with pytest.raises(ValueError, match=r"no recipe 'census-incom' \(did you mean 'census-income"):
        load_recipe("census-incom")
    with pytest.raises(ValueError, match=r"neither a recipe nor a config file; .* --set seed=7$"):
        load_recipe("seed=7")


def test_config_files(tmp_path):
    assert [is_path(name) for name in ("a.yaml", "a.yml", "x/a", "census-income")] == [
        True, True, True, False
    ]  # fmt: skip
    text = "features: [{kind: numeric, name: x}]\ntasks: [{name: t, label: y}]\n"
    (tmp_path / "run.yaml").write_text(text)
    assert load_recipe(str(tmp_path / "run.yaml"), ["name=mine"]).name == "mine"
    with pytest.raises(ValueError, match=r"other.yaml: no such file; name a config in YAML"):
        load_recipe(str(tmp_path / "other.yaml"))
    with pytest.raises(ValueError, match=r"is a folder, not a config; name a YAML file$"):
        load_recipe(f"{tmp_path}/")
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(ValueError, match=r"is a folder, not a config; say .*/config.yaml$"):
        load_recipe(str(tmp_path))
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9\n")
    with pytest.raises(
        ValueError, match=r"latin.yaml: cannot be read as a config: it is not UTF-8"
    ):
        load_recipe(str(tmp_path / "latin.yaml"))


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


def test_missing_values_and_matrices_are_read():
    frame = pd.DataFrame({1: [1.0, np.nan], "kind": pd.Categorical(["a", None])})
    table = as_table(frame)
    assert [table[name].null_count for name in ("1", "kind")] == [1, 1]
    table = as_table({"age": [1, 2], "title": np.array([[0.5, 1.0], [2.0, 3.0]])})
    assert table["title"].to_pylist() == [[0.5, 1.0], [2.0, 3.0]]


def test_a_value_is_refused_by_its_row(funnel_config, funnel_table):
    frame = funnel_table.to_pandas().assign(what=object())  # which nobody reads
    frame.loc[16, "click"] = 7
    config = config_from_dict(funnel_config)
    splits = load_splits(config, frame)
    assert "what" not in splits.train.column_names
    [part] = [
        part for part in (splits.train, splits.validation, splits.test)
        if 16 in part["__mmoe_row__"].to_pylist()
    ]  # fmt: skip
    with pytest.raises(ValueError, match=r"^DataFrame: row 17: column 'click' .*7"):
        encode_labels(config, part, "DataFrame")
    with pytest.raises(ValueError, match=r"^DataFrame: column 'price' \(dtype object\) cannot be"):
        load_splits(config, frame.assign(price=object()))


REFUSED = {
    "records": ([{"age": 1}], "data: expected a path, a DataFrame, an Arrow table or a mapping"),
    "Series": (pd.Series([1.0]), "data: expected a path, a DataFrame, an Arrow table or a mapping"),
    "names": ({"1": [1], 1: [2]}, "dict: two columns are called '1'; rename one"),
    "type": (7, "data: expected a path, a DataFrame, an Arrow table or a mapping"),
    "no rows": ({"age": []}, "dict: holds no rows"),
    "lengths": ({"age": [1, 2], "x": [1]}, "dict: column 'x' has 1 rows, but 'age' has 2"),
    "matrix": ({"age": [1, 2], "title": np.zeros((1, 3))}, "'title' has 1 rows, but 'age' has 2"),
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
