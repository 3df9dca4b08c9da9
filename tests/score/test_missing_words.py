"""A cell that means a missing value does so on every road by which rows come."""

import io
import json
from importlib import import_module
from importlib.util import find_spec

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

import mmoe
from mmoe.config import config_from_dict
from mmoe.config.data import MISSING_WORDS
from mmoe.datasets import infer_config
from mmoe.datasets.features.encoder import EncoderFit, FeatureEncoder
from mmoe.datasets.labels.encode import encode_labels
from mmoe.datasets.rows.sources import load_splits
from mmoe.datasets.stream import open_stream
from mmoe.score import score_files
from mmoe.train import train_run

CITIES = ["Oslo", "Bergen", "NA", "NULL", "", " Oslo", "nan", "None", "N/A", "#NA"]


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("words")
    draw = np.random.default_rng(0)
    columns = {
        "city": [CITIES[n] for n in draw.integers(0, len(CITIES), 600)],
        "shop": [["a", "NULL", "b"][n] for n in draw.integers(0, 3, 600)],
        "price": [["1.5", "2.25", "NA", "null"][n] for n in draw.integers(0, 4, 600)],
        "tags": [["x|y", "x|NA", "null", "", "NA|NULL|x"][n] for n in draw.integers(0, 5, 600)],
        "codes": [["1|2", "2|NA", "null", "NA|1"][n] for n in draw.integers(0, 4, 600)],
        "seen": [["a;b", "NULL;a", "b;NA"][n] for n in draw.integers(0, 3, 600)],
        "user": [["u1", "NULL", "NA", "u2", "u3"][n] for n in draw.integers(0, 5, 600)],
        "stars": [["1", "0", "NA", "unknown"][n] for n in draw.integers(0, 4, 600)],
        "page": [["home", "None", "shop"][n] for n in draw.integers(0, 3, 600)],
    }
    likes = [0.8 if city == "Oslo" else 0.3 for city in columns["city"]]
    columns["click"] = (draw.random(600) < likes).astype(int).tolist()
    pa_csv.write_csv(pa.table(columns), folder / "log.csv")
    return folder


def config_of(folder, **data):
    return config_from_dict(
        {
            "data": {"path": str(folder / "log.csv"), **data},
            "features": [
                {"kind": "categorical", "name": "city"},
                {"kind": "cross", "name": "both", "columns": ["city", "shop"]},
                {"kind": "categorical", "name": "hashed", "column": "shop", "encoding": "hash",
                 "hash_size": 50},
                {"kind": "list", "name": "tags"},
                {"kind": "list", "name": "codes"},
                {"kind": "sequence", "name": "history", "columns": ["seen"], "separator": ";",
                 "encoder": "mean"},
                {"kind": "numeric", "name": "price"},
            ],
            "tasks": [{"name": "click", "label": "click"}],
            "model": {"num_experts": 2, "expert": {"hidden": [8]}, "domains": {"column": "shop"}},
            "training": {"epochs": 2},
        }
    )  # fmt: skip


def roads(folder):
    """The log as each reader gives it."""
    text = (folder / "log.csv").read_text()
    plain = pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False)
    table = pa.table({name: plain[name].tolist() for name in plain})
    yield "pandas", pd.read_csv(io.StringIO(text))
    yield "pandas, words kept", plain
    yield "Arrow", table
    yield "dict", table.to_pydict()
    yield "dicts", table.to_pylist()
    yield "categories", plain.astype("category")
    if find_spec("polars") is not None:
        polars = import_module("polars")
        yield "polars", polars.DataFrame(table.to_pydict())
    first = table.column_names[0]
    views = pa.array(table[first].to_pylist(), pa.string_view())
    yield "views, as polars gives", table.set_column(0, first, views)


def files(folder):
    plain = pd.read_csv(folder / "log.csv", dtype=str, keep_default_na=False)
    table = pa.table({name: plain[name].tolist() for name in plain})
    pq.write_table(table, folder / "rows.parquet")
    lines = (json.dumps(row) for row in table.to_pylist())
    (folder / "rows.jsonl").write_text("\n".join(lines))
    return [folder / "log.csv", folder / "rows.parquet", folder / "rows.jsonl"]


def pred(answer):
    if isinstance(answer, list):
        return [row["pred_click"] for row in answer]
    column = answer["pred_click"]
    return np.asarray(
        column.to_pylist() if isinstance(column, pa.ChunkedArray) else column
    ).tolist()


