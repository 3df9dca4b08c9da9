"""Section `as_they_come`: logs as public files and lakes have them, and what is true of them."""

import io
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

import mmoe
from benchmarks.first_try.logs import LOGS
from benchmarks.first_try.race import REAL, table_of
from benchmarks.inputs.lake_tables import measure_lake_tables
from benchmarks.inputs.section import Measured, Section
from benchmarks.racing.harness import Target
from benchmarks.same_bits.cases import DATA
from mmoe.config import SEQUENCE_ENCODERS, RunConfig, config_from_dict
from mmoe.config.data import MISSING_WORDS
from mmoe.datasets import infer_config, load_recipe, load_splits
from mmoe.datasets.infer.config import Reasons
from mmoe.datasets.labels.encode import encode_labels
from mmoe.datasets.rows.projection import column_uses
from mmoe.datasets.rows.repeats import RepeatCounter
from mmoe.run.console import SilentReporter
from mmoe.score import score_files
from mmoe.train import train_run
from mmoe.train.alarms import alarm_of_copies

# Columns that were constant or empty in training and hold other values when rows are scored

ROWS, SCORED = 4_000, 256
START = datetime(2024, 2, 1, tzinfo=UTC)
FEATURES: list[dict[str, Any]] = [
    {"kind": "categorical", "name": "item"},
    {"kind": "numeric", "name": "price", "buckets": 8, "pieces": 8},
    {"kind": "datetime", "name": "at", "parts": ["month", "hour"], "cyclic": True},
    {"kind": "numeric", "name": "flat"},
    {"kind": "numeric", "name": "flat_log", "column": "flat", "log": True, "buckets": 4},
    {"kind": "numeric", "name": "flat_keep", "column": "flat", "outside": "keep", "pieces": 4},
    {"kind": "numeric", "name": "flat_raw", "column": "flat", "standardise": False},
    {"kind": "numeric", "name": "empty", "buckets": 4, "pieces": 4},
    {"kind": "categorical", "name": "market"},
    {"kind": "categorical", "name": "hashed", "column": "market", "encoding": "hash",
     "hash_size": 100},
    {"kind": "categorical", "name": "no_id"},
    {"kind": "cross", "name": "by_item", "columns": ["market", "item"]},
    {"kind": "cross", "name": "by_nothing", "columns": ["no_id", "item"]},
    {"kind": "list", "name": "tags"},
    {"kind": "list", "name": "weighted", "weights": "weight", "pooling": "sum"},
    {"kind": "vector", "name": "title", "dim": 4},
    {"kind": "sequence", "name": "seen", "columns": ["history"], "times": "history_at"},
]  # fmt: skip


def log_of(rows: int, draw: np.random.Generator) -> pa.Table:
    item_N, price_N = draw.integers(0, 30, rows), draw.gamma(2.0, 10.0, rows)
    hour_N = draw.integers(0, 24, rows)
    logit_N = np.sin(item_N) + 0.03 * (price_N - 20) + 0.5 * np.cos(hour_N / 4)
    return pa.table({
        "item": item_N, "price": price_N, "at": [START + timedelta(hours=int(h)) for h in hour_N],
        "flat": np.full(rows, 7.0), "empty": pa.nulls(rows, pa.float64()),
        "market": ["de"] * rows, "no_id": pa.nulls(rows, pa.string()),
        "tags": [["a", "b"]] * rows, "weighted": [["a"] * int(1 + n % 2) for n in item_N],
        "weight": [[2.0] * int(1 + n % 2) for n in item_N],
        "title": [[1.0, 0.0, float(n % 5)] for n in item_N], "history": [[7, 8]] * rows,
        "history_at": [[0, 5]] * rows,
        "click": (draw.random(rows) < 1 / (1 + np.exp(-logit_N))).astype(float),
    })  # fmt: skip


