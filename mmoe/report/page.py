"""One self-contained HTML page about a run, out of its files; keys not drawn may hold anything."""

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure
from pydantic import Field, model_validator

from mmoe.config import Count, Number, RunConfig, Stored, dump_config, load_config, read_stored
from mmoe.config.json_files import Measured, Share
from mmoe.metrics import GAIN_HEADINGS, KINDS, gain_rows, kind_of_metrics
from mmoe.metrics.columns import NONE, count
from mmoe.report import style, tables
from mmoe.report.figures import (
    best_epoch,
    calibration_figure,
    gate_heatmap_figure,
    learning_curve_figure,
    roc_figure,
)
from mmoe.report.tables import Table, results_tables

# Values of one task by the names of the metrics; null or NaN: could not be computed
_TaskMetrics = dict[str, Measured | None]


class _FrozenFacts(Stored):
    parts: list[str]
    frozen_parameters: Number
    trained_parameters: Number
    unchanged_tasks: list[str]
    changed_tasks: dict[str, Any]


class _TrainFacts(Stored):
    rows: Number | None = None
    epochs: Number | None = None
    seconds: Number | None = None
    rows_per_second: Number | None = None
    frozen: _FrozenFacts | None = None


class _Alarm(Stored):
    finding: str
    mend: str


class _Gain(Stored):
    heading: str
    form: str
    model: Number
    wide: Number
    value: Number
    low: Number | None = None
    high: Number | None = None


class _OverWide(Stored):
    """Gain of the mixture over the wide part."""

    untrained: bool
    tasks: dict[str, _Gain]


class Metrics(Stored):
    """metrics.json."""

    tasks: dict[str, _TaskMetrics]
    validation: dict[str, _TaskMetrics] | None = None
    train: _TrainFacts | None = None
    notes: list[Any] | None = None
    alarms: list[_Alarm] | None = None
    over_wide: _OverWide | None = None


class _Epoch(Stored):
    epoch: Annotated[int, Field(ge=0, lt=2**31)]
    loss: dict[str, Measured | None] = Field(default_factory=dict)
    validation: dict[str, _TaskMetrics] = Field(default_factory=dict)
    best: bool | None = None


class History(Stored):
    """history.json."""

    epochs: list[_Epoch]
    monitor: str | None = None


class _Roc(Stored):
    fpr: list[Share]
    tpr: list[Share]

    @model_validator(mode="after")
    def _pairs(self) -> "_Roc":
        if len(self.fpr) != len(self.tpr):
            raise ValueError(f"fpr has {len(self.fpr)} values, tpr {len(self.tpr)}")
        return self


class _CalibrationBin(Stored):
    """Rows of about the same prediction."""

    mean_prediction: Number
    positive_rate: Number
    rows: Annotated[Count, Field(gt=0)]


class _Histogram(Stored):
    edges: list[Number] = Field(default_factory=list)
    rows: list[Count] = Field(default_factory=list)

    @model_validator(mode="after")
    def _ends(self) -> "_Histogram":
        if self.rows and len(self.edges) != len(self.rows) + 1:
            raise ValueError(f"edges has {len(self.edges)} values, rows {len(self.rows)}")
        return self


class _TaskCurves(Stored):
    roc: _Roc | None = None
    oracle_roc: _Roc | None = None
    calibration: list[_CalibrationBin] | None = None
    histogram: _Histogram | None = None


class _GateLevel(Stored):
    """Gates of one level and the experts they mix, as G × E numbers."""

    level: Count = 1
    gates: Annotated[list[str], Field(min_length=1)]
    experts: Annotated[list[str], Field(min_length=1)]
    mean_weight: list[list[Share]]
    visible: list[list[bool]]
    entropy: list[Number]
    effective_experts: list[Number]
    effective_experts_of_mean: list[Number] | None = None
    distinct_pair_ratio: Share | None = None
    kept_probability: list[Share] | None = None
    kept_probability_p5: list[Share] | None = None
    first_choice_missing: list[Share] | None = None

    @model_validator(mode="after")
    def _fit(self) -> "_GateLevel":
        gates, experts = len(self.gates), len(self.experts)
        for name in ("mean_weight", "visible"):
            rows = getattr(self, name)
            if len(rows) != gates or any(len(row) != experts for row in rows):
                raise ValueError(f"{name} has another shape than {gates} gates × {experts} experts")
        together = ("kept_probability", "kept_probability_p5", "first_choice_missing")
        for name in ("entropy", "effective_experts", "effective_experts_of_mean", *together):
            values = getattr(self, name)
            if values is not None and len(values) != gates:
                raise ValueError(f"{name} has {len(values)} values for {gates} gates")
        return self


