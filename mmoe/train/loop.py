"""Epochs: train, validate, keep the best, stop early, resume."""

import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, closing, nullcontext
from copy import deepcopy
from itertools import islice
from typing import Any

from mmoe.alarms import exploded_losses
from mmoe.checkpoint import CheckpointFolder, CheckpointSaver
from mmoe.config import RunConfig
from mmoe.datasets import Batch
from mmoe.datasets.rows.order import Share
from mmoe.embeddings import managed_ids
from mmoe.metrics import higher_is_better, kind_of, monitor_value
from mmoe.parallel import from_first, rank, world_size
from mmoe.predictor import Predictor
from mmoe.run import Reporter, RunDirectory, Tracker, write_json
from mmoe.run.console import by_task
from mmoe.train.cuda import network_pass, on_device
from mmoe.train.evaluate import validated
from mmoe.train.loggers import EventLog, MlflowLog, open_loggers
from mmoe.train.measure import losses_of_mean
from mmoe.train.prepare import PreparedData
from mmoe.train.profiling import INPUT, PAUSE, TrainingProfile, part
from mmoe.train.ranks_report import CommunicationLog, describe_communication, describe_moves
from mmoe.train.state import TrainingState
from mmoe.train.step import Step, StepProgram, StepRanks

EpochCallback = Callable[[int, Mapping[str, Any]], bool | None]


