"""Words that mean a missing value, by each road that rows may take: the same scores by all."""

import io
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

import mmoe
from benchmarks.inputs.section import Measured
from benchmarks.racing.harness import Target
from mmoe.config import RunConfig, config_from_dict
from mmoe.config.data import MISSING_WORDS
from mmoe.datasets.labels.encode import encode_labels
from mmoe.datasets.rows.sources import load_splits
from mmoe.run.console import SilentReporter
from mmoe.score import score_files
from mmoe.train import train_run

TARGETS: dict[str, Target | None] = {"missing_roads_differ": Target(0, at_most=True)}
ROWS = 3_000
TOLERANCE = 0.0
FEATURES: list[dict[str, Any]] = [
    {"kind": "categorical", "name": "city"},
    {"kind": "categorical", "name": "hashed", "column": "shop", "encoding": "hash",
     "hash_size": 64},
    {"kind": "cross", "name": "both", "columns": ["city", "shop"]},
    {"kind": "list", "name": "tags"},
    {"kind": "list", "name": "codes"},
    {"kind": "sequence", "name": "seen", "columns": ["seen"], "encoder": "mean"},
    {"kind": "numeric", "name": "price", "buckets": 4},
]  # fmt: skip


def _log(seed: int) -> pd.DataFrame:
    draw = np.random.default_rng([seed, 10])
    cities = np.array(["Oslo", "Bergen", "Bodø", "", *MISSING_WORDS], dtype=object)
    shops = np.array(["a", "b", "NULL", "nan"], dtype=object)
    tags = np.array(["x|y", "x", "null", "y|NA", "None|x"], dtype=object)
    codes = np.array(["1|2", "2|NA", "null", "NA|1"], dtype=object)
    users = np.array(["u1", "u2", "NULL", "NA", "u3", "u4", "u5"], dtype=object)
    frame = pd.DataFrame(
        {
            "city": cities[draw.integers(0, len(cities), ROWS)],
            "shop": shops[draw.integers(0, len(shops), ROWS)],
            "tags": tags[draw.integers(0, len(tags), ROWS)],
            "codes": codes[draw.integers(0, len(codes), ROWS)],
            "seen": tags[draw.integers(0, len(tags), ROWS)],
            "user": users[draw.integers(0, len(users), ROWS)],
            "page": [["home", "None", "shop"][n] for n in draw.integers(0, 3, ROWS)],
            "price": [["1.5", "2.25", "8", "NA"][n] for n in draw.integers(0, 4, ROWS)],
        }
    )
    chance = 0.3 + 0.4 * (frame["city"] == "Oslo") + 0.2 * (frame["shop"] == "NULL")
    frame["click"] = (draw.random(ROWS) < chance).astype(int)
    return frame


def _roads(text: str, plain: pd.DataFrame) -> Iterator[tuple[str, Any]]:
    table = pa.table({name: plain[name].tolist() for name in plain})
    yield "pandas", pd.read_csv(io.StringIO(text))
    yield "pandas, words kept", plain
    yield "pandas, categories", plain.astype("category")
    yield "Arrow", table
    yield "dict", table.to_pydict()
    yield "dicts", table.to_pylist()
    if find_spec("polars") is not None:
        yield "polars", import_module("polars").DataFrame(table.to_pydict())


def _files(folder: Path, plain: pd.DataFrame) -> Iterator[tuple[str, Path]]:
    table = pa.table({name: plain[name].tolist() for name in plain})
    pq.write_table(table, folder / "rows.parquet")
    (folder / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in table.to_pylist()))
    for name in ("rows.parquet", "rows.jsonl"):
        yield name, folder / name


def _scores(answer: Any) -> np.ndarray:
    if isinstance(answer, list):
        return np.array([row["pred_click"] for row in answer])
    return np.asarray(answer["pred_click"])


def _told(config: RunConfig, rows: Any) -> np.ndarray:
    """The split, labels and group of each row, float64 [N, 1 + 2 T + 1], the splits in turn."""
    found = load_splits(config, rows)
    parts = []
    for number, table in enumerate((found.train, found.validation, found.test)):
        labels = encode_labels(config, table, "log")
        assert labels.groups_N is not None
        split_N = np.full(table.num_rows, number)
        columns = (split_N, labels.labels_NT, labels.observed_NT, labels.groups_N)
        parts.append(np.column_stack([np.asarray(column, np.float64) for column in columns]))
    return np.concatenate(parts)


def _untold(config: RunConfig, wanted: np.ndarray, rows: Any) -> int:
    """How many rows have another split, label or group."""
    told = _told(config, rows)
    return len(wanted) if len(told) != len(wanted) else int((told != wanted).any(axis=1).sum())


def _differing(seed: int, folder: Path) -> dict[str, int]:
    frame = _log(seed)
    text = frame.to_csv(index=False)
    (folder / "log.csv").write_text(text, encoding="utf-8")
    raw = {
        "seed": seed,
        "data": {
            "path": str(folder / "log.csv"),
            "group_column": "user",
            "split": {"by": "hash", "column": "user", "validation": 0.2, "test": 0.2},
        },
        "features": FEATURES,
        "tasks": [
            {"name": "click", "label": "click"},
            {"name": "shop", "label": "page == 'shop'", "observed_when": "shop != 'b'"},
        ],
        "model": {"num_experts": 2, "expert": {"hidden": [16]}},
        "training": {"epochs": 2},
    }
    config = config_from_dict(raw)
    run = train_run(config, folder / "run", reporter=SilentReporter()).directory
    score_files(run, folder / "log.csv", folder / "csv-scores.parquet")
    wanted = pq.read_table(folder / "csv-scores.parquet")["pred_click"].to_numpy()
    plain = pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False)
    loaded = mmoe.load(run.path)
    found = {name: _scores(loaded.predict(rows)) for name, rows in _roads(text, plain)}
    for name, path in _files(folder, plain):
        out = folder / f"{name}-scores.parquet"
        score_files(run, path, out)
        found[name] = pq.read_table(out)["pred_click"].to_numpy()
    differ = {
        name: int((np.abs(scores - wanted) > TOLERANCE).sum()) for name, scores in found.items()
    }
    told = _told(config, None)
    roads = [(name, rows) for name, rows in _roads(text, plain) if name != "dicts"]
    for name, rows in [*roads, *((name, str(path)) for name, path in _files(folder, plain))]:
        differ[f"{name}, keys and labels"] = _untold(config, told, rows)
    return differ


def measure(seeds: Sequence[int], say: Callable[[str], None]) -> Measured:
    """Compares all roads with the CSV file's, for the first three seeds."""
    worst: dict[str, int] = {}
    for seed in [*seeds][:3]:
        with tempfile.TemporaryDirectory() as folder:
            found = _differing(seed, Path(folder))
        say(f"seed {seed}: {', '.join(f'{name} {rows}' for name, rows in found.items())}")
        worst = {name: max(rows, worst.get(name, 0)) for name, rows in found.items()}
    return Measured({"missing_roads_differ": max(worst.values())}, {"rows_by_road": worst})
