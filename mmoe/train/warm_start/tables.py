"""Embedding tables of an earlier run, and their optimizer's state, in tables that may be longer."""

from collections.abc import Mapping

from torch import Tensor

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
    """Optimizer state by table, or by `table.state`; what has an entry a row grows with the rows.

    New rows keep their fresh state, and so does what the earlier run has not, or in another form.
    """
    without = []
    for name, own in states.items():
        table = name.split(".")[0]
        if table not in old_tables:
            continue
        there, rows = old.get(name), len(old_tables[table])
        if there is not None and there.shape == own.shape:
            own.copy_(there)
        elif there is not None and there.shape == (rows, *own.shape[1:]):
            own[:rows] = there
        else:
            without.append(name)
    if without:
        report.compare("embedding optimizer state of table", without, [])