class _LearntBias(Stored):
    """Effect of one feature in a bias tower: a ratio of probabilities for each value."""

    feature: str
    values: list[str]
    tasks: dict[str, list[Number]]

    @model_validator(mode="after")
    def _fit(self) -> "_LearntBias":
        for task, ratios in self.tasks.items():
            if len(ratios) != len(self.values):
                raise ValueError(f"{task} has {len(ratios)} ratios for {len(self.values)} values")
        return self


class Curves(Stored):
    """curves.json."""

    tasks: dict[str, _TaskCurves]
    gates: list[_GateLevel] | None = None
    bias: list[_LearntBias] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """config.yaml, metrics.json, history.json and curves.json of one finished run."""

    folder: Path
    config: RunConfig
    metrics: dict[str, Any]
    history: dict[str, Any]
    curves: dict[str, Any]
    finished: datetime


def read_run(run_dir: str | Path) -> Run:
    """Reads what the report needs.

    Raises:
        ValueError: It is not a run directory, or a file is absent or damaged.
    """
    folder = Path(run_dir)
    if not folder.is_dir():
        raise ValueError(f"{folder}: there is no such folder; name one that `mmoe train` wrote")
    if (folder / "compare.json").is_file():
        raise ValueError(
            f"{folder}: is a comparison, whose page is {folder / 'compare.html'}; name one of its "
            "runs, a folder inside it"
        )
    if not (folder / "config.yaml").is_file():
        raise ValueError(
            f"{folder}: is not a run directory, for it holds no config.yaml; "
            f"name a folder that `mmoe train` wrote"
        )
    config = load_config(folder / "config.yaml", of_run=True)
    metrics = _read_json(folder, "metrics.json", Metrics)
    history = _read_json(folder, "history.json", History)
    curves = _read_json(folder, "curves.json", Curves)
    written = (folder / "metrics.json").stat().st_mtime
    return Run(
        folder=folder,
        config=config,
        metrics=metrics,
        history=history,
        curves=curves,
        finished=datetime.fromtimestamp(written, tz=UTC),
    )


def _read_json(folder: Path, name: str, shape: type) -> dict[str, Any]:
    path = folder / name
    again = f"`mmoe train {folder / 'config.yaml'} --out {folder} --resume`"
    if not path.is_file():
        diverged = _diverged(folder)
        if diverged is not None:
            raise ValueError(
                f"{path}: is missing, because training diverged ({diverged}); train with another "
                "--out"
            )
        raise ValueError(f"{path}: is missing, so the run is not finished; finish it with {again}")
    return read_stored(path, shape, f"write it again with {again}")


def _diverged(folder: Path) -> str | None:
    """The reason why training diverged, by the run's mark: a --resume would come to it again."""
    try:
        return json.loads((folder / "mmoe.json").read_text(encoding="utf-8"))["diverged"]
    except (OSError, ValueError, TypeError, KeyError):
        return None


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
    """Refuses to replace files of a run other than pages, whatever links lead there."""
    for path in folder.rglob("*") if target.exists() else ():
        if path.suffix != ".html" and path.is_file() and path.samefile(target):
            raise ValueError(f"{target}: is {path}, a file of the run itself; name another file")


def render(run: Run) -> str:
    """Returns the page as text."""
    tasks, versions = run.metrics["tasks"], run.metrics.get("versions")
    over_wide = run.metrics.get("over_wide")
    untrained = bool(over_wide and over_wide["untrained"])
    return rendered(
        "report.html.j2",
        name=run.config.name,
        model=tables.model_line(run.config.model, run.config.tasks, untrained=untrained),
        tasks=list(tasks),
        facts=_facts(run),
        versions=list(versions.items()) if isinstance(versions, Mapping) else [],
        results=tables.results_tables(tasks),
        validation=tables.results_tables(run.metrics.get("validation") or {}),
        notes=[str(note) for note in run.metrics.get("notes") or []],
        advice=_advice(run),
        alarms=run.metrics.get("alarms") or [],
        untrained=untrained,
        gains=over_wide and tables.Grid([*GAIN_HEADINGS], gain_rows(over_wide)),
        pictures=_pictures(run),
        biases=run.curves.get("bias") or [],
        domains=domain_tables(run.metrics),
        communication=_communication_rows(run.history["epochs"]),
        choices=_choice_rows(run.history["epochs"]),
        gates=[_gate_table(level) for level in run.curves.get("gates") or []],
        config=dump_config(run.config),
    )


