"""Calibration of every task over the histogram of its predictions."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mmoe.metrics.task_kinds import TaskKind, kind_of_metrics
from mmoe.report import style

# Two-sided 95 % quantile of the normal distribution.
_Z = 1.959964


def calibration_figure(
    curves: Mapping[str, Mapping[str, Any]], metrics: Mapping[str, Mapping[str, Any]]
) -> Figure:
    """Draws observed against predicted rates by bins, and how the predictions spread.

    Args:
        curves: Task → its part of curves.json (`calibration`, `histogram`).
        metrics: Task → its part of metrics.json, for the numbers in the panels; they tell the
            task's kind: where it is no event, means of labels are drawn instead of rates, and no
            interval.

    Returns:
        A matplotlib Figure, outside pyplot's state.

    Example:
        >>> bins = [{"mean_prediction": 0.1, "positive_rate": 0.12, "rows": 500}]
        >>> curves = {"calibration": bins, "histogram": {"edges": [0, 0.5], "rows": [500]}}
        >>> len(calibration_figure({"click": curves}, {"click": {"ece": 0.02}}).axes)
        2
    """
    columns = style.columns_for(len(curves))
    rows = -(-len(curves) // columns)
    width = style.square_width(columns)
    figure = style.new_figure(width * columns, (width + 0.75) * rows)
    outer = figure.add_gridspec(rows, columns)
    for index, (task, mine) in enumerate(curves.items()):
        inner = outer[divmod(index, columns)].subgridspec(2, 1, height_ratios=[4, 1], hspace=0.05)
        upper, lower = figure.add_subplot(inner[0]), figure.add_subplot(inner[1])
        numbers = metrics.get(task, {})
        kind = kind_of_metrics(numbers)
        left = index % columns == 0
        style.dress(upper, task, ylabel=_y_label(kind, left), columns=columns, pad=19)
        style.dress(lower, xlabel="prediction", ylabel="rows" if left else "")
        upper.annotate(
            _summary(kind, numbers), (0, 1), xytext=(0, 5), xycoords="axes fraction", va="bottom",
            textcoords="offset points", fontsize=style.SIZE_SMALL, color=style.MUTED,
        )  # fmt: skip
        bins = mine.get("calibration") or []
        if not bins:
            style.say_nothing_to_draw(upper, "no observed row")
            style.say_nothing_to_draw(lower, "")
            continue
        limits = _limits(bins, kind)
        if not kind.is_event or any(each["positive_rate"] > 0 for each in bins):
            _draw_bins(upper, bins, limits, kind)
        else:
            style.say_nothing_to_draw(upper, "no positive row\nto compare with")
        _draw_histogram(lower, mine.get("histogram") or {}, limits)
    return figure


def wilson_interval(rate: float, rows: int) -> tuple[float, float]:
    """Returns the 95 % interval of a rate seen in `rows` rows; it stays within 0 and 1.

    Source: Wilson, JASA 22, 1927.
    """
    centre = (rate + _Z**2 / (2 * rows)) / (1 + _Z**2 / rows)
    reach = _Z / (1 + _Z**2 / rows)
    reach *= math.sqrt(rate * (1 - rate) / rows + _Z**2 / (4 * rows**2))
    return max(min(centre - reach, rate), 0.0), min(max(centre + reach, rate), 1.0)


def _y_label(kind: TaskKind, left: bool) -> str:
    """What the height means; said once a row of panels, and wherever it is the other kind."""
    if not kind.is_event:
        return kind.calibration_label
    return "share of positives" if left else ""


def _limits(bins: Sequence[Mapping[str, Any]], kind: TaskKind) -> tuple[float, float]:
    """One range for both axes, so that the diagonal is where prediction and outcome agree."""
    values = [each[key] for each in bins for key in ("mean_prediction", "positive_rate")]
    low, high = min(values), max(values)
    if kind.is_event:
        return 0.0, min(max(high * 1.12, 1e-6), 1.02)
    reach = max(0.08 * (high - low), 1e-6, 0.01 * abs(high))
    return low - reach, high + reach


def _draw_bins(
    axes: Axes,
    bins: Sequence[Mapping[str, Any]],
    limits: tuple[float, float],
    kind: TaskKind,
) -> None:
    x = np.array([each["mean_prediction"] for each in bins])
    y = np.array([each["positive_rate"] for each in bins])
    axes.plot(limits, limits, color=style.TRAIN, linewidth=1, ls="--")
    if kind.is_event:
        ends = np.array(
            [wilson_interval(min(max(rate, 0.0), 1.0), each["rows"])
             for rate, each in zip(y, bins, strict=True)]
        )  # fmt: skip
        axes.vlines(x, ends[:, 0], ends[:, 1], color=style.MODEL, linewidth=1.2, alpha=0.55)
    axes.plot(x, y, color=style.MODEL, marker="o", markersize=4, ls="none", clip_on=False)
    axes.set_xlim(*limits)
    axes.set_ylim(*limits)
    axes.xaxis.set_major_locator(style.few_ticks(4))
    axes.yaxis.set_major_locator(style.few_ticks(4))
    axes.tick_params(labelbottom=False)


def _draw_histogram(axes: Axes, histogram: Mapping[str, Any], limits: tuple[float, float]) -> None:
    edges, rows = np.asarray(histogram.get("edges", [])), np.asarray(histogram.get("rows", []))
    axes.set_xlim(*limits)
    axes.xaxis.set_major_locator(style.few_ticks(4))
    if len(rows) == 0:
        return
    axes.stairs(rows, edges, fill=True, color=style.MODEL, alpha=0.45, linewidth=0)
    # Rare but large predictions are what one looks for here; a linear scale would hide them.
    axes.set_yscale("log")
    top = max(int(rows.max()), 1)
    axes.set_ylim(0.7, top * 2)
    ticks = [1, 10 ** math.floor(math.log10(top))] if top >= 10 else [1]
    axes.set_yticks(ticks, [f"{tick:,}".replace(",", "\u202f") for tick in ticks])
    axes.minorticks_off()
    axes.tick_params(axis="y", labelsize=style.SIZE_SMALL - 1)


def _summary(kind: TaskKind, numbers: Mapping[str, Any]) -> str:
    columns = [kind.column(key) for key in kind.calibration_keys]
    return " · ".join(
        f"{column.heading} {column.form.format(numbers[column.key])}"
        for column in columns
        if numbers.get(column.key) is not None
    )