class Trainer:
    """Runs the epochs of one run directory: trains, validates, keeps the best, stops early.

    Args:
        config: Of the run.
        state: Model and optimizers, new or restored.
        data: The encoded splits.
        run: Where checkpoints, history and events go.
        reporter: Told of progress.
        profile: Record some steps of the first epoch.
        check: Raises where the run's folder is no longer this process's; with `look=False` by what
            is known already.
        on_epoch: Asked after each epoch; see `train_run`.

    Raises:
        ValueError: The restored state comes from other data.
    """

    def __init__(
        self,
        config: RunConfig,
        state: TrainingState,
        data: PreparedData,
        run: RunDirectory,
        reporter: Reporter,
        *,
        profile: bool,
        check: Callable[..., None],
        on_epoch: EpochCallback | None,
    ) -> None:
        self.check, self.on_epoch = check, on_epoch
        self.config, self.state, self.data = config, state, data
        self.run, self.reporter = run, reporter
        self.checkpoints = CheckpointSaver(
            CheckpointFolder(run.checkpoint),
            keep=config.training.keep_checkpoints,
            background=config.training.checkpoint_in_background,
        )
        self.ids = managed_ids(state.ranker.embeddings)
        if state.position.train_rows not in (0, len(data.train)):
            raise ValueError(
                f"{run.path}: was trained on {state.position.train_rows:,} rows, but {data.origin} "
                f"now has {len(data.train):,} to train on; resume with the same data, or start anew"
            )
        if state.position.fingerprint not in ("", data.fingerprint):
            raise ValueError(
                f"{run.path}: the files of {data.origin} are not those it was trained on (their "
                "names, row groups or rows differ); resume with the same files, or start anew"
            )
        state.position.train_rows = len(data.train)
        state.position.fingerprint = data.fingerprint
        size = config.training.batch_size
        self.batches_per_epoch = math.ceil(len(data.train) / size)
        self.ranks = StepRanks.of(state.ranker.network, config.parallel.timeout_seconds)
        self.communication = CommunicationLog(
            state.ranker.network, self.ranks, config.parallel.host_size
        )
        self.of_mean = losses_of_mean(config, data.encoder.labels)
        self.program: StepProgram | None = None
        self.loggers: list[EventLog | MlflowLog] = []  # of the first rank
        self.profile = self._new_profile() if profile and rank() == 0 else None

    def _new_profile(self) -> TrainingProfile | None:
        if self.state.position.finished:
            self.reporter.say("--profile: the run has finished, there is no step left to look at")
            return None
        left = self.batches_per_epoch - self.state.position.batch
        steps = math.ceil(left / self.config.training.accumulate_batches)
        cuda = self.state.ranker.device.type == "cuda"
        return TrainingProfile(self.run.profile, steps, self.reporter, cuda=cuda)

    def _new_program(self) -> StepProgram:
        rows, say = len(self.data.train), self.reporter.say
        captured = network_pass(self.state.ranker, self.config, rows, say)
        steps = steps_of(self.config, rows)
        return StepProgram(self.state, self.config, steps, self.ranks, network_pass=captured)

    def fit(self) -> None:
        """Trains until the last epoch, or until the monitored metric stops improving."""
        position, training = self.state.position, self.config.training
        asked_to_stop = False
        with ExitStack() as stack:  # left when the last checkpoint is written
            if rank() == 0:
                say = self.reporter.say
                self.loggers = open_loggers(self.config, self.run, position.step, say)
            for logger in self.loggers:
                stack.enter_context(logger)
            stack.enter_context(self.checkpoints)
            self._say_watched()
            self._judge_start()
            while not position.finished:
                self._epoch()
                with part(PAUSE):
                    self._close_epoch()
                    exploded = "exploded" in position.history[-1]
                    without = position.epochs_without_gain
                    stop = exploded or without >= self._waits()
                    asked_to_stop = self._asked_to_stop() and not stop
                    position.finished = stop or asked_to_stop or position.epoch >= training.epochs
                    best = position.epochs_without_gain == 0
                    if not position.finished:
                        self._rebalance()
                    self._save(best=best)
                    self._write_history()
        self.ranks.close()
        self._write_history()  # a resumed run may have lost it
        if asked_to_stop:
            self.reporter.say(f"stopped after epoch {position.epoch}, as a callback asked")
        elif training.epochs > position.epoch > 0 and "exploded" not in position.history[-1]:
            self.reporter.say(
                f"stopped after epoch {position.epoch}: {training.monitor} did not improve for "
                f"{position.epochs_without_gain} epoch(s)"
            )

    def _say_watched(self) -> None:
        """Names the tasks that have no say in which epoch is the best: others' mean decides."""
        monitor = self.config.training.monitor
        task_name, _, metric = monitor.rpartition(".")
        tasks = self.config.tasks
        without = [task.name for task in tasks if metric not in task.monitored]
        if task_name != "mean" or not without or self.state.position.finished:
            return
        having = [task.name for task in tasks if task.name not in without]
        self.reporter.say(
            f"the best epoch is chosen by {monitor} over {', '.join(having)}; "
            f"{', '.join(without)} {'has' if len(without) == 1 else 'have'} no {metric}"
        )

    def _judge_start(self) -> None:
        """Makes a model that begins as its wide part, or with weights it was given, a candidate."""
        position, given = self.state.position, self.checkpoints.folder.exists()
        if position.step or position.best_value is not None:
            return
        whole = all(kind_of(task.kind).linear_logit for task in self.config.tasks if task.weight)
        if (self.state.ranker.wide is None or not whole) and not given:
            return  # a task that begins with a constant needs epochs, however good others begin
        metrics, _ = self._validate()
        value = monitor_value(metrics, self.config.training.monitor)
        if value is None:  # nothing to compare by: the newest weights are kept
            return
        position.best_value = value
        position.history.append(
            {"epoch": 0, "step": 0, "validation": metrics, "monitor": value, "best": True}
        )
        self._save(best=True)
        self._write_history()
        self.reporter.say(f"before the first epoch  validation: {self._judged(metrics)}  *best")

    def _waits(self) -> int:
        """Returns how many epochs without improvement end training, as things stand."""
        position = self.state.position
        values = {entry["epoch"]: entry["monitor"] for entry in position.history}
        best_epoch = position.epoch - position.epochs_without_gain
        return self.config.training.waits(best_epoch, values.pop(0, None), values.values())

    def _asked_to_stop(self) -> bool:
        """Whether the caller, told of the epoch, wants no other; all ranks do what the first says.

        It is given a copy: what it does with that is not written.
        """
        tell = self.on_epoch
        if tell is None:
            return False
        entry = deepcopy(self.state.position.history[-1])
        return from_first(lambda: tell(entry["epoch"], entry) is True)

    def _rebalance(self) -> None:
        """Moves experts to other ranks, where that was asked for and pays off."""
        if self.config.parallel.rebalance == "off":
            return
        lines = describe_moves(self.state)
        for line in lines:
            self.reporter.say(line)
        if lines:
            self.ranks.find_gradients()

    def _save(self, *, best: bool) -> None:
        self.check()
        self.state.save(self.checkpoints, best=best)

    def _write_history(self) -> None:
        if rank() == 0:
            write_json(self.run.history_file, self.history())

    def history(self) -> dict[str, Any]:
        """Epochs so far, as history.json holds them, and the state before the first."""
        entries = self.state.position.history
        held: dict[str, Any] = {"epochs": [entry for entry in entries if entry["epoch"]]}
        held["monitor"] = self.config.training.monitor
        if len(held["epochs"]) < len(entries):
            held["start"] = entries[0]
        return held

    def _epoch(self) -> None:
        position = self.state.position
        if position.batch == 0:
            position.loss_sums = [0.0] * len(self.config.tasks)
            position.loss_rows = [0.0] * len(self.config.tasks)
            position.epoch_seconds = 0.0
            if self.ids is not None:
                self.ids.restart_counts()
        every = self.config.training.checkpoint_every_steps
        self.state.train_mode()
        what = f"epoch {position.epoch + 1}/{self.config.training.epochs}"
        done = position.batch * self.config.training.batch_size
        self.communication.begin()
        self.first_step = position.step  # of this epoch, as far as this process trained it
        with ExitStack() as stack:
            tracker = stack.enter_context(
                self.reporter.track(what, len(self.data.train), "rows", done=done)
            )
            start = time.perf_counter()
            if self.program is None:  # before a thread copies batches: none may while it captures
                self.program = self._new_program()
            # Closed, whatever happens, so that nothing reads on in the background
            batches = stack.enter_context(closing(self._batches()))
            steps = stack.enter_context(closing(self.program.run(self._taken(batches))))
            while self._step(steps, tracker, start):
                if every and position.step % every == 0 and position.batch < self.batches_per_epoch:
                    self._save(best=position.best_value is None)
                start = time.perf_counter()

    def _step(self, steps: Iterator[Step], tracker: Tracker, start: float) -> bool:
        """Trains on the next batches and says so; False where there are none."""
        position = self.state.position
        with nullcontext() if self.profile is None else self.profile.step():
            step = next(steps, None)
            if step is None:
                return False
            self.check(look=False)
            assert step.found is not None
            result = step.found
            size = self.config.training.batch_size
            done = position.batch * size
            position.batch += len(step.batches)
            step_rows = min(position.batch * size, len(self.data.train)) - done  # of all ranks
            position.step += 1
            for t, (loss, rows) in enumerate(zip(result.losses, result.rows, strict=True)):
                position.loss_sums[t] += loss * rows
                position.loss_rows[t] += rows
            for logger in self.loggers:
                logger.losses(position.step, self._named(result.losses), result.dropped)
            tracker.advance(step_rows, _note(self._mean_losses()))
            seconds = time.perf_counter() - start
            position.epoch_seconds += seconds
            position.seconds += seconds
            if self.profile is not None:
                self.profile.saw(step_rows)
        return True

    def _taken(self, batches: Iterator[Batch]) -> Generator[list[Batch]]:
        """The batches of each step; the last step of an epoch may have fewer."""
        while True:
            with part(INPUT):
                taken = list(islice(batches, self.config.training.accumulate_batches))
            if not taken:
                return
            yield taken

    def _batches(self) -> Generator[Batch]:
        """The batches of this epoch that are still to do; the order depends on seed and epoch."""
        position, size = self.state.position, self.config.training.batch_size
        share, seed = Share(rank(), world_size()), self.config.seed
        batches = self.data.train.epoch_batches(seed, position.epoch, size, position.batch, share)
        return on_device(batches, self.state.ranker.device)

    def _close_epoch(self) -> None:
        """Validates and writes the epoch into the history."""
        position = self.state.position
        sent = self.communication.end(position.step - self.first_step)
        metrics, notes = self._validate()
        monitor = self.config.training.monitor
        value = monitor_value(metrics, monitor)
        exploded = exploded_losses(self._mean_losses(), self.of_mean)
        if exploded and any(entry["best"] for entry in position.history):
            gain = False  # whatever the metrics of these weights are
        elif value is None:
            # Nothing to compare by, so the newest weights are kept
            notes = [*notes, f"{monitor} cannot be computed on the validation split"]
            gain = True
        else:
            best = position.best_value
            gain = best is None or (value > best if higher_is_better(monitor) else value < best)
        if gain:
            position.best_value, position.epochs_without_gain = value, 0
        else:
            position.epochs_without_gain += 1
        position.epoch += 1
        position.batch = 0
        for entry in position.history:
            entry["best"] = entry["best"] and not gain
        rate = len(self.data.train) / max(position.epoch_seconds, 1e-9)
        notes = [note for note in notes if " rests on " not in note]  # said of the test split
        entry = {
            "epoch": position.epoch,
            "step": position.step,
            "seconds": position.epoch_seconds,
            "rows_per_second": rate,
            "loss": self._mean_losses(),
            "validation": metrics,
            "monitor": value,
            "best": gain,
        }
        if exploded:
            entry["exploded"] = exploded
        if sent is not None:
            entry["communication"] = sent
        if self.ids is not None:
            entry["ids"] = self.ids.summary()
        position.history.append(entry)
        for logger in self.loggers:
            logger.epoch(position.step, metrics, rate)
        self._say_epoch(entry, notes if position.epoch == 1 else [])

    def _validate(self) -> tuple[dict[str, dict[str, Any]], list[str]]:
        ranker = self.state.ranker
        raw = ranker.network
        ranker.network = self.state.scoring_network  # the average, where there is one
        try:
            return validated(self.config, Predictor(ranker, self.config), self.data)[1:]
        finally:
            ranker.network = raw
            self.state.train_mode()  # a Predictor leaves it in evaluation mode

    def _say_epoch(self, entry: Mapping[str, Any], notes: list[str]) -> None:
        star = "  *best" if entry["best"] else ""
        self.reporter.say(
            f"epoch {entry['epoch']}/{self.config.training.epochs}  "
            f"{entry['rows_per_second']:,.0f} rows/s  {_note(entry['loss'])}  "
            f"validation: {self._judged(entry['validation'])}{star}"
        )
        for line in describe_communication(entry.get("communication")):
            self.reporter.say(f"  {line}")
        for table, ids in entry.get("ids", {}).items():
            self.reporter.say(f"  {_rows_in_use(table, ids)}")
        for note in notes:
            self.reporter.say(f"  note, validation: {note}")

    def _judged(self, metrics: Mapping[str, Mapping[str, Any]]) -> str:
        """Names each task's monitored metric, or the headline of one that does not have it."""
        monitored = self.config.training.monitor.rpartition(".")[2]
        shown: dict[str, dict[str, float | None]] = {}
        for task in self.config.tasks:
            name = monitored if monitored in task.monitored else kind_of(task.kind).headline
            value = metrics.get(task.name, {}).get(name)
            shown.setdefault(name, {})[task.name] = value
        said = [by_task(values, name, ", ") for name, values in shown.items()]
        return ", ".join(filter(None, said)) or "nothing to compute"

    def _mean_losses(self) -> dict[str, float | None]:
        position = self.state.position
        means = [
            total / rows if rows else None
            for total, rows in zip(position.loss_sums, position.loss_rows, strict=True)
        ]
        return self._named(means)

    def _named(self, values: list[Any]) -> dict[str, Any]:
        return dict(zip((task.name for task in self.config.tasks), values, strict=True))


def _rows_in_use(table: str, ids: Mapping[str, Any]) -> str:
    unseen = "no lookups" if ids["unseen"] is None else f"{ids['unseen']:.1%} of lookups unseen"
    return (
        f"table {table}: {ids['in_use']:,} of {ids['rows']:,} rows in use, "
        f"{ids['evicted']:,} evicted so far, {unseen}"
    )


def steps_of(config: RunConfig, train_rows: int) -> int:
    """Returns the optimizer steps of all epochs."""
    batches = math.ceil(train_rows / config.training.batch_size)
    return math.ceil(batches / config.training.accumulate_batches) * config.training.epochs


def _note(losses: Mapping[str, float | None]) -> str:
    return f"loss {by_task(losses)}"