def alive(table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    rows = table.num_rows

    def put(**cells: Any) -> pa.Table:
        columns = {name: table[name] for name in table.column_names}
        return pa.table({**columns, **cells})

    for value in (-1e6, 0.0, 7.5, 1e6):
        yield f"flat {value:g}", put(flat=np.full(rows, value))
        yield f"empty {value:g}", put(empty=np.full(rows, value))
    yield "flat missing", put(flat=pa.nulls(rows, pa.float64()))
    for value in ("fr", None, "1e6"):
        yield f"market {value}", put(market=pa.array([value] * rows, pa.string()))
        yield f"no_id {value}", put(no_id=pa.array([value] * rows, pa.string()))
    for value in (["c"], [], ["a"] * 40):
        yield f"tags {value[:1]}", put(tags=[value] * rows)
    weights = [[1e6] * len(one) for one in table["weight"].to_pylist()]
    yield "weight 1e6", put(weight=weights)
    titles = [[1e6, -1e6, one[2]] for one in table["title"].to_pylist()]
    yield "title ±1e6", put(title=titles)
    yield "history", put(history=[[9] * 5] * rows, history_at=[[0, 1, 2, 1000, 1000000]] * rows)
    months = [at.replace(month=9) for at in table["at"].to_pylist()]
    yield "month", put(at=months)


def _shifts(seed: int, streamed: bool, folder: Path) -> dict[str, float]:
    draw = np.random.default_rng([seed, 36])
    pq.write_table(log_of(ROWS, draw), folder / "log.parquet", row_group_size=1000)
    raw = {
        "name": "alive",
        "seed": seed,
        "data": {"path": str(folder / "log.parquet"), "input": "stream" if streamed else "memory"},
        "features": FEATURES,
        "tasks": [{"name": "click", "label": "click"}],
        "model": {"num_experts": 3, "expert": {"hidden": [16]}, "wide": True},
        "training": {"epochs": 2, "batch_size": 256},
    }
    run = train_run(config_from_dict(raw), folder / "run", reporter=SilentReporter()).directory
    loaded = mmoe.load(run.path)
    rows = log_of(SCORED, draw)
    before = loaded.predict(rows)["pred_click"].to_numpy()
    found = {}
    for name, table in alive(rows):
        whole = loaded.predict(table)["pred_click"].to_numpy()
        [one] = loaded.predict(table.slice(3, 1))["pred_click"].to_pylist()
        found[name] = max(float(np.abs(whole - before).max()), abs(one - float(before[3])))
    return found


def measure_alive_columns(seeds: Sequence[int], say: Callable[[str], None]) -> Measured:
    worst: dict[str, float] = {}
    for seed in [*seeds][:3]:
        for streamed in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                found = _shifts(seed, streamed, Path(folder))
            name = max(found, key=lambda one: found[one])
            road = "streamed" if streamed else "in memory"
            say(f"seed {seed}, {road}: {found[name]:.2g} ({name})")
            worst = {key: max(value, worst.get(key, 0.0)) for key, value in found.items()}
    return Measured({"alive_column_shift": max(worst.values())}, {"by_column": worst})


# Words that mean a missing value, by each road that rows may take: the same scores by all

ROADS_ROWS = 3_000
TOLERANCE = 0.0
ROADS_FEATURES: list[dict[str, Any]] = [
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
            "city": cities[draw.integers(0, len(cities), ROADS_ROWS)],
            "shop": shops[draw.integers(0, len(shops), ROADS_ROWS)],
            "tags": tags[draw.integers(0, len(tags), ROADS_ROWS)],
            "codes": codes[draw.integers(0, len(codes), ROADS_ROWS)],
            "seen": tags[draw.integers(0, len(tags), ROADS_ROWS)],
            "user": users[draw.integers(0, len(users), ROADS_ROWS)],
            "page": [["home", "None", "shop"][n] for n in draw.integers(0, 3, ROADS_ROWS)],
            "price": [["1.5", "2.25", "8", "NA"][n] for n in draw.integers(0, 4, ROADS_ROWS)],
        }
    )
    chance = 0.3 + 0.4 * (frame["city"] == "Oslo") + 0.2 * (frame["shop"] == "NULL")
    frame["click"] = (draw.random(ROADS_ROWS) < chance).astype(int)
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
        "features": ROADS_FEATURES,
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


