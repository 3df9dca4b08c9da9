"""A whole run: data, training, evaluation, files."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mmoe.alarms import alarm_of_explosion, predicted_file
from mmoe.checkpoint import CheckpointFolder
from mmoe.config import DeviceKind, RunConfig, prediction_columns
from mmoe.config.loading import with_used_modules
from mmoe.datasets import EncodedLabels, FeatureEncoder, Splits, load_splits
from mmoe.datasets.labels.maturity import describe_masked
from mmoe.datasets.rows.frames import TableLike, holds_rows
from mmoe.datasets.rows.sources import at_versions
from mmoe.datasets.stream import describe_lanes
from mmoe.models.layout import describe_device, resolve_device
from mmoe.parallel import from_first, rank, training_group, world_size
from mmoe.parallel.launch.cores import bind_to_own_cores
from mmoe.predictor import Predictor
from mmoe.process_settings import is_tuned
from mmoe.run import Reporter, RunDirectory, SilentReporter, write_json
from mmoe.run.allocator import keep_freed_memory
from mmoe.run.folder_claim import MARK
from mmoe.train.alarms import (
    Watch,
    alarms_of_metrics,
    learn_columns,
    say_alarms,
    with_effects,
    with_levels,
)
from mmoe.train.begin import begin, training_state
from mmoe.train.evaluate import apart, learnt_bias, over_wide, predict_rows, split_curves, validated
from mmoe.train.loggers import check_loggers, log_finished
from mmoe.train.loop import EpochCallback, Trainer, steps_of
from mmoe.train.measure import domain_metrics, metrics_of
from mmoe.train.optim import check_schedule
from mmoe.train.prepare import (
    PreparedData,
    describe_constants,
    describe_cut_groups,
    prepare,
    refuse_change,
)
from mmoe.train.ranks_report import say_plan
from mmoe.train.run_folder.claim import (
    RunClaim,
    all_see,
    installed_versions,
    same_data_on_all_ranks,
    same_on_all_ranks,
    with_absolute_paths,
    without_paths,
)
from mmoe.train.run_folder.data import (
    ResumedData,
    RunData,
    RunMaturity,
    changed_since,
    describe_continued,
)
from mmoe.train.stages import with_recorded_stages, with_stages
from mmoe.train.state import TrainingState
from mmoe.train.warm_start import EarlierRun, WarmStart, WarmStartReport
from mmoe.train.warm_start.earlier import with_kept_targets

TestCallback = Callable[[np.ndarray, EncodedLabels], None]


@dataclass(frozen=True)
class FinishedRun:
    """A trained run.

    Attributes:
        directory: Its folder.
        metrics: What metrics.json holds.
    """

    directory: RunDirectory
    metrics: dict[str, Any]


def train_run(
    config: RunConfig,
    out: Path,
    *,
    data: str | Path | TableLike | None = None,
    splits: Splits | None = None,
    shared: PreparedData | None = None,
    resume: bool = False,
    warm_start: WarmStart | None = None,
    reporter: Reporter | None = None,
    on_test: TestCallback | None = None,
    profile: bool = False,
    device: DeviceKind | None = None,
    numbered: bool = False,
    changed_data: bool = False,
    on_epoch: EpochCallback | None = None,
    leaves_young: bool = False,
) -> FinishedRun:
    """Trains, evaluates on the test split, and writes the run directory.

    Args:
        config: What to train on what.
        out: The run directory, made by one process and locked while it trains there (see
            `RunClaim`); must be empty or absent, unless `resume`.
        data: Overrides data.path; stored with the run. Or rows in memory (a DataFrame, an Arrow
            table, a mapping of names to columns), split as data.split says.
        splits: Tables in memory that are split already.
        shared: Rows that are prepared already, of a run that differs in nothing they depend on.
        resume: Continue an interrupted run from its latest checkpoint.
        warm_start: Begin with the weights and the vocabulary of another run; not needed to resume.
        reporter: Told of progress.
        on_test: Given predictions (a column for each of prediction_columns) and labels of the
            test split before metrics.json is written.
        profile: Also record some steps, and write RUN/profile/ (trace, table).
        device: Overrides training.device, for this call alone: it is not stored with the run.
        numbered: Take the first of out, out-2, out-3, … that does not exist; resumes nothing.
        changed_data: Resume also where the rows are no longer those that the run began with; the
            interrupted epoch begins again.
        on_epoch: Given each epoch's number (from 1) and entry of history.json; True ends training.
        leaves_young: A task may have no label but those of rows younger than its `matures_after`,
            as long as another one has some: nothing trains it then. With `warm_start` always so.

    Raises:
        ValueError: Config, data or directory cannot be used, which is checked before anything is
            written; training diverged; or the directory was removed while it went on.
        Interrupted: A KeyboardInterrupt that knows the directory, once there is one.
    """
    check_loggers(config)
    if holds_rows(data):
        config, splits, data = without_paths(config), load_splits(config, data), None
    place = resolve_device(device or config.training.device, config.training.embedding_backend)
    asked = _Asked(out, resume, numbered, changed_data, warm_start, leaves_young)
    reporter = reporter or SilentReporter()
    with training_group(config.parallel.timeout_seconds, place), RunClaim(reporter.say) as claim:
        begun = _begun(config, data, asked, claim, place, reporter)
        prepared = begun.read(splits, shared)
        run, state = begun.build(prepared)
        begun.train(run, state, prepared, profile=profile, on_epoch=on_epoch)
        metrics = _evaluate(begun.config, state, prepared, run, begun.reporter, on_test)
        return FinishedRun(run, metrics)


@dataclass(frozen=True)
class _Asked:
    """The beginning that `train_run` was asked for; attributes as its arguments."""

    out: Path
    resume: bool
    numbered: bool
    changed_data: bool
    warm_start: WarmStart | None
    leaves_young: bool

    def flags(self) -> dict[str, Any]:
        """Returns what all ranks have to agree on, by its name on the command line."""
        flags = {"--resume": self.resume, "--changed-data": self.changed_data}
        return flags | ({} if self.warm_start is None else self.warm_start.options())


def _begun(
    config: RunConfig,
    data: str | Path | None,
    asked: _Asked,
    claim: RunClaim,
    place: torch.device,
    reporter: Reporter,
) -> "_Begun":
    """Settles, on all ranks alike, which run goes on and what that decides of the config."""
    bind_to_own_cores(config.parallel.bind_cores)
    config = with_used_modules(with_absolute_paths(config, data))
    out = same_on_all_ranks(config, asked.out, asked.flags())
    reporter = reporter if rank() == 0 else SilentReporter()
    leaves_young, warm_start = asked.leaves_young or asked.warm_start is not None, asked.warm_start
    if asked.resume:
        config, warm_start = _with_recorded(config, RunDirectory(out), warm_start)
    old = from_first(lambda: None if asked.numbered else claim.find(out, config, asked.resume))
    claim.begun = old and old.path
    config, earlier = _continued(config, old, warm_start, changed_data=asked.changed_data)
    asked = replace(asked, out=out, warm_start=warm_start, leaves_young=leaves_young)
    resumed = ResumedData(old, config, asked.changed_data, reporter)
    return _Begun(config, asked, claim, place, reporter, old, earlier, resumed)


@dataclass(frozen=True)
class _Begun:
    """A run before its rows are read; all ranks hold the same.

    Attributes:
        config: With what is to stay of the run that goes on.
        asked: With the folder that all ranks use and the warm start that was recorded.
        claim: Of the run's folder.
        place: To train on.
        reporter: Silent on all ranks but the first.
        old: The interrupted run; None for a new one.
        earlier: The run of a warm start.
        resumed: Compares the rows with those of `old`.
    """

    config: RunConfig
    asked: _Asked
    claim: RunClaim
    place: torch.device
    reporter: Reporter
    old: RunDirectory | None
    earlier: EarlierRun | None
    resumed: ResumedData

    def read(self, splits: Splits | None, shared: PreparedData | None) -> PreparedData:
        """Reads and encodes the rows, or takes those that are there already."""
        encoder = None
        if self.old is not None:
            encoder = FeatureEncoder.load(self.old.vocabulary).without_residuals()
        with self.reporter.track(f"reading {self.config.name}", None, "rows") as tracker:
            if shared is not None:
                self.resumed.check(shared.data)
                prepared = shared.of(self.config, encoder)
            else:
                prepared = prepare(
                    self.config,
                    encoder=encoder,
                    earlier=None if self.earlier is None else self.earlier.encoder,
                    splits=splits,
                    advance=tracker.advance,
                    check=self.resumed.check,
                    matured=RunMaturity.resumed(self.old, self.config),
                    leaves_young=self.asked.leaves_young,
                )
        same_data_on_all_ranks(prepared)
        _say_sizes(self.config, prepared, self.place, self.reporter)
        return prepared

    def build(self, prepared: PreparedData) -> tuple[RunDirectory, TrainingState]:
        """Builds the state, fills it from the run that goes on, and claims the folder of a new one.

        A folder is made last: what cannot be built leaves none behind.
        """
        config, old, claim, reporter = self.config, self.old, self.claim, self.reporter
        check_schedule(config.training.optimizer, steps_of(config, len(prepared.train)))
        if is_tuned():
            keep_freed_memory()  # of steps, not what reading took
        stored = old and CheckpointFolder(old.checkpoint).tensors("latest", "model")
        state = training_state(config, prepared, self.place, stored=stored)
        state.frozen.say(reporter)
        report = None
        if old is None:
            report = begin(self.earlier, self.asked.warm_start, state, config, prepared, reporter)
        numbered, out = self.asked.numbered, self.asked.out
        run = old or from_first(
            lambda: claim.start(config, prepared, out, report, numbered=numbered)
        )
        claim.begun = run.path
        _seen_by_all(run, claim)
        _say_continued(config, run, report, reporter)
        if old is not None:
            note = state.restore(CheckpointFolder(run.checkpoint), seed=config.seed)
            _say_resumed(run, state.position.step, note, reporter)
            self.resumed.take_in(state.position)
        return run, state

    def train(
        self,
        run: RunDirectory,
        state: TrainingState,
        prepared: PreparedData,
        *,
        profile: bool,
        on_epoch: EpochCallback | None,
    ) -> None:
        """Trains to the end, and leaves the best epoch's weights in `state`."""
        config, claim, reporter = self.config, self.claim, self.reporter
        if prepared.streamed:  # a run that is resumed does not read for its encoder again
            learn_columns(run, config, prepared.encoder, prepared.sample, prepared.repeats)
        say_plan(state.ranker, config.parallel, run, reporter)
        trainer = Trainer(
            config,
            state,
            prepared,
            run,
            reporter,
            profile=profile,
            check=claim.check,
            on_epoch=on_epoch,
        )
        _fit(trainer, run, claim)
        if prepared.streamed:
            from_first(lambda: refuse_change(config, prepared.data, listed=True))
        state.restore_best(trainer.checkpoints.folder)
        claim.check()