def test_scores_are_the_same_by_every_road(folder, tmp_path):
    run = train_run(config_of(folder), tmp_path / "run").directory
    loaded = mmoe.load(run.path)
    scored = []
    for file in files(folder):
        score_files(run, file, tmp_path / f"{file.suffix[1:]}.parquet")
        out = pq.read_table(tmp_path / f"{file.suffix[1:]}.parquet")
        scored.append((file.suffix, out["pred_click"].to_pylist()))
    wanted = scored[0][1]
    assert len(set(wanted)) > 10
    for name, found in scored:
        assert found == wanted, name
    for name, rows in roads(folder):
        np.testing.assert_allclose(pred(loaded.predict(rows)), wanted, atol=1e-6, err_msg=name)
    assert loaded.encoder.ids["city"].keys.to_pylist() == ["Oslo", "Bergen"]
    assert loaded.encoder.domains.names == ["a", "b"]


def test_a_run_keeps_its_words_and_one_without_keeps_them_as_ids(folder, tmp_path):
    raw = config_of(folder, missing_words=["NULL"]).model_dump(mode="json")
    raw["features"][-1]["missing_values"] = ["NA", "null"]  # a number's own words
    run = train_run(config_from_dict(raw), tmp_path / "run").directory
    assert mmoe.load(run.path).config.data.missing_words == ["NULL"]
    assert "NA" in mmoe.load(run.path).encoder.ids["city"].keys.to_pylist()
    raw["data"]["missing_words"] = None
    without = mmoe.load(train_run(config_from_dict(raw), tmp_path / "without").directory.path)
    assert without.config.data.missing_words is None
    assert "NULL" in without.encoder.ids["city"].keys.to_pylist()


def test_the_words_are_those_of_pandas_and_more():
    from pandas._libs.parsers import STR_NA_VALUES

    assert set(STR_NA_VALUES) - {""} <= set(MISSING_WORDS)


def test_init_says_which_words_it_met(folder):
    plain = pd.read_csv(folder / "log.csv", dtype=str, keep_default_na=False)
    plain["click"] = plain["click"].astype(int)
    table = pa.table({name: plain[name].tolist() for name in plain})
    _, reasons = infer_config(table, ["click"])
    assert set(reasons.missing["city"]) == {"NA", "NULL", "nan", "None", "N/A", "#NA"}
    assert reasons.missing["shop"] == {"NULL": plain["shop"].tolist().count("NULL")}


def labelled(folder, **data):
    """A config whose keys, label and condition are columns with such words."""
    raw = config_of(folder, **data).model_dump(mode="json")
    raw["tasks"] = [
        {"name": "click", "label": "click"},
        {"name": "rich", "label": "stars", "observed_when": "page == 'home'"},
    ]
    raw["data"] |= {
        "group_column": "user",
        "split": {"by": "hash", "column": "user", "validation": 0.2, "test": 0.2},
        "missing_words": [*MISSING_WORDS, "unknown"],
    }
    return config_from_dict(raw)


def test_keys_and_labels_are_the_same_by_every_road(folder):
    config = labelled(folder)
    (csv, *others), wanted = files(folder), None
    splits = {"csv": load_splits(config)}
    for file in others:
        data = config.data.model_copy(update={"path": str(file)})
        splits[file.suffix] = load_splits(config.model_copy(update={"data": data}))
    splits |= {n: load_splits(config, rows) for n, rows in roads(folder) if n != "dicts"}
    for name, found in splits.items():
        labels = [encode_labels(config, getattr(found, of), "x") for of in ("train", "test")]
        told = [
            part.tolist()
            for one in labels
            for part in (one.labels_NT, one.observed_NT, one.groups_N)
        ]
        wanted = wanted or told
        assert told == wanted, name
    observed_NT, groups_N = np.array(wanted[1]), np.array(wanted[2])
    assert set(groups_N) > {-1}, "no group is called NULL"
    frame = pd.read_csv(csv, keep_default_na=False)
    known = (frame["page"] == "home") & frame["stars"].isin(["0", "1"])
    assert observed_NT[:, 1].sum() + np.array(wanted[4])[:, 1].sum() < known.sum(), "validation"


def test_a_request_has_a_name(folder):
    raw = config_of(folder).model_dump(mode="json")
    raw["data"]["requests"] = {"column": "user"}
    raw["features"][0]["level"] = "request"
    with pytest.raises(ValueError, match=r"column 'user' \(of data.requests.column\) is empty"):
        load_splits(config_from_dict(raw))


