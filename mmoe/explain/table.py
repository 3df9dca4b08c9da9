"""An explanation as tables for a terminal, and as explain.json with a page of it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from rich.table import Table

from mmoe.embeddings.byte_size import byte_size
from mmoe.metrics.columns import NONE, finer, interval_cells, signed
from mmoe.report.explanation import write_explanation_page
from mmoe.run.atomic_files import write_json
from mmoe.run.metrics_table import plain_table


def explanation_tables(result: Mapping[str, Any]) -> list[Table]:
    """Makes a table of experts and tasks, and one of what experts cost.

    Args:
        result: What explain.json holds.
    """
    tables = [_experts(result), _costs(result)]
    if "features" in result:
        tables.append(_features(result))
    if "gradients" in result:
        tables.append(_gradients(result["gradients"]))
    return tables


def summary_lines(result: Mapping[str, Any], run: str) -> list[str]:
    """Says in words which experts no task needs, and what to do about it."""
    unneeded = [one for one in result["experts"] if one["number"] in result["unneeded"]]
    within = f"(tolerance {result['tolerance']:g})"
    if not unneeded:
        unsure = any(one["unsure_of"] and not one["needed_by"] for one in result["experts"])
        more = ", or more rows (--data) have to tell" * unsure
        return [f"each expert is needed by some task{more} {within}"]
    titles = ", ".join(_title_of(one, result) for one in unneeded)
    # One at a time: those that know the same stand in for each other
    least = min(unneeded, key=lambda one: sum(one["shares"].values()))
    again = "; mmoe explain RUN2" * (len(unneeded) > 1)
    return [
        f"needed by no task {within}{', each alone' * (len(unneeded) > 1)}: {titles}",
        f"next: mmoe prune {quote(run)} --experts {least['number']} --out RUN2{again}",
    ]


def _title_of(expert: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    """Returns an expert's name, with that of its level where there are several."""
    name = expert["name"]
    return name if result["levels"] == 1 else f"level {expert['level']}, {name}"


def _experts(result: Mapping[str, Any]) -> Table:
    headings = _headings(result)
    titles = [f"change without, {result['origin']}", "#", "share"]
    for heading in headings:
        titles += [heading, "95 % interval"]
    refills = any(
        one["refilled"] for expert in result["experts"] for one in expert["tasks"].values()
    )
    titles += ["refilled"] * refills + ["verdict"]
    table = plain_table(*titles)
    for number, task in enumerate(result["tasks"]):
        if number:
            table.add_row()
        values = [_written(metric, task["values"][metric["key"]]) for metric in task["metrics"]]
        cells = [cell for value in values for cell in (value, "")]
        table.add_row(f"{task['name']}, {task['rows']:,} rows", "", "", *cells)
        for expert in result["experts"]:
            cells = _task_cells(expert, task, headings, result, refills=refills)
            table.add_row(f"  {_title_of(expert, result)}", str(expert["number"]), *cells)
    return table


def _headings(result: Mapping[str, Any]) -> list[str]:
    """Of the columns: the metrics of the first task, of others' the first and the second."""
    most = max((task["metrics"] for task in result["tasks"]), key=len)
    return [metric["heading"] for metric in most]


def _written(metric: Mapping[str, Any], value: float | None) -> str:
    return NONE if value is None else f"{metric['heading']} {metric['form'].format(value)}"


def _task_cells(
    expert: Mapping[str, Any],
    task: Mapping[str, Any],
    headings: Sequence[str],
    result: Mapping[str, Any],
    *,
    refills: bool,
) -> list[str]:
    found = expert["tasks"][task["name"]]
    share = found["share"]
    cells = ["" if share is None else f"{100 * share:.1f} %"]
    for metric in task["metrics"]:
        form = finer(metric["form"])
        cells += interval_cells(found["renormalised"][metric["key"]], form)
    cells += [""] * (1 + 2 * len(headings) - len(cells))
    if refills:
        first, again = task["metrics"][0], found["refilled"]
        cells += interval_cells(again and again[first["key"]], finer(first["form"]))[:1]
    return [*cells, _verdict_of(found, task)]


def _verdict_of(one: Mapping[str, Any], task: Mapping[str, Any]) -> str:
    """Returns a verdict, and what it was made of where that is not the first metric as it stands.

    Example:
        >>> metrics = [{"key": "auc", "heading": "AUC"}, {"key": "ne", "heading": "NE"}]
        >>> said = {"verdict": "needed", "verdicts": {"auc": "unsure", "ne": "needed"}}
        >>> _verdict_of({**said, "refilled": {}}, {"metrics": metrics})
        'needed (NE, refilled)'
    """
    first, *others = task["metrics"]
    made_of = (
        []
        if one["verdict"] in ("alone", one["verdicts"][first["key"]])
        else [
            metric["heading"]
            for metric in others
            if one["verdicts"][metric["key"]] == one["verdict"]
        ][:1]
    )
    made_of += ["refilled"] if one.get("refilled") is not None else []
    return f"{one['verdict']} ({', '.join(made_of)})" if made_of else one["verdict"]


def _costs(result: Mapping[str, Any]) -> Table:
    each = result["rows_per_request"]
    computed = [] if each is None else [f"computed ({each:.1f} rows a request)"]
    unit = ["ms a thousand rows", *computed]
    table = plain_table("expert", "#", *unit, "weights", "needed by", "unsure for")
    for expert in result["experts"]:
        table.add_row(
            _title_of(expert, result),
            str(expert["number"]),
            f"{expert['milliseconds']:.3f}",
            *(f"once a {expert['once_per']}" for _ in computed),
            byte_size(expert["bytes"]),
            ", ".join(expert["needed_by"]),
            ", ".join(expert["unsure_of"]),
        )
    return table


def _features(result: Mapping[str, Any]) -> Table:
    """Each feature, and how every task's first metric changes where it is shuffled."""
    titles = [f"{task['name']} {task['metrics'][0]['heading']}" for task in result["tasks"]]
    columns = [cell for title in titles for cell in (title, "95 % interval", "verdict")]
    table = plain_table("change, feature shuffled", *columns)
    for feature in result["features"]:
        cells = []
        for task in result["tasks"]:
            one, metric = feature["tasks"][task["name"]], task["metrics"][0]
            change = one["changes"][metric["key"]]
            cells += [*interval_cells(change, finer(metric["form"])), _verdict_of(one, task)]
        table.add_row(feature["name"], *cells)
    return table


def _gradients(found: Mapping[str, Any]) -> Table:
    """Cosines of each task's gradient to every other's."""
    table = plain_table("cosine of gradients", *found["tasks"])
    for name, values in zip(found["tasks"], found["cosine"], strict=True):
        table.add_row(name, *(NONE if v is None else signed(v, "{:.2f}") for v in values))
    return table


RESULT, PAGE = "explain.json", "explain.html"


def check_new_place(folder: Path) -> None:
    """Refuses a folder that holds an explanation already, or is a file.

    Raises:
        ValueError: It is so.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--out {folder}: is a file; name a folder")
    for name in (RESULT, PAGE):
        if (folder / name).exists():
            raise ValueError(
                f"--out {folder}: holds {name} already; remove it first, or name another folder"
            )


def write_explanation(result: Mapping[str, Any], folder: Path) -> Path:
    """Writes explain.json and explain.html, each whole or not at all, replacing what is there.

    Args:
        result: Of `explain_run`.
        folder: Is made where there is none.

    Returns:
        The page.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / RESULT, dict(result))
    return write_explanation_page(folder / RESULT, folder / PAGE)
