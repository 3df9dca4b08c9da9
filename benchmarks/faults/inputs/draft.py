"""A case while it is drawn: tables, the files they are written to, and what is expected."""

import gzip
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

Command = Literal["train", "evaluate", "score", "init"]
Outcome = Literal["error", "right", "either"]
# What the answer is compared with: the log before it was broken, the tables after, the files as
# another reader finds them; none: nobody can tell, it only has to be complete
Reference = Literal["clean", "tables", "files", "none"]

FEATURES = ("user", "item", "history", "price")
LABELS = ("click", "buy")
UNREAD = "note"  # a column that no run reads
ROW_GROUP = 50


@dataclass(frozen=True)
class Expect:
    """What a fault must lead to.

    Attributes:
        outcome: `either`: an error that is clear, or the right answer.
        names: Each a group of words of which the error must hold one.
        reference: What a right answer equals.
        complaint: What a command that succeeds must say beside it; nothing: it must be silent.
    """

    outcome: Outcome
    names: tuple[tuple[str, ...], ...] = ()
    reference: Reference = "tables"
    complaint: tuple[str, ...] = ()


@dataclass(frozen=True)
class Drawn:
    """A case that needs no draft: what is broken, and the command that meets it.

    Attributes: as in `Case`.
    """

    fault: str
    command: Command
    expect: Expect
    arguments: list[str]
    out: Path
    words: tuple[str, ...] = ()
    wrong: Callable[[], str | None] | None = None


def error(*names: str | tuple[str, ...]) -> Expect:
    """A clear error that holds each of the words (one of each group)."""
    return Expect("error", tuple((n,) if isinstance(n, str) else n for n in names))


def right(reference: Reference = "tables") -> Expect:
    """The answer of the reference."""
    return Expect("right", reference=reference)


def complains(*words: str) -> Expect:
    """An answer, and a line that holds each of the words."""
    return Expect("right", reference="none", complaint=words)


def either(*names: str | tuple[str, ...], reference: Reference = "tables") -> Expect:
    """A clear error, or the answer of the reference."""
    return Expect("either", error(*names).names, reference)


@dataclass
class Draft:
    """The data of one case.

    Attributes:
        draw: All that is random about the case.
        command: Which one will read the data.
        kind: `csv`, `csv.gz` or `parquet`.
        tables: One for each file.
        split: Column of the split by time or hash, with it; None: a random split.
        folder: Where the files go.
        files: Once written.
        data: What the command is told to read.
    """

    draw: random.Random
    command: Command
    kind: str
    tables: list[pa.Table]
    split: tuple[str, str] | None
    streams: bool
    folder: Path
    files: list[Path] = field(default_factory=list)
    data: str = ""

    @property
    def is_csv(self) -> bool:
        """Is it text?"""
        return self.kind != "parquet"

    def reads(self, column: str) -> bool:
        """Does the command look at this column?"""
        if self.command == "init" or column in FEATURES:
            return True
        if column in LABELS:
            return self.command != "score"
        splits = self.command == "train" and self.split is not None and self.split[1] == column
        return splits

    def part(self) -> int:
        """Any one of the tables."""
        return self.draw.randrange(len(self.tables))

    def replace(self, part: int, column: str, values: object) -> None:
        """Another column in its place, under the same name."""
        table = self.tables[part]
        array = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values)
        self.tables[part] = table.set_column(table.column_names.index(column), column, array)

    def write(self) -> None:
        """Writes the tables; several go into one folder."""
        several = len(self.tables) > 1
        where = self.folder / "log" if several else self.folder
        where.mkdir(parents=True, exist_ok=True)
        for n, table in enumerate(self.tables):
            path = where / (f"part-{n}.{self.kind}" if several else f"log.{self.kind}")
            write_table(table, path)
            self.files.append(path)
        self.data = str(where if several else self.files[0])

    def words(self) -> tuple[str, ...]:
        """Of which an error about the data has to hold one: the files, or what was asked for."""
        return (self.data, *(path.name for path in self.files))


def write_table(table: pa.Table, path: Path) -> None:
    """As Parquet in small row groups, or as CSV with lists joined by a bar."""
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=ROW_GROUP)
        return
    stream = pa.BufferOutputStream()
    pacsv.write_csv(flat(table), stream)
    content = stream.getvalue().to_pybytes()
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def flat(table: pa.Table) -> pa.Table:
    """CSV holds no lists: ids are joined by a bar."""
    for position, column in enumerate(table.columns):
        if pa.types.is_nested(column.type):
            joined = [None if v is None else _join(v) for v in column.to_pylist()]
            name = table.column_names[position]
            table = table.set_column(position, name, pa.array(joined, pa.string()))
    return table


def _join(value: object) -> str:
    items = value if isinstance(value, list) else [value]
    return "|".join("" if item is None else str(item) for item in items)