def _with_recorded(
    config: RunConfig, run: RunDirectory, asked: WarmStart | None
) -> tuple[RunConfig, WarmStart | None]:
    """The config of a run to be resumed, and its warm start, with what it began with."""
    warm_start = from_first(lambda: WarmStart.recorded(run, asked))
    config = with_recorded_stages(config, run)
    if (run.path / MARK).exists() and run.config_file.exists():
        config = with_kept_targets(config, run.config())
    return config, warm_start


def _continued(
    config: RunConfig, run: RunDirectory | None, warm_start: WarmStart | None, *, changed_data: bool
) -> tuple[RunConfig, EarlierRun | None]:
    """The config with what is to stay of the run that goes on, and the one that is continued.

    A resumed run reads lake tables at the versions that it began with.
    """
    if run is not None:
        all_see(run)
        began = None if changed_data else RunData.read(run)
        return (config if began is None else at_versions(config, began.data.versions)), None
    earlier = None if warm_start is None else EarlierRun.open(warm_start.run)
    if earlier is not None:
        config = with_kept_targets(config, earlier.config)
        earlier.check(config)
    return with_stages(config, earlier), earlier


def _seen_by_all(run: RunDirectory, claim: RunClaim) -> None:
    try:
        all_see(run)
    except ValueError:
        claim.give_up(run)
        raise


