"""A comparison as tables for a terminal."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from mmoe.metrics.columns import NONE, signed


def comparison_tables(result: Mapping[str, Any]) -> list[Table]:
    """Makes the table of metrics, a block for each measure, and that of models.

    Args:
        result: What compare.json holds.
    """
    return [_measures(result), _models(result)]


def _table(*titles: str) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0))
    for number, title in enumerate(titles):
        table.add_column(title, justify="right" if number else "left", no_wrap=True)
    return table


def _measures(result: Mapping[str, Any]) -> Table:
    table = _table("test split", "mean ± sd", f"less {result['first']}", "95 % interval", "")
    for number, measure in enumerate(result["measures"]):
        if number:
            table.add_row()
        table.add_row(f"{measure['task']}, {measure['heading']}")
        for model in result["models"]:
            found = model["results"][measure["key"]]
            table.add_row(f"  {model['title']}", *_cells(found, measure["form"]))
    return table


def _cells(found: Mapping[str, Any], form: str) -> list[str]:
    if found["mean"] is None:
        return [NONE, "", "", ""]
    spread = "" if found["sd"] is None else f" ± {form.format(found['sd'])}"
    value = form.format(found["mean"]) + spread
    difference = found["difference"]
    if difference is None:
        return [value, "", "", ""]
    interval = ""
    if difference["low"] is not None:
        ends = [signed(difference[end], form) for end in ("low", "high")]
        interval = f"{ends[0]} to {ends[1]}"
    verdict = "" if found["verdict"] == "even" else found["verdict"]
    return [value, signed(difference["value"], form), interval, verdict]


def _models(result: Mapping[str, Any]) -> Table:
    table = _table("model", "seeds", "parameters", "rows/s", "seconds", "gains", "pays")
    for model in result["models"]:
        rate = model["rows_per_second"]
        table.add_row(
            model["title"],
            NONE if model["seeds"] is None else str(len(model["seeds"])),
            NONE if model["parameters"] is None else f"{model['parameters']:,}",
            NONE if rate is None else f"{rate:,.0f}",
            f"{model['seconds']:,.1f}",
            ", ".join(model["gains"]),
            ", ".join(model["pays"]),
        )
    return table
