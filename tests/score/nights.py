"""Nights to score: rows that a run was not trained on, but are like those, and broken ones."""

import pyarrow.parquet as pq

from mmoe.score import score_files

FAILS = ["rows > 1e6"]
HOLDS = ["rows > 1"]


def summarised(run, source, out, **options):
    """Scores, and returns the summary."""
    found = []
    score_files(run, source, out, on_summary=found.append, **options)
    return found[0]


def changed(funnel_table, path, **columns):
    """Writes the night with other columns."""
    table = funnel_table[3000:]
    for name, values in columns.items():
        table = table.set_column(table.column_names.index(name), name, values(table[name]))
    pq.write_table(table, path)
    return path
