"""One self-contained HTML page about a run."""

import os
import tempfile
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from mmoe.config import dump_config
from mmoe.metrics.task_kinds import KINDS, kind_of_metrics
from mmoe.report import tables
from mmoe.report.calibration import calibration_figure
from mmoe.report.communication import choice_rows, communication_figure, communication_rows
from mmoe.report.domains import domain_gates, domain_tables
from mmoe.report.gates import gate_heatmap_figure
from mmoe.report.learning import best_epoch, learning_curve_figure
from mmoe.report.reading import Run, read_run
from mmoe.report.roc import roc_figure
from mmoe.report.style import themed_svg


def write_report(
    run_dir: str | Path, output: str | Path | None = None, *, overwrite: bool = False
) -> Path:
    """Draws a finished run as one HTML page that needs neither network nor JavaScript.

    Args:
        run_dir: A folder that `mmoe train` wrote.
        output: The page; default RUN_DIR/report.html, which is replaced where it exists.
        overwrite: Replace an `output` that exists.

    Returns:
        The path of the page. It appears only when it is complete.

    Raises:
        ValueError: It is not a run directory, a file of it is missing or damaged, or `output`
            exists, is a file of the run itself or lies in no folder.
    """
    run = read_run(run_dir)
    target = run.folder / "report.html" if output is None else Path(output)
    if target.is_dir():
        raise ValueError(f"{target}: is a folder; name a file, such as {target / 'report.html'}")
    if output is not None and target.exists() and not overwrite:
        raise ValueError(f"{target}: exists already; name another file or remove it first")
    if output is not None:
        _check_not_of_run(target, run.folder)
    if not target.parent.is_dir():
        raise ValueError(f"{target}: there is no folder {target.parent}; create it first")
    write_whole(target, render(run))
    return target


def _check_not_of_run(target: Path, folder: Path) -> None:
    """Of what lies in a run directory only pages are replaced, whatever links lead there."""
    for path in folder.rglob("*") if target.exists() else ():
        if path.suffix != ".html" and path.is_file() and path.samefile(target):
            raise ValueError(f"{target}: is {path}, a file of the run itself; name another file")


def render(run: Run) -> str:
    """Returns the page as text."""
    tasks = run.metrics["tasks"]
    return rendered(
        "report.html.j2",
        name=run.config.name,
        model=tables.model_line(run.config.model, run.config.tasks),
        tasks=list(tasks),
        facts=_facts(run),
        versions=_versions(run.metrics.get("versions")),
        results=tables.results_tables(tasks),
        validation=tables.results_tables(run.metrics.get("validation") or {}),
        notes=[str(note) for note in run.metrics.get("notes") or []],
        advice=_advice(run),
        alarms=run.metrics.get("alarms") or [],
        pictures=_pictures(run),
        biases=run.curves.get("bias") or [],
        domains=domain_tables(run.metrics),
        communication=communication_rows(run.history["epochs"]),
        choices=choice_rows(run.history["epochs"]),
        gates=[_gate_table(level) for level in run.curves.get("gates") or []],
        config=dump_config(run.config),
    )


def rendered(template: str, **values: Any) -> str:
    """Returns a page of the folder of templates, with the style that all pages share."""
    home = files("mmoe.report") / "templates"
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    page = environment.from_string(home.joinpath(template).read_text(encoding="utf-8"))
    style = Markup(home.joinpath("report.css").read_text(encoding="utf-8"))
    return page.render(style=style, **values)


def _pictures(run: Run) -> dict[str, Markup]:
    """The pictures there is data for, by name, as SVG."""
    tasks, metrics = run.curves["tasks"], run.metrics["tasks"]
    ranked = {
        name: mine
        for name, mine in tasks.items()
        if kind_of_metrics(metrics.get(name, {})).is_event
    }
    gates = run.curves.get("gates") or []
    pictures = {}
    if run.history["epochs"]:
        figure = learning_curve_figure(run.history, list(metrics))
        pictures["learning"] = (figure, "Loss and validation metric of each task over epochs")
    if gates:
        figure = gate_heatmap_figure(gates)
        pictures["gates"] = (figure, "Mean gate weight of each task and expert")
    if of_domains := domain_gates(gates):
        figure = gate_heatmap_figure(of_domains)
        pictures["domain_gates"] = (figure, "Mean gate weight of each task, domain and expert")
    if communication_rows(run.history["epochs"]):
        figure = communication_figure(run.history["epochs"])
        pictures["communication"] = (figure, "What a step sends between ranks, epoch by epoch")
    if ranked:
        pictures["roc"] = (roc_figure(ranked, metrics), "ROC curve of each task")
    judged = {
        name: mine
        for name, mine in tasks.items()
        if kind_of_metrics(metrics.get(name, {})).calibration_keys
    }
    if judged:
        figure = calibration_figure(judged, metrics)
        pictures["calibration"] = (figure, "Observed against predicted, for each task")
    return {
        name: Markup(themed_svg(figure, name, description))
        for name, (figure, description) in pictures.items()
    }


