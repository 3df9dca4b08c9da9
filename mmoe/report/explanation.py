"""An explanation of a run: its pictures and its page, out of explain.json."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from pydantic import Field

from mmoe.config import Stored, read_stored
from mmoe.metrics.columns import NONE, count, finer, interval_cells, signed
from mmoe.report import style, tables
from mmoe.report.figures import gate_heatmap_figure
from mmoe.report.page import rendered, write_whole

_COLOURS = {"needed": style.ORACLE, "unsure": style.TRAIN, "unneeded": style.MODEL}
_ROW_INCHES = 0.27
_CELL_INCHES = 0.62


class _Task(Stored):
    name: str
    rows: int
    metrics: list[dict[str, Any]] = Field(min_length=1)
    values: dict[str, float | None]


class _Expert(Stored):
    number: int
    level: int
    name: str
    bytes: int
    milliseconds: float
    once_per: Literal["request", "row"] = "row"
    tasks: dict[str, dict[str, Any]]
    needed_by: list[str]
    unsure_of: list[str]


class _Explanation(Stored):
    """explain.json."""

    name: str
    origin: str
    rows: int
    rows_per_request: float | None = None
    levels: int
    tolerance: float
    tasks: list[_Task] = Field(min_length=1)
    experts: list[_Expert] = Field(min_length=1)
    gates: list[dict[str, Any]]
    unneeded: list[int]
    interval: str = ""
    budget: dict[str, Any] | None = None


def write_explanation_page(result_file: str | Path, target: str | Path) -> Path:
    """Draws an explanation as one HTML page that needs neither network nor JavaScript.

    Args:
        result_file: explain.json of `mmoe explain`.
        target: The page; replaced where it exists, whole or not at all.

    Raises:
        ValueError: The file is absent or damaged.
    """
    source, page = Path(result_file), Path(target)
    result = read_stored(source, _Explanation, "make it again with `mmoe explain`")
    write_whole(page, _page(result))
    return page


def explanation_figure(result: Mapping[str, Any]) -> Figure:
    """Draws how each task's metrics change without each expert, a panel for each metric.

    Args:
        result: What explain.json holds.

    Returns:
        A matplotlib Figure, outside pyplot's state.

    Example:
        >>> change = {"auc": {"value": -0.01, "low": -0.02, "high": 0.0}}
        >>> of_task = {"renormalised": change, "refilled": None, "share": 1.0}
        >>> of_task["verdicts"] = {"auc": "unsure"}
        >>> metric = {"key": "auc", "heading": "AUC", "form": "{:.4f}", "higher_is_better": True}
        >>> result = {
        ...     "levels": 1,
        ...     "tasks": [{"name": "click", "metrics": [metric], "values": {"auc": 0.8}}],
        ...     "experts": [{"name": "expert 1", "level": 1, "tasks": {"click": of_task}}]}
        >>> len(explanation_figure(result).axes)
        1
    """
    names = [_title(expert, result) for expert in result["experts"]]
    found = {
        task["name"]: [
            {**one, "right": NONE if one["share"] is None else f"{100 * one['share']:.1f} %"}
            for one in (expert["tasks"][task["name"]] for expert in result["experts"])
        ]
        for task in result["tasks"]
    }
    return _panels(result["tasks"], found, names, "without the expert")


def _importance_figure(result: Mapping[str, Any]) -> Figure:
    """Draws how each task's metrics change where a feature is shuffled."""
    names = [feature["name"] for feature in result["features"]]
    found = {
        task["name"]: [
            {"renormalised": one["changes"], "refilled": None, **one}
            for one in (feature["tasks"][task["name"]] for feature in result["features"])
        ]
        for task in result["tasks"]
    }
    return _panels(result["tasks"], found, names, "with the feature shuffled")


