"""`Watch`: what alarms need of rows that are evaluated, taken while they pass."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mmoe.alarms import (
    Alarm,
    Column,
    TrainingColumns,
    drifts,
    gate_alarms,
    label_deviation,
    leaks_in,
    lines_of,
    same_predictions,
    tasks_outdone,
    wrong_level,
)
from mmoe.config import RunConfig
from mmoe.config.gates import DSelectKGateConfig, LearnedGateConfig, StaticGateConfig
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.rows.columns import all_alike, columns_of
from mmoe.datasets.rows.encoded import EncodedData, EncodedFeatures, EncodedLabels
from mmoe.metrics.task_kinds import kind_of
from mmoe.models.bias_tower import own_lookups
from mmoe.parallel import from_all
from mmoe.predictor import Predictor
from mmoe.run.console import Reporter
from mmoe.tasks.gate_statistics import GateStatistics
from mmoe.train.alarms.experts import ROWS, constant_experts
from mmoe.train.alarms.learnt import events_of, halves, independent_rows, tasks_of
from mmoe.train.alarms.sampled import SampledRows, rows_to_look_at

_FEWEST_ROWS = 100  # for all to be alike by no chance
_ALL_ALIKE = Alarm(
    kind="constant_predictions",
    about="all tasks",
    finding="all rows are the same to the model: their ids are missing or were not in training, "
    "their numbers equal",
    mend="use features whose values come again, not an id of each row",
)


class Watch:
    """Gates and a sample of the rows of one pass over a split.

    Args:
        config: Of the run.
        encoder: Fitted.
    """

    def __init__(self, config: RunConfig, encoder: FeatureEncoder) -> None:
        self.config, self.encoder = config, encoder
        self.gates = GateStatistics()
        self.sample = SampledRows(0)
        self.features: EncodedFeatures | None = None  # sampled, on rank 0
        self.glance: EncodedData | None = None

    def begin(self, total: int, first: int) -> None:
        """Is told before the first chunk how many rows there are, and which one comes first."""
        self.sample = SampledRows(total, first, rows_to_look_at(len(self.encoder.codecs)))

    def see(self, chunk: EncodedData) -> None:
        """Looks at the next chunk."""
        if self.glance is None:
            self.glance = chunk.rows(0, min(len(chunk), ROWS))
        self.sample.add(chunk)

    def gather(self) -> None:
        """Brings what all ranks saw together on rank 0; every rank has to call it."""
        total = GateStatistics()
        for of_rank in from_all(self.gates):
            total.add(of_rank)
        self.gates, self.features = total, self.sample.gathered()

    def alarms(
        self,
        predictor: Predictor,
        training: TrainingColumns | None,
        predictions_NT: np.ndarray,
        labels: EncodedLabels,
        where: str,
        *,
        look_for_leaks: bool,
    ) -> list[Alarm]:
        """Returns all that is found, the gravest first; on rank 0, after `gather`.

        Args:
            predictor: The model.
            training: What the run knows of its training rows; None: nothing is compared with them.
            predictions_NT: Of all rows.
            labels: Of all rows.
            where: What the rows are called.
            look_for_leaks: In these rows, where `training` has not been looked through.
        """
        assert self.features is not None, "gather comes before"
        columns = list(columns_of(self.features, self.encoder))
        labels_NT, observed_NT, seen_NT = (
            self.sample.of(x) for x in (labels.labels_NT, labels.observed_NT, predictions_NT)
        )
        if look_for_leaks or training is None:
            found = leaks_in(
                columns, labels_NT, observed_NT, tasks_of(self.config), halves(len(labels_NT))
            )
        else:
            found = list(training.alarms)
        if len(labels_NT) >= _FEWEST_ROWS and all_alike(self.features):
            found.append(_ALL_ALIKE)  # and what models do with such rows says nothing of them
        else:
            leaking = {alarm.about for alarm in found}
            # Nor can the model be outdone by what its scores do not read
            leaking |= own_lookups(self.config.model.bias, self.encoder)
            leaking |= {*(self.config.model.bias.features if self.config.model.bias else ())}
            fair = [column for column in columns if column.name not in leaking]
            found += self._of_model(predictor, training, fair, seen_NT, labels_NT, observed_NT)
        if training is not None:
            judged_by = min(independent_rows(self.config, labels), len(labels_NT))
            found += drifts(training, columns, judged_by, where)
        return found

    def _of_model(
        self,
        predictor: Predictor,
        training: TrainingColumns | None,
        columns: Sequence[Column],
        seen_NT: np.ndarray,
        labels_NT: np.ndarray,
        observed_NT: np.ndarray,
    ) -> list[Alarm]:
        """Of what it predicts, and of its experts and gates; tasks of weight 0 are left out."""
        found: list[Alarm] = []
        if training is not None:
            events = events_of(self.config, trained=True)
            found += tasks_outdone(training, columns, labels_NT, observed_NT, seen_NT, events)
        tasks = tasks_of(self.config)
        trained = [
            t
            for t, task in enumerate(self.config.tasks)
            if task.weight and kind_of(task.kind).orders_rows
        ]
        found += same_predictions(
            seen_NT[:, trained],
            labels_NT[:, trained],
            observed_NT[:, trained],
            [tasks[t] for t in trained],
            left_at_mean=self._left_at_mean(predictor),
        )
        return [*found, *self._of_gates(predictor)]

    def _left_at_mean(self, predictor: Predictor) -> list[str]:
        wide = predictor.ranker.wide
        mixed = [] if wide is None else wide.mixed_T.tolist()
        return [task.name for task, own in zip(self.config.tasks, mixed, strict=False) if not own]

    def _of_gates(self, predictor: Predictor) -> Sequence[Alarm]:
        """None where gates are to be the same for every row, or to settle on few experts."""
        gate = self.config.model.gate if self.config.model.has_gates else None
        settles = isinstance(gate, StaticGateConfig | DSelectKGateConfig)
        if not isinstance(gate, LearnedGateConfig) or settles:
            return []
        constant = [] if self.glance is None else constant_experts(predictor, self.glance)
        return gate_alarms(self.gates.summary(), constant)


def with_levels(
    alarms: Sequence[Alarm],
    config: RunConfig,
    metrics: Mapping[str, Mapping[str, Any]],
    labels: EncodedLabels,
) -> list[Alarm]:
    """Returns the alarms, and behind them those that metrics of trained tasks give rise to.

    Args:
        alarms: Of the same rows; where all of these are alike to the model, nothing more is said.
        config: Of the run.
        metrics: Task → its metrics of some rows.
        labels: Of these rows.
    """
    if _ALL_ALIKE in alarms:
        return list(alarms)
    trained = {task.name: t for t, task in enumerate(config.tasks) if task.weight}
    weights_NT = np.where(labels.observed_NT, labels.weights_NT, 0)
    deviations = {
        name: label_deviation(labels.labels_NT[:, t], weights_NT[:, t])
        for name, t in trained.items()
        if not kind_of(config.tasks[t].kind).is_event
    }
    judged = {name: metrics[name] for name in trained if name in metrics}
    return [*alarms, *wrong_level(judged, deviations)]


def say_alarms(alarms: Sequence[Alarm], reporter: Reporter) -> None:
    """Says each alarm on a line."""
    for line in lines_of(alarms):
        reporter.say(line)


def alarms_of_metrics(alarms: Sequence[Alarm]) -> dict[str, list[dict[str, str]]]:
    """Returns what metrics.json has of them: nothing where there are none."""
    return {"alarms": [alarm.as_dict() for alarm in alarms]} if alarms else {}
