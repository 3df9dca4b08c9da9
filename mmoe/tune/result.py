"""What a search has found so far: the content of tune.json, and its table."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from mmoe.config import RunConfig
from mmoe.metrics.columns import NONE
from mmoe.tune.space import Dimension
from mmoe.tune.study import Outcome


def search_result(
    config: RunConfig,
    space: Sequence[Dimension],
    outcomes: Sequence[Outcome],
    *,
    higher_is_better: bool,
) -> dict[str, Any]:
    """Returns what tune.json holds.

    Args:
        config: That was tuned.
        space: What was searched over.
        outcomes: Of the trials, the config's own first.
        higher_is_better: Of the monitored metric.
    """
    own = {dimension.key: dimension.values[dimension.own] for dimension in space}
    trials = [
        {
            "trial": number,
            "state": one.state,
            "value": one.value,
            "epochs": one.epochs,
            "seconds": one.seconds,
            "changed": {key: v for key, v in one.settings.items() if v != own[key]},
        }
        for number, one in enumerate(outcomes, start=1)
    ]
    return {
        "name": config.name,
        "monitor": config.training.monitor,
        "higher_is_better": higher_is_better,
        "space": {dimension.key: list(dimension.values) for dimension in space},
        "own": own,
        "trials": trials,
        "best": _best(trials, higher_is_better),
    }


def _best(trials: Sequence[dict[str, Any]], higher_is_better: bool) -> dict[str, Any] | None:
    """The first of those with the best value, so that a tie leaves the config as it is."""
    judged = [trial for trial in trials if trial["value"] is not None]
    sign = -1 if higher_is_better else 1
    return min(judged, key=lambda trial: sign * trial["value"], default=None)


def search_table(result: Mapping[str, Any]) -> Table:
    """Makes a table of trials, in their order; a star stands at the best.

    Args:
        result: What tune.json holds.
    """
    table = Table(box=None, padding=(0, 1, 0, 0))
    for title in ("trial", f"validation {result['monitor']}", "epochs", "seconds"):
        table.add_column(title, justify="right", no_wrap=True)
    for title in ("", "changed"):
        table.add_column(title, overflow="fold")
    best = result["best"]
    for trial in result["trials"]:
        star = "*" if best is not None and trial["trial"] == best["trial"] else ""
        value = NONE if trial["value"] is None else f"{trial['value']:.5g}"
        table.add_row(
            f"{star}{trial['trial']}",
            value,
            str(trial["epochs"]),
            f"{trial['seconds']:.1f}",
            trial["state"],
            changes(trial["changed"]),
        )
    return table


def changes(changed: Mapping[str, Any]) -> str:
    """Says what a trial changed.

    Example:
        >>> changes({"training.batch_size": 512, "model.expert.hidden": [64, 32]})
        'batch_size 512, expert.hidden 64-32'
    """
    if not changed:
        return "the config itself"
    return ", ".join(f"{key.partition('.')[2]} {_short(value)}" for key, value in changed.items())


def _short(value: Any) -> str:
    if isinstance(value, list):
        return "-".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