def _facts(run: Run) -> list[tuple[str, str]]:
    train = run.metrics.get("train") or {}
    best: int | str | None = best_epoch(run.history["epochs"])
    if (run.history.get("start") or {}).get("best"):
        best = "before the first"
    epochs = tables.count(train.get("epochs", len(run.history["epochs"])))
    speed = train.get("rows_per_second")
    return [
        ("finished", f"{run.finished:%d %b %Y, %H:%M} UTC".lstrip("0")),
        ("training rows", tables.count(train.get("rows"))),
        ("epochs", epochs if best is None else f"{epochs} (best: {best})"),
        ("time", tables.duration(train.get("seconds"))),
        ("rows a second", tables.count(speed)),
        ("chosen by", str(run.history.get("monitor") or run.config.training.monitor)),
        *_frozen(train.get("frozen")),
        *([("labels as of", str(as_of))] if (as_of := run.metrics.get("as_of")) else []),
        ("seed", str(run.metrics.get("seed", run.config.seed))),
        ("split seed", str(run.metrics.get("split_seed", run.config.split_seed))),
    ]


def _frozen(frozen: Any) -> list[tuple[str, str]]:
    """What of an earlier run stayed as it scored, and whose scores did."""
    if not isinstance(frozen, Mapping):
        return []
    held, trained = (tables.count(frozen[f"{what}_parameters"]) for what in ("frozen", "trained"))
    facts = [("frozen", f"{', '.join(frozen['parts'])} ({held} parameters; trained: {trained})")]
    if frozen["unchanged_tasks"]:
        facts.append(("scores as before", ", ".join(frozen["unchanged_tasks"])))
    changed = frozen["changed_tasks"]
    return facts + ([("scores changed", ", ".join(changed))] if changed else [])


def _versions(versions: Any) -> list[tuple[str, str]]:
    return [(str(k), str(v)) for k, v in versions.items()] if isinstance(versions, Mapping) else []


def _advice(run: Run) -> list[str]:
    """What the table leaves out, and how to get it."""
    lines = []
    for kind in KINDS.values():
        tasks = [v for v in run.metrics["tasks"].values() if kind_of_metrics(v) is kind]
        lines += kind.advice(tasks, run.config.data.group_column)
    return list(dict.fromkeys(lines))  # kinds that are judged alike say the same


_TOGETHER = ("kept_probability", "kept_probability_p5", "first_choice_missing")


def _gate_table(level: Mapping[str, Any]) -> dict[str, Any]:
    rows = [
        (gate, [f"{w:.4f}" if seen else "" for w, seen in zip(weights, visible, strict=True)])
        for gate, weights, visible in zip(
            level["gates"], level["mean_weight"], level["visible"], strict=True
        )
    ]
    ratio = level.get("distinct_pair_ratio")
    return {
        "title": f"level {level.get('level', 1)}",
        "experts": level["experts"],
        "rows": rows,
        "ratio": None if ratio is None else f"{100 * ratio:.0f} %",
        "together": _together(level),
    }


def _together(level: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """What gates that decide together keep of what each wants; nothing where each decides alone."""
    columns = [level[name] for name in _TOGETHER if level.get(name) is not None]
    if len(columns) < len(_TOGETHER):
        return []
    numbers = zip(*columns, strict=True)
    return [
        (gate, [f"{100 * number:.1f} %" for number in of_gate])
        for gate, of_gate in zip(level["gates"], numbers, strict=True)
    ]


def write_whole(target: Path, page: str) -> None:
    """Writes a page under a temporary name first, so that a reader never meets half of it."""
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(page)
        # mkstemp makes private files; a page is to be read by whoever may read the run.
        temporary.chmod(0o644)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
