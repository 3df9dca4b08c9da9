"""Figures of a run: learning curves, ROC, calibration over histograms, gates as a heat map."""

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from mmoe.metrics import Column, TaskKind, kind_of_metrics
from mmoe.report import style


def learning_curve_figure(
    history: Mapping[str, Any], tasks: Sequence[str] | None = None, *, figure: Figure | None = None
) -> Figure:
    """Draws training over validation loss, and under them the validation metric, for each task.

    Args:
        history: What history.json holds: `epochs` and `monitor`.
        tasks: Which tasks, in order; None = all that have a loss.
        figure: To draw into, without axes, such as pyplot's; None: a new one, outside its state.

    Returns:
        The matplotlib Figure.

    Raises:
        ValueError: There is no epoch.

    Example:
        >>> epoch = {"epoch": 1, "loss": {"click": 0.4}, "validation": {"click": {"auc": 0.7}}}
        >>> figure = learning_curve_figure({"epochs": [epoch], "monitor": "mean.auc"})
        >>> len(figure.axes)
        2
    """
    epochs = history["epochs"]
    if not epochs:
        raise ValueError("history: there is no epoch to draw; train for at least one")
    names = list(epochs[0].get("loss", {})) if tasks is None else list(tasks)
    columns = style.columns_for(len(names)) if len(names) > 1 else 2
    blocks = -(-len(names) // columns) if len(names) > 1 else 1
    rows = 2 * blocks if len(names) > 1 else 1
    figure = style.new_figure(style.PAGE_WIDTH, 1.9 * rows + 0.4, figure)
    grid = figure.subplots(rows, columns, squeeze=False)
    best = best_epoch(epochs)
    for axes in grid.flat:
        axes.set_visible(False)
    for index, task in enumerate(names):
        block, column = divmod(index, columns)
        if len(names) > 1:
            upper, lower = grid[2 * block, column], grid[2 * block + 1, column]
            upper.tick_params(labelbottom=False)
        else:
            upper, lower = grid[0]
        epoch = "epoch" if len(names) == 1 else ""
        style.dress(upper, title=task, xlabel=epoch, ylabel="loss", columns=columns)
        kind, metric = _kind_and_metric(epochs, task, str(history.get("monitor") or ""))
        _draw_loss(upper, epochs, task, kind, best)
        _draw_metric(lower, epochs, task, kind.column(metric), best)
    _legend(figure, grid.flat)
    return figure


def best_epoch(epochs: Sequence[Mapping[str, Any]]) -> int | None:
    """Returns the epoch whose checkpoint was kept: the last one marked as the best so far."""
    marked = [entry["epoch"] for entry in epochs if entry.get("best")]
    return marked[-1] if marked else None


def _kind_and_metric(
    epochs: Sequence[Mapping[str, Any]], task: str, monitor: str
) -> tuple[TaskKind, str]:
    """The monitored metric where the task has it, or what its kind is judged by first."""
    known = epochs[0].get("validation", {}).get(task, {})
    kind = kind_of_metrics(known)
    wanted = monitor.rpartition(".")[2]
    if wanted in known and wanted != kind.loss_metric:
        return kind, wanted
    return kind, kind.headline if kind.headline in known else next(iter(known), kind.headline)


def _draw_loss(
    axes: Axes, epochs: Sequence[Mapping[str, Any]], task: str, kind: TaskKind, best: int | None
) -> None:
    axes.set_visible(True)
    training = _series(epochs, lambda entry: entry.get("loss", {}).get(task))
    validation = _series(
        epochs, lambda entry: entry.get("validation", {}).get(task, {}).get(kind.loss_metric)
    )
    if training[0]:
        axes.plot(
            *training, color=style.TRAIN, marker="o", ms=3.5, lw=1.7, ls="--", label="training"
        )
    if validation[0]:
        axes.plot(*validation, color=style.MODEL, marker="o", ms=3.5, lw=1.7, label="validation")
    if not training[0] and not validation[0]:
        style.say_nothing_to_draw(axes, "no loss recorded")
    axes.margins(y=0.12)
    _mark_best(axes, epochs, best)


def _draw_metric(
    axes: Axes, epochs: Sequence[Mapping[str, Any]], task: str, metric: Column, best: int | None
) -> None:
    axes.set_visible(True)
    style.dress(axes, xlabel="epoch", ylabel=f"validation {metric.heading}")
    x, y = _series(epochs, lambda entry: entry.get("validation", {}).get(task, {}).get(metric.key))
    if not x:
        style.say_nothing_to_draw(axes, "could not be computed\n(one class only?)")
        return
    axes.plot(x, y, color=style.MODEL, marker="o", markersize=3.5, linewidth=1.7)
    axes.margins(y=0.25)
    _mark_best(axes, epochs, best)
    if best in x:
        _label_best(axes, x, y, x.index(best), metric.form)


def _label_best(axes: Axes, x: list[int], y: list[float], best: int, form: str) -> None:
    """A dot and its value, on the side of the curve and of the dotted line that has room."""
    axes.plot(x[best], y[best], color=style.INK, marker="o", ms=6, ls="none")
    above = y[best] >= sorted(y)[len(y) // 2]
    right = best > len(x) / 2
    axes.annotate(
        form.format(y[best]), (x[best], y[best]), xytext=(-5 if right else 5, 9 if above else -9),
        textcoords="offset points", ha="right" if right else "left", va="center",
        fontsize=style.SIZE_SMALL, fontweight="bold", color=style.INK,
    )  # fmt: skip


def _mark_best(axes: Axes, epochs: Sequence[Mapping[str, Any]], best: int | None) -> None:
    numbers = [entry["epoch"] for entry in epochs]
    axes.xaxis.set_major_locator(style.few_ticks(6, integer=True))
    axes.yaxis.set_major_locator(style.few_ticks(4))
    reach = max(0.04 * (numbers[-1] - numbers[0]), 0.25)
    axes.set_xlim(numbers[0] - reach, numbers[-1] + reach)
    if best is not None:
        axes.axvline(best, color=style.INK, linewidth=1, ls=":", label="best epoch")


def _legend(figure: Figure, panels: Any) -> None:
    found: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    if found:
        figure.legend(
            list(found.values()), list(found), loc="outside upper left", ncols=len(found),
            frameon=False, fontsize=style.SIZE_TEXT, labelcolor=style.INK, handlelength=1.8,
        )  # fmt: skip


def _series(epochs: Sequence[Mapping[str, Any]], pick: Any) -> tuple[list[int], list[float]]:
    """Epochs and values, without those where the value is unknown (None or NaN)."""
    pairs = [(entry["epoch"], pick(entry)) for entry in epochs]
    known = [(epoch, value) for epoch, value in pairs if value is not None and value == value]
    return [epoch for epoch, _ in known], [value for _, value in known]


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
    width = style.SQUARE[columns]
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
    width = style.SQUARE[columns]
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
    """The label of the height: once a row of panels, and wherever it is the other kind."""
    if not kind.is_event:
        return kind.calibration_label
    return "share of positives" if left else ""


def _limits(bins: Sequence[Mapping[str, Any]], kind: TaskKind) -> tuple[float, float]:
    """Returns one range for both axes, so that the diagonal is where both agree."""
    values = [each[key] for each in bins for key in ("mean_prediction", "positive_rate")]
    low, high = min(values), max(values)
    if kind.is_event:
        return 0.0, min(max(high * 1.12, 1e-6), 1.02)
    reach = max(0.08 * (high - low), 1e-6, 0.01 * abs(high))
    return low - reach, high + reach


def _draw_bins(
    axes: Axes, bins: Sequence[Mapping[str, Any]], limits: tuple[float, float], kind: TaskKind
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


# All lengths are points: the picture is set by hand, so that nothing can overlap.
_WIDTH = 770.0
_ROW = 24.0
_GAP = 1.5
_WIDEST_CELL = 66.0
_GROUP_GAP = 7.0
_LETTER = 0.6  # mean width of a letter, in parts of the type size
_HEADINGS = ("entropy\n(nats)", "experts\nper sample", "experts\nover all")
_STATISTIC = 58.0
_LEGEND = 34.0
# Beyond this share of the darkest cell, light text is easier to read than dark text (either theme).
_LIGHT_TEXT_FROM = 0.7


def gate_heatmap_figure(
    gates: Sequence[Mapping[str, Any]], *, figure: Figure | None = None
) -> Figure:
    """Draws mean gate weights by task and expert, one map a level, and how many experts that makes.

    Args:
        gates: The `gates` section of curves.json, or `GateStatistics.summary()`: for each level
            `gates`, `experts`, `mean_weight` [G, E], `entropy` [G] in nats, `effective_experts`
            [G], `visible` [G, E]; `effective_experts` and `effective_experts_of_mean` are worked
            out where they are absent, and a `title` is written in the place of the level's number.
        figure: To draw into, without axes, such as pyplot's; None: a new one, outside its state.

    Returns:
        The matplotlib Figure. The darkest cell is the largest mean weight of
        all levels; a struck-through cell is an expert which the gate may not see.

    Raises:
        ValueError: There is no level.

    Example:
        >>> level = {
        ...     "level": 1, "gates": ["click", "buy"], "experts": ["expert 1", "expert 2"],
        ...     "mean_weight": [[0.9, 0.1], [0.4, 0.6]], "entropy": [0.3, 0.6],
        ...     "effective_experts": [1.35, 1.82], "visible": [[True, True], [True, True]],
        ... }
        >>> figure = gate_heatmap_figure([level])
        >>> "0.90" in [text.get_text() for text in figure.axes[0].texts]
        True
    """
    if not gates:
        raise ValueError(
            "gates: there is no level to draw; this model has no gates, or no expert is trained: "
            "the best weights are those before the first epoch"
        )
    levels = [_Level(entry, len(gates)) for entry in gates]
    width = max(level.right for level in levels)
    height = sum(level.height for level in levels) + _LEGEND + 14.0 * (len(levels) - 1)
    figure = style.new_figure(width / 72, height / 72, figure, layout="none")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    largest = max(max(float(level.weight_GE.max(initial=0)) for level in levels), 1e-12)
    top = 0.0
    for level in levels:
        level.draw(axes, top, largest)
        top += level.height + 14.0
    _draw_scale(axes, levels[0].left, height - 14.0, largest)
    return figure


def expert_groups(names: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Groups neighbours whose names differ in the last number only: `("click", ["1", "2"])`."""
    split = [
        (head, tail) if tail.isdigit() and head else (name, "")
        for name in names
        for head, _, tail in [name.rpartition(" ")]
    ]
    return [(head, [tail for _, tail in group]) for head, group in groupby(split, lambda s: s[0])]


class _Level:
    """One level of gates as arrays, and where its parts lie."""

    def __init__(self, entry: Mapping[str, Any], levels: int) -> None:
        self.weight_GE = np.array(entry["mean_weight"], dtype=float)
        share_GE = self.weight_GE / np.maximum(self.weight_GE.sum(axis=1, keepdims=True), 1e-300)
        logs_GE = np.log(np.where(share_GE > 0, share_GE, 1.0))
        over_all = entry.get("effective_experts_of_mean", np.exp(-(share_GE * logs_GE).sum(axis=1)))
        per_sample = entry.get("effective_experts", np.exp(entry["entropy"]))
        self.statistics_G3 = np.stack([entry["entropy"], per_sample, over_all], axis=1)
        self.title = entry.get("title", f"level {entry.get('level', 1)}" if levels > 1 else "")
        self.gates = [style.shorten(name, 24) for name in entry["gates"]]
        self.visible_GE = np.array(entry["visible"], dtype=bool)
        self.groups = [
            (style.shorten(head, 24), numbers) for head, numbers in expert_groups(entry["experts"])
        ]
        experts, letter = len(entry["experts"]), _LETTER * style.SIZE_TEXT
        self.left = 14 + letter * max(map(len, self.gates))
        room = _WIDTH - self.left - _STATISTIC * 3 - _GROUP_GAP * (len(self.groups) - 1)
        self.cell = min(room / experts, _WIDEST_CELL)
        sizes = [len(numbers) for _, numbers in self.groups]
        group_of_E = np.repeat(np.arange(len(self.groups)), sizes)
        self.x_E = self.left + self.cell * np.arange(experts) + _GROUP_GAP * group_of_E
        self.right = max(self.x_E[-1] + self.cell + _STATISTIC * 3 + 4, self.left + 240)
        self.tilted = any(
            letter * len(head) > self.cell * len(numbers) + _GROUP_GAP
            for head, numbers in self.groups
        )
        # The headings of the statistics take two lines, tilted names as much as the longest needs.
        longest = letter * max(len(head) for head, _ in self.groups)
        self.heading = 34.0 + 0.72 * longest * self.tilted
        self.first = (20.0 if self.title else 0.0) + self.heading  # of the rows, below the top
        self.height = self.first + _ROW * len(self.gates)

    def draw(self, axes: Axes, top: float, largest: float) -> None:
        if self.title:
            bold = {"fontsize": style.SIZE_TITLE, "fontweight": "bold", "ha": "left"}
            _write(axes, 2, top + 10, self.title, **bold)
        first, edge = top + self.first, self.x_E[-1] + self.cell
        self._draw_expert_names(axes, first)
        for column, heading in enumerate(_HEADINGS):
            x = edge + _STATISTIC * (column + 0.55)
            _write(axes, x, first - 6, heading, **_SMALL, va="bottom")
            for row, value in enumerate(self.statistics_G3[:, column]):
                _write(axes, x, first + _ROW * (row + 0.5), f"{abs(value):.2f}")
        for row, name in enumerate(self.gates):
            _write(axes, self.left - 8, first + _ROW * (row + 0.5), name, ha="right")
        self._draw_cells(axes, first, largest)

    def _draw_cells(self, axes: Axes, first: float, largest: float) -> None:
        gap, wide = min(_GAP, self.cell / 8), self.cell >= 27
        cells, colours, struck = [], [], []
        for (row, expert), weight in np.ndenumerate(self.weight_GE):
            x, y = float(self.x_E[expert]), first + _ROW * row
            right, bottom = x + self.cell - gap, y + _ROW - gap
            if not self.visible_GE[row, expert]:
                reach = 0.2 * self.cell
                struck.append([(x + reach, bottom - 4), (right - reach, y + 4)])
                continue
            strength = float(weight) / largest
            cells.append(Rectangle((x, y), right - x, bottom - y))
            # Even weight 0 gets a trace of colour: it is a cell, unlike a struck-through one.
            colours.append((style.HEAT, 0.04 + 0.96 * strength))
            if self.cell >= 17:
                text = f"{weight:.2f}" if wide else f"{weight:.2f}".removeprefix("0")
                colour = style.ON_HEAT if strength > _LIGHT_TEXT_FROM else style.INK
                size = style.SIZE_TEXT if wide else 6.5
                middle = (x + right) / 2, (y + bottom) / 2
                _write(axes, *middle, text, fontsize=size, color=colour)
        axes.add_collection(PatchCollection(cells, facecolors=colours, edgecolors="none"))
        axes.add_collection(LineCollection(struck, colors=style.TRAIN, linewidths=0.9, alpha=0.6))

    def _draw_expert_names(self, axes: Axes, first: float) -> None:
        # Where cells are narrow only every so many experts carry their number.
        every = next(step for step in (1, 2, 5, 10, 20, 50, 100, 10**9) if step * self.cell >= 15)
        tilt = {"ha": "left", "rotation": 45} if self.tilted else {}
        start = 0
        for head, numbers in self.groups:
            last = start + len(numbers) - 1
            middle = (self.x_E[start] + self.x_E[last] + self.cell) / 2
            bottom = first - (18 if numbers != [""] else 6)
            _write(axes, middle, bottom, head, va="bottom", **tilt)
            for offset, number in enumerate(numbers):
                if offset == 0 or (offset + 1) % every == 0:
                    x = self.x_E[start + offset] + self.cell / 2
                    _write(axes, x, first - 6, number, **_SMALL, va="bottom")
            start = last + 1


def _draw_scale(axes: Axes, left: float, y: float, largest: float) -> None:
    steps, step = 7, 17.0
    boxes = [Rectangle((left + step * i, y - 5), step - _GAP, 10) for i in range(steps)]
    colours = [(style.HEAT, 0.04 + 0.96 * i / (steps - 1)) for i in range(steps)]
    axes.add_collection(PatchCollection(boxes, facecolors=colours, edgecolors="none"))
    _write(axes, left - 6, y, "0", **_SMALL, ha="right")
    _write(axes, left + step * steps + 6, y, f"{largest:.2f}  mean weight", **_SMALL, ha="left")


_SMALL: dict[str, Any] = {"fontsize": style.SIZE_SMALL, "color": style.MUTED}


def _write(axes: Axes, x: float, y: float, text: str, **how: Any) -> None:
    usual = {"fontsize": style.SIZE_TEXT, "color": style.INK, "ha": "center", "va": "center"}
    axes.text(x, y, text, **{**usual, "rotation_mode": "anchor", **how})
