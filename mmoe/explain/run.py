"""`explain_run`: what each expert of a run is worth to each task; in words, and as files."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any, Literal

from mmoe.config import DeviceKind, RunConfig
from mmoe.datasets import BatchSource, FeatureEncoder
from mmoe.datasets.rows.frames import TableLike, holds_rows
from mmoe.datasets.values.arrow import check_room
from mmoe.explain.budget import budget_curve, budget_line
from mmoe.explain.experts import ExpertStudy, check_explainable
from mmoe.explain.features import feature_importance
from mmoe.explain.gradients import gradient_cosines
from mmoe.explain.measures import MEANING
from mmoe.models import Ranker
from mmoe.predictor import load_predictor
from mmoe.run import Reporter, RunDirectory, SilentReporter, write_json
from mmoe.train import prepare
from mmoe.train.run_data import RunMaturity, held_out_rows

SplitName = Literal["test", "validation"]
# Of AUC, NE and the like: below what anybody would notice, above the noise of rounding
TOLERANCE = 0.0002


@dataclass(frozen=True, kw_only=True)
class ExplainSettings:
    """Settings of an explanation: what to find out.

    Attributes:
        tolerance: How much worse a metric may become before an expert counts as needed: of AUC,
            NE and accuracy in their own units, of errors with a unit as a share of their value.
        gradients: Also how the tasks' gradients agree on the shared layers.
        features: Also how much each task loses where a feature is shuffled.

    Raises:
        ValueError: The tolerance is no number of 0 or more.
    """

    tolerance: float = TOLERANCE
    gradients: bool = False
    features: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.tolerance) and self.tolerance >= 0):
            raise ValueError(
                f"--tolerance: expected a number of 0 or more, such as {TOLERANCE}, got "
                f"{self.tolerance}"
            )


def explain_run(
    run: RunDirectory,
    data: str | Path | TableLike | None = None,
    settings: ExplainSettings | None = None,
    *,
    split: SplitName = "test",
    reporter: Reporter | None = None,
    device: DeviceKind = "auto",
) -> dict[str, Any]:
    """Leaves every expert of a run out in turn: what would change for each task.

    Args:
        run: A trained run whose gates choose between experts.
        data: Labelled rows, in files or in memory; None: a split of the run's own.
        settings: What to find out.
        split: Which of the run's own, where there is no `data`.
        reporter: Told of progress.
        device: To compute on; auto: a GPU where there is one.

    Returns:
        What explain.json holds.

    Raises:
        ValueError: The run has no experts to choose between, or the data cannot be used.
    """
    check_room()
    reporter, settings = reporter or SilentReporter(), settings or ExplainSettings()
    predictor, encoder, config = load_predictor(run, device)
    check_explainable(predictor.ranker.network, str(run.path))
    if data is not None or split == "test":
        rows = held_out_rows(run, config, encoder, data, None)[0]
    else:
        matured = RunMaturity.resumed(run, config)
        rows = prepare(config, encoder=encoder, matured=matured).validation
    origin = split if data is None else ("rows in memory" if holds_rows(data) else str(data))
    found = explain_ranker(predictor.ranker, config, encoder, rows, settings, reporter)
    return {"name": config.name, "origin": origin, **found}


def explain_ranker(
    ranker: Ranker,
    config: RunConfig,
    encoder: FeatureEncoder,
    rows: BatchSource,
    settings: ExplainSettings,
    reporter: Reporter,
) -> dict[str, Any]:
    """Does what `explain_run` does, of a model in memory and encoded rows.

    Args:
        ranker: In evaluation mode.
        config: That it was built from.
        encoder: That encoded the rows.
        rows: With labels.
        settings: What to find out.
        reporter: Told of progress.

    Raises:
        ValueError: There are no rows, or no task has a label on them.
    """
    if not len(rows):
        raise ValueError("there are no rows to explain the run on; give some with --data")
    ranker.network.bound(None)  # whatever scores: what is explained is what was trained
    try:
        return _explained(ranker, config, encoder, rows, settings, reporter)
    finally:
        ranker.network.bound(config.score.budget)


def _explained(
    ranker: Ranker,
    config: RunConfig,
    encoder: FeatureEncoder,
    rows: BatchSource,
    settings: ExplainSettings,
    reporter: Reporter,
) -> dict[str, Any]:
    experts = ExpertStudy(ranker, config, rows, settings.tolerance, reporter).result()
    if not any(task["rows"] for task in experts["tasks"]):
        raise ValueError(
            "no task has a label on these rows, so nothing can be measured; give labelled rows"
        )
    found = {**experts, "interval": MEANING}
    if curve := budget_curve(ranker, config, rows, settings.tolerance, reporter):
        found["budget"] = curve
    if settings.features:
        found["features"] = feature_importance(
            ranker, config, encoder, rows, settings.tolerance, reporter
        )
    if settings.gradients:
        found["gradients"] = gradient_cosines(ranker, config, rows, reporter)
    return found


def summary_lines(result: Mapping[str, Any], run: str) -> list[str]:
    """Says in words which budget costs nothing, which experts no task needs, and what to do."""
    return [*budget_line(result.get("budget"), run), *_unneeded_lines(result, run)]


def _unneeded_lines(result: Mapping[str, Any], run: str) -> list[str]:
    unneeded = [one for one in result["experts"] if one["number"] in result["unneeded"]]
    within = f"(tolerance {result['tolerance']:g})"
    if not unneeded:
        unsure = any(one["unsure_of"] and not one["needed_by"] for one in result["experts"])
        more = ", or more rows (--data) have to tell" * unsure
        return [f"each expert is needed by some task{more} {within}"]
    several = result["levels"] > 1
    titles = ", ".join(
        f"level {one['level']}, {one['name']}" if several else one["name"] for one in unneeded
    )
    # One at a time: those that know the same stand in for each other
    least = min(unneeded, key=lambda one: sum(one["shares"].values()))
    again = "; mmoe explain RUN2" * (len(unneeded) > 1)
    return [
        f"needed by no task {within}{', each alone' * (len(unneeded) > 1)}: {titles}",
        f"next: mmoe prune {quote(run)} --experts {least['number']} --out RUN2{again}",
    ]


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
    from mmoe.report import write_explanation_page  # matplotlib: not for whoever prunes

    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / RESULT, dict(result))
    return write_explanation_page(folder / RESULT, folder / PAGE)
