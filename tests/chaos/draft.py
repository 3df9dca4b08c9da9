"""A case while it is drawn: tables, the files they are written to, and what must come of them."""

import gzip
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import yaml

from tests.chaos.processes import run_in_process
from tests.chaos.small_log import small_config, small_log

FEATURES, LABELS = ("user", "item", "history", "price"), ("click", "buy")
UNREAD = "note"  # a column that no run reads
ROW_GROUP = 50
SCORED = ("--keep", "item", "--rows-per-file", "64")


@dataclass(frozen=True)
class Expect:
    """What a fault must lead to."""

    # `either`: an error that is clear, or the right answer
    outcome: Literal["error", "right", "either"]
    # Each a group of words of which the error must hold one
    names: tuple[tuple[str, ...], ...] = ()
    # What a right answer equals: the answer for the log before it was broken (`clean`), for the
    # tables after, or for the files as another reader finds them; `none`: nobody can tell, it only
    # has to be complete
    reference: str = "tables"


def error(*names: str | tuple[str, ...]) -> Expect:
    return Expect("error", tuple((n,) if isinstance(n, str) else n for n in names))


def right(reference: str = "tables") -> Expect:
    return Expect("right", reference=reference)


def either(*names: str | tuple[str, ...], reference: str = "tables") -> Expect:
    return Expect("either", error(*names).names, reference)


@dataclass
class Draft:
    """The data of one case: `tables`, one for each file, and how they are written and read."""

    draw: random.Random
    command: str  # Which one will read the data
    kind: str  # `csv`, `csv.gz` or `parquet`
    tables: list[pa.Table]
    # How training splits, by time or hash, and the column; None: at random
    split: tuple[str, str] | None
    folder: Path
    files: list[Path] = field(default_factory=list)  # Once written
    data: str = ""  # What the command is told to read

    @property
    def is_csv(self) -> bool:
        return self.kind != "parquet"

    def reads(self, column: str) -> bool:
        if self.command == "init" or column in FEATURES:
            return True
        if column in LABELS:
            return self.command != "score"
        return self.command == "train" and self.split is not None and self.split[1] == column

    def part(self) -> int:
        return self.draw.randrange(len(self.tables))

    def some_parts(self) -> list[int]:
        """One of them, or all."""
        return [self.part()] if self.draw.random() < 0.5 else [*range(len(self.tables))]

    def replace(self, part: int, column: str, values: object) -> None:
        """Puts another column in its place, under the same name."""
        table = self.tables[part]
        array = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values)
        self.tables[part] = table.set_column(table.column_names.index(column), column, array)

    def replace_all(self, column: str, change: Callable[[pa.ChunkedArray], object]) -> None:
        for part, table in enumerate(self.tables):
            self.replace(part, column, change(table[column]))

    def change_some(self, column: str, values: Sequence[Any], kind: pa.DataType | None) -> None:
        part = self.part()
        cells = self.tables[part][column].to_pylist()
        for value in values:
            cells[self.draw.randrange(len(cells))] = value
        self.replace(part, column, pa.array(cells, kind))

    def write(self) -> None:
        several = len(self.tables) > 1
        where = self.folder / "log" if several else self.folder
        where.mkdir(parents=True, exist_ok=True)
        for n, table in enumerate(self.tables):
            path = where / (f"part-{n}.{self.kind}" if several else f"log.{self.kind}")
            write_table(table, path)
            self.files.append(path)
        self.data = str(where if several else self.files[0])


def cut(table: pa.Table, parts: int) -> list[pa.Table]:
    cuts = [n * table.num_rows // parts for n in range(parts + 1)]
    return [table.slice(a, b - a) for a, b in pairwise(cuts)]


def write_table(table: pa.Table, path: Path) -> None:
    """Writes Parquet in small row groups, or CSV with lists joined by a bar."""
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=ROW_GROUP)
        return
    stream = pa.BufferOutputStream()
    pacsv.write_csv(flat(table), stream)
    content = stream.getvalue().to_pybytes()
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def flat(table: pa.Table) -> pa.Table:
    """CSV holds no lists: ids are joined by a bar."""

    def join(value: object) -> str:
        items = value if isinstance(value, list) else [value]
        return "|".join("" if item is None else str(item) for item in items)

    for position, column in enumerate(table.columns):
        if pa.types.is_nested(column.type):
            joined = [None if v is None else join(v) for v in column.to_pylist()]
            name = table.column_names[position]
            table = table.set_column(position, name, pa.array(joined, pa.string()))
    return table


@dataclass
class Case:
    """One broken input of a command."""

    fault: str  # What is broken
    command: str
    expect: Expect  # What must come of it
    arguments: list[str]  # Of `mmoe`
    out: Path  # What the command writes; must not be there where it failed
    words: tuple[str, ...] = ()  # One of them has to be in a refusal
    # The data, where they are what is broken, and `clean`, its tables before
    draft: Draft | None = None
    clean: Sequence[pa.Table] = ()


class Workspace:
    """A folder with a clean log, the same rows in three files, and two finished runs.

    One run was trained in memory and one streamed. What is not there is made.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.log, self.parts = folder, folder / "log.parquet", folder / "parts"
        if self.log.exists():
            return
        self.parts.mkdir(parents=True)
        table = small_log(600, seed=9)
        pq.write_table(table, self.log, row_group_size=200)
        for n, part in enumerate(cut(table, 3)):
            pq.write_table(part, self.parts / f"part-{n}.parquet")
        for how in ("memory", "stream"):
            raw = small_config(str(self.log))
            raw["data"] |= {"input": how, "streaming": {"chunk_rows": 40}}
            config = write_yaml(folder / f"{how}.yaml", raw)
            succeed(["train", config, "--out", str(self.run(how)), "--quiet"])

    def run(self, how: str) -> Path:
        return self.folder / f"run-{how}"

    def copy_run(self, to: Path) -> Path:
        return Path(shutil.copytree(self.run("memory"), to))


class Scored(Workspace):
    """A workspace with scores, too: of the parts by each of two runs, and a single file."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.one_file = folder / "one.parquet"
        for how in ("memory", "stream"):
            if not self.scores(how).exists():
                score(self.run(how), self.parts, self.scores(how), *SCORED)
        if not self.one_file.exists():
            score(self.run("memory"), self.log, self.one_file)

    def scores(self, how: str) -> Path:
        return self.folder / f"scores-{how}"


def succeed(arguments: list[str]) -> None:
    ended = run_in_process(arguments, 300.0)
    if ended.code != 0:
        raise RuntimeError(f"a clean command failed: mmoe {' '.join(arguments)}: {ended.stderr}")


def score(run: Path, source: Path, out: Path, *options: str) -> None:
    succeed(["score", str(run), "--input", str(source), "--output", str(out), "--quiet", *options])


def write_yaml(path: Path, raw: object) -> str:
    path.write_text(yaml.safe_dump(raw), encoding="utf-8")
    return str(path)