def rendered(template: str, **values: Any) -> str:
    """Returns a page of the folder of templates, with the style and tables that all pages share."""
    home = files("mmoe.report") / "templates"
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    parts = (home.joinpath(name).read_text(encoding="utf-8") for name in ("grid.html.j2", template))
    page = environment.from_string("".join(parts))
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
    if _communication_rows(run.history["epochs"]):
        figure = _communication_figure(run.history["epochs"])
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
        name: Markup(style.themed_svg(figure, name, description))
        for name, (figure, description) in pictures.items()
    }


def _facts(run: Run) -> list[tuple[str, str]]:
    train = run.metrics.get("train") or {}
    best: int | str | None = best_epoch(run.history["epochs"])
    if (run.history.get("start") or {}).get("best"):
        best = "before the first"
    epochs = count(train.get("epochs", len(run.history["epochs"])))
    speed = train.get("rows_per_second")
    return [
        ("finished", f"{run.finished:%d %b %Y, %H:%M} UTC".lstrip("0")),
        ("training rows", count(train.get("rows"))),
        ("epochs", epochs if best is None else f"{epochs} (best: {best})"),
        ("time", tables.duration(train.get("seconds"))),
        ("rows a second", count(speed)),
        ("chosen by", str(run.history.get("monitor") or run.config.training.monitor)),
        *_frozen(train.get("frozen")),
        *([("labels as of", str(as_of))] if (as_of := run.metrics.get("as_of")) else []),
        ("seed", str(run.metrics.get("seed", run.config.seed))),
        ("split seed", str(run.metrics.get("split_seed", run.config.split_seed))),
    ]


def _frozen(frozen: Any) -> list[tuple[str, str]]:
    """The parts of an earlier run that stayed as they scored, and the tasks whose scores did."""
    if not isinstance(frozen, Mapping):
        return []
    held, trained = (count(frozen[f"{what}_parameters"]) for what in ("frozen", "trained"))
    facts = [("frozen", f"{', '.join(frozen['parts'])} ({held} parameters; trained: {trained})")]
    if frozen["unchanged_tasks"]:
        facts.append(("scores as before", ", ".join(frozen["unchanged_tasks"])))
    changed = frozen["changed_tasks"]
    return facts + ([("scores changed", ", ".join(changed))] if changed else [])


def _advice(run: Run) -> list[str]:
    """Names what the table leaves out, and how to get it."""
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
    """The share that gates which decide together keep of what each wants; else nothing."""
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


_NAMES = {"experts": "experts", "gradients": "sums of gradients"}
_LINKS = {"megabytes_inside_hosts": "inside hosts", "megabytes_between_hosts": "between hosts"}
_COLOURS = {"experts": style.MODEL, "gradients": style.TRAIN}
# What crosses between hosts is the darker one
_OPACITY = {"megabytes_inside_hosts": 0.45, "megabytes_between_hosts": 1.0}