def _cosines_figure(gradients: Mapping[str, Any]) -> Figure:
    """Draws how each task's gradient agrees with every other's: blue where it does, else orange."""
    tasks = gradients["tasks"]
    side = max(1.5 + _CELL_INCHES * len(tasks), 3.2)
    figure = style.new_figure(min(1.05 * side, style.PAGE_WIDTH), side)
    axes = figure.subplots()
    style.dress(axes, "cosine of gradients", columns=2)
    for i, row in enumerate(gradients["cosine"]):
        for j, value in enumerate(row):
            if value is None:
                continue
            strength = 0.0 if i == j else min(abs(value), 1.0)
            colour, place = style.MODEL if value >= 0 else style.ORACLE, (j - 0.48, i - 0.48)
            axes.add_patch(Rectangle(place, 0.96, 0.96, fc=colour, alpha=0.45 * strength, lw=0))
            axes.text(
                j, i, signed(value, "{:.2f}"), ha="center", va="center",
                fontsize=style.SIZE_SMALL, color=style.MUTED if i == j else style.INK,
            )  # fmt: skip
    names = [style.shorten(task, 12) for task in tasks]
    axes.set_xticks(range(len(tasks)), names, rotation=45, ha="right")
    axes.set_yticks(range(len(tasks)), names)
    axes.set_xlim(-0.5, len(tasks) - 0.5)
    axes.set_ylim(len(tasks) - 0.5, -0.5)
    axes.grid(False)
    return figure


def budget_figure(budget: Mapping[str, Any]) -> Figure:
    """Draws what budgets of experts gain in rows a second, and lose in log-loss.

    Args:
        budget: The `budget` of explain.json.

    Returns:
        A matplotlib Figure, outside pyplot's state.

    Example:
        >>> loss = {"value": 0.0001, "low": 0.0, "high": 0.0002}
        >>> point = {"budget": 2, "rows_per_second": 3e4, "log_loss": loss}
        >>> found = {"rows_per_second": 2e4, "points": [point], "tolerance": 2e-4, "proposed": 2}
        >>> len(budget_figure(found).axes)
        1
    """
    figure = style.new_figure(style.PAGE_WIDTH * 0.6, 3.4)
    axes = figure.subplots()
    style.dress(axes, "fewer experts a row", "rows a second, times those of all experts",
                "log-loss above that of all experts", columns=2)  # fmt: skip
    axes.axhline(budget["tolerance"], color=style.TRAIN, linewidth=1, ls="--")
    axes.plot(1, 0, color=style.INK, marker="s", markersize=5, ls="none")
    said = [(1.0, 0.0, "all")]
    for point in budget["points"]:
        x, loss = point["rows_per_second"] / budget["rows_per_second"], point["log_loss"]
        colour = style.MODEL if loss["high"] <= budget["tolerance"] else style.ORACLE
        axes.vlines(x, loss["low"], loss["high"], color=colour, linewidth=1.8)
        filled = colour if point["budget"] == budget["proposed"] else style.PAPER
        axes.plot(x, loss["value"], color=colour, marker="o", ms=6, ls="none", mfc=filled)
        said.append((x, loss["value"], str(point["budget"])))
    for x, y, text in said:
        axes.annotate(text, (x, y), xytext=(6, 6), textcoords="offset points",
                      fontsize=style.SIZE_SMALL, color=style.INK)  # fmt: skip
    axes.margins(x=0.12, y=0.15)
    axes.yaxis.set_major_locator(style.few_ticks(4))
    return figure


def _panels(
    tasks: Sequence[Mapping[str, Any]],
    found: Mapping[str, Sequence[Mapping[str, Any]]],
    names: Sequence[str],
    what: str,
) -> Figure:
    """A row of panels for each task, a panel for each of its metrics."""
    columns = max(len(task["metrics"]) for task in tasks)
    height = (0.9 + _ROW_INCHES * len(names)) * len(tasks)
    figure = style.new_figure(style.PAGE_WIDTH * (0.6 if columns == 1 else 1), height)
    grid = figure.subplots(len(tasks), columns, squeeze=False, sharey=True)
    for row, task in zip(grid, tasks, strict=True):
        for axes in row[len(task["metrics"]) :]:
            axes.set_visible(False)
        for axes, metric in zip(row, task["metrics"], strict=False):
            better = "" if metric["higher_is_better"] else " (lower is better)"
            title = f"{task['name']} · change of {metric['heading']}"
            style.dress(axes, title, f"{what}{better}", columns=2)
            _draw(axes, metric["key"], found[task["name"]], names)
    return figure


