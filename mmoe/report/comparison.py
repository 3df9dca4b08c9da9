"""A comparison of models: its picture and its page, out of compare.json."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pydantic import Field

from mmoe.config import Stored, read_stored
from mmoe.metrics.columns import NONE, count, judged_cells, signed
from mmoe.report import style, tables
from mmoe.report.page import rendered, write_whole

_COLOURS = {"gains": style.MODEL, "pays": style.ORACLE, "even": style.TRAIN, None: style.TRAIN}
# A simple model far away must not squeeze the others: it is drawn at the edge, with its number
_FARTHEST = 4.0
_ROW_INCHES = 0.27


class _Difference(Stored):
    value: float
    low: float | None = None
    high: float | None = None


class _Result(Stored):
    values: list[float] | None = None
    mean: float | None = None
    sd: float | None = None
    difference: _Difference | None = None
    verdict: str | None = None


class _Measure(Stored):
    key: str
    task: str
    heading: str
    form: str
    higher_is_better: bool = True


class _Model(Stored):
    name: str
    title: str
    seeds: list[int] | None = None
    parameters: int | None = None
    rows_per_second: float | None = None
    seconds: float | None = None
    results: dict[str, _Result]
    gains: list[str] = Field(default_factory=list)
    pays: list[str] = Field(default_factory=list)


class _Winner(Stored):
    task: str
    key: str
    model: str | None
    second: str | None
    difference: _Difference | None = None
    sure: bool = False


class _Comparison(Stored):
    """compare.json."""

    name: str
    origin: str
    reference: str
    rows: dict[str, int]
    measures: Annotated[list[_Measure], Field(min_length=1)]
    models: Annotated[list[_Model], Field(min_length=1)]
    interval: str = ""
    winners: list[_Winner]


def write_comparison_page(result_file: str | Path, target: str | Path) -> Path:
    """Draws a finished comparison as one HTML page that needs neither network nor JavaScript.

    Args:
        result_file: compare.json of `mmoe compare`.
        target: The page; replaced where it exists, whole or not at all.

    Raises:
        ValueError: The file is absent or damaged.
    """
    source, page = Path(result_file), Path(target)
    result = read_stored(source, _Comparison, "make it again with `mmoe compare … --resume`")
    write_whole(page, _page(result))
    return page


def comparison_figure(result: Mapping[str, Any]) -> Figure:
    """Draws every model's difference to the reference, with its interval: a panel for each measure.

    Args:
        result: What compare.json holds.

    Returns:
        A matplotlib Figure, outside pyplot's state.

    Example:
        >>> found = {"mean": 0.8, "difference": {"value": 0.01, "low": 0.0, "high": 0.02}}
        >>> first = {"title": "single_task", "results": {"click.auc": {"mean": 0.79}}}
        >>> other = {"title": "mmoe", "results": {"click.auc": {**found, "verdict": "gains"}}}
        >>> measure = {"key": "click.auc", "task": "click", "heading": "AUC", "form": "{:.4f}"}
        >>> result = {"reference": "single_task", "measures": [measure], "models": [first, other]}
        >>> len(comparison_figure(result).axes)
        1
    """
    measures, models = result["measures"], result["models"]
    columns = 1 if len(measures) == 1 else 2
    lines = -(-len(measures) // columns)
    height = (0.85 + _ROW_INCHES * len(models)) * lines
    figure = style.new_figure(style.PAGE_WIDTH * (0.6 if columns == 1 else 1), height)
    grid = figure.subplots(lines, columns, squeeze=False, sharey=True).ravel()
    for axes, measure in zip(grid, measures, strict=False):
        title = f"{measure['task']} · {measure['heading']}"
        better = "" if measure.get("higher_is_better", True) else " (lower is better)"
        style.dress(axes, title, f"less {result['reference']}{better}", columns=2)
        _draw(axes, measure, models)
    for axes in grid[len(measures) :]:
        axes.set_visible(False)
    return figure


def _draw(axes: Axes, measure: Mapping[str, Any], models: list[Mapping[str, Any]]) -> None:
    low, high = limits = _limits(measure, models)
    axes.axvline(0, color=style.TRAIN, linewidth=1, ls="--")
    for place, model in enumerate(models):
        found = model["results"][measure["key"]]
        difference = found.get("difference")
        mean = NONE if found.get("mean") is None else measure["form"].format(found["mean"])
        axes.text(
            1.01, place, mean, transform=axes.get_yaxis_transform(), va="center",
            fontsize=style.SIZE_SMALL, color=style.MUTED,
        )  # fmt: skip
        if difference is None:
            if found.get("mean") is not None:
                axes.plot(0, place, color=style.INK, marker="D", markersize=4, ls="none")
            continue
        value, colour = difference["value"], _COLOURS[found.get("verdict")]
        if not low <= value <= high:
            _at_the_edge(axes, value, place, colour, limits, measure["form"])
            continue
        if difference.get("low") is not None:
            ends = [max(difference["low"], low), min(difference["high"], high)]
            axes.hlines(place, *ends, color=colour, linewidth=1.8)
        axes.plot(value, place, color=colour, marker="o", markersize=5, ls="none")
    axes.set_xlim(*limits)
    axes.set_ylim(len(models) - 0.4, -0.6)
    axes.set_yticks(range(len(models)), [style.shorten(m["title"], 24) for m in models])
    axes.xaxis.set_major_locator(style.few_ticks(5))
    axes.grid(False, axis="y")


def _at_the_edge(
    axes: Axes, value: float, place: int, colour: str, limits: tuple[float, float], form: str
) -> None:
    """A model that is far away: an arrow, and how far."""
    left = value < limits[0]
    reach = limits[1] - limits[0]
    edge = limits[0] + 0.015 * reach if left else limits[1] - 0.015 * reach
    marker = "<" if left else ">"
    axes.plot(edge, place, color=colour, marker=marker, markersize=6, ls="none")
    axes.text(
        edge + (0.03 if left else -0.03) * reach, place, signed(value, form), va="center",
        ha="left" if left else "right", fontsize=style.SIZE_SMALL, color=style.MUTED,
    )  # fmt: skip


def _limits(measure: Mapping[str, Any], models: list[Mapping[str, Any]]) -> tuple[float, float]:
    """The range of all trained models' intervals, and of simple ones that are not far away."""
    near, far = [0.0], []
    for model in models:
        difference = model["results"][measure["key"]].get("difference")
        if difference is not None:
            ends = [v for key in ("low", "value", "high") if (v := difference.get(key)) is not None]
            trained = model.get("seeds") is not None or "seeds" not in model
            near += ends if trained else []
            far += [] if trained else [(abs(difference["value"]), ends)]
    widest = max(map(abs, near)) or max((value for value, _ in far), default=0.0)
    shown = near + [v for value, ends in far if value <= _FARTHEST * widest for v in ends]
    low, high = min(shown), max(shown)
    room = 0.08 * (high - low) or 1e-4
    return low - room, high + room


