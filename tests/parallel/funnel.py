"""A small log of a funnel, and configs of its first task, for runs through the commands."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import yaml

from mmoe.datasets.bundled.synthetic import generate_funnel

# Imported by the ranks alone: in the process of the tests its kind would be one for all of them
ODD_EXPERTS = "tests.parallel.odd_experts"


def write_log(folder: Path, rows: int = 900) -> Path:
    log = folder / "log.parquet"
    pq.write_table(generate_funnel(rows=rows, users=50, items=30).table, log)
    return log


def write_config(
    path: Path, log: Path, model: dict[str, Any], ids: tuple[str, ...] = ("user_id",), **more: Any
) -> Path:
    """Of experts that top-2 gates mix for a tower of one product; `more`: other sections."""
    numeric = {"kind": "numeric", "name": "hour"}
    raw = {
        "data": {"path": str(log)},
        "features": [numeric, *({"kind": "categorical", "name": name} for name in ids)],
        "tasks": [{"name": "click", "label": "click"}],
        "model": {"gate": {"kind": "top_k", "k": 2}, "tower": {"hidden": []}, **model},
        **more,
    }
    path.write_text(yaml.safe_dump(raw))
    return path
