"""The files of a run that the report draws; keys it does not draw may hold anything."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, model_validator

from mmoe.config import Count, Number, RunConfig, Stored, load_config, read_stored
from mmoe.config.json_files import Measured, Share

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
