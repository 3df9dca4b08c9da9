"""A column of any Arrow type in any place where a config or a command can name one."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from benchmarks.faults.inputs.arrow_types import ARROW_TYPES, column_of
from benchmarks.faults.inputs.draft import Command, Drawn, either
from benchmarks.faults.inputs.workspace import Workspace
from benchmarks.faults.small_log import small_config, small_log

ODD = "odd"  # the column
ROWS = 90


def _feature(**keys: Any) -> Callable[[dict[str, Any]], None]:
    return lambda raw: raw["features"].append({"name": ODD, **keys})


def _data(**keys: Any) -> Callable[[dict[str, Any]], None]:
    return lambda raw: raw["data"].update(keys)


def _task(**keys: Any) -> Callable[[dict[str, Any]], None]:
    return lambda raw: raw["tasks"].append({"name": "third", "label": "click", **keys})


def _split(by: str, **keys: Any) -> Callable[[dict[str, Any]], None]:
    return _data(split={"by": by, "column": ODD, **keys})


def _weights(raw: dict[str, Any]) -> None:
    raw["features"][2] = {**raw["features"][2], "weights": ODD}


# What the config says of the column
ROLES: dict[str, Callable[[dict[str, Any]], None]] = {
    "vocabulary": _feature(kind="categorical"),
    "hashed": _feature(kind="categorical", encoding="hash", hash_size=16),
    "managed": _feature(kind="categorical", encoding="managed", rows=16),
    "list": _feature(kind="list", max_length=3),
    "list_cut": _feature(kind="list", weight_separator=":"),
    "weights_of_list": _weights,
    "numeric": _feature(kind="numeric"),
    "buckets": _feature(kind="numeric", log=True, buckets=3),
    "cross": _feature(kind="cross", columns=[ODD, "item"]),
    "datetime": _feature(kind="datetime", parts=["hour", "weekday"]),
    "vector": _feature(kind="vector"),
    "projected": _feature(kind="vector", dim=3),
    "label": _task(label=ODD),
    "regression": _task(label=ODD, kind="regression"),
    "expression": _task(label=f"{ODD} >= 2"),
    "text_expression": _task(label=f"{ODD} == 't2'"),
    "observed_when": _task(observed_when=ODD),
    "weight_column": _task(weight_column=ODD),
    "group_column": _data(group_column=ODD),
    "split_by_time": _split("time"),
    "split_by_hash": _split("hash"),
    "split_by_day": _split("day", train_days=["2024-01-01"], test_days=["2024-01-02"]),
    "split_by_number": _split("day", train_days=["0", "1"], test_days=["2"]),
    "unread": lambda raw: None,
}


@dataclass(frozen=True)
class TypeCase:
    """One of them.

    Attributes:
        folder: Where its files go.
        streams: Instead of reading into memory.
    """

    draw: random.Random
    kind: str
    role: str
    folder: Path
    streams: bool = False

    def write_log(self) -> str:
        """The small log with the column, as Arrow or, where it can be written so, Parquet."""
        spread = self.draw.choice([2, 5, 40])
        gaps = self.draw.random() < 0.4
        numbers = [
            None if gaps and self.draw.random() < 0.2 else self.draw.randrange(spread)
            for _ in range(ROWS)
        ]
        if self.draw.random() < 0.1:
            numbers = [None] * ROWS
        table = small_log(ROWS, seed=1).append_column(ODD, column_of(self.kind, numbers))
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.draw.random() < 0.5:
            path = self.folder / "log.parquet"
            try:
                pq.write_table(table, path, row_group_size=40)
                return str(path)
            except pa.ArrowNotImplementedError:
                path.unlink(missing_ok=True)
        path = self.folder / "log.arrow"
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=40)
        return str(path)

    def config(self, data: str) -> dict[str, Any]:
        """Names the column in its role."""
        raw = small_config(data)
        raw["data"] |= {
            "input": "stream" if self.streams else "memory",
            "streaming": {"chunk_rows": 30},
        }
        ROLES[self.role](raw)
        return raw


def type_fault(draw: random.Random, space: Workspace, folder: Path) -> Drawn:
    """Any type in any role."""
    kind, role = draw.choice(list(ARROW_TYPES)), draw.choice(list(ROLES))
    case = TypeCase(draw, kind, role, folder, streams=draw.random() < 0.5)
    data = case.write_log()
    kept = role == "unread" and draw.random() < 0.7
    commands: list[Command] = ["score", "init"] if kept else ["train"]
    command = draw.choice(commands)
    out = folder / "out" / {"score": "scores.parquet", "init": "config.yaml"}.get(command, "run")
    if command == "score":
        run = space.run("stream" if case.streams else "memory")
        arguments = ["score", str(run), "--input", data, "--output", str(out), "--keep", ODD]
    elif command == "init":
        arguments = ["init", data, "--label", "click", "--label", "buy", "--out", str(out)]
    else:
        config = folder / "config.yaml"
        config.write_text(yaml.safe_dump(case.config(data)), encoding="utf-8")
        arguments = ["train", str(config), "--out", str(out)]
    return Drawn(
        fault=f"arrow_type ({kind} as {role}{', streamed' * case.streams})",
        command=command,
        expect=either((ODD, "one class only"), reference="none"),
        arguments=[*arguments, *(["--quiet"] if command != "init" else [])],
        out=out,
        words=(Path(data).name,),
    )