def measure_missing_roads(seeds: Sequence[int], say: Callable[[str], None]) -> Measured:
    worst: dict[str, int] = {}
    for seed in [*seeds][:3]:
        with tempfile.TemporaryDirectory() as folder:
            found = _differing(seed, Path(folder))
        say(f"seed {seed}: {', '.join(f'{name} {rows}' for name, rows in found.items())}")
        worst = {name: max(rows, worst.get(name, 0)) for name, rows in found.items()}
    return Measured({"missing_roads_differ": max(worst.values())}, {"rows_by_road": worst})


# Histories padded to one length, against the same ones ragged: the same AUC is due

_ROWS, _ITEMS, _LONGEST = 6_000, 60, 20
_SIDES = ("right", "left")
_PARTS = ["strength", "at"]


def _padding_log(seed: int) -> dict[str, Any]:
    draw = np.random.default_rng([seed, 36])
    lengths_N = np.minimum(draw.geometric(0.15, _ROWS) - 1, _LONGEST)
    seen = [draw.integers(0, _ITEMS, n).tolist() for n in lengths_N]
    for row in filter(None, seen):  # at an end 0 would be padding
        row[0], row[-1] = row[0] or 1, row[-1] or 1
    item_N = draw.integers(1, _ITEMS, _ROWS)
    for n in np.flatnonzero((lengths_N > 0) & (draw.random(_ROWS) < 0.4)):
        seen[n][draw.integers(0, lengths_N[n])] = int(item_N[n])
    known_N = [item in row for item, row in zip(item_N, seen, strict=True)]
    return {
        "item": item_N,
        "seen": seen,
        "strength": [draw.random(n).round(3).tolist() for n in lengths_N],
        "at": [sorted(draw.integers(1, 10**6, n).tolist()) for n in lengths_N],
        "click": (draw.random(_ROWS) < 0.2 + 0.6 * np.array(known_N)).astype(int),
    }


def _padded(log: dict[str, Any], side: str) -> pa.Table:
    def pad(row: list[Any]) -> list[Any]:
        fill = [0] * (_LONGEST - len(row))
        return [*row, *fill] if side == "right" else [*fill, *row]

    return pa.table(log | {name: [pad(row) for row in log[name]] for name in ["seen", *_PARTS]})