def _draw(axes: Axes, key: str, lines: Sequence[Mapping[str, Any]], names: Sequence[str]) -> None:
    axes.axvline(0, color=style.TRAIN, linewidth=1, ls="--")
    for place, line in enumerate(lines):
        colour = _COLOURS[line["verdicts"][key]]
        change, again = line["renormalised"][key], line["refilled"]
        if change["value"] is not None:
            if change["low"] is not None:
                axes.hlines(place, change["low"], change["high"], color=colour, linewidth=1.8)
            axes.plot(change["value"], place, color=colour, marker="o", markersize=5, ls="none")
        if again and again[key]["value"] is not None:
            axes.plot(
                again[key]["value"], place, color=colour, marker="D", markersize=5, ls="none",
                markerfacecolor=style.PAPER,
            )  # fmt: skip
        axes.text(
            1.01, place, line.get("right", ""), transform=axes.get_yaxis_transform(), va="center",
            fontsize=style.SIZE_SMALL, color=style.MUTED,
        )  # fmt: skip
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_yticks(range(len(names)), [style.shorten(name, 28) for name in names])
    axes.xaxis.set_major_locator(style.few_ticks(4))
    axes.grid(False, axis="y")


def _title(expert: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    return expert["name"] if result["levels"] == 1 else f"{expert['level']}: {expert['name']}"


def _page(result: dict[str, Any]) -> str:
    pictures = {"experts": (explanation_figure(result), "Change of each task without each expert")}
    if result["gates"]:
        figure = gate_heatmap_figure(result["gates"])
        pictures["gates"] = (figure, "Mean gate weight of each task and expert")
    if result.get("features"):
        pictures["features"] = (_importance_figure(result), "Change of each task by feature")
    if result.get("gradients"):
        figure = _cosines_figure(result["gradients"])
        pictures["gradients"] = (figure, "Cosine of tasks' gradients")
    if result.get("budget"):
        figure = budget_figure(result["budget"])
        pictures["budget"] = (figure, "Rows a second and log-loss by budget of experts")
    drawn = {
        name: Markup(style.themed_svg(figure, name, description))
        for name, (figure, description) in pictures.items()
    }
    titles = {one["number"]: _title(one, result) for one in result["experts"]}
    return rendered(
        "explanation.html.j2",
        name=result["name"],
        origin=result["origin"],
        rows=count(result["rows"]),
        tolerance=f"{result['tolerance']:g}",
        pictures=drawn,
        unneeded=[titles[number] for number in result["unneeded"]],
        grids=explanation_grids(result),
        rows_per_request=result.get("rows_per_request"),
        interval=result.get("interval") or "",
        gradients=result.get("gradients"),
        proposed=(result.get("budget") or {}).get("proposed"),
    )


def explanation_grids(result: Mapping[str, Any]) -> dict[str, list[tables.Grid]]:
    """Returns the tables of an explanation: of each task, of costs, features and gradients.

    Args:
        result: What explain.json holds.
    """
    found = {
        "tasks": [_task_grid(task, result) for task in result["tasks"]],
        "costs": [_costs(result)],
    }
    if result.get("budget"):
        found["budget"] = [_budgets(result["budget"])]
    if result.get("features"):
        found["features"] = [_features(result)]
    if gradients := result.get("gradients"):
        pairs = zip(gradients["tasks"], gradients["cosine"], strict=True)
        rows = [
            [task, *(NONE if v is None else signed(v, "{:.2f}") for v in values)]
            for task, values in pairs
        ]
        found["gradients"] = [tables.Grid(["cosine of gradients", *gradients["tasks"]], rows)]
    return found


def _task_grid(task: Mapping[str, Any], result: Mapping[str, Any]) -> tables.Grid:
    """Builds the grid of experts, and how the task's metrics change without each."""
    values = [
        f"{m['heading']} {m['form'].format(v)}"
        for m in task["metrics"]
        if (v := task["values"][m["key"]]) is not None
    ]
    title = f"{task['name']}, {count(task['rows'])} rows: {', '.join(values) or NONE}"
    refills = any(expert["tasks"][task["name"]]["refilled"] for expert in result["experts"])
    headings = ["expert", "#", "share"]
    for metric in task["metrics"]:
        headings += [metric["heading"], "95 % interval", *["refilled"] * refills]
    rows = []
    for expert in result["experts"]:
        found = expert["tasks"][task["name"]]
        share = NONE if found["share"] is None else f"{100 * found['share']:.1f} %"
        cells = [_title(expert, result), str(expert["number"]), share]
        for metric in task["metrics"]:
            form = finer(metric["form"])
            again = found["refilled"] and found["refilled"][metric["key"]]
            cells += interval_cells(found["renormalised"][metric["key"]], form)
            cells += interval_cells(again, form)[:1] * refills
        rows.append([*cells, _verdict(found, task)])
    return tables.Grid([*headings, "verdict"], rows, title)


def _verdict(one: Mapping[str, Any], task: Mapping[str, Any]) -> str:
    """A verdict, with its metric where that is not the first one.

    Example:
        >>> metrics = [{"key": "auc", "heading": "AUC"}, {"key": "ne", "heading": "NE"}]
        >>> said = {"verdict": "needed", "verdicts": {"auc": "unsure", "ne": "needed"}}
        >>> _verdict({**said, "refilled": {}}, {"metrics": metrics})
        'needed (NE, refilled)'
    """
    first, *others = task["metrics"]
    made_of = []
    if one["verdict"] not in ("alone", one["verdicts"][first["key"]]):
        made_of = [m["heading"] for m in others if one["verdicts"][m["key"]] == one["verdict"]][:1]
    made_of += ["refilled"] * (one.get("refilled") is not None)
    return f"{one['verdict']} ({', '.join(made_of)})" if made_of else one["verdict"]


def _costs(result: Mapping[str, Any]) -> tables.Grid:
    each = result.get("rows_per_request")
    computed = [] if each is None else [f"computed ({each:.1f} rows a request)"]
    headings = ["expert", "#", "ms a thousand rows", *computed, "KiB of weights"]
    rows = [
        [
            _title(expert, result),
            str(expert["number"]),
            f"{expert['milliseconds']:.3f}",
            *(f"once a {expert['once_per']}" for _ in computed),
            f"{expert['bytes'] / 1024:,.1f}",
            ", ".join(expert["needed_by"]),
            ", ".join(expert["unsure_of"]),
        ]
        for expert in result["experts"]
    ]
    return tables.Grid([*headings, "needed by", "unsure for"], rows)


def _budgets(budget: Mapping[str, Any]) -> tables.Grid:
    """Builds the grid of budgets: log-loss above that of all experts, and rows a second."""
    title = f"Experts a row, of {budget['experts']}: log-loss {budget['log_loss']:.5f}"
    dense = budget["rows_per_second"]
    rows = [
        [
            str(point["budget"]),
            *interval_cells(point["log_loss"], "{:.5f}"),
            f"{point['rows_per_second']:,.0f}",
            f"{point['rows_per_second'] / dense:.2f}",
        ]
        for point in budget["points"]
    ]
    rows.append(["all", NONE, NONE, f"{dense:,.0f}", "1.00"])
    headings = ["budget", "log-loss", "95 % interval", "rows a second", "times as many"]
    return tables.Grid(headings, rows, title)


def _features(result: Mapping[str, Any]) -> tables.Grid:
    """Builds the grid of features, and how every task's first metric changes when shuffled."""
    headings, rows = ["feature"], []
    for task in result["tasks"]:
        headings += [f"{task['name']} {task['metrics'][0]['heading']}", "95 % interval", "verdict"]
    for feature in result["features"]:
        cells = [feature["name"]]
        for task in result["tasks"]:
            one, metric = feature["tasks"][task["name"]], task["metrics"][0]
            change = one["changes"][metric["key"]]
            cells += [*interval_cells(change, finer(metric["form"])), _verdict(one, task)]
        rows.append(cells)
    return tables.Grid(headings, rows, "Changes where a feature is shuffled")
