"""Embedding tables of an earlier run, their optimizer's state, and who owns managed rows."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from mmoe.checkpoint.stored_tensors import StoredTensors
from mmoe.config import TableSpec
from mmoe.embeddings import EmbeddingBackend, managed_ids, table_of_state
from mmoe.embeddings.row_updates import LAST_STEP
from mmoe.parallel.sharded_tensors import Shard, Sharded, first_rows, local_shards
from mmoe.train.warm_start.earlier import Stored
from mmoe.train.warm_start.report import WarmStartReport


def check_tables(tables: Sequence[TableSpec], old: Stored, run: str) -> None:
    """Refuses tables that cannot take the rows of an earlier run.

    Raises:
        ValueError: It has another width, or fewer rows.
    """
    for table in tables:
        there = old.shape(table.name)
        if there is None:
            continue
        rows, dim = there
        if dim != table.dim or rows > table.num_rows:
            raise ValueError(
                f"--warm-start {run}: table {table.name!r} has {rows:,} rows of width "
                f"{dim} there, and {table.num_rows:,} of width {table.dim} here; "
                "keep its sizes, give the feature another name, or train without --warm-start"
            )


def continue_tables(
    tables: Sequence[TableSpec],
    shards: Mapping[str, Sharded],
    old: Stored,
    report: WarmStartReport,
) -> None:
    """Loads known rows into this rank's shards; the others keep their fresh values.

    Args:
        tables: All of them; the report is the same on every rank.
        shards: What this rank holds of them.
        old: Those of the earlier run; passed `check_tables`.
        report: Told of them.
    """
    same, known = [], {}
    for table in tables:
        there = old.shape(table.name)
        if there is None:
            continue
        known[table.name] = first_rows(shards[table.name], there[0])
        more = table.num_rows - there[0]
        if more:
            size = f"{there[0]:,} → {table.num_rows:,} rows (+{more:,})"
            report.grown.append(f"table {table.name} {size}")
        else:
            same.append(table.name)
    old.load(known)
    names = [table.name for table in tables]
    report.compare("table", [n for n in names if n in same or n not in old.names], same)
    report.compare("table", [], [name for name in old.names if name not in names])


def continue_accumulators(
    states: Mapping[str, Sharded], old: Stored, old_tables: Stored, report: WarmStartReport
) -> None:
    """Returns optimizer state by `TABLE/NAME`, which grows with the rows.

    New rows keep their fresh state, and so does what the earlier run has not, or in another form.
    """
    without: dict[str, None] = {}
    known: dict[str, list[Shard]] = {}
    for name, state in states.items():
        table, there = table_of_state(name), old.shape(name)
        if table is not None and table not in old_tables.names:
            continue
        rows = None if table is None else old_tables.shape(table)
        own = local_shards(state) if rows is None else first_rows(state, rows[0])
        # Kinds and widths are those of the earlier run, so ranks without a shard agree
        if there is not None and all(shard.shape == there for shard in own):
            known[name] = own
        elif table is not None:
            without[table] = None
    old.load(known)
    _decay_from_now(states, known)
    if without:
        report.compare("embedding optimizer state of table", list(without), [])


def _decay_from_now(states: Mapping[str, Sharded], known: Mapping[str, list[Shard]]) -> None:
    """Lets rows that are new make up for steps from here on: the count is the earlier run's."""
    steps = states.get("steps")
    for name, state in states.items():
        if isinstance(steps, Tensor) and name.endswith(f"/{LAST_STEP}"):
            rows = sum(len(shard.tensor) for shard in known.get(name, []))
            for shard in local_shards(state):  # never cut: tables that decay are copies
                shard.tensor[rows:] = int(steps)


def continue_ids(
    embeddings: EmbeddingBackend,
    model: StoredTensors,
    training: StoredTensors,
    report: WarmStartReport,
) -> None:
    """Gives ids the rows they owned, with their standing for admission and eviction."""
    ids = managed_ids(embeddings)
    if ids is None:
        return
    kept = ids.continue_from(model.whole("ids"), training.whole("ids"))
    report.compare("managed ids of table", kept, kept)