def _features() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every way of reading a history: pooled, with weights, by each encoder, whole and cut."""
    for cut in ({}, {"max_length": 8}):
        shown = f", {cut['max_length']} items" if cut else ""
        for pooling in ("mean", "sum"):
            pooled = {"kind": "list", "name": "h", "column": "seen", "pooling": pooling, **cut}
            yield f"{pooling} of a list{shown}", pooled
            yield f"weighted {pooling}{shown}", {**pooled, "weights": "strength"}
        for encoder in SEQUENCE_ENCODERS.names():
            yield f"{encoder}{shown}", {
                "kind": "sequence", "name": "h", "columns": ["seen"], "target": ["item"],
                "times": "at", "encoder": encoder, **cut,
            }  # fmt: skip


def _config(feature: dict[str, Any], seed: int) -> RunConfig:
    return config_from_dict({
        "name": "padding", "seed": seed,
        "features": [{"kind": "categorical", "name": "item"}, feature],
        "tasks": [{"name": "click", "label": "click"}],
        "model": {"num_experts": 2, "expert": {"hidden": [32]}, "tower": {"hidden": [8]}},
        "training": {"epochs": 3, "batch_size": 256, "loggers": []},
    })  # fmt: skip


def _auc(config: RunConfig, table: pa.Table) -> float:
    with TemporaryDirectory() as folder:
        run = train_run(config, Path(folder) / "run", data=table, reporter=SilentReporter())
        return float(run.metrics["tasks"]["click"]["auc"])


def _first_config(ragged: pa.Table, padded: pa.Table) -> tuple[float, float]:
    ragged, padded = ragged.drop_columns(_PARTS), padded.drop_columns(_PARTS)
    config = infer_config(padded, ["click"])[0]
    unpadded = {"padding": None, "padding_side": None}
    features = [
        feature.model_copy(update=unpadded) if feature.kind == "list" else feature
        for feature in config.features
    ]
    plain = config.model_copy(update={"features": features})
    return _auc(config, padded), _auc(plain, ragged)


def measure_padding(seeds: Sequence[int], say: Callable[[str], None]) -> Measured:
    gaps: dict[str, float] = {}
    aucs: dict[str, list[float]] = {}
    for seed in [*seeds][:2]:
        log = _padding_log(seed)
        table = pa.table(log)
        padded = {side: _padded(log, side) for side in _SIDES}
        for name, feature in _features():
            ragged = _auc(_config(feature, seed), table)
            untimed = {key: value for key, value in feature.items() if key != "times"}
            unsaid = _auc(_config(untimed, seed), padded["right"])
            told = _config({**feature, "padding": 0}, seed)
            gap = max(abs(_auc(told, rows) - ragged) for rows in padded.values())
            gaps[name] = max(gap, gaps.get(name, 0.0))
            aucs.setdefault(name, []).extend([ragged, unsaid])
        for side, rows in padded.items():
            name = f"init, padded {side}"
            there, ragged = _first_config(table, rows)
            gaps[name] = max(abs(there - ragged), gaps.get(name, 0.0))
        worst = max(gaps, key=lambda one: gaps[one])
        say(f"seed {seed}: {gaps[worst]:.2g} at most ({worst})")
    return Measured(
        {"padding_gap": max(gaps.values())},
        {"by_feature": gaps, "auc_ragged_and_padding_unsaid_by_seed": aucs},
    )


# Rows that come twice and leaks beyond single columns: what is seen, and what is alarmed falsely

_REPEATS_ROWS = 6_000
_WORDS = ("predict", "holds the row's own", "its events are those of")  # of leaks, by init


def measure_repeats_and_leaks(seeds: Sequence[int], say: Callable[[str], None]) -> Measured:
    seed = seeds[0]
    repeated = {name: all(_alarmed(table, ["click"])) for name, table in _repeated(seed)}
    say(f"  repeated: {sum(repeated.values())} of {len(repeated)} seen")
    missed = {name: _missed(table, planted) for name, table, planted in _leaking(seed)}
    say(f"  leaks: {sum(missed.values())} of {len(missed)} missed")
    false: dict[str, bool] = {}
    leaks: dict[str, list[str]] = {}
    for name, table, labels in _honest(say):
        false[name] = any(_alarmed(table, labels))
        leaks[name] = _leaks(infer_config(table, labels)[1])
        say(f"  {name}: repeated {false[name]}, leaks {leaks[name]}")
    values = {
        "repeated_seen": sum(repeated.values()) / len(repeated),
        "repeated_false": float(sum(false.values())),
        "leaks_false": float(sum(map(len, leaks.values()))),
        "leaks_missed": float(sum(missed.values())),
    }
    details = {"repeated": repeated, "missed": missed, "false": false, "leaks": leaks}
    return Measured(values, details)


def _alarmed(table: pa.Table, labels: Sequence[str]) -> tuple[bool, bool]:
    """Whether `init` says it, and whether training's alarm does where such rows are kept."""
    config, reasons = infer_config(table, labels)
    kept = config.model_copy(
        update={"data": config.data.model_copy(update={"repeated_rows": "keep"})}
    )
    return bool(reasons.repeated), _counted(kept, table)


def _counted(config: RunConfig, table: pa.Table) -> bool:
    splits = load_splits(config, table)
    counter = RepeatCounter(table.num_rows, column_uses(config, table.column_names))
    for number, rows in enumerate((splits.train, splits.validation, splits.test)):
        counter.add(number, rows)
    return bool(alarm_of_copies(counter.finish(), config))