def _fit(trainer: Trainer, run: RunDirectory, claim: RunClaim) -> None:
    """Trains to the end; an error says what becomes of the run."""
    try:
        trainer.fit()
    except Exception as error:
        # A run that never got as far as a checkpoint must not stand in the mended command's way
        claim.give_up(run)
        told = claim.wrap_error(run, error)
        if told is error:
            raise
        raise told from error


def _say_sizes(
    config: RunConfig, prepared: PreparedData, device: torch.device, reporter: Reporter
) -> None:
    tables = prepared.encoder.tables
    parameters = sum(table.num_rows * table.dim for table in tables)
    how = "streamed, " if prepared.streamed else ""
    reporter.say(
        f"{prepared.origin}: {how}{len(prepared.train):,} rows to train on, "
        f"{len(prepared.validation):,} to validate, {len(prepared.test):,} to test; "
        f"{len(tables)} table{'s' * (len(tables) != 1)} with {parameters:,} embedding parameters"
    )
    for line in describe_masked(config, prepared.masked, prepared.as_of):
        reporter.say(line)
    for note in (describe_constants(prepared.encoder), describe_cut_groups(config, prepared)):
        if note is not None:
            reporter.say(note)
    if device.type != "cpu":
        reporter.say(f"training on {describe_device(device)}")
    lanes = describe_lanes(config.data.streaming.lanes, world_size())
    if prepared.streamed and lanes is not None:
        reporter.say(lanes)