def test_a_label_that_asks_for_such_a_word_is_refused(folder):
    raw = config_of(folder).model_dump(mode="json")
    raw["tasks"] = [{"name": "none", "label": "page == 'None'"}]
    config = config_from_dict(raw)
    with pytest.raises(ValueError, match=r"task 'none' asks for the text 'None'.*is_missing"):
        encode_labels(config, load_splits(config).train, "x")
    raw["data"]["missing_words"] = ["NA"]
    config = config_from_dict(raw)
    labels = encode_labels(config, load_splits(config).train, "x")
    assert 0 < labels.labels_NT.sum() < len(labels) and labels.observed_NT.all()


@pytest.mark.parametrize("road", ["csv", "pandas, words kept"])
def test_numbers_go_by_the_list_too(folder, road):
    config = config_of(folder, missing_words=["NULL"])
    given = {"csv": None} | {file.suffix: str(file) for file in files(folder)} | dict(roads(folder))
    train = load_splits(config, given[road]).train
    fit = EncoderFit(config, "x")
    with pytest.raises(ValueError, match=r"column 'price' .*is 'NA', which data.missing_words"):
        fit.add(train)
    raw = config.model_dump(mode="json")
    raw["features"][-1]["missing_values"] = ["NA", "null"]
    EncoderFit(config_from_dict(raw), "x").add(train)


def test_numbers_beside_a_word_that_the_list_lacks_are_ids_of_text(tmp_path):
    (tmp_path / "log.csv").write_text("id,click\n" + "1,0\nNA,1\n2,1\n" * 20)
    raw = {
        "data": {"path": str(tmp_path / "log.csv"), "missing_words": [""]},
        "features": [{"kind": "categorical", "name": "id"}],
        "tasks": [{"name": "click", "label": "click"}],
    }
    config = config_from_dict(raw)
    fit = EncoderFit(config, "x")
    fit.add(load_splits(config).train)
    for encoder in (FeatureEncoder.of(fit), open_stream(config).fit()):
        assert sorted(encoder.ids["id"].keys.to_pylist()) == ["1", "2", "NA"]


@pytest.mark.parametrize("words", [None, ["NULL"]])
def test_labels_and_weights_of_numbers_are_missing_by_any_word_on_every_road(tmp_path, words):
    """Whatever the list: pandas has made nulls of them before anybody could ask."""
    cells = {"x": ["1", "2", "4"], "y": ["1.5", "NA", "7"], "w": ["2", "1", "null"]}
    text = pd.DataFrame({name: some * 60 for name, some in cells.items()})
    text["z"] = ["1", "0", "nan", "1", "NULL"] * 36
    text.to_csv(tmp_path / "log.csv", index=False)
    raw = config_of(tmp_path).model_dump(mode="json")
    raw["data"] = {"path": str(tmp_path / "log.csv"), "split": {"by": "random"}}
    raw["data"] |= {} if words is None else {"missing_words": words}
    raw |= {"model": {}, "features": [{"kind": "numeric", "name": "x"}]}
    raw["tasks"] = [
        {"name": "y", "label": "y", "kind": "regression"},
        {"name": "rich", "label": "y > 2"},
        {"name": "z", "label": "z", "weight_column": "w", "observed_when": "w > 0"},
    ]
    wanted = None
    for source in ({"": None} | dict(roads(tmp_path))).values():
        config, told = config_from_dict(raw), []
        if isinstance(source, list):
            continue
        rows = load_splits(config, source)
        for table in (rows.train, rows.validation, rows.test):
            one = encode_labels(config, table, "x")
            told += [p.tolist() for p in (one.labels_NT, one.observed_NT, one.weights_NT)]
        wanted = wanted or told
        assert told == wanted
    for file in files(tmp_path):
        raw["data"]["path"] = str(file)
        stream, seen = open_stream(config_from_dict(raw)), []
        stream.fit(on_labels=lambda _, labels, seen=seen: seen.append(labels))
        for t, rows in enumerate((120, 120, 72)):
            assert sum(int(labels.observed_NT[:, t].sum()) for labels in seen) == rows
    raw["tasks"][2].pop("observed_when")
    with pytest.raises(ValueError, match=r"column 'w' \(weight_column of task 'z'\) is empty"):
        encode_labels(config_from_dict(raw), load_splits(config_from_dict(raw)).train, "x")