def _leaks(reasons: Reasons) -> list[str]:
    return [name for name, why in reasons.left_out if any(word in why for word in _WORDS)]


def _missed(table: pa.Table, planted: set[str]) -> bool:
    return not planted <= set(_leaks(infer_config(table, ["click"])[1]))


def _honest(say: Callable[[str], None]) -> Iterator[tuple[str, pa.Table, list[str]]]:
    for name, folder in REAL.items():
        if not (DATA / folder).is_dir():
            say(f"  {name}: not at {DATA}, left out")
            continue
        recipe = load_recipe(name)
        splits = load_splits(recipe, DATA / folder)
        rows = pa.concat_tables([splits.train, splits.validation, splits.test])
        yield name, table_of(recipe, rows, splits.origin), [task.name for task in recipe.tasks]
    for name, log in LOGS.items():
        yield name, log.training(), list(log.rates)


def _repeats_log(seed: int) -> dict[str, np.ndarray]:
    rng, rows = np.random.default_rng(seed), _REPEATS_ROWS
    return {
        "user": rng.integers(0, 900, rows),
        "item": rng.integers(0, 400, rows),
        "price": rng.gamma(2, 10, rows).round(2),
        "hour": rng.integers(0, 24, rows),
        "click": rng.integers(0, 2, rows),
    }


