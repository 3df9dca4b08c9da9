"""A sharding plan to read."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from mmoe.embeddings.byte_size import byte_size

# Ranks that have a column of their own
_SHOWN = 8


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
