"""Kinds of logs as they come: each writes one, and says what is true of it."""

import json
import random
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from tests.chaos.draft import Expect, either, error, flat, right, write_table
from tests.chaos.small_log import small_config, small_log


@dataclass(frozen=True)
class Made:
    """A log, and what is true of it."""

    path: str | list[str]  # For `data.path`, or a list of them
    truth: pa.Table  # The rows that it stands for, plainly written
    # Further keys of the config's section `data`
    data: Mapping[str, Any] = field(default_factory=dict)
    # Its split, also where the true rows are split
    split: Mapping[str, Any] = field(default_factory=lambda: {"by": "random"})
    # Further keys of features, by name
    features: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    tasks: list[dict[str, Any]] | None = None  # In place of those of the small log
    # What is scored, and the rows that this stands for; None: the log itself
    to_score: tuple[str, pa.Table] | None = None
    # The same as on the true rows, unless the log has to be refused
    expect: Expect = field(default_factory=lambda: right("none"))
    words: tuple[str, ...] = ()  # One of these has to be in a refusal
    alarm: str | None = None  # That training has to raise
    pairs: bool = False  # Whether all rows come twice, and have to stay together
    metrics_alone: bool = False  # Whether metrics are compared instead of all that a run holds
    # A task, what it predicts on average, and by how much that may be missed
    level: tuple[str, float, float] | None = None
    leaks: tuple[str, ...] = ()  # Columns that hold the label, for `mmoe init`
    label: str = "click"  # That they hold

    def config(self, truth: str | None) -> dict[str, Any]:
        raw: dict[str, Any] = small_config("")
        raw["data"] |= {"path": truth or self.path, "split": dict(self.split)}
        raw["tasks"] = self.tasks or raw["tasks"]
        if truth is None or self.pairs:
            raw["data"] |= self.data
        if truth is None:
            raw["features"] = [
                {**one, **self.features.get(one["name"], {})} for one in raw["features"]
            ]
        return raw


def named_twice(draw: random.Random, rows: pa.Table, folder: Path) -> Made:
    """One file, in a list of paths more than once."""
    path = folder / "log.parquet"
    pq.write_table(rows, path)
    again = draw.choice([str(path), str(folder / "l*.parquet"), str(folder / "." / "log.parquet")])
    return Made([str(path), again], rows)


def padded(draw: random.Random, rows: pa.Table, folder: Path) -> Made:
    """Histories of one length, filled up at one end, as a value, a length or a mask says."""
    path, side = folder / "log.parquet", draw.choice(["left", "right"])
    lists = rows["history"].to_pylist()
    longest = max(map(len, lists))
    filled = [[-1] * (longest - len(one)) for one in lists]
    whole = [
        fill + one if side == "left" else one + fill
        for fill, one in zip(filled, lists, strict=True)
    ]
    masks = [[int(item != -1) for item in one] for one in whole]
    table = _with(rows, history=pa.array(whole)).append_column("there", pa.array(masks))
    pq.write_table(table.append_column("many", pa.array(list(map(len, lists)))), path)
    key = draw.choice(
        [{"padding": -1}, {"padding": ["-1", "<pad>"]}, {"length": "many"}, {"mask": "there"}]
    )
    return Made(str(path), rows, features={"history": {**key, "padding_side": side}})


