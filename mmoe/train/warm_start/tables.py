"""Embedding tables of an earlier run, their optimizer's state, and who owns managed rows."""

from collections.abc import Mapping

from torch import Tensor

from mmoe.embeddings import EmbeddingBackend, managed_ids, table_of_state
from mmoe.score.checkpoint import without_prefix
from mmoe.train.warm_start.report import WarmStartReport


def check_tables(tables: Mapping[str, Tensor], old: Mapping[str, Tensor], run: str) -> None:
    """Whether every table that both have can take the earlier rows.

    Raises:
        ValueError: It has another width, or fewer rows.
    """
    for name, weight in tables.items():
        there = old.get(name)
        if there is None:
            continue
        if there.shape[1:] != weight.shape[1:] or len(there) > len(weight):
            raise ValueError(
                f"--warm-start {run}: table {name!r} has {len(there):,} rows of width "
                f"{there.shape[1]} there, and {len(weight):,} of width {weight.shape[1]} here; "
                "keep its sizes, give the feature another name, or train without --warm-start"
            )


def continue_tables(
    tables: Mapping[str, Tensor], old: Mapping[str, Tensor], report: WarmStartReport
) -> None:
    """Known rows are copied; the others keep their fresh values."""
    same = []
    for name, weight in tables.items():
        if name not in old:
            continue
        before = len(old[name])
        weight[:before] = old[name]
        if before == len(weight):
            same.append(name)
        else:
            more = len(weight) - before
            report.grown.append(f"table {name} {before:,} → {len(weight):,} rows (+{more:,})")
    report.compare("table", [n for n in tables if n in same or n not in old], same)
    report.compare("table", [], [name for name in old if name not in tables])


def continue_accumulators(
    states: Mapping[str, Tensor],
    old: Mapping[str, Tensor],
    old_tables: Mapping[str, Tensor],
    report: WarmStartReport,
) -> None:
    """Optimizer state by `TABLE/NAME`, which grows with the rows, and what is of all tables.

    New rows keep their fresh state, and so does what the earlier run has not, or in another form.
    """
    without: dict[str, None] = {}
    for name, own in states.items():
        table, there = table_of_state(name), old.get(name)
        if table is not None and table not in old_tables:
            continue
        rows = len(own) if table is None else len(old_tables[table])
        if there is not None and there.shape == (rows, *own.shape[1:]):
            own[:rows] = there
        elif table is not None:
            without[table] = None
    if without:
        report.compare("embedding optimizer state of table", list(without), [])


def continue_ids(
    embeddings: EmbeddingBackend,
    model: Mapping[str, Tensor],
    training: Mapping[str, Tensor],
    report: WarmStartReport,
) -> None:
    """Ids that own a row keep it, and what they earned in the eyes of admission and eviction."""
    ids = managed_ids(embeddings)
    if ids is None:
        return
    owners, progress = (without_prefix("ids", tensors) for tensors in (model, training))
    kept = ids.continue_from(owners, progress)
    report.compare("managed ids of table", kept, kept)
