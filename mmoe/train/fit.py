"""A whole run: data, training, evaluation, files."""

import platform
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mmoe.config import RunConfig, dump_config
from mmoe.datasets.data_file import is_address
from mmoe.datasets.encoded import EncodedLabels
from mmoe.datasets.encoder import FeatureEncoder
from mmoe.datasets.sources import below
from mmoe.datasets.splits import Splits
from mmoe.models.build import build_ranker
from mmoe.parallel import ensure_process_group
from mmoe.score.checkpoint import CheckpointFolder
from mmoe.score.console import Reporter, SilentReporter
from mmoe.score.predictor import Predictor
from mmoe.score.run_directory import RunDirectory
from mmoe.score.text_files import write_json, write_text
from mmoe.tasks.gate_statistics import GateStatistics
from mmoe.train.evaluate import metrics_of, predict_rows, split_curves, split_metrics
from mmoe.train.loop import Trainer, steps_of
from mmoe.train.memory import keep_freed_memory
from mmoe.train.optim import build_average, build_optimizer, check_schedule
from mmoe.train.prepare import PreparedData, prepare
from mmoe.train.state import Position, TrainingState
from mmoe.train.warm_start import EarlierRun, WarmStart, WarmStartReport, transfer

TestCallback = Callable[[np.ndarray, EncodedLabels], None]


@dataclass(frozen=True)
class FinishedRun:
    """A trained run: its folder and what metrics.json holds."""

    directory: RunDirectory
    metrics: dict[str, Any]


def train_run(
    config: RunConfig,
    out: Path,
    *,
    data: str | Path | None = None,
    splits: Splits | None = None,
    resume: bool = False,
    warm_start: WarmStart | None = None,
    reporter: Reporter | None = None,
    on_test: TestCallback | None = None,
    profile: bool = False,
) -> FinishedRun:
    """Trains, evaluates on the test split, and writes the run directory.

    Args:
        config: What to train on what.
        out: The run directory; must be empty or absent, unless `resume`.
        data: Overrides data.path; stored with the run.
        splits: Tables in memory instead of files.
        resume: Continue an interrupted run from its latest checkpoint.
        warm_start: Begin with the weights and the vocabulary of another run. A resumed run needs it
            no more.
        reporter: Told of progress.
        on_test: Given predictions and labels of the test split before metrics.json is written.
        profile: Also record some steps, and write RUN/profile/ (trace, table).

    Raises:
        ValueError: Config, data or directory cannot be used. Checked before anything is written.
    """
    reporter = reporter or SilentReporter()
    ensure_process_group()
    config = with_absolute_paths(config, data)
    if resume:
        warm_start = WarmStart.recorded(RunDirectory(out), warm_start)
    old = _interrupted(out, config) if resume else None
    earlier, encoder = None, None
    if old is not None:
        encoder = FeatureEncoder.load(old.vocabulary)
    else:
        _refuse_full_directory(out)
        earlier = None if warm_start is None else EarlierRun.open(warm_start.run)
    if earlier is not None:
        earlier.check(config)
    with reporter.track(f"reading {config.name}", None, "rows") as tracker:
        prepared = prepare(
            config,
            encoder=encoder,
            earlier=None if earlier is None else earlier.encoder,
            splits=splits,
            advance=tracker.advance,
        )
    _say_sizes(prepared, reporter)
    check_schedule(config.training.optimizer, steps_of(config, len(prepared.train)))
    keep_freed_memory()  # of steps, not what reading took
    state = _training_state(config, prepared)
    report = None
    if earlier is not None and warm_start is not None:
        report = transfer(earlier, state, config, prepared.encoder, warm_start.new_experts)
        for line in report.lines():
            reporter.say(line)
    run = old or _start(config, prepared, out, report)
    if old is not None:
        state.restore(CheckpointFolder(run.checkpoint))
        reporter.say(f"resuming after step {state.position.step} of {run.path}")
    trainer = Trainer(config, state, prepared, run, reporter, profile=profile)
    try:
        trainer.fit()
    except Exception:
        # A run that never got as far as a checkpoint must not stand in the mended command's way
        if not trainer.checkpoints.exists():
            _clear(run)
        raise
    state.restore_best(trainer.checkpoints)
    return FinishedRun(run, _evaluate(config, state, prepared, run, reporter, on_test))


def with_absolute_paths(config: RunConfig, data: str | Path | None) -> RunConfig:
    """So that the run can be evaluated from any folder; `data` goes where it belongs."""
    section, folder = config.data, None
    found = {name: getattr(section, name) for name in ("path", "train", "validation", "test")}
    if data is not None and section.split.by == "file":
        folder = data  # that holds the three files
    elif data is not None:
        found["path"] = str(data)

    def absolute(path: str) -> str:
        return path if is_address(path) else str(Path(path).absolute())

    update = {}
    for name, paths in found.items():
        if paths is not None:
            paths = below(folder, paths)
            update[name] = absolute(paths) if isinstance(paths, str) else [*map(absolute, paths)]
    return config.model_copy(update={"data": section.model_copy(update=update)})


