"""ROC curves, one panel a task, the oracle's beside the model's where it is known."""

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mmoe.report import style


def roc_figure(
    curves: Mapping[str, Mapping[str, Any]],
    metrics: Mapping[str, Mapping[str, Any]],
    *,
    figure: Figure | None = None,
) -> Figure:
    """Draws the ROC of every binary task.

    Args:
        curves: Task → its part of curves.json; tasks without a `roc` get an empty panel.
        metrics: Task → its part of metrics.json, for the AUCs written beside the curves.
        figure: To draw into, without axes, such as pyplot's; None: a new one, outside its state.

    Returns:
        The matplotlib Figure.

    Example:
        >>> roc = {"fpr": [0, 0.2, 1], "tpr": [0, 0.7, 1]}
        >>> curves = {"click": {"roc": roc, "oracle_roc": None}}
        >>> figure = roc_figure(curves, {"click": {"auc": 0.75}})
        >>> [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
        ['model 0.750']
    """
    columns = style.columns_for(len(curves))
    rows = -(-len(curves) // columns)
    width = style.square_width(columns)
    figure = style.new_figure(width * columns, (width + 0.15) * rows, figure)
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, (task, mine) in zip(grid, curves.items(), strict=False):
        style.dress(axes, title=task, columns=columns)
        _draw(axes, mine, metrics.get(task, {}))
    for axes in grid[len(curves) :]:
        axes.set_visible(False)
    for axes in grid[: len(curves)]:
        _label_outer(axes)
    return figure


def _draw(axes: Axes, curves: Mapping[str, Any], metrics: Mapping[str, Any]) -> None:
    axes.set_aspect("equal")
    axes.set_xlim(-0.01, 1.01)
    axes.set_ylim(-0.01, 1.01)
    if curves.get("roc") is None:
        style.say_nothing_to_draw(axes, "one class only:\nthere is no ROC")
        return
    ticks = [0, 0.25, 0.5, 0.75, 1]
    axes.set_xticks(ticks, ["0", "", "0.5", "", "1"])
    axes.set_yticks(ticks, ["0", "", "0.5", "", "1"])
    axes.plot([0, 1], [0, 1], color=style.TRAIN, linewidth=0.9, ls=":")
    axes.plot(
        curves["roc"]["fpr"], curves["roc"]["tpr"], color=style.MODEL, linewidth=2,
        label=f"model{_number(metrics.get('auc'))}",
    )  # fmt: skip
    if curves.get("oracle_roc") is not None:
        oracle = curves["oracle_roc"]
        axes.plot(
            oracle["fpr"], oracle["tpr"], color=style.ORACLE, linewidth=1.6, ls=(0, (4, 2)),
            label=f"oracle{_number(metrics.get('oracle_auc'))}",
        )  # fmt: skip
    axes.legend(
        loc="lower right", frameon=False, fontsize=style.SIZE_TEXT, labelcolor=style.INK,
        handlelength=1.8, borderaxespad=0.8,
    )  # fmt: skip


def _label_outer(axes: Axes) -> None:
    place = axes.get_subplotspec()
    if place is not None and place.is_first_col():
        axes.set_ylabel("true positive rate", fontsize=style.SIZE_SMALL, color=style.MUTED)
    axes.set_xlabel("false positive rate", fontsize=style.SIZE_SMALL, color=style.MUTED)


def _number(value: float | None) -> str:
    return "" if value is None else f" {value:.3f}"
