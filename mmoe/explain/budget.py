"""Budgets of experts: log-loss and rows a second with at most K experts computed for a row."""

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from shlex import quote
from statistics import median
from typing import Any

import numpy as np
from scipy.special import ndtri

from mmoe.config import RunConfig
from mmoe.datasets import BatchSource, EncodedData, join_labels
from mmoe.explain.measures import row_losses
from mmoe.metrics import kind_of
from mmoe.models import MixtureNetwork, Ranker
from mmoe.predictor import Predictor
from mmoe.run import Reporter

# Below it every expert is worth a look of its own, and grouped execution hardly pays
_FEWEST_EXPERTS = 4
# Rows that are timed, and how often
_ROWS, _TIMES = 16_384, 5


def budget_curve(
    ranker: Ranker, config: RunConfig, rows: BatchSource, tolerance: float, reporter: Reporter
) -> dict[str, Any] | None:
    """Measures budgets 1, 2, 4, … below the number of experts against all experts.

    Args:
        ranker: In evaluation mode, its experts unbounded; so it is afterwards.
        config: Of its run.
        rows: With labels.
        tolerance: Log-loss that the upper end of a proposed budget's interval may lose.
        reporter: Told of progress.

    Returns:
        The `budget` of explain.json: `experts`; with all of them `log_loss`, the mean of the tasks
        that have one, and `rows_per_second`; `points`, each with its `budget`, `rows_per_second`
        and the difference of its `log_loss` with the 95 % interval; `tolerance`; and `proposed`,
        the smallest budget that loses no more and is faster, or None. None: there are fewer than
        four experts, no such task, or gates that take no budget.
    """
    network = ranker.network
    experts = max(level.mixture.num_experts for level in network.levels)
    budgets = _possible(network, [2**i for i in range(experts.bit_length()) if 2**i < experts])
    scored = [kind_of(task.kind).loss_metric == "logloss" for task in config.tasks]
    if experts < _FEWEST_EXPERTS or not budgets or not any(scored) or len(rows) < 2:
        return None
    predictor = Predictor(ranker, config)
    try:
        with reporter.track("fewer experts a row", len(rows) * (1 + len(budgets)), "rows") as told:
            losses = []
            for budget in (None, *budgets):
                network.bound(budget)
                found = list(predictor.predict_chunks(rows, tracker=told))
                labels = join_labels([chunk.labels for chunk, _ in found if chunk.labels])
                predictions_NP = np.concatenate([predicted_NP for _, predicted_NP in found])
                losses.append(row_losses(config, labels, predictions_NP))
        with closing(rows.chunks(0, min(len(rows), _ROWS))) as chunks:
            dense, *speeds = _rows_per_second(predictor, next(iter(chunks)), [None, *budgets])
    finally:
        network.bound(None)
    points = [
        {"budget": budget, "rows_per_second": speed, "log_loss": _difference(loss_N, losses[0])}
        for budget, speed, loss_N in zip(budgets, speeds, losses[1:], strict=True)
    ]
    free = [
        point["budget"]
        for point in points
        if point["log_loss"]["high"] <= tolerance and point["rows_per_second"] > dense
    ]
    return {
        "experts": experts,
        "log_loss": float(losses[0].sum()),
        "rows_per_second": dense,
        "points": points,
        "tolerance": tolerance,
        "proposed": min(free, default=None),
    }


def budget_line(budget: Mapping[str, Any] | None, run: str) -> list[str]:
    """Says in a line which budget costs nothing, and how to score with it; none was measured: none.

    Args:
        budget: Of `budget_curve`.
        run: As the user calls it.
    """
    if budget is None:
        return []
    for point in budget["points"]:
        if point["budget"] == budget["proposed"]:
            loss, times = point["log_loss"], point["rows_per_second"] / budget["rows_per_second"]
            return [
                f"{point['budget']} of {budget['experts']} experts a row: {times:.2f} × the rows a "
                f"second, log-loss {loss['value']:+.5f} ({loss['low']:+.5f} to "
                f"{loss['high']:+.5f}): mmoe score {quote(run)} --budget {point['budget']}, or "
                f"--set score.budget={point['budget']} in training"
            ]
    tried = ", ".join(str(point["budget"]) for point in budget["points"])
    return [
        f"no budget of {tried} experts a row is faster and surely within {budget['tolerance']:g} "
        "log-loss"
    ]


def _possible(network: MixtureNetwork, budgets: Sequence[int]) -> list[int]:
    """Those that the gates of all levels have room in."""
    found = []
    for budget in budgets:
        try:
            network.bound(budget)
            found.append(budget)
        except ValueError:
            pass  # of gates that see unlike experts each needs one; own kinds may take no budget
    network.bound(None)
    return found


def _difference(loss_N: np.ndarray, base_N: np.ndarray) -> dict[str, float]:
    """Returns how much more is lost, with the 95 % interval of rows drawn anew, both alike."""
    more_N = loss_N - base_N
    count, value = len(more_N), float(more_N.sum())
    # Of a sum of independent terms: n times the variance of one
    error = float(np.sqrt(count * more_N.var(ddof=1)))
    reach = float(ndtri(0.975)) * error
    return {"value": value, "low": value - reach, "high": value + reach}


def _rows_per_second(
    predictor: Predictor, rows: EncodedData, budgets: Sequence[int | None]
) -> list[float]:
    """Medians of passes that take turns, so that what else the machine does hits all alike."""
    seconds: list[list[float]] = [[] for _ in budgets]
    for _ in range(1 + _TIMES):
        for own, budget in zip(seconds, budgets, strict=True):
            predictor.ranker.network.bound(budget)
            start = time.perf_counter()
            predictor.predict(rows)
            own.append(time.perf_counter() - start)
    return [len(rows) / median(own[1:]) for own in seconds]  # the first one warms up