def _interrupted(out: Path, config: RunConfig) -> RunDirectory | None:
    """The run to resume, or None where it had not got as far as a checkpoint."""
    run = RunDirectory(out)
    _remove_strays(run)
    if not run.config_file.exists():
        if out.is_dir() and all(_comes_before_the_config(path.name) for path in out.iterdir()):
            _clear(run)  # of a run that was killed while it began
        return None
    if not CheckpointFolder(run.checkpoint).exists():
        _clear(run)
        return None
    if dump_config(config) != run.config_file.read_text(encoding="utf-8"):
        raise ValueError(
            f"{out}: was trained with another config ({_difference(run.config(), config)}); "
            f"resume with the same one, or choose another --out"
        )
    return run


def _difference(old: RunConfig, new: RunConfig) -> str:
    difference = first_difference(old.model_dump(), new.model_dump())
    return difference or "written by another version"


def first_difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """The first key whose value differs, for an error message; nothing where none does."""
    pairs: list[tuple[str, Any, Any]] = [("", old, new)]
    while pairs:
        path, one, two = pairs.pop(0)
        if isinstance(one, dict) and isinstance(two, dict):
            keys = [*one, *(key for key in two if key not in one)]
            pairs[:0] = [(f"{path}.{key}".lstrip("."), one.get(key), two.get(key)) for key in keys]
        elif one != two:
            return f"{path}: {one!r} there, {two!r} here" if len(repr(one)) < 80 else path
    return ""


def _comes_before_the_config(name: str) -> bool:
    """What `_start` writes first."""
    return name == "warm_start.json" or (name[:1] == "." and name.endswith(".tmp"))


def _clear(run: RunDirectory) -> None:
    """Removes what a run left that died before its first checkpoint."""
    for folder in (run.vocabulary, run.checkpoint, run.tensorboard, run.profile):
        shutil.rmtree(folder, ignore_errors=True)
    run.warm_start_file.unlink(missing_ok=True)
    run.config_file.unlink(missing_ok=True)
    _remove_strays(run)
    if not any(run.path.iterdir()):
        run.path.rmdir()


def _remove_strays(run: RunDirectory) -> None:
    """Removes files that a killed process had begun and not yet moved to their names."""
    names = (run.config_file, run.history_file, run.curves_file, run.metrics_file)
    for path in (*names, run.warm_start_file, run.profile):
        for stray in run.path.glob(f".{path.name}.*.tmp"):
            shutil.rmtree(stray) if stray.is_dir() else stray.unlink()


def _refuse_full_directory(out: Path) -> None:
    """Before the data is read: a full directory is the quickest error to find."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        RunDirectory.create(out)


def _start(
    config: RunConfig, prepared: PreparedData, out: Path, report: WarmStartReport | None
) -> RunDirectory:
    """The config comes early: it is how `--resume` knows that what else is there may go."""
    run = RunDirectory.create(out)
    if report is not None:  # first, so that no --resume can forget it
        write_json(run.warm_start_file, report.as_dict())
    write_text(run.config_file, dump_config(config))
    prepared.encoder.save(run.vocabulary)
    return run


def _training_state(config: RunConfig, prepared: PreparedData) -> TrainingState:
    torch.manual_seed(config.seed)
    ranker = build_ranker(config, prepared.encoder)
    optimizer = build_optimizer(ranker.network, config.training.optimizer)
    average = build_average(ranker.network, config.training.ema_decay)
    return TrainingState(ranker, optimizer, average, Position())


def _say_sizes(prepared: PreparedData, reporter: Reporter) -> None:
    tables = prepared.encoder.tables
    parameters = sum(table.num_rows * table.dim for table in tables)
    how = "streamed, " if prepared.streamed else ""
    reporter.say(
        f"{prepared.origin}: {how}{len(prepared.train):,} rows to train on, "
        f"{len(prepared.validation):,} to validate, {len(prepared.test):,} to test; "
        f"{len(tables)} tables with {parameters:,} embedding parameters"
    )


def _evaluate(
    config: RunConfig,
    state: TrainingState,
    prepared: PreparedData,
    run: RunDirectory,
    reporter: Reporter,
    on_test: TestCallback | None,
) -> dict[str, Any]:
    """Writes curves.json and, last, metrics.json."""
    predictor = Predictor(state.ranker, config)
    validation, _ = split_metrics(config, predictor, prepared.validation)
    gates, oracle = GateStatistics(), prepared.oracle
    predictions_NT, labels = predict_rows(predictor, prepared.test, on_gates=gates.update)
    curves = split_curves(config, predictions_NT, labels, gates, oracle)
    tasks, notes = metrics_of(config, predictions_NT, labels, oracle)
    for note in notes:
        reporter.say(f"note, test: {note}")
    position = state.position
    rows = len(prepared.train) * position.epoch
    metrics = {
        "tasks": tasks,
        "validation": validation,
        "train": {
            "rows": len(prepared.train),
            "seconds": position.seconds,
            "rows_per_second": rows / max(position.seconds, 1e-9),
            "epochs": position.epoch,
        },
        "seed": config.seed,
        "split_seed": config.split_seed,
        "versions": _versions(),
    }
    if on_test is not None:
        on_test(predictions_NT, labels)
    write_json(run.curves_file, curves)
    write_json(run.metrics_file, metrics)
    return metrics


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in (
        "mmoe",
        "torch",
        "torchrec",
        "fbgemm-gpu",
        "fbgemm-gpu-cpu",
        "numpy",
        "pyarrow",
    ):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
