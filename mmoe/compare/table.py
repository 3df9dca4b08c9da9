"""A comparison as tables for a terminal."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from mmoe.metrics.columns import NONE, judged_cells
from mmoe.run.metrics_table import plain_table


def comparison_tables(result: Mapping[str, Any]) -> list[Table]:
    """Makes the table of metrics, a block for each measure, and that of models.

    Args:
        result: What compare.json holds.
    """
    return [_measures(result), _models(result)]


def _measures(result: Mapping[str, Any]) -> Table:
    table = plain_table("test split", "mean ± sd", f"less {result['first']}", "95 % interval", "")
    for number, measure in enumerate(result["measures"]):
        if number:
            table.add_row()
        table.add_row(f"{measure['task']}, {measure['heading']}")
        for model in result["models"]:
            found = model["results"][measure["key"]]
            table.add_row(f"  {model['title']}", *judged_cells(found, measure["form"]))
    return table


def _models(result: Mapping[str, Any]) -> Table:
    table = plain_table("model", "seeds", "parameters", "rows/s", "seconds", "gains", "pays")
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