def _communication_rows(epochs: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Rows of a table: of each epoch and road bytes, time and mode; none on one rank."""
    return [
        [str(entry["epoch"]), _NAMES[road], *_numbers(sent[road]), _mode(sent, road)]
        for entry in epochs
        if (sent := entry.get("communication"))
        for road in _NAMES
        if road in sent
    ]


def _choice_rows(epochs: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Rows of a table: how rows and experts met over time, where that was chosen."""
    return [
        [str(entry["epoch"]), *(str(made[key]) for key in ("level", "call", "mode", "why"))]
        for entry in epochs
        for made in (entry.get("communication") or {}).get("choices", [])
    ]


def _communication_figure(epochs: Sequence[Mapping[str, Any]]) -> Figure:
    """The megabytes that a step sends as stacked bars, a bar for each epoch that says so."""
    told = [
        (entry["epoch"], entry["communication"]) for entry in epochs if entry.get("communication")
    ]
    figure = style.new_figure(style.PAGE_WIDTH, 2.2)
    axes = figure.subplots()
    style.dress(axes, xlabel="epoch", ylabel="MB a step", columns=1)
    numbers = [epoch for epoch, _ in told]
    below = [0.0] * len(told)
    for road, name in _NAMES.items():
        for key, link in _LINKS.items():
            amounts = [sent.get(road, {}).get(key, 0.0) for _, sent in told]
            if any(amounts):
                look = {"color": _COLOURS[road], "alpha": _OPACITY[key]}
                axes.bar(numbers, amounts, 0.5, bottom=below, label=f"{name}, {link}", **look)
                below = [a + b for a, b in zip(below, amounts, strict=True)]
    axes.xaxis.set_major_locator(style.few_ticks(10, integer=True))
    axes.set_ylim(0, max([*below, 1e-9]) * 1.35)  # room for the legend
    axes.legend(
        loc="upper left", ncols=2, frameon=False, fontsize=style.SIZE_SMALL, labelcolor=style.MUTED
    )
    return figure


def _numbers(sent: Mapping[str, Any]) -> list[str]:
    hidden = sent.get("share_hidden")
    return [
        f"{sent['megabytes_inside_hosts']:.3g}",
        f"{sent['megabytes_between_hosts']:.3g}",
        f"{1e3 * sent['seconds_under_way']:.3g}",
        NONE if hidden is None else f"{100 * hidden:.0f} %",
    ]


def _mode(sent: Mapping[str, Any], road: str) -> str:
    return "; ".join(dict.fromkeys(sent["modes"])) if road == "experts" else NONE


OTHERS = "others"  # rows of no domain that training had
_MOST = 24  # domains of a picture: those with the most rows


def domain_tables(metrics: Mapping[str, Any]) -> list[tuple[str, Table]]:
    """Makes a table for each task, with a line for each domain that has the task.

    Args:
        metrics: The content of metrics.json.

    Example:
        >>> found = {"each": [{"domain": "shop", "rows": 9, "tasks": {"buy": {"auc": 0.75}}}]}
        >>> [(task, table.rows[0][:2]) for task, table in domain_tables({"domains": found})]
        [('buy', ['shop', '0.7500'])]
    """
    each = (metrics.get("domains") or {}).get("each") or []
    tasks = dict.fromkeys(task for entry in each for task in entry["tasks"])
    found = []
    for task in tasks:
        mine = {
            _named(entry["domain"]): entry["tasks"][task]
            for entry in each
            if task in entry["tasks"]
        }
        found += [(task, table) for table in results_tables(mine)]
    return found


def domain_gates(gates: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns, for each gate, its domains as if they were the gates of a level of their own.

    So they are drawn as levels are (`gate_heatmap_figure`). Of many domains those with the most
    rows are left.

    Args:
        gates: The `gates` section of curves.json.

    Example:
        >>> of_domains = {"names": ["shop"], "rows": [[9]], "mean_weight": [[[0.25, 0.75]]],
        ...               "entropy": [[0.5]]}
        >>> level = {"level": 1, "gates": ["buy"], "experts": ["expert 1", "expert 2"],
        ...          "visible": [[True, True]], "domains": of_domains}
        >>> [(one["title"], one["gates"]) for one in domain_gates([level])]
        [('buy', ['shop'])]
    """
    several = len(gates) > 1
    return [
        _of_gate(level, g, f"{gate}, level {level['level']}" if several else gate)
        for level in gates
        if level.get("domains")
        for g, gate in enumerate(level["gates"])
    ]


def _of_gate(level: Mapping[str, Any], g: int, title: str) -> dict[str, Any]:
    found = level["domains"]
    asking = [n for n, rows in enumerate(found["rows"]) if rows[g]]
    most = sorted(asking, key=lambda n: -found["rows"][n][g])[:_MOST]
    shown = [n for n in asking if n in most]
    return {
        "title": title,
        "level": level["level"],
        "gates": [_named(found["names"][n]) for n in shown],
        "experts": level["experts"],
        "mean_weight": [found["mean_weight"][n][g] for n in shown],
        "entropy": [found["entropy"][n][g] for n in shown],
        "visible": [level["visible"][g]] * len(shown),
    }


def _named(domain: str | None) -> str:
    return OTHERS if domain is None else domain
