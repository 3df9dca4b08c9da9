"""The rows of the cases, and a config for every kind of input, model, gate, expert, task, relation.

What only a config decides: each kind is `raw_config` with other sections. Here it is held to its
bits; tests/train/test_every_kind.py holds many of them, over a log of its own, to properties.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

SESSIONS, EACH = 250, 6
SCORED = 300  # rows
SCENES = ("feed", "search", "shop")

Sections = Mapping[str, Any]

SEQUENCE = {
    "kind": "sequence", "name": "seen", "columns": ["seen_items", "seen_groups"],
    "times": "seen_times", "target": ["item", "group"], "max_length": 6,
}  # fmt: skip
ENCODERS: Mapping[str, Any] = {
    "mean": "mean", "din": "din", "transformer": "transformer", "gru": "gru",
    "two blocks": {"kind": "transformer", "layers": 2},
}  # fmt: skip
CLICK: Sections = {"name": "click", "label": "click"}
BUY: Sections = {"name": "buy", "label": "buy"}
GIVEN_CLICK: Sections = {**BUY, "observed_when": "click"}
ENTIRE: Sections = {**BUY, "kind": "entire_space", "after": "click"}
LIKE: Sections = {"name": "like", "label": "like"}
MLPS = {"kind": "mlp", "count": 2, "hidden": [8]}
POSITION = {"kind": "categorical", "name": "position", "dim": 4}
VECTOR = {"kind": "vector", "name": "vector"}
USER = {"kind": "categorical", "name": "user", "dim": 8}
TOP_2 = {"kind": "top_k", "k": 2}


def _model(**keys: Any) -> Sections:
    return {"model": keys}


def _experts(*kinds: Mapping[str, Any]) -> Sections:
    return {"model": {"experts": [MLPS, *({"count": 2, **kind} for kind in kinds)]}}


def _task(kind: str, label: str, **keys: Any) -> Sections:
    return {"tasks": [CLICK, {"name": "found", "label": label, "kind": kind, **keys}]}


def _grouped(kind: str, **keys: Any) -> Sections:
    return {**_task(kind, "click", **keys), "data": {"group_column": "session"}}


def _biased(**keys: Any) -> Sections:
    bias = {"features": ["position"], "dropout": 0.0, **keys}
    return {"features": [POSITION], "model": {"bias": bias}}


def _vectors(frozen: bool) -> Sections:
    given = {"path": "FOLDER/vectors.parquet", "id": "item", "frozen": frozen}
    text = {"kind": "categorical", "name": "text", "column": "item", "vectors": given}
    return {"features": [text]}


def _requests(encoder: Any = "din", **model: Any) -> Sections:
    of_request = [{**USER, "level": "request"},
                  {**SEQUENCE, "encoder": encoder, "level": "request"}]  # fmt: skip
    return {"data": {"requests": {"column": "session"}}, "features": of_request, "model": model}


def _domains(towers: str = "shared", **model: Any) -> Sections:
    scene = {"kind": "categorical", "name": "scene", "dim": 4}
    domains = {"column": "scene", "towers": towers}
    bought = {**GIVEN_CLICK, "domains": ["search", "shop"]}
    return {"features": [scene], "tasks": [CLICK, bought], "model": {"domains": domains, **model}}


def _late(task: Sections, **keys: Any) -> Sections:
    late = {**task, "matures_after": "3d", **keys}
    return {"data": {"time": {"column": "at"}}, "tasks": [CLICK, late]}


KINDS: Mapping[str, Sections] = {
    "plain": {},
    **{
        f"sequence {name}": {"features": [{**SEQUENCE, "encoder": encoder}]}
        for name, encoder in ENCODERS.items()
    },
    "sequence unpooled": {"features": [{**SEQUENCE, "unpooled": 2}]},
    "vector": {"features": [VECTOR]},
    "vector projected": {"features": [{**VECTOR, "dim": 4}]},
    "vectors trained": _vectors(frozen=False),
    "vectors frozen": _vectors(frozen=True),
    **{
        f"experts {kind['kind']}": _experts(kind)
        for kind in (
            {"kind": "dcn_v2", "rank": 3, "output": 8},
            {"kind": "fm", "factors": 4, "output": 8},
            {"kind": "deepfm", "factors": 4, "hidden": [8], "output": 8},
            {"kind": "masknet", "dim": 8, "mask_hidden": 12, "output": 8},
            {"kind": "autoint", "fields": 4, "field_dim": 4, "head_dim": 4, "output": 8},
        )
    },
    "experts of three kinds": _experts(
        {"kind": "dcn_v2", "count": 1, "rank": 3, "output": 8},
        {"kind": "fm", "count": 1, "factors": 4, "output": 8},
    ),
    **{
        f"interaction {kind['kind']}": _model(interaction=kind, embedding_dim=8)
        for kind in (
            {"kind": "dcn_v2"},
            {"kind": "fm"},
            {"kind": "deepfm", "hidden": [8]},
            {"kind": "masknet", "dim": 8, "mask_hidden": 12},
            {"kind": "autoint", "head_dim": 4},
        )
    },
    "bias dropped": _biased(),
    "bias fixed": _biased(scoring="fixed", at={"position": 1}),
    "wide": _model(wide=True),
    "wide and fm": _model(wide=True, interaction={"kind": "fm"}, embedding_dim=8),
    "norm batch": _model(expert={"hidden": [8], "norm": "batch"}),
    "swiglu layer norm": _model(expert={"hidden": [8, 8], "activation": "swiglu", "norm": "layer"}),
    "ple of two levels": _model(kind="ple", shared_experts=2, task_experts=1),
    "joint": _model(num_experts=8, gate={"kind": "top_k", "select": "joint", "shared_k": 2,
                                         "private_k": 1}),
    "budget": _model(num_experts=8, gate={"kind": "top_k", "k": 2, "select": "budget",
                                          "budget": 3}),
    "capacity": _model(gate=TOP_2, capacity={"factor": 0.5}),
    "padded": _model(gate=TOP_2, capacity={}, execution="padded"),
    "grouped": _model(gate=TOP_2, execution="grouped"),
    "huber": _task("huber", "seconds / 10"),
    "watch_time": _task("watch_time", "seconds / 10"),
    "ziln": _task("ziln", "seconds / 10"),
    "d2q": _task("d2q", "seconds", duration="duration", groups=3, observed_when="click"),
    "multiclass": _task("multiclass", "group", classes=[0, 1, 2, 3]),
    "ordinal": _task("ordinal", "stars", lowest=1, highest=5),
    # With a pointwise part: alone they have no gradient of a shift, which Adam makes of roundings
    "bpr": _grouped("bpr", pointwise_weight=0.3),
    "softmax": _grouped("softmax", pointwise_weight=0.3),
    "jrc": _grouped("jrc"),
    "entire space": {"tasks": [CLICK, ENTIRE]},
    "ips and dbmtl": {"tasks": [CLICK, {**ENTIRE, "counterfactual": "ips"}],
                      **_model(transfer="dbmtl")},
    "dr and aitm": {"tasks": [CLICK, {**ENTIRE, "counterfactual": "dr"}],
                    **_model(transfer="aitm")},
    "aitm": {"tasks": [CLICK, {**BUY, "after": "click"}], **_model(transfer="aitm")},
    "dbmtl": {"tasks": [CLICK, {**BUY, "after": "click"}], **_model(transfer="dbmtl")},
    "late labels": _late(GIVEN_CLICK),
    "late labels weighted": _late(BUY, immature="weight", happened_at="bought_at"),
    "requests": _requests(num_experts={"request": 2, "row": 2}),
    "requests exact": {**_requests(), "data": {"requests": {"column": "session", "exact": True}}},
    "requests top-k": _requests(gate=TOP_2, num_experts={"request": 2, "row": 3}),
    "requests wide and dcn": _requests("mean", wide=True, interaction={"kind": "dcn_v2"},
                                       embedding_dim=8),
    "requests nested": {**_requests(), "data": {"requests": {"candidates": "items"}}},
    "domains": _domains(),
    "domains own towers": _domains("own", tower={"hidden": [6, 4]}),
    "domains top-k": _domains(gate=TOP_2, wide=True),
    "domains of requests": {
        **_domains(), "data": {"requests": {"column": "session"}},
        "features": [{**USER, "level": "request"}, {"kind": "categorical", "name": "scene"}],
    },
}  # fmt: skip


def write_kinds(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    log, scored = _log(3, SESSIONS), _log(4, SCORED // EACH)
    for name, table in (("log", log), ("scored", scored)):
        pq.write_table(table, folder / f"{name}.parquet", row_group_size=200)
        pq.write_table(_nested(table), folder / f"{name}_nested.parquet", row_group_size=50)
    vectors = np.random.default_rng(1).normal(size=(30, 4)).astype(np.float32)
    pq.write_table(
        pa.table({"item": np.arange(30), "vector": list(vectors)}), folder / "vectors.parquet"
    )


def raw_config(kind: Sections, folder: Path, **training: Any) -> dict[str, Any]:
    model = {
        "num_experts": 4, "gate": {"kind": "softmax"}, "expert": {"hidden": [8]},
        "tower": {"hidden": [4]}, **kind.get("model", {}),
    }  # fmt: skip
    if "experts" in model or model.get("kind") == "ple":
        del model["num_experts"]
    if "experts" in model:
        del model["expert"]
    data = kind.get("data", {})
    nested = "candidates" in data.get("requests", {})
    ids = [{"kind": "categorical", "name": name, "dim": 8} for name in ("item", "group")]
    raw = {
        "seed": 3,
        "data": {"path": str(folder / f"log{'_nested' if nested else ''}.parquet"), **data},
        "features": [*ids, {"kind": "numeric", "name": "price"}, *kind.get("features", [])],
        "tasks": kind.get("tasks", [CLICK, GIVEN_CLICK]),
        "model": model,
        "training": {
            "epochs": 2, "batch_size": 64, "monitor": "click.auc",
            "optimizer": {"learning_rate": 0.01}, "embedding_optimizer": {"learning_rate": 0.1},
            **training,
        },
    }  # fmt: skip
    return json.loads(json.dumps(raw).replace("FOLDER", str(folder)))


def rows_to_score(kind: Sections, folder: Path) -> Path:
    nested = "candidates" in kind.get("data", {}).get("requests", {})
    return folder / f"scored{'_nested' if nested else ''}.parquet"


def _log(seed: int, sessions: int) -> pa.Table:
    rng, rows = np.random.default_rng(seed), sessions * EACH
    group_of = np.random.default_rng(7).integers(0, 4, 30)
    session = np.repeat(np.arange(sessions), EACH)
    item = rng.integers(0, 30, rows)
    histories = [rng.integers(0, 30, n) for n in rng.integers(0, 9, sessions)]
    seen = [histories[s] for s in session]
    times = [np.sort(rng.integers(0, 10**6, len(h))).tolist() for h in histories]
    pairs = zip(seen, item, strict=True)
    alike = np.array([(group_of[s] == group_of[i]).mean() if len(s) else 0.0 for s, i in pairs])
    click = rng.random(rows) < 1 / (1 + np.exp(2 - 6 * alike))
    buy = click & (rng.random(rows) < 0.5)
    duration = rng.uniform(20, 200, rows)
    minutes = rng.integers(0, 30 * 24 * 60, sessions)[session].astype("timedelta64[m]")
    at = np.datetime64("2024-03-01T00:00:00", "s") + minutes
    hours = rng.exponential(24, rows).astype("timedelta64[h]")
    return pa.table({
        "session": session, "user": rng.integers(0, 60, sessions)[session], "item": item,
        "group": group_of[item], "price": rng.normal(size=rows),
        "seen_items": [s.tolist() for s in seen],
        "seen_groups": [group_of[s].tolist() for s in seen],
        "seen_times": [times[s] for s in session],
        "scene": np.array(SCENES)[rng.choice(3, rows, p=[0.6, 0.3, 0.1])],
        "position": rng.integers(1, 6, rows),
        "vector": np.stack([alike, duration / 100, rng.normal(size=rows)], 1).tolist(), "at": at,
        "click": click.astype(np.int64), "buy": buy.astype(np.int64),
        "like": (rng.random(rows) < 0.2 + 0.6 * alike).astype(np.int64),
        "bought_at": pa.array(at + hours, mask=~buy),
        "seconds": click * duration * rng.uniform(0.1, 1, rows), "duration": duration,
        "stars": 1 + rng.binomial(4, 0.2 + 0.6 * alike),
    })  # fmt: skip


_OF_REQUEST = ("session", "user", "seen_items", "seen_groups", "seen_times", "at")


def _nested(table: pa.Table) -> pa.Table:
    names = [name for name in table.column_names if name not in _OF_REQUEST]
    candidates = pa.StructArray.from_arrays(
        [table[name].combine_chunks() for name in names], names=names
    )
    first = pa.array(np.arange(0, len(table), EACH))
    offsets = pa.array(np.arange(0, len(table) + 1, EACH), pa.int32())
    lists = pa.ListArray.from_arrays(offsets, candidates)
    return table.select(_OF_REQUEST).take(first).append_column("items", lists)


# One log as several files, and three files to score


ROWS = 24_000
FILES = 6


def write_logs(folder: Path) -> None:
    """`log/` by the day, `score/`, and `kinds/` with the log of the small kinds; all seeded."""
    write_kinds(folder / "kinds")
    (folder / "log").mkdir(parents=True, exist_ok=True)
    (folder / "score").mkdir(exist_ok=True)
    table = _days_table(np.random.default_rng(11), ROWS)
    each = ROWS // FILES
    for n in range(FILES):
        part = table.slice(n * each, each)
        pq.write_table(part, folder / "log" / f"day-{n}.parquet", row_group_size=700)
    inputs = _days_table(np.random.default_rng(12), 3_000).drop_columns(["click", "buy", "watched"])
    pq.write_table(inputs.slice(0, 1_001), folder / "score" / "a.parquet")
    pq.write_table(inputs.slice(1_001, 7), folder / "score" / "b.parquet")
    flat = inputs.slice(1_008).drop_columns(["tags", "weights"])
    pyarrow.csv.write_csv(flat, folder / "flat.csv")
    pq.write_table(inputs.slice(1_008), folder / "score" / "c.parquet")


def _days_table(rng: np.random.Generator, rows: int) -> pa.Table:
    user, item = rng.zipf(1.3, rows) % 900, rng.integers(0, 120, rows)
    price = rng.lognormal(size=rows).round(3)
    taste = np.random.default_rng(5).normal(size=(900, 120))
    click = rng.random(rows) < 1 / (1 + np.exp(-(taste[user, item] - np.log(price))))
    buy = click & (rng.random(rows) < 0.2 + 0.5 * (user % 2))
    lengths = rng.integers(0, 4, rows)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    tags = pa.array([f"t{tag}" for tag in rng.integers(0, 40, offsets[-1])])
    # Each day a later one
    times = np.arange(rows) * (6 * 86_400 / rows) + 1_700_000_000
    return pa.table({
        "user": user, "item": [f"i{i}" for i in item], "price": price,
        "age": pa.array(rng.integers(10, 80, rows), mask=rng.random(rows) < 0.1),
        "tags": pa.ListArray.from_arrays(offsets, tags),
        "weights": pa.ListArray.from_arrays(offsets, rng.random(offsets[-1]).round(3)),
        "time": pa.array((times * 1e6).astype(np.int64), pa.timestamp("us", tz="UTC")),
        "click": click.astype(np.int8), "buy": buy.astype(np.int8),
        "watched": (rng.gamma(2, size=rows) * (1 + click)).round(4),
    })  # fmt: skip
