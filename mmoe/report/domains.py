"""What the page says of each domain: metrics of its rows, and what its gates weigh."""

from collections.abc import Mapping, Sequence
from typing import Any

from mmoe.report.tables import Table, results_tables

OTHERS = "others"  # rows of no domain that training had
_MOST = 24  # domains of a picture: those with the most rows


def domain_tables(metrics: Mapping[str, Any]) -> list[tuple[str, Table]]:
    """Makes a table for each task, a line for each domain where there is the task.

    Args:
        metrics: The content of metrics.json.

    Example:
        >>> found = {"each": [{"domain": "shop", "rows": 9, "tasks": {"buy": {"auc": 0.75}}}]}
        >>> [(task, table.rows[0][:2]) for task, table in domain_tables({"domains": found})]
        [('buy', ['shop', '0.7500'])]
    """
    each = (metrics.get("domains") or {}).get("each") or []
    tasks = dict.fromkeys(task for entry in each for task in entry["tasks"])
    found = []
    for task in tasks:
        mine = {
            _named(entry["domain"]): entry["tasks"][task]
            for entry in each
            if task in entry["tasks"]
        }
        found += [(task, table) for table in results_tables(mine)]
    return found


def domain_gates(gates: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns, for each gate, its domains as if they were the gates of a level of their own.

    So they are drawn as levels are (`gate_heatmap_figure`). Of many domains those with the most
    rows are left.

    Args:
        gates: The `gates` section of curves.json.

    Example:
        >>> of_domains = {"names": ["shop"], "rows": [[9]], "mean_weight": [[[0.25, 0.75]]],
        ...               "entropy": [[0.5]]}
        >>> level = {"level": 1, "gates": ["buy"], "experts": ["expert 1", "expert 2"],
        ...          "visible": [[True, True]], "domains": of_domains}
        >>> [(one["title"], one["gates"]) for one in domain_gates([level])]
        [('buy', ['shop'])]
    """
    several = len(gates) > 1
    return [
        _of_gate(level, g, f"{gate}, level {level['level']}" if several else gate)
        for level in gates
        if level.get("domains")
        for g, gate in enumerate(level["gates"])
    ]


def _of_gate(level: Mapping[str, Any], g: int, title: str) -> dict[str, Any]:
    found = level["domains"]
    asking = [n for n, rows in enumerate(found["rows"]) if rows[g]]
    most = sorted(asking, key=lambda n: -found["rows"][n][g])[:_MOST]
    shown = [n for n in asking if n in most]
    return {
        "title": title,
        "level": level["level"],
        "gates": [_named(found["names"][n]) for n in shown],
        "experts": level["experts"],
        "mean_weight": [found["mean_weight"][n][g] for n in shown],
        "entropy": [found["entropy"][n][g] for n in shown],
        "visible": [level["visible"][g]] * len(shown),
    }


def _named(domain: str | None) -> str:
    return OTHERS if domain is None else domain
