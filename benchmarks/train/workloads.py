"""What is trained: columns, tables and sizes. Imports neither torch nor mmoe."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, repeat

BATCH = 4096
DIM = 16
EXPERTS = 8
HIDDEN = (256, 128)
TOWER = 64
LEARNING_RATE = 1e-3  # Adam, over everything dense
EMBEDDING_LEARNING_RATE = 0.05  # row-wise Adagrad
EMBEDDING_EPS = 1e-8
# Of `big`, forward and backward: 3 · 2 · (8 · (330 · 256 + 256 · 128) + gates + towers), as in the
# measurements that the targets come from.
BIG_FLOPS_PER_ROW = 5.77e6


@dataclass(frozen=True)
class Ids:
    """A column of ids `0 … rows − 1`, Zipf-distributed.

    Attributes:
        column: Its name.
        rows: Of the embedding table.
        length: Ids of a row on average; None: exactly one, and no list.
        table: Shared by all columns that name it; the column's own by default.
    """

    column: str
    rows: int
    length: int | None = None
    table: str = ""

    @property
    def table_name(self) -> str:
        """Of the embedding table."""
        return self.table or self.column


@dataclass(frozen=True)
class Workload:
    """A log and the sizes of the model that is trained on it.

    Attributes:
        name: As in the keys.
        share: Of the rows that were asked for; wide logs are shorter.
        ids: Columns of ids, single ones first.
        dense: Number of dense columns.
        tasks: Labels; the first is the click, without which there is none of the others.
        steps: Of a window.
    """

    name: str
    share: float
    ids: Sequence[Ids]
    dense: int
    tasks: Sequence[str]
    steps: int

    @property
    def single(self) -> list[Ids]:
        """Columns of one id a row."""
        return [column for column in self.ids if column.length is None]

    @property
    def lists(self) -> list[Ids]:
        """Columns of lists."""
        return [column for column in self.ids if column.length is not None]

    @property
    def dense_columns(self) -> list[str]:
        """Names of the dense columns."""
        return [f"d{number}" for number in range(self.dense)]

    @property
    def tables(self) -> dict[str, int]:
        """Rows of every embedding table."""
        return {column.table_name: column.rows for column in self.ids}

    @property
    def input_dim(self) -> int:
        """What experts and gates read."""
        return self.dense + DIM * len(self.ids)


def _singles(*groups: tuple[int, int]) -> list[Ids]:
    """`(how many, rows)` of each group."""
    sizes = chain.from_iterable(repeat(rows, count) for count, rows in groups)
    return [Ids(f"c{number}", rows) for number, rows in enumerate(sizes)]


TASKS = ("click", "conversion")
WORKLOADS = {
    "big": Workload(
        name="big",
        share=1.0,
        ids=_singles((2, 1_000_000), (4, 100_000), (6, 10_000), (8, 1_000)),
        dense=10,
        tasks=TASKS,
        steps=20,
    ),
    "small": Workload(
        name="small", share=1.0, ids=_singles((20, 1_000)), dense=10, tasks=TASKS, steps=20
    ),
    # 200 features: 30 numbers, 148 ids, 20 lists and 2 sequences that share a table
    "ranker": Workload(
        name="ranker",
        share=0.25,
        ids=[
            *_singles((2, 1_000_000), (16, 100_000), (50, 10_000), (80, 1_000)),
            *(Ids(f"list{number}", 10_000, length=20) for number in range(20)),
            *(Ids(f"sequence{number}", 100_000, 50, table="item") for number in range(2)),
        ],
        dense=30,
        tasks=("click", "finish", "like", "share", "cart", "conversion"),
        steps=6,
    ),
    # For the tests
    "tiny": Workload(
        name="tiny",
        share=1.0,
        ids=[
            *_singles((2, 100)),
            *(Ids(f"sequence{number}", 50, 3, table="item") for number in range(2)),
        ],
        dense=3,
        tasks=TASKS,
        steps=2,
    ),
}
