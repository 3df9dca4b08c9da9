"""`EmbeddingBackend`: what all backends of embedding tables offer, with what names and values."""

import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from rich.box import SIMPLE_HEAD
from rich.table import Table
from torch import Tensor, nn

from mmoe.embeddings.step_phases import StepPhases, StepT
from mmoe.parallel import Shard, Sharded, local_shards
from mmoe.terminal import byte_size

if TYPE_CHECKING:
    from mmoe.embeddings.sharded.ids_ahead import IdsAhead

# Ranks that have a column of their own in `plan_table`
_SHOWN = 8
_PREFIX = "table_"
# Numbers drawn at a time (16 MiB): a table is never held whole beside its shards
_DRAWN = 2**22


class EmbeddingBackend(nn.Module, ABC):
    """A backend of embedding tables: a base class, whose defaults are for one process.

    Called, it gives `Lookups`: pooled embeddings, the features side by side in the order they were
    given, and events. Where a feature is weighted, `id_weights` (float32 [V], parallel to `values`)
    are needed.
    """

    output_dim: int

    @abstractmethod
    def table_weights(self) -> dict[str, Tensor]:
        """Returns the tables themselves (not copies) by name, each [rows, dim] float32."""

    def table_shards(self) -> dict[str, Sharded]:
        """Returns the tables (not copies) by name: whole, or the shards that are here.

        A rank may hold none of a table, or several shards of it.
        """
        return dict(self.table_weights())

    @abstractmethod
    def optimizer_state(self) -> dict[str, Tensor]:
        """Returns what a resumed run needs (not copies): `TABLE/NAME`, a row for each row.

        Row-wise Adagrad: `sum` [rows]; Adagrad: `sum` [rows, dim]; Adam: `exp_avg`, `exp_avg_sq`
        [rows, dim], and `steps`, int64 [1], of all tables together; SGD: nothing. Tables that decay
        also have `last_step`, int32 [rows], and then there are `steps`.
        """

    def optimizer_shards(self) -> dict[str, Sharded]:
        """Returns the tensors of `optimizer_state`, cut as `table_shards` cuts the tables."""
        return dict(self.optimizer_state())

    def plan_summary(self) -> list[dict[str, Any]]:
        """Says which rank holds what, one entry a table; empty where one process holds all.

        Each has `table`, `rows`, `dim`, `sharding`, `kernel`, `precision`, and `pieces`: for each
        shard its `rank`, `rows` and `columns` (first, and one past the last), and `bytes`,
        optimizer's state included. `mmoe.embeddings.plan_table` makes a table of it to print.
        """
        return []

    @abstractmethod
    def scale_learning_rates(self, factor: float) -> None:
        """Multiplies every table's rate, as the config has it, for the next backward pass."""

    @abstractmethod
    def step(self) -> None:
        """Applies the gradients where the backward pass has not done it already."""

    def ids_ahead(
        self, steps: Iterator[StepT], phases: StepPhases[StepT]
    ) -> "IdsAhead[StepT] | None":
        """Trains on `steps` with the ids of the next one under way; to be closed.

        None where that cannot be: on one process, which sends none; on the plain backend; for
        managed ids, whose rows may change hands at the end of a step; or if
        `parallel.pipeline` is off.

        Args:
            steps: In the order in which they are trained.
            phases: Work of a step before, between and after the exchanges of ids.
        """
        return None


def plan_table(summary: Sequence[Mapping[str, Any]]) -> Table:
    """Makes a table to print of a plan: for each embedding table what each rank holds."""
    shown = Table(title="who holds the embedding tables", box=SIMPLE_HEAD, title_justify="left")
    for name in ("table", "sharding", "kernel", "precision"):
        shown.add_column(name)
    shown.add_column("rows × dim", justify="right")
    ranks = 1 + max((p["rank"] for entry in summary for p in entry["pieces"]), default=0)
    columns = [f"rank {rank}" for rank in range(ranks)] if ranks <= _SHOWN else ["least", "most"]
    for name in columns:
        shown.add_column(name, justify="right")
    total = [0] * ranks
    for entry in summary:
        held = [0] * ranks
        for shard in entry["pieces"]:
            held[shard["rank"]] += shard["bytes"]
        total = [all_bytes + own for all_bytes, own in zip(total, held, strict=True)]
        words = [str(entry[key]) for key in ("table", "sharding", "kernel", "precision")]
        size = f"{entry['rows']:,} × {entry['dim']}"
        shown.add_row(*words, size, *_amounts(held))
    shown.add_section()
    shown.add_row("all", "", "", "", "", *_amounts(total))
    return shown


def _amounts(held: Sequence[int]) -> list[str]:
    shown = held if len(held) <= _SHOWN else [min(held), max(held)]
    return [byte_size(count) if count else "" for count in shown]


def module_name(table: str) -> str:
    """Names a table inside `nn.ModuleDict` and `nn.ParameterDict`.

    Their entries are attributes, so that a table called `items`, `keys` or `forward` would hide one
    of theirs; torch refuses it.

    Example:
        >>> module_name("items"), table_of_module(module_name("items"))
        ('table_items', 'items')
    """
    return f"{_PREFIX}{table}"


def table_of_module(name: str) -> str:
    """Returns the table that `module_name` named so."""
    return name.removeprefix(_PREFIX)


def table_of_state(name: str) -> str | None:
    """Returns the table of a tensor of `EmbeddingBackend.optimizer_state`; None: it is of all.

    Example:
        >>> table_of_state("item/exp_avg"), table_of_state("steps")
        ('item', None)
    """
    table, slash, _ = name.partition("/")
    return table if slash else None


@torch.no_grad()
def fill_tables(
    tables: Mapping[str, Sharded], seed: int, scales: Mapping[str, float] | None = None
) -> None:
    """Fills each table from its own generator, so that adding a table changes no other.

    A shard of a table gets the numbers that it has in the whole one, however it is cut. `scales`
    multiply the range of the tables that they name.
    """
    for name, table in tables.items():
        shards = local_shards(table)
        if shards:
            _fill(shards, f"{seed} {name}", (scales or {}).get(name, 1.0))


def fresh_rows(count: int, shape: tuple[int, ...], key: str) -> Tensor:
    """Makes `count` rows as `fill_tables` does for a table [rows, dim]; another key, other rows."""
    generator, bound = _source(shape[0], key)
    return torch.empty(count, shape[1]).uniform_(-bound, bound, generator=generator)


def _fill(shards: list[Shard], key: str, scale: float) -> None:
    rows, dim = shards[0].shape
    generator, bound = _source(rows, key)
    bound *= scale
    last = max(shard.region[0].stop for shard in shards)
    height = max(2, _DRAWN // dim)  # the first block has both rows that are zeros
    for start in range(0, last, height):
        # Blocks of one generator, drawn one after another, are the table drawn at once
        block_HD = torch.empty(min(height, rows - start), dim)
        block_HD.uniform_(-bound, bound, generator=generator)
        if start == 0:
            block_HD[:2] = 0  # of missing and unseen ids
        for shard in shards:
            _copy_rows(block_HD, start, shard)


def _copy_rows(block_HD: Tensor, start: int, shard: Shard) -> None:
    """The part of rows [start, start + H) of the whole that belongs to a shard."""
    rows, columns = shard.region
    first, end = max(start, rows.start), min(start + len(block_HD), rows.stop)
    if first < end:
        found = block_HD[first - start : end - start, columns]
        shard.tensor[first - rows.start : end - rows.start] = found


def _source(rows: int, key: str) -> tuple[torch.Generator, float]:
    return torch.Generator().manual_seed(zlib.crc32(key.encode())), rows**-0.5
