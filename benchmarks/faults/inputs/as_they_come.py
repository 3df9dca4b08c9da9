"""Logs as public files and lakes have them, beside the rows that they mean.

A kind writes a log and says which plain rows it stands for: training and scoring must end in the
same bits as on those rows, or refuse the log in one clear line.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from benchmarks.faults.inputs.draft import Drawn, Expect, flat, right
from benchmarks.faults.inputs.workspace import Workspace
from benchmarks.faults.small_log import small_config, small_log

ROWS = 200


@dataclass(frozen=True)
class Made:
    """A log, and what is true of it.

    Attributes:
        path: For `data.path`, or a list of them.
        truth: The rows that it stands for, plainly written.
        data: Further keys of the config's section `data`.
        features: Further keys of features, by name.
        expect: The same as on the true rows, unless the log has to be refused.
        words: One of these has to be in a refusal.
    """

    path: str | list[str]
    truth: pa.Table
    data: Mapping[str, Any] = field(default_factory=dict)
    features: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    expect: Expect = field(default_factory=lambda: right("none"))
    words: tuple[str, ...] = ()

    def config(self, data: str | list[str]) -> dict[str, Any]:
        """The config of a training; the keys of this kind where it reads the log itself."""
        raw: dict[str, Any] = small_config("")
        raw["data"]["path"] = data
        if data == self.path:
            raw["data"] |= self.data
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
    """Histories of one length, filled up at one end with a value that is no item."""
    path, side = folder / "log.parquet", draw.choice(["left", "right"])
    lists = rows["history"].to_pylist()
    longest = max(map(len, lists))
    filled = [[-1] * (longest - len(one)) for one in lists]
    whole = [
        fill + one if side == "left" else one + fill
        for fill, one in zip(filled, lists, strict=True)
    ]
    place = rows.column_names.index("history")
    pq.write_table(rows.set_column(place, "history", pa.array(whole)), path)
    return Made(str(path), rows, features={"history": {"padding": -1, "padding_side": side}})


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


# One kind of log each
KINDS: tuple[Callable[[random.Random, pa.Table, Path], Made], ...] = (
    named_twice,
    padded,
    other_text,
)


def draw_made(draw: random.Random, folder: Path) -> tuple[str, Made]:
    """Any kind, and its name."""
    kind = draw.choice(KINDS)
    folder.mkdir(parents=True, exist_ok=True)
    return kind.__name__, kind(draw, small_log(ROWS, seed=draw.randrange(5)), folder)


def write_config(made: Made, data: str | list[str], path: Path) -> Path:
    """Writes the config that trains on the log, or on the true rows."""
    path.write_text(yaml.safe_dump(made.config(data)), encoding="utf-8")
    return path


def as_they_come(draw: random.Random, space: Workspace, folder: Path) -> Drawn:
    """A training on such a log; it is compared with one on `truth.parquet`."""
    name, made = draw_made(draw, folder / "log-folder")
    pq.write_table(made.truth, folder / "truth.parquet")
    write_config(made, str(folder / "truth.parquet"), folder / "truth.yaml")
    config, out = write_config(made, made.path, folder / "config.yaml"), folder / "out" / "run"
    return Drawn(
        fault=f"as_they_come: {name}",
        command="train",
        expect=made.expect,
        arguments=["train", str(config), "--out", str(out), "--quiet"],
        out=out,
        words=made.words,
    )
