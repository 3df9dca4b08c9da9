"""`RunPicturesMixin`: what a fitted estimator draws of its run, as axes of pyplot."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from mmoe.metrics.task_kinds import kind_of_metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class RunPicturesMixin:
    """Draws the run of a fitted estimator: figures of the report.

    Attributes:
        run_directory_: Its folder.
    """

    run_directory_: Path

    def plot_gates(self) -> "Axes":
        """Returns pyplot axes with how much of each expert each task's gate uses.

        Raises:
            ValueError: The model has no gates.
        """
        from mmoe.report import gate_heatmap_figure

        gates = self._read().curves.get("gates") or []
        return _drawn(lambda figure: gate_heatmap_figure(gates, figure=figure))[0]

    def plot_learning_curves(self) -> np.ndarray:
        """Returns an array of pyplot axes: loss and validation metric of each task, by epoch."""
        from mmoe.report import learning_curve_figure

        run = self._read()
        tasks = list(run.metrics["tasks"])
        return _drawn(lambda figure: learning_curve_figure(run.history, tasks, figure=figure))

    def plot_roc(self) -> np.ndarray:
        """Returns an array of pyplot axes: each binary task's ROC on the held-out rows.

        Raises:
            ValueError: No task is binary.
        """
        from mmoe.report import roc_figure

        run = self._read()
        metrics = run.metrics["tasks"]
        ranked = {
            name: curves
            for name, curves in run.curves["tasks"].items()
            if kind_of_metrics(metrics.get(name, {})).is_event
        }
        if not ranked:
            raise ValueError("plot_roc: no task is binary, so there is no ROC to draw")
        return _drawn(lambda figure: roc_figure(ranked, metrics, figure=figure))

    def _read(self) -> Any:
        from mmoe.report.page import read_run

        check_is_fitted(self, "run_directory_")
        return read_run(self.run_directory_)


def _drawn(draw: "Callable[[Figure], Any]") -> np.ndarray:
    """The axes that are seen, of a new figure of pyplot: notebooks and `plt.show()` show it."""
    import matplotlib.pyplot as plt

    figure = plt.figure()
    try:
        draw(figure)
    except Exception:
        plt.close(figure)
        raise
    return np.array([axes for axes in figure.axes if axes.get_visible()], dtype=object)
