"""A whole run: data, model and optimizer, training, evaluation, files."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mmoe.alarms import alarm_of_explosion, predicted_file
from mmoe.checkpoint import CheckpointFolder, StoredTensors
from mmoe.checkpoint.resume_state import RandomState
from mmoe.checkpoint.weights import SizeLimit, check_tables
from mmoe.config import DeviceKind, RunConfig, TableVectors, prediction_columns
from mmoe.config.loading import with_used_modules
from mmoe.datasets import EncodedLabels, FeatureEncoder, Splits, load_splits
from mmoe.datasets.features.id_map import FIRST_KNOWN
from mmoe.datasets.features.ids import IdCodec
from mmoe.datasets.features.table_vectors import vector_chunks
from mmoe.datasets.labels.maturity import describe_masked
from mmoe.datasets.rows.frames import TableLike, holds_rows
from mmoe.datasets.rows.sources import at_versions
from mmoe.datasets.stream import describe_lanes
from mmoe.metrics import kind_of
from mmoe.models import Ranker
from mmoe.models.build import build_ranker
from mmoe.models.layout import describe_device, resolve_device
from mmoe.parallel import (
    Sharded,
    count_loads,
    from_first,
    rank,
    spread_layout,
    training_group,
    world_size,
)
from mmoe.parallel.launch.cores import bind_to_own_cores
from mmoe.parallel.sharded_tensors import put_rows
from mmoe.predictor import Predictor
from mmoe.process_settings import is_tuned
from mmoe.run import Reporter, RunDirectory, SilentReporter, write_json
from mmoe.run.folder_claim import MARK
from mmoe.run.memory import keep_freed_memory
from mmoe.tasks.kinds import objective_of
from mmoe.train.alarms import Watch, learn_columns, say_alarms, with_effects, with_levels
from mmoe.train.claim import (
    RunClaim,
    all_see,
    installed_versions,
    same_data_on_all_ranks,
    same_on_all_ranks,
    same_warm_start_on_all_ranks,
    with_absolute_paths,
    without_paths,
)
from mmoe.train.evaluate import apart, learnt_bias, over_wide, predict_rows, split_curves, validated
from mmoe.train.fit_wide import fit_wide, keep_linear_models
from mmoe.train.frozen import Frozen
from mmoe.train.loggers import check_loggers, log_finished
from mmoe.train.loop import EpochCallback, Trainer, steps_of
from mmoe.train.measure import domain_metrics, metrics_of
from mmoe.train.optim import build_average, build_optimizer, check_schedule
from mmoe.train.prepare import (
    PreparedData,
    describe_constants,
    describe_cut_groups,
    prepare,
    refuse_change,
)
from mmoe.train.ranks_report import say_plan
from mmoe.train.run_data import ResumedData, RunData, RunMaturity, describe_continued
from mmoe.train.stages import with_recorded_stages, with_stages
from mmoe.train.state import Position, TrainingState
from mmoe.train.warm_start import EarlierRun, WarmStart, WarmStartReport, transfer
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
    if asked.resume:  # with what it began with
        run = RunDirectory(out)
        warm_start = from_first(lambda: WarmStart.recorded(run, asked.warm_start))
        config = with_recorded_stages(config, run)
        if (out / MARK).exists() and run.config_file.exists():
            config = with_kept_targets(config, run.config())
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
        if old is not None:
            note = state.restore(CheckpointFolder(old.checkpoint), seed=config.seed)
            if state.position.step:  # a run with weights of its own has stopped at none
                reporter.say(f"resuming after step {state.position.step} of {old.path}")
            if note is not None:
                reporter.say(note)
            self.resumed.take_in(state.position)
            return old, state
        report = begin(self.earlier, self.asked.warm_start, state, config, prepared, reporter)
        numbered, out = self.asked.numbered, self.asked.out
        run = from_first(lambda: claim.start(config, prepared, out, report, numbered=numbered))
        claim.begun = run.path
        try:
            all_see(run)
        except ValueError:
            claim.give_up(run)
            raise
        if report is not None:  # its run may have been trained on test rows
            remembered = from_first(lambda: RunData.read(run))
            line = None if remembered is None else describe_continued(remembered, config)
            if line is not None:
                reporter.say(line)
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
        check = claim.check
        trainer = Trainer(
            config, state, prepared, run, reporter, profile=profile, check=check, on_epoch=on_epoch
        )
        try:
            trainer.fit()
        except Exception as error:
            # A run that never got as far as a checkpoint must not stand in the mended command's way
            claim.give_up(run)
            told = claim.wrap_error(run, error)
            if told is error:
                raise
            raise told from error
        if prepared.streamed:
            from_first(lambda: refuse_change(config, prepared.data, listed=True))
        state.restore_best(trainer.checkpoints.folder)
        claim.check()


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
        metrics = {
            "tasks": tasks,
            "validation": validation,
            "train": _about_training(state, prepared),
            "seed": config.seed,
            "split_seed": config.split_seed,
            "versions": installed_versions(),
            **gains,
            **({} if prepared.as_of is None else {"as_of": prepared.as_of}),
            **say_alarms(alarms, reporter),
            **domain_metrics(config, prepared.encoder.domains, predictions_NP, labels, oracle),
        }
        remembered = RunData.read(run)
        if remembered is not None and (changes := remembered.changes()):
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


def training_state(
    config: RunConfig,
    prepared: PreparedData,
    device: torch.device | None = None,
    *,
    stored: StoredTensors | None = None,
) -> TrainingState:
    """Builds the model of a run, its optimizer and its average, freshly initialised.

    Args:
        config: Of the run.
        prepared: Knows its encoder.
        device: Default: the CPU.
        stored: The checkpoint's model by which the weights are to be replaced: no file that the
            config names is read then, and nothing larger is made.

    Raises:
        ValueError: Features, tables and model do not go together, or not with what is stored.
    """
    draws = RandomState(device or torch.device("cpu"), seed=config.seed)
    built, limit = config, nullcontext()
    if stored is not None:
        built, limit = config.without_weight_files(), SizeLimit.of(stored)
        check_tables(prepared.encoder.tables, stored)
    with draws.drawing(), limit:
        ranker = build_ranker(built, prepared.encoder, device)
    _start_at_base_rates(ranker, config, prepared.encoder)
    frozen = Frozen.of(ranker, config, prepared.encoder.tables)
    optimizer = build_optimizer(ranker.network, config.training.optimizer)
    average = build_average(ranker.network, config.training.ema_decay)
    if rank() > 0:
        draws.seed(config.seed + rank())  # dropout and noise of its own rows
    if config.parallel.rebalance == "epoch":
        count_loads(ranker.network)
    layout = spread_layout(ranker.network)
    return TrainingState(ranker, optimizer, average, Position(), layout, frozen, draws)


def _start_at_base_rates(ranker: Ranker, config: RunConfig, encoder: FeatureEncoder) -> None:
    """Gives each tower the bias with which it says the same of every row, and is right on average.

    Towers of one's own kind stay as they are, unless they have a method `start_at`. A wide part
    has the base rate of the tasks that it is fitted to.
    """
    labels = encoder.labels
    for t, task in enumerate(config.trained_tasks):
        of_wide = config.model.wide and task.weight > 0 and kind_of(task.kind).linear_logit
        if task.name in labels and not of_wide:
            start = objective_of(task.kind).start(task, labels[task.name])
            ranker.network.towers.start_at(t, start)


def begin(
    earlier: EarlierRun | None,
    warm_start: WarmStart | None,
    state: TrainingState,
    config: RunConfig,
    prepared: PreparedData,
    reporter: Reporter,
) -> WarmStartReport | None:
    """Fills a new state: from an earlier run and files of vectors; a wide part is fitted.

    Args:
        earlier: The run of `warm_start`; None: there is none.
        warm_start: What to take of it.
        state: As `training_state` made it; changed in place.
        config: Of the new run.
        prepared: Its rows and encoder.
        reporter: Told of what came over.

    Returns:
        What a warm start kept; None: there was no earlier run.

    Raises:
        ValueError: The earlier run, or a file of vectors, does not fit.
    """
    report = None
    if earlier is not None and warm_start is not None:
        report = transfer(earlier, state, config, prepared.encoder, warm_start.new_experts)
        same_warm_start_on_all_ranks(report)  # before anything is written
    learnt = {} if earlier is None else earlier.rows()
    vectors = _start_from_vectors(state.ranker, prepared.encoder, learnt)
    for line in [*(report.lines() if report else ()), *vectors]:
        reporter.say(line)
    fit_wide(state.ranker.wide, config, prepared, reporter)
    keep_linear_models(state.ranker.wide, earlier, config, prepared.encoder, reporter)
    return report


_ROWS = 2**16  # of a table, that are written at once
_LARGEST_HALF = 65_504


def _start_from_vectors(
    ranker: Ranker, encoder: FeatureEncoder, learnt: Mapping[str, int]
) -> list[str]:
    """Puts vectors into the tables that begin with them, each file read piece by piece.

    Every rank reads the whole file, and writes the rows that it holds: the same on any number of
    ranks. A row without a vector keeps its first values, and where the table is frozen the mean of
    the vectors, for they are all that it will ever be. So do rows 0 and 1, of missing and unseen
    ids. Of the rows that an earlier run has `learnt`, trained ones stay as they are; frozen ones
    get today's vectors, and those that today's file has not keep theirs.
    """
    tables: Mapping[str, Sharded] = ranker.tables.table_shards()
    codecs = {
        codec.table: codec
        for codec in reversed(encoder.codecs)
        if isinstance(codec, IdCodec)
        and codec.vectors is not None
        and codec.table not in encoder.config.frozen_tables
    }
    return [
        _fill(codec, encoder, tables[name], learnt.get(name, 0))
        for name, codec in reversed(codecs.items())
    ]


def _fill(codec: IdCodec, encoder: FeatureEncoder, table: Sharded, learnt: int) -> str:
    vectors, used_by = codec.vectors, f"table {codec.table!r}"
    assert vectors is not None, "asked for of such tables alone"
    ids, scaling = codec.ids(encoder.rules), codec.scaling(encoder.rules)
    has_N = np.zeros(ids.num_rows, bool)
    for chunk in vector_chunks(vectors, used_by):
        if chunk.numbers_NL.shape[1] != len(scaling.mean):
            raise ValueError(
                f"{vectors.path}: its vectors have {chunk.numbers_NL.shape[1]} numbers, but "
                f"{len(scaling.mean)} in what table {codec.table!r} was fitted to; give the "
                "feature another name, or bring back what was there"
            )
        rows_N = ids.lookup(chunk.ids, f"{vectors.path}: ids of {used_by}").astype(np.int64)
        wanted_N = rows_N >= (FIRST_KNOWN if vectors.frozen else max(learnt, FIRST_KNOWN))
        values_RD = scaling.rows(chunk.numbers_NL[wanted_N], vectors)
        _check_half(values_RD, codec, vectors)
        put_rows(table, torch.from_numpy(rows_N[wanted_N]), torch.from_numpy(values_RD))
        has_N[rows_N[rows_N >= FIRST_KNOWN]] = True
    if vectors.frozen:
        without_R = np.flatnonzero(~has_N[learnt:]) + learnt
        other_D = torch.from_numpy(scaling.row_of_others(vectors))
        for some_R in torch.from_numpy(without_R).split(_ROWS):
            put_rows(table, some_R, other_D.expand(len(some_R), -1))
    return _said(codec.table, vectors, has_N, learnt)


def _check_half(values_RD: np.ndarray, codec: IdCodec, vectors: TableVectors) -> None:
    """Refuses what rows in fp16 cannot hold, on every rank alike."""
    precision = codec.config.parallel.placement(codec.table).precision
    if precision == "fp16" and np.abs(values_RD).max(initial=0.0) > _LARGEST_HALF:
        raise ValueError(
            f"{vectors.path}: holds numbers beyond {_LARGEST_HALF:,}, and the rows of table "
            f"{codec.table!r} are fp16; say vectors.scale: standard or unit, or precision: fp32"
        )


def _said(table: str, vectors: TableVectors, has_N: np.ndarray, learnt: int) -> str:
    known, total = int(has_N.sum()), len(has_N) - FIRST_KNOWN
    kept = min(max(learnt - FIRST_KNOWN, 0), total)
    goes_on = ""
    if kept:
        goes_on = f"; {kept:,} are those of the earlier run" + (
            ", with today's vectors" if vectors.frozen else ", as they were trained"
        )
    how = "frozen" if vectors.frozen else "and is trained"
    return (
        f"table {table} begins with {vectors.path}, {how}: {known:,} of {total:,} ids have a "
        f"vector{goes_on}"
    )