def _say_resumed(run: RunDirectory, step: int, note: str | None, reporter: Reporter) -> None:
    """Names the step that a run goes on from; one with weights of its own has stopped at none."""
    if step:
        reporter.say(f"resuming after step {step} of {run.path}")
    if note is not None:
        reporter.say(note)


def _say_continued(
    config: RunConfig, run: RunDirectory, report: WarmStartReport | None, reporter: Reporter
) -> None:
    """Warns where the run of a warm start may have been trained on test rows."""
    if report is None:
        return
    remembered = from_first(lambda: RunData.read(run))
    line = None if remembered is None else describe_continued(remembered, config)
    if line is not None:
        reporter.say(line)


def _evaluate(
    config: RunConfig,
    state: TrainingState,
    prepared: PreparedData,
    run: RunDirectory,
    reporter: Reporter,
    on_test: TestCallback | None,
) -> dict[str, Any]:
    """Writes curves.json and, last, metrics.json; every rank scores, the first one measures."""
    predictor = Predictor(state.ranker, config)  # nothing is trained after it
    means, validation, _ = validated(config, predictor, prepared)
    columns = learn_columns(run, config, prepared.encoder, prepared.sample, prepared.repeats)
    watch = Watch(config, prepared.encoder)
    found_NP, labels = predict_rows(predictor, prepared.test, watch=watch)
    found_NP = means.of(found_NP)
    predictions_NP, _ = apart(predictor, found_NP)

    def measure() -> dict[str, Any]:
        oracle, seen_NT = prepared.oracle, predictions_NP[:, : len(config.tasks)]
        tasks, notes = metrics_of(config, predictions_NP, labels, oracle)
        for note in notes:
            reporter.say(f"note, test: {note}")
        alarms = alarm_of_explosion(state.position.history)
        alarms += watch.alarms(predictor, columns, seen_NT, labels, "test", look_for_leaks=False)
        alarms = with_effects(alarms, prepared.repeats, config, predictions_NP, labels)
        gains = over_wide(config, predictor, tasks, found_NP, labels)
        alarms = with_levels(alarms, config, tasks, labels, gains)
        say_alarms(alarms, reporter)
        metrics = {
            "tasks": tasks,
            "validation": validation,
            "train": _about_training(state, prepared),
            "seed": config.seed,
            "split_seed": config.split_seed,
            "versions": installed_versions(),
            **gains,
            **({} if prepared.as_of is None else {"as_of": prepared.as_of}),
            **alarms_of_metrics(alarms),
            **domain_metrics(config, prepared.encoder.domains, predictions_NP, labels, oracle),
        }
        if changes := changed_since(run):
            metrics["data_changed"] = changes
        if on_test is not None:
            # Without those with the display as logged, which stand behind
            on_test(predictions_NP[:, : len(prediction_columns(config.tasks))], labels)
        curves = split_curves(config, predictions_NP, labels, watch.gates, oracle)
        if config.model.bias is not None and watch.features is not None:
            sampled_NT = watch.sample.of(predictions_NP)
            curves["bias"] = learnt_bias(config, prepared.encoder, watch.features, sampled_NT)
        if means.after:
            kept = means.kept(prepared.encoder.labels, config)
            prepared.encoder.with_labels(kept).save(run.vocabulary)
        write_json(run.curves_file, curves)
        there_NP = predictor.without_absent(labels.domains_N, predictions_NP)
        write_json(run.predictions_file, predicted_file(config.tasks, there_NP))
        write_json(run.metrics_file, metrics)
        log_finished(config, run, metrics, reporter.say)
        return metrics

    return from_first(measure)


def _about_training(state: TrainingState, prepared: PreparedData) -> dict[str, Any]:
    position, train_rows = state.position, len(prepared.train)
    rows = train_rows * position.epoch
    found: dict[str, Any] = {
        "rows": train_rows,
        "seconds": position.seconds,
        "rows_per_second": rows / max(position.seconds, 1e-9),
        "epochs": position.epoch,
        "ranks": world_size(),
    }
    if state.frozen.summary:
        found["frozen"] = state.frozen.summary
    if prepared.as_of is not None:
        of_training = prepared.masked.get("train", {})
        found["masked"] = {task: counts["masked"] for task, counts in of_training.items()}
    return found
