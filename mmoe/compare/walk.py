"""Models that are compared: the config with another `model.kind` and seed each."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from mmoe.compare.entries import (
    ComparedRows,
    Entry,
    baseline_entry,
    read_rows,
    simple_models,
    trained_entry,
)
from mmoe.compare.result import Trained, comparison
from mmoe.config import MODELS, RunConfig, config_from_dict
from mmoe.metrics.task_kinds import kind_of
from mmoe.report import write_comparison_page
from mmoe.run import FolderClaim, Reporter, SilentReporter, Tracker, write_json
from mmoe.run.console import InnerReporter, once
from mmoe.train.claim import begin_planned, with_absolute_paths
from mmoe.train.measure import metrics_of

# Seeds are counted from the config's
_MOST_SEEDS = 1000


@dataclass(frozen=True, kw_only=True)
class ComparisonSettings:
    """Models and seeds of a comparison.

    Attributes:
        models: Kinds of models.
        seeds: How often each is trained, with the config's seed and those after it.
        reference: One of `models`, or a simple model; the others are judged against it. Default:
            the first.

    Raises:
        ValueError: No model, one that is named twice, or seeds out of range.
    """

    models: Sequence[str] = ("single_task", "shared_bottom", "mmoe", "ple")
    seeds: int = 5
    reference: str | None = None

    def __post_init__(self) -> None:
        if not self.models:
            raise ValueError(
                f"--models: expected kinds of models, such as {','.join(MODELS.names())}"
            )
        if not 1 <= self.seeds <= _MOST_SEEDS:
            raise ValueError(f"--seeds: expected 1 to {_MOST_SEEDS}, got {self.seeds}")
        for number, name in enumerate(self.models):
            if name in self.models[:number]:
                raise ValueError(f"--models: {name} is named twice; remove one")

    @classmethod
    def of_text(cls, models: str, seeds: int, reference: str | None = None) -> "ComparisonSettings":
        """Reads kinds of models with commas between them.

        Args:
            models: Such as `mmoe, ple`.
            seeds: Runs of each.
            reference: As the attribute.

        Example:
            >>> ComparisonSettings.of_text("mmoe, ple", 2).models
            ('mmoe', 'ple')
        """
        names = tuple(name.strip() for name in models.split(",") if name.strip())
        return cls(models=names, seeds=seeds, reference=reference)


def _contestants_of(config: RunConfig, settings: ComparisonSettings) -> dict[str, list[RunConfig]]:
    """The models, each with the config of every seed; nothing else differs."""
    if config.seed + settings.seeds > 2**32:
        raise ValueError(f"seed: {config.seed} leaves no room for {settings.seeds} seeds after it")
    known = (*settings.models, *simple_models(config))
    if settings.reference is not None and settings.reference not in known:
        raise ValueError(
            f"--reference: {settings.reference!r} does not take part; expected one of "
            f"{', '.join(known)}"
        )
    seeds = range(config.seed, config.seed + settings.seeds)
    kinds = {name: _of_kind(config, name) for name in settings.models}
    return {
        name: [of_kind.model_copy(update={"seed": seed}) for seed in seeds]
        for name, of_kind in kinds.items()
    }


def _folder(name: str, config: RunConfig) -> str:
    return f"{name}-seed-{config.seed}"


def _of_kind(config: RunConfig, name: str) -> RunConfig:
    if name == config.model.kind:
        return config
    known = MODELS.names()
    if name not in known:
        close = get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"expected some of {', '.join(known)}"
        raise ValueError(f"--models: there is no model {name!r}; {hint}")
    raw = config.model_dump(mode="json")
    known = MODELS.config_class(name).model_fields
    theirs = {key: value for key, value in raw["model"].items() if key in known}
    raw["model"] = theirs | {"kind": name}
    return config_from_dict(raw, f"--models {name}")


_RESULT, _PAGE = "compare.json", "compare.html"


def compare_models(
    config: RunConfig,
    out: Path,
    settings: ComparisonSettings | None = None,
    *,
    data: str | Path | None = None,
    resume: bool = False,
    numbered: bool = False,
    reporter: Reporter | None = None,
    on_folder: Callable[[Path], None] = lambda _: None,
) -> dict[str, Any]:
    """Trains every model with every seed, simple models beside them, and judges them on one split.

    Args:
        config: Of all runs, but for `model.kind` and `seed`.
        out: Gets a run directory for each model and seed, compare.json and compare.html; must be
            empty or absent, unless `resume`.
        settings: Which models, how many seeds.
        data: Overrides data.path.
        resume: Go on in `out`: what is finished is read. There may be more models and seeds.
        numbered: Where `out` exists, take the first of out-2, out-3, … that does not.
        reporter: Told of progress.
        on_folder: Given the folder, once it is known.

    Returns:
        What compare.json holds: for each model its metrics over the seeds, and their differences
        to the reference's with intervals; and which model wins each task.

    Raises:
        ValueError: Config, data, settings or folder cannot be used; or a run diverged.
        Interrupted: A KeyboardInterrupt that knows the folder, once there is one.
    """
    reporter = reporter or SilentReporter()
    config = with_absolute_paths(config, data)
    settings = settings or ComparisonSettings()
    contestants = _contestants_of(config, settings)
    with FolderClaim("comparison", reporter.say) as claim:
        if not numbered:
            claim.go_on(out, resume=resume)
        rows = read_rows(config)
        out = begin_planned(claim, out, config, rows.prepared.data, numbered=numbered)
        on_folder(out)
        models = _train_all(out, contestants, rows, reporter, claim)
        result = comparison(rows, models, settings.reference)
        claim.check()
        write_json(out / _RESULT, result)
        write_comparison_page(out / _RESULT, out / _PAGE)
        return result


def _train_all(
    out: Path,
    contestants: Mapping[str, Sequence[RunConfig]],
    rows: ComparedRows,
    reporter: Reporter,
    claim: FolderClaim,
) -> list[Trained]:
    """Simple models first, then seed by seed: what is interrupted has every model early."""
    prepared, entries, simple = rows.prepared, {}, simple_models(rows.config)
    reporter.say(
        f"{prepared.origin}: {len(prepared.train):,} rows to train on, "
        f"{len(prepared.validation):,} to validate, {len(prepared.test):,} to test"
    )
    runs = [
        (_folder(name, config), config)
        for by_seed in zip(*contestants.values(), strict=True)
        for name, config in zip(contestants, by_seed, strict=True)
    ]
    warn = once(reporter.say)
    with reporter.track("comparing", len(simple) + len(runs), "runs") as tracker:
        for name, title in simple.items():
            tracker.advance(0, title)
            entries[name] = baseline_entry(out / name, name, rows)
            _say_done(rows, title, entries[name], reporter, tracker)
        for folder, config in runs:
            claim.check()
            inner = InnerReporter(tracker, folder, warn)
            entries[folder] = trained_entry(out / folder, config, rows, inner)
            _say_done(rows, folder, entries[folder], reporter, tracker)
    models = []
    for name, configs in contestants.items():
        folders, seeds = [_folder(name, c) for c in configs], [c.seed for c in configs]
        mine = [entries[folder] for folder in folders]
        models.append(Trained(name=name, title=name, folders=folders, seeds=seeds, entries=mine))
    for name, title in simple.items():
        mine = [entries[name]]
        models.append(Trained(name=name, title=title, folders=[name], seeds=None, entries=mine))
    return models


def _say_done(
    rows: ComparedRows, title: str, entry: Entry, reporter: Reporter, tracker: Tracker
) -> None:
    """Counts an entry, and says its metrics."""
    metrics, _ = metrics_of(rows.config, entry.predictions_NP, rows.test_labels)
    parts = []
    for task in rows.config.tasks:
        column = kind_of(task.kind).column(kind_of(task.kind).headline)
        parts.append(f"{task.name} {column.heading} {column.text(metrics[task.name])}")
    reporter.say(f"{title}: {', '.join(parts)}; {entry.seconds:.1f} s")
    tracker.advance(1, title)
