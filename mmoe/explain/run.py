"""`explain_run`: what each expert of a trained run is worth to each task."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mmoe.config import DeviceKind, RunConfig
from mmoe.datasets import BatchSource, FeatureEncoder
from mmoe.datasets.rows.frames import TableLike, holds_rows
from mmoe.datasets.values.arrow import check_room
from mmoe.explain.experts import ExpertStudy
from mmoe.explain.features import feature_importance
from mmoe.explain.gradients import gradient_cosines
from mmoe.explain.measures import MEANING
from mmoe.explain.passes import check_explainable
from mmoe.models import Ranker
from mmoe.predictor import load_predictor
from mmoe.run import Reporter, RunDirectory, SilentReporter
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
    experts = ExpertStudy(ranker, config, rows, settings.tolerance, reporter).result()
    if not any(task["rows"] for task in experts["tasks"]):
        raise ValueError(
            "no task has a label on these rows, so nothing can be measured; give labelled rows"
        )
    found = {**experts, "interval": MEANING}
    if settings.features:
        found["features"] = feature_importance(
            ranker, config, encoder, rows, settings.tolerance, reporter
        )
    if settings.gradients:
        found["gradients"] = gradient_cosines(ranker, config, rows, reporter)
    return found
