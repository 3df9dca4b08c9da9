"""Pictures of a run as axes of pyplot: those of the report."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mmoe.metrics.task_kinds import kind_of_metrics
from mmoe.report import gate_heatmap_figure, learning_curve_figure, roc_figure
from mmoe.report.reading import read_run


def gate_axes(folder: Path) -> Axes:
    """Draws how much of each expert each task's gate uses.

    Raises:
        ValueError: The model has no gates.
    """
    gates = read_run(folder).curves.get("gates") or []
    return _drawn(lambda figure: gate_heatmap_figure(gates, figure=figure))[0]


def learning_axes(folder: Path) -> np.ndarray:
    """Draws loss and validation metric of each task over the epochs."""
    run = read_run(folder)
    tasks = list(run.metrics["tasks"])
    return _drawn(lambda figure: learning_curve_figure(run.history, tasks, figure=figure))


def roc_axes(folder: Path) -> np.ndarray:
    """Draws the ROC of each binary task on the held-out rows.

    Raises:
        ValueError: No task is binary.
    """
    run = read_run(folder)
    metrics = run.metrics["tasks"]
    ranked = {
        name: curves
        for name, curves in run.curves["tasks"].items()
        if kind_of_metrics(metrics.get(name, {})).is_event
    }
    if not ranked:
        raise ValueError("plot_roc: no task is binary, so there is no ROC to draw")
    return _drawn(lambda figure: roc_figure(ranked, metrics, figure=figure))


def _drawn(draw: Callable[[Figure], Any]) -> np.ndarray:
    """The axes that are seen, of a new figure of pyplot: notebooks and `plt.show()` show it."""
    import matplotlib.pyplot as plt

    figure = plt.figure()
    try:
        draw(figure)
    except Exception:
        plt.close(figure)
        raise
    return np.array([axes for axes in figure.axes if axes.get_visible()], dtype=object)
