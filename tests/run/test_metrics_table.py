"""Metrics for people: an interval beside each AUC, in a hundred columns at most."""

import io

from rich.console import Console

from mmoe.report.tables import results_tables
from mmoe.run.console import metrics_table

CLICK = {
    "auc": 0.8184, "gauc": 0.79, "pr_auc": 0.41, "logloss": 0.4, "ne": 0.85, "calibration": 1.01,
    "ece": 0.004, "rows": 12_345_678, "positives": 1_234_567, "oracle_auc": 0.8226,
    "auc_low": 0.8153, "auc_high": 0.8215, "auc_few": None,
}  # fmt: skip
BUY = {**CLICK, "auc_low": 0.61, "auc_high": 0.83, "auc_few": 20, "positives": 20}
OLD = {key: value for key, value in CLICK.items() if key not in ("pr_auc", "auc_low", "auc_high")}


def _printed(tasks):
    out = io.StringIO()
    Console(file=out, width=200).print(metrics_table({"tasks": tasks}))
    return out.getvalue().splitlines()


def test_an_interval_stands_beside_its_auc():
    _, head, click, buy = _printed({"click": CLICK, "purchase": BUY})
    assert head.split()[:6] == ["task", "AUC", "±", "95", "%", "best"]
    assert click.split()[:3] == ["click", "0.8184", "0.0031"]
    assert buy.split()[:3] == ["purchase", "0.8184", "0.1100*"]
    assert max(len(line.rstrip()) for line in (head, click, buy)) <= 100
    [table] = results_tables({"click": CLICK, "purchase": BUY})
    place = [column.heading for column in table.columns].index("95 %") + 1
    assert [row[place] for row in table.rows] == ["0.8153–0.8215", "0.6100–0.8300*"]


def test_a_run_without_intervals_has_no_column_for_them():
    assert "95" not in _printed({"click": OLD})[1]
    [table] = results_tables({"click": OLD})
    assert not {"95 %", "PR-AUC"} & {column.heading for column in table.columns}