def zipped(draw: random.Random, rows: pa.Table, folder: Path) -> Made:
    """A zip archive of one file of text, which is read, or one that is damaged or holds more."""
    path, road = folder / draw.choice(["log.zip", "log.tsv.zip"]), draw.choice(["csv", "jsonl"])
    if road == "csv" or path.name != "log.zip":
        write_table(rows, folder / "one.csv")
        rows, text = flat(rows), (folder / "one.csv").read_bytes()
    else:
        text = "".join(json.dumps(row) + "\n" for row in rows.to_pylist()).encode()
    how = draw.choice(["read", "read", "two files", "cut", "flipped"])
    with zipfile.ZipFile(path, "w", draw.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])) as one:
        for name in ("any.name", "other.csv")[: 1 + (how == "two files")]:
            one.writestr(name, text)
    packed, at = path.read_bytes(), draw.randrange(40, len(text) // 8)
    if how == "read":
        return Made(str(path), rows)
    if how != "two files":
        rest = packed[at + 1 :] if how == "flipped" else b""
        path.write_bytes(packed[:at] + bytes([packed[at] ^ 255]) + rest)
    return Made(str(path), rows, expect=error("zip"), words=(path.name,))


def other_text(draw: random.Random, rows: pa.Table, folder: Path) -> Made:
    """Text in another encoding, with a delimiter of two characters, maybe without a header."""
    path, header = folder / "log.dat", draw.random() < 0.5
    rows, encoding = flat(rows), draw.choice(["latin-1", "utf-16"])
    cells = [
        ["" if cell is None else str(cell) for cell in row.values()] for row in rows.to_pylist()
    ]
    lines = [*([rows.column_names] if header else []), *cells]
    path.write_bytes("".join("::".join(line) + "\n" for line in lines).encode(encoding))
    said = {"delimiter": "::", "encoding": encoding}
    said |= {} if header else {"header": False, "column_names": rows.column_names}
    return Made(str(path), rows, data=said)


def delta_table(draw: random.Random, rows: pa.Table, folder: Path) -> Made:
    """A Delta table whose files hold rows that were removed, or one at an older version."""
    from deltalake import DeltaTable, write_deltalake

    place, cut = str(folder / "delta"), draw.randrange(40, 160)
    write_deltalake(place, rows.slice(0, cut))
    write_deltalake(place, rows.slice(cut), mode="append")
    gone = draw.sample(range(rows.num_rows), 60)
    DeltaTable(place).delete(f"note in ({', '.join(repr(f'row {n}') for n in gone)})")
    version = draw.choice([None, 0, 1, 2])
    live = rows.slice(0, cut) if version == 0 else rows if version == 1 else _without(rows, gone)
    path = place if version is None else f"{place}@{version}"
    return Made(path, _as_read(path, live))


def iceberg_table(draw: random.Random, rows: pa.Table, folder: Path) -> Made:
    """An Iceberg table with rows removed, by its current state or that of a snapshot before."""
    from benchmarks.inputs.as_they_come import iceberg_table as table_of

    table = table_of(folder, "log", rows.slice(0, 120))
    table.append(rows.slice(120))
    before = table.current_snapshot().snapshot_id
    gone = draw.sample(range(rows.num_rows), 60)
    table.delete(f"note in ({', '.join(repr(f'row {n}') for n in gone)})")
    place, old = str(folder / "lake" / "log"), draw.random() < 0.5
    path = f"{place}@{before}" if old else place
    return Made(path, _as_read(path, rows if old else _without(rows, gone)))


def unreadable_table(draw: random.Random, rows: pa.Table, folder: Path) -> Made:
    """A lake table of a kind, or in a state, that is refused."""
    from deltalake import write_deltalake

    place, how = folder / "table", draw.choice(["Hudi", "version 9", "*.parquet", "folder above"])
    if how == "Hudi":
        (place / ".hoodie").mkdir(parents=True)
        pq.write_table(rows, place / "a.parquet")
        return Made(str(place), rows, expect=error("Hudi"), words=(str(place),))
    write_deltalake(str(place), rows)
    path = {
        "version 9": f"{place}@9", "*.parquet": f"{place}/*.parquet", "folder above": str(folder),
    }[how]  # fmt: skip
    return Made(path, rows, expect=error(), words=(str(place),))


def missing_words(draw: random.Random, rows: pa.Table, folder: Path) -> Made:
    """A column of text in which words mean a missing value, in files of any kind."""
    words = ["NA", "NULL", "null", "None", "nan", "<NA>", "\\N", "#N/A", " NA ", ""]
    road = draw.choice(["csv", "csv.gz", "parquet", "jsonl", "arrow"])
    gone = set(draw.sample(range(rows.num_rows), 70))
    items = rows["item"].to_pylist()
    written = [draw.choice(words) if n in gone else item for n, item in enumerate(items)]
    known = [None if n in gone else item for n, item in enumerate(items)]
    path = folder / f"log.{road}"
    table = _with(rows, item=pa.array(written))
    if road == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()), "utf-8")
    elif road == "arrow":
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=50)
    else:
        write_table(table, path)
    truth = _with(rows, item=pa.array(known, pa.string()))
    return Made(str(path), flat(truth) if road.startswith("csv") else truth)


def wide_decimals(draw: random.Random, rows: pa.Table, folder: Path) -> Made:
    """Ids beyond 2^53 as decimals, of which floats would make one."""
    path, scale = folder / "log.parquet", draw.choice([0, 2])
    ids = [2**60 + int(item[1:]) for item in rows["item"].to_pylist()]
    wide = pa.array([Decimal(number) for number in ids], pa.decimal128(38, scale))
    pq.write_table(_with(rows, item=wide), path)
    return Made(str(path), _with(rows, item=pa.array(ids)))


def comes_alive(draw: random.Random, rows: pa.Table, folder: Path) -> Made:
    """A column that never varied in training, and holds other values in the test rows."""
    column, many = draw.choice(["price", "item", "user", "history"]), rows.num_rows
    empty = pa.nulls(many, rows.schema.field(column).type)
    same = {"price": 7.5, "item": "i1", "user": 5, "history": [3, 4]}[column]
    quiet = _with(rows, **{column: draw.choice([empty, pa.array([same] * many)])})
    values = {
        "price": [1e6, 0.0, None, 7.6], "item": ["other", "1e6", None], "user": [10**6, 0, None],
        "history": [[9] * 9, [], None, [3] * 40],
    }[column]  # fmt: skip
    kind, value = quiet[column].type, draw.choice(values)
    alive = _with(rows, **{column: pa.array([value] * many, kind)})
    last = rows.num_rows - 20  # of the time, which is in order
    path, scored = folder / "log.parquet", folder / "scored.parquet"
    pq.write_table(pa.concat_tables([quiet.slice(0, last), alive.slice(last)]), path)
    pq.write_table(alive, scored)
    split = {"by": "time", "column": "time", "validation": 0.1, "test": 0.1}
    return Made(str(path), quiet, split=split, to_score=(str(scored), quiet), metrics_alone=True)