def _repeated(seed: int) -> Iterator[tuple[str, pa.Table]]:
    rng, rows = np.random.default_rng([seed, 1]), pa.table(_repeats_log(seed))

    def take(numbers: np.ndarray) -> pa.Table:
        return rows.take(pa.array(numbers))

    every = np.arange(_REPEATS_ROWS)
    some = rng.choice(_REPEATS_ROWS, int(0.4 * _REPEATS_ROWS), replace=False)
    yield "40 % again", pa.concat_tables([rows, take(some)])
    yield "twice", pa.concat_tables([rows, rows])
    yield "twice, in another order", pa.concat_tables([rows, take(rng.permutation(every))])
    yield "5 % again, beside the row", take(np.sort(np.append(every, some[: _REPEATS_ROWS // 20])))
    yield "retries", take(np.repeat(every, rng.geometric(0.8, _REPEATS_ROWS)))
    click = np.asarray(rows["click"])
    positives = rng.choice(np.flatnonzero(click), 600, replace=False)
    yield "positives five times", take(np.append(every, np.tile(positives, 4)))
    numbered = rows.append_column("row", pa.array(every * 3 + 11))
    yield (
        "40 % again, with row numbers",
        pa.concat_tables([numbered, numbered.take(pa.array(some))]),
    )
    few = rows.select(["user", "item", "click"])
    yield "twice, three columns", pa.concat_tables([few, few])


def _leaking(seed: int) -> Iterator[tuple[str, pa.Table, set[str]]]:
    log = _repeats_log(seed)
    rng, item, click = np.random.default_rng([seed, 2]), log["item"], log["click"]
    before = [rng.integers(0, 400, n).tolist() for n in rng.integers(0, 9, _REPEATS_ROWS)]
    own = [[int(i)] * int(c) for i, c in zip(item, click, strict=True)]
    last = [[*b, *o] for b, o in zip(before, own, strict=True)]
    first = [[*o, *b] for b, o in zip(before, own, strict=True)]
    known = [
        [int(i), *b] if n % 3 == 0 else b for n, (i, b) in enumerate(zip(item, last, strict=True))
    ]
    histories: Mapping[str, list] = {
        "history, at its end": last,
        "history, at its start": first,
        "history that often holds it anyway": known,
        "history in text": ["|".join(map(str, one)) for one in last],
    }
    for name, seen in histories.items():
        yield name, pa.table({**log, "seen": seen}), {"seen"}
    kinds = [[i % 7 for i in one] for one in last]
    yield (
        "sequence of two columns",
        pa.table({**log, "seen": last, "kinds": kinds}),
        {"seen", "kinds"},
    )
    at = 1_700_000_000 + np.sort(rng.integers(0, 10**7, _REPEATS_ROWS))
    times = [
        [*(int(t) - 60 * (n + 1) for n in range(len(b))[::-1]), *[int(t)] * int(c)]
        for t, b, c in zip(at, before, click, strict=True)
    ]
    yield "sequence of times", pa.table({**log, "at": at, "times": times}), {"times"}
    was = [[*(i % 2 for i in b), int(c)] for b, c in zip(before, click, strict=True)]
    yield "sequence of labels", pa.table({**log, "was": was}), {"was"}
    long = [
        one[: 2 + 3 * int(c)] + [0] * (2 + 3 * int(c) - len(one))
        for one, c in zip(before, click, strict=True)
    ]
    yield "sequence by its length", pa.table({**log, "seen": long}), {"seen"}
    yield from _pairs(log, rng)


def _pairs(
    log: dict[str, np.ndarray], rng: np.random.Generator
) -> Iterator[tuple[str, pa.Table, set[str]]]:
    click = log["click"]
    bit = rng.integers(0, 2, _REPEATS_ROWS)
    yield "pair, one or the other", pa.table({**log, "a": bit, "b": bit ^ click}), {"a", "b"}
    sent = rng.normal(0, 100, _REPEATS_ROWS)
    paid = sent + np.where(click == 1, 1, -1) * rng.gamma(2, 1, _REPEATS_ROWS)
    yield "pair, the later one", pa.table({**log, "a": sent, "b": paid}), {"a", "b"}
    kind = rng.integers(0, 4, _REPEATS_ROWS)
    state = (kind + np.where(click == 1, 0, rng.integers(1, 4, _REPEATS_ROWS))) % 4
    words = [f"w{n}" for n in kind], [f"s{n}" for n in state]
    yield "pair, the same words", pa.table({**log, "a": words[0], "b": words[1]}), {"a", "b"}
    sign = rng.integers(0, 2, _REPEATS_ROWS)
    size = np.where(click == sign, 1, -1) * rng.gamma(2, 1, _REPEATS_ROWS)
    yield "pair, a sign and a number", pa.table({**log, "a": sign, "b": size}), {"a", "b"}


# Labels in units of their own, and events that are rare: levels that a model has to begin at

_USERS, _UNITS_ROWS = 200, 30_000
_MEAN, _DEVIATION, _NOISE = 50_000.0, 12_000.0, 5_000.0
_RARE_ROWS, _FRESH_ROWS, _RATE = 20_000, 200_000, 0.005
_RARE_SEEDS = 9


def _sigmoid(z_N: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-z_N))


def _base(draw: np.random.Generator, rows: int, of_user: np.ndarray) -> tuple[dict[str, Any], Any]:
    x_N, user_N = draw.normal(size=rows), draw.integers(0, len(of_user), rows)
    return {"x": x_N, "user": user_N}, (x_N, of_user[user_N])


def _run(table: pa.Table, tasks: list[dict[str, Any]], seed: int, epochs: int) -> Any:
    """Trains the defaults of every key but the seed and the epochs."""
    config = config_from_dict({
        "name": "units", "seed": seed,
        "features": [{"kind": "numeric", "name": "x"}, {"kind": "categorical", "name": "user"}],
        "tasks": tasks, "training": {"epochs": epochs, "batch_size": 512, "loggers": []},
    })  # fmt: skip
    folder = TemporaryDirectory()
    run = train_run(config, Path(folder.name) / "run", data=table, reporter=SilentReporter())
    return folder, run


def _spend(seed: int) -> tuple[float, float]:
    """RMSE over that of the noise, and what the click's AUC loses beside the spend."""
    draw = np.random.default_rng([seed, 4])
    of_user = draw.normal(size=_USERS)
    columns, (x_N, user_N) = _base(draw, _UNITS_ROWS, of_user)
    signal_N = 0.7 * x_N + 0.7 * user_N
    scale = np.sqrt(_DEVIATION**2 - _NOISE**2) / signal_N.std()
    columns["spend"] = _MEAN + scale * signal_N + _NOISE * draw.normal(size=_UNITS_ROWS)
    columns["click"] = (draw.random(_UNITS_ROWS) < _sigmoid(x_N - user_N)).astype(float)
    click = {"name": "click", "label": "click"}
    spend = {"name": "spend", "label": "spend", "kind": "regression"}
    found = {}
    for name, tasks in (("both", [click, spend]), ("click", [click])):
        folder, run = _run(pa.table(columns), tasks, seed, 5)
        with folder:
            found[name] = run.metrics["tasks"]
    both = found["both"]
    loss = both["click"]["auc"] - found["click"]["click"]["auc"]
    return both["spend"]["rmse"] / _NOISE, loss


def _calibration(seed: int) -> float:
    """Mean prediction over the mean true probability, on rows that nobody trained on."""
    draw = np.random.default_rng([seed, 6])
    of_user = draw.normal(size=_USERS)
    made = [_base(draw, rows, of_user) for rows in (_RARE_ROWS, _FRESH_ROWS)]
    shift = np.log(_RATE) - 0.5  # of e^(z), z of variance 1
    p_train, p_fresh = (_sigmoid(shift + 0.7 * x_N + 0.7 * u_N) for _, (x_N, u_N) in made)
    label_N = (draw.random(_RARE_ROWS) < p_train).astype(float)
    folder, run = _run(
        pa.table({**made[0][0], "buy": label_N}), [{"name": "buy", "label": "buy"}], seed, 1
    )
    with folder:
        predictions = mmoe.load(run.directory.path).predict(pa.table(made[1][0]))["pred_buy"]
        return float(predictions.to_numpy().mean() / p_fresh.mean())


def measure_units(seeds: Sequence[int], say: Callable[[str], None]) -> Measured:
    ratios, losses = zip(*(_spend(seed) for seed in [*seeds][:3]), strict=True)
    spread = ", ".join(
        f"{ratio:.3f} ({loss:+.4f})" for ratio, loss in zip(ratios, losses, strict=True)
    )
    say(f"RMSE over that of the noise, and the click's AUC beside it: {spread}")
    found = [_calibration(seed) for seed in range(_RARE_SEEDS)]
    say(f"calibration at 0.5 % positives {[round(c, 3) for c in found]}")
    return Measured(
        {
            "spend_rmse_over_best": float(np.median(ratios)),
            "click_loss": float(np.median(losses)),
            "base_rate_calibration": float(np.median(found)),
        },
        {"spend": ratios, "click": losses, "calibration": found},
    )


_NONE = Target(0, at_most=True)
# A kind of input each: what its keys should reach, and how they are measured
PARTS = (
    Section("alive_columns", {"alive_column_shift": _NONE}, measure_alive_columns),
    Section("lake_tables", {"lake_rows_wrong": _NONE, "lake_refused": None}, measure_lake_tables),
    Section("missing_roads", {"missing_roads_differ": _NONE}, measure_missing_roads),
    Section("padding", {"padding_gap": _NONE}, measure_padding),
    Section(
        "repeats_and_leaks",
        {
            "repeated_seen": Target(1.0),
            "repeated_false": _NONE,
            "leaks_false": _NONE,
            "leaks_missed": _NONE,
        },
        measure_repeats_and_leaks,
    ),
    Section(
        "units",
        {
            "spend_rmse_over_best": Target(1.1, at_most=True),
            "click_loss": Target(-0.003),
            "base_rate_calibration": Target(0.8, highest=1.25),
        },
        measure_units,
    ),
)


def _measure(seeds: Sequence[int], say: Callable[[str], None]) -> Measured:
    values: dict[str, float] = {}
    details = {}
    for part in PARTS:
        say(f"{part.name}: {', '.join(part.targets)}")
        measured = part.measure(seeds, say)
        values |= measured.values
        details[part.name] = dict(measured.details)
    return Measured(values, details)


AS_THEY_COME_SECTION = Section(
    "as_they_come", {key: t for part in PARTS for key, t in part.targets.items()}, _measure
)