def _page(result: dict[str, Any]) -> str:
    description = f"Difference of every model to {result['reference']}, for each task"
    picture = style.themed_svg(comparison_figure(result), "comparison", description)
    *measures, models = comparison_grids(result)
    return rendered(
        "comparison.html.j2",
        name=result["name"],
        origin=result["origin"],
        reference=result["reference"],
        facts=[(split, count(rows)) for split, rows in result["rows"].items()],
        winners=describe_winners(result),
        picture=Markup(picture),
        measures=measures,
        models=models,
        interval=result.get("interval") or "",
    )


def comparison_grids(result: Mapping[str, Any]) -> list[tables.Grid]:
    """Returns the tables of a comparison: one of each measure, and last that of the models.

    Args:
        result: What compare.json holds.
    """
    grids = []
    for measure in result["measures"]:
        better = "" if measure.get("higher_is_better", True) else ", lower is better"
        title = f"{measure['task']}, {measure['heading']}{better}"
        rows = [
            [model["title"], *judged_cells(model["results"][measure["key"]], measure["form"])]
            for model in result["models"]
        ]
        headings = ["model", "mean ± sd", f"less {result['reference']}", "95 % interval", ""]
        grids.append(tables.Grid(headings, rows, title))
    headings = ["model", "seeds", "parameters", "rows a second", "time", "gains", "pays"]
    rows = [
        [
            model["title"],
            NONE if model.get("seeds") is None else str(len(model["seeds"])),
            count(model.get("parameters")),
            count(model.get("rows_per_second")),
            tables.duration(model.get("seconds")),
            ", ".join(model.get("gains") or []),
            ", ".join(model.get("pays") or []),
        ]
        for model in result["models"]
    ]
    return [*grids, tables.Grid(headings, rows)]


def describe_winners(result: Mapping[str, Any]) -> str:
    """Says in one line which model is the best of each task, and by how much.

    Args:
        result: What compare.json holds.
    """
    titles = {model["name"]: model["title"] for model in result["models"]}
    measures = {measure["key"]: measure for measure in result["measures"]}
    said = []
    for one in result["winners"]:
        if one["second"] is None:
            said.append(f"{one['task']} cannot be judged")
            continue
        measure, best = measures[one["key"]], titles[one["model"]]
        value, low, high = (
            NONE if part is None else signed(part, measure["form"])
            for part in (one["difference"][end] for end in ("value", "low", "high"))
        )
        by = f"{measure['heading']} {value} [{low}, {high}]"
        second = titles[one["second"]]
        said.append(
            f"{one['task']} is won by {best} ({by} over {second})"
            if one["sure"]
            else f"{one['task']} is even between {best} and {second} ({by})"
        )
    return "; ".join(said)
