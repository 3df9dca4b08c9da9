"""Learning curves: loss and validation metric of every task, epoch by epoch."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mmoe.metrics.columns import Column
from mmoe.metrics.task_kinds import TaskKind, kind_of_metrics
from mmoe.report import style


def learning_curve_figure(
    history: Mapping[str, Any],
    tasks: Sequence[str] | None = None,
    *,
    figure: Figure | None = None,
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