def delivered_twice(draw: random.Random, rows: pa.Table, folder: Path) -> Made:
    """A whole log twice, of which rows are kept, dropped or kept together."""
    path, how = folder / "log.parquet", draw.choice(["keep", "drop", "together"])
    twice = pa.concat_tables([rows, rows])
    pq.write_table(twice, path)
    data = {"repeated_rows": how, "input": draw.choice(["memory", "stream"])}
    if how == "drop":
        split = {"by": "hash", "column": "user"}
        return Made(str(path), rows, data, split, to_score=(str(path), twice))
    if how == "together":
        return Made(str(path), twice, data, pairs=True, metrics_alone=True)
    return Made(str(path), twice, data, alarm="repeated_rows")


def own_target(draw: random.Random, rows: pa.Table, folder: Path) -> Made:
    """A history that holds its own row's item where the label is positive, or how much it is."""
    random_state = np.random.default_rng(draw.randrange(1000))
    rows = small_log(2_000, seed=draw.randrange(5))
    clicks = rows["click"].to_pylist()
    spent = np.where(clicks, random_state.gamma(2, 10, len(clicks)).astype(int), 0)
    lists = zip(rows["history"].to_pylist(), rows["item"].to_pylist(), clicks, strict=True)
    seen = [[*(f"i{n}" for n in some), *[item] * click] for some, item, click in lists]
    path, label = folder / "log.parquet", draw.choice(["click", "spent"])
    if label == "spent" and draw.random() < 0.5:
        seen = [[*range(len(some)), own] for some, own in zip(seen, spent.tolist(), strict=True)]
    columns = {"spent": spent} if label == "spent" else {"click": rows["click"]}
    kept = rows.select(["user", "item", "price"])
    for name, values in {**columns, "seen": seen}.items():
        kept = kept.append_column(name, values if name == "click" else pa.array(values))
    pq.write_table(kept, path)
    return Made(str(path), kept, leaks=("seen",), label=label)


def own_units(draw: random.Random, rows: pa.Table, folder: Path) -> Made:
    """A regression whose label is far from 0, beside a click."""
    path, mean = folder / "log.parquet", draw.choice([50_000.0, -3_000.0, 0.002])
    kind, spread = draw.choice(["regression", "huber"]), abs(mean) / 4
    noise = np.random.default_rng(draw.randrange(1000)).normal(size=rows.num_rows)
    table = rows.append_column("spend", pa.array(mean + spread * noise))
    pq.write_table(table, path)
    tasks = [{"name": "click", "label": "click"}, {"name": "spend", "label": "spend", "kind": kind}]
    return Made(str(path), table, tasks=tasks, level=("spend", mean, spread))


def deep_json(draw: random.Random, rows: pa.Table, folder: Path) -> Made:
    """Lines of JSON, one of which nests deep in a column that nobody reads."""
    path, depth = folder / "log.jsonl", draw.choice([20, 90, 1_000, 10_000, 100_000])
    lines = [json.dumps(row) for row in rows.to_pylist()]
    opens, closes = draw.choice([("[", "]"), ('{"a":', "}")])
    deep = opens * depth + ("1" if opens != "[" else "") + closes * depth
    at = draw.randrange(len(lines))
    lines[at] = lines[at][:-1] + f', "context": {deep}}}'
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return Made(str(path), rows, expect=either("log.jsonl", reference="none"))


# One kind of log each
KINDS: tuple[Callable[[random.Random, pa.Table, Path], Made], ...] = (
    named_twice,
    padded,
    zipped,
    other_text,
    delta_table,
    iceberg_table,
    unreadable_table,
    missing_words,
    wide_decimals,
    comes_alive,
    delivered_twice,
    own_target,
    own_units,
    deep_json,
)


def _with(rows: pa.Table, **columns: pa.Array) -> pa.Table:
    for name, values in columns.items():
        rows = rows.set_column(rows.column_names.index(name), name, values)
    return rows


def _without(rows: pa.Table, gone: list[int]) -> pa.Table:
    return rows.take(pa.array(sorted({*range(rows.num_rows)} - {*gone})))


def _as_read(path: str, live: pa.Table) -> pa.Table:
    """The rows that are live, in the order in which the table is read, which no table promises."""
    from mmoe.datasets import read_table

    notes = live["note"].to_pylist()
    found = read_table(path, columns=["note"])["note"].to_pylist()
    if sorted(found) != sorted(notes):
        return live  # and nothing will be equal
    return live.take(pa.array([notes.index(note) for note in found]))
