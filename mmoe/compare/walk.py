"""Models that are compared: their rows, and what each predicts of them, which is kept on disk."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from mmoe.checkpoint import CheckpointFolder
from mmoe.compare.baselines import boosted_trees, logistic_regression
from mmoe.compare.result import ComparedRows, Entry, Trained, comparison
from mmoe.config import (
    MODELS,
    Count,
    Number,
    RunConfig,
    Stored,
    config_from_dict,
    prediction_columns,
)
from mmoe.datasets import load_splits
from mmoe.datasets.files.fingerprint import print_data
from mmoe.datasets.rows.sources import at_versions, generated_splits
from mmoe.datasets.stream import wants_stream
from mmoe.errors import Damaged, Diverged
from mmoe.metrics import kind_of
from mmoe.parallel import training_group
from mmoe.predictor import Predictor
from mmoe.report import write_comparison_page
from mmoe.run import (
    FolderClaim,
    Reporter,
    RunDirectory,
    SilentReporter,
    Tracker,
    read_json,
    write_json,
)
from mmoe.run.atomic_files import read_table, write_table
from mmoe.run.console import InnerReporter, once
from mmoe.run.folder_claim import remove_stray_files
from mmoe.train import prepare, train_run
from mmoe.train.claim import begin_planned, with_absolute_paths
from mmoe.train.evaluate import wide_alone
from mmoe.train.fit import training_state
from mmoe.train.fit_wide import fit_wide
from mmoe.train.measure import metrics_of
from mmoe.train.prepare import refuse_change


def _read_rows(config: RunConfig) -> ComparedRows:
    """Reads, splits and encodes the rows that all models are compared on, in memory."""
    if wants_stream(config):
        raise ValueError(
            f"{config.name}: compare holds all rows in memory, for logistic regression and trees, "
            "but these are streamed (data.input, data.streaming.above_mb); say --set "
            "data.input=memory where there is room, or give fewer rows with --data"
        )
    splits = generated_splits(config)
    data = print_data(config, splits)
    if splits is None:
        splits = load_splits(at_versions(config, data.versions))
        refuse_change(config, data)
    prepared = replace(prepare(config, splits=splits), data=data)
    return ComparedRows(config=config, splits=splits, prepared=prepared)


BASELINES: Mapping[str, str] = MappingProxyType(
    {"logistic_regression": "logistic regression", "boosted_trees": "boosted trees"}
)
_FIT: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {"logistic_regression": logistic_regression, "boosted_trees": boosted_trees}
)
_WIDE = "wide_part"


def _simple_models(config: RunConfig) -> Mapping[str, str]:
    """Returns the simple models beside those of a config, and their titles.

    Where it has `model.wide`, and every trained task a linear model there, that part alone is one.
    """
    tasks = [task for task in config.tasks if task.weight]
    if config.model.wide and all(kind_of(task.kind).linear_logit for task in tasks):
        return {_WIDE: "the wide part alone", **BASELINES}
    return BASELINES


_PREDICTIONS, _BASELINE = "predictions.parquet", "baseline.json"


class _Facts(Stored):
    """baseline.json."""

    seconds: Number
    parameters: Count | None


def _trained_entry(folder: Path, config: RunConfig, rows: ComparedRows, inner: Reporter) -> Entry:
    """Reads a finished run, or trains it, from where it was interrupted."""
    run, kept = RunDirectory(folder), folder / _PREDICTIONS
    names = prediction_columns(config.tasks)
    if not (run.metrics_file.exists() and kept.exists()):
        try:
            train_run(
                config,
                folder,
                resume=folder.exists(),
                shared=rows.shared(config),
                reporter=inner,
                on_test=lambda predictions_NP, _: write_table(
                    kept, dict(zip(names, predictions_NP.T, strict=True))
                ),
            )
        except Diverged as error:
            raise Diverged(f"compare, {folder.name}: {error}") from None
        except ValueError as error:
            raise ValueError(f"compare, {folder.name}: {error}") from None
    train = run.metrics()["train"]
    return Entry(
        predictions_NP=_read(kept, names, len(rows.test_labels)),
        parameters=_count_weights(run),
        seconds=train["seconds"],
        rows_per_second=train["rows_per_second"],
    )


def baseline_entry(folder: Path, name: str, rows: ComparedRows) -> Entry:
    """Reads what a simple model predicted, or fits it.

    Raises:
        ValueError: A label has one class only, or a file is damaged.
    """
    names = prediction_columns(rows.config.tasks)
    kept, facts = folder / _PREDICTIONS, folder / _BASELINE
    if not (facts.exists() and kept.exists()):
        folder.mkdir(exist_ok=True)
        remove_stray_files(folder)
        start = time.perf_counter()
        predictions_NP, total = _wide_alone(rows) if name == _WIDE else _baseline(name, rows)
        seconds = time.perf_counter() - start
        write_table(kept, dict(zip(names, predictions_NP.T, strict=True)))
        write_json(facts, {"seconds": seconds, "parameters": total})
    found = read_json(facts, _Facts)
    return Entry(
        predictions_NP=_read(kept, names, len(rows.test_labels)),
        parameters=found["parameters"],
        seconds=found["seconds"],
        rows_per_second=None,
    )


def _baseline(name: str, rows: ComparedRows) -> tuple[np.ndarray, int | None]:
    """Predictions of a model of `BASELINES` for the test rows, and its weights."""
    splits = rows.splits
    given: dict[str, Any] = {"origin": splits.origin, "maturity": rows.prepared.maturity}
    if name == "boosted_trees":  # whose size and number the validation split chooses
        given["validation"] = splits.validation
    fitted = _FIT[name](rows.config, splits.train, splits.test, **given)
    each = [fitted[task.name] for task in rows.config.tasks]
    first, further = [one.predictions_N[:, None] for one in each], [one.further_NK for one in each]
    counts = [one.parameters for one in each]
    total = None if None in counts else sum(counts)
    return np.concatenate([*first, *further], axis=1), total


def _wide_alone(rows: ComparedRows) -> tuple[np.ndarray, int]:
    """The same of the wide part of the config's model, as it is before the first epoch."""
    with training_group(rows.config.parallel.timeout_seconds):
        state = training_state(rows.config, rows.prepared)
        wide = state.ranker.wide
        assert wide is not None, "the config has one"
        fit_wide(wide, rows.config, rows.prepared, SilentReporter())
        predicted_NP = wide_alone(rows.config, Predictor(state.ranker, rows.config), rows.prepared)
    weights = sum(buffer.numel() for buffer in (wide.ids_RT, wide.dense_TF, wide.bias_T))
    return predicted_NP, weights


def _count_weights(run: RunDirectory) -> int:
    """Counts the weights of the network, the tables and a wide part."""
    model = CheckpointFolder(run.checkpoint).tensors("best", "model")
    names = [name for name in model.names() if name.startswith(("network.", "tables.", "wide."))]
    return sum(prod(model.shape(name)) for name in names)


def _read(path: Path, names: Sequence[str], rows: int) -> np.ndarray:
    table = read_table(path, names)
    if table.num_rows != rows:
        problem = f"{table.num_rows:,} rows, the test split has {rows:,}"
        raise Damaged(path, problem, "remove its folder and say --resume")
    return np.stack([table[name].to_numpy() for name in names], axis=1).astype(np.float64)


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
    known = (*settings.models, *_simple_models(config))
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
        rows = _read_rows(config)
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
    prepared, entries, simple = rows.prepared, {}, _simple_models(rows.config)
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
            entries[folder] = _trained_entry(out / folder, config, rows, inner)
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
