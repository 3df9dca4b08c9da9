"""Alarms of a run: what it hands to `mmoe.alarms`, and what it does with the findings.

`learn_columns` looks at a sample of the training rows, `Watch` at the rows that are evaluated, as
they pass.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from mmoe.alarms import (
    Alarm,
    Column,
    Effect,
    TrainingColumns,
    adds_nothing,
    drifts,
    gate_alarms,
    label_deviation,
    leaks_in,
    lines_of,
    rare_ids,
    repeated_rows,
    same_predictions,
    tasks_outdone,
    wrong_level,
)
from mmoe.config import RunConfig
from mmoe.datasets import (
    BatchSource,
    EncodedData,
    EncodedFeatures,
    EncodedLabels,
    FeatureEncoder,
    encode_labels,
)
from mmoe.datasets.labels.maturity import Maturity
from mmoe.datasets.labels.targets import with_targets
from mmoe.datasets.rows.columns import all_alike, columns_of
from mmoe.datasets.rows.encoded import join
from mmoe.datasets.rows.repeats import Repeats
from mmoe.datasets.values.hashing import mix64
from mmoe.metrics import kind_of
from mmoe.mixture import Inputs, MultiGateMixture
from mmoe.models.columns import own_lookups
from mmoe.parallel import from_all, rank, to_first
from mmoe.predictor import ROWS_PER_TILE, Predictor
from mmoe.run import Reporter, RunDirectory, write_json
from mmoe.tasks import GateStatistics
from mmoe.train.measure import metrics_of

# Rows that alarms look at: an AUC of 0.99 and shares of a percent are then known well enough, and
# thirty columns take about a second
_MOST_ROWS = 100_000
# Cells, so that a thousand columns take no longer
_MOST_CELLS = 4_000_000
_FEWEST_SAMPLED = 5_000
_SEED = 1  # of the hash: rows of the training, validation and test splits are drawn by another


def _rows_to_look_at(columns: int) -> int:
    """Returns the size of a sample of so many columns."""
    return int(np.clip(_MOST_CELLS // max(columns, 1), _FEWEST_SAMPLED, _MOST_ROWS))


def sampled(first: int, count: int, total: int, most: int = _MOST_ROWS) -> np.ndarray:
    """Returns which of `count` rows from number `first` on are in the sample, bool.

    Args:
        first: Number of the first row.
        count: Rows.
        total: Rows there are in all.
        most: About how many are sampled; all where there are no more.

    Example:
        >>> sampled(0, 5, total=5).all(), int(sampled(0, 100_000, total=100_000, most=1_000).sum())
        (np.True_, 960)
    """
    if total <= most:
        return np.ones(count, bool)
    rows = np.arange(first, first + count, dtype=np.uint64)
    return mix64(rows, _SEED) < np.uint64(2**64 // total * most)


class _SampledRows:
    """Sampled rows of a split, taken out of its chunks as they pass, from number `first` on."""

    def __init__(self, total: int, first: int = 0, most: int = _MOST_ROWS) -> None:
        self.total, self.next, self.most = total, first, most
        self._chunks: list[EncodedData] = []

    def add(self, chunk: EncodedData) -> None:
        """Takes its rows of the next chunk."""
        mine_N = sampled(self.next, len(chunk), self.total, self.most)
        self.next += len(chunk)
        self._chunks.append(EncodedData(features=_taken(chunk.features, mine_N)))

    def gathered(self) -> EncodedFeatures:
        """Returns on rank 0 the rows of all ranks, in order; every rank has to call it."""
        mine = join(self._chunks).features
        of_ranks = [EncodedData(features=features) for features in to_first(mine)]
        return join(of_ranks).features

    def of(self, rows_NX: np.ndarray) -> np.ndarray:
        """Returns the sampled rows of an array that has all `total` of them."""
        return rows_NX[sampled(0, self.total, self.total, self.most)]


class SampledTraining:
    """Sampled training rows: of a stream taken while its encoder is fitted, else from memory.

    Args:
        config: Of the run.
        origin: What the user calls the data.
        total: Rows of the stream.
        maturity: Of the run's labels.
    """

    def __init__(
        self, config: RunConfig, origin: str, total: int, maturity: Maturity | None
    ) -> None:
        self.config, self.origin, self.total = config, origin, total
        self.maturity = maturity
        self.most = _rows_to_look_at(len(config.features))
        self.next = 0
        self._tables: list[pa.Table] = []

    def add(self, table: pa.Table) -> None:
        """Takes its rows of the next table of a stream."""
        mine_N = sampled(self.next, table.num_rows, self.total, self.most)
        self.next += table.num_rows
        # A filtered table is a copy: it does not hold the chunk that it comes from
        self._tables.append(table.filter(pa.array(mine_N)))

    def rows(
        self, train: BatchSource, encoder: FeatureEncoder, *, keep: bool = False
    ) -> EncodedData | None:
        """Returns the sample, encoded; None of a stream that did not pass by.

        Args:
            train: The training rows.
            encoder: Encodes those of a stream.
            keep: Rows of a stream are asked for again; else they are forgotten.
        """
        if train.held is not None:
            mine_N = sampled(0, len(train), len(train), self.most)
            labels = train.held.labels
            return EncodedData(
                features=_taken(train.held.features, mine_N),
                labels=None if labels is None else labels.taken(mine_N).mature(),
            )
        if not self._tables:
            return None
        table = pa.concat_tables(self._tables)
        if not keep:
            self._tables.clear()
        features = replace(encoder, training="values").encode(table, self.origin)
        labels = encode_labels(self.config, table, self.origin, maturity=self.maturity)
        return EncodedData(features=features, labels=with_targets(labels, features.links))


def _taken(features: EncodedFeatures, mine_N: np.ndarray) -> EncodedFeatures:
    """Returns some rows without weights of ids: all of them as they are, else copied."""
    if mine_N.all():
        return replace(features, list_weights=())
    return replace(features.take(np.flatnonzero(mine_N)), list_weights=())


def alarm_of_copies(repeats: Repeats | None, config: RunConfig) -> Sequence[Alarm]:
    """Returns the alarm for rows that are in several splits, before there are predictions."""
    if repeats is None or not repeats.unusual:
        return []
    found = repeated_rows(repeats.validation, repeats.test, by_file=_by_file(config))
    return [] if found is None else [found]


def with_effects(
    alarms: Sequence[Alarm],
    repeats: Repeats | None,
    config: RunConfig,
    predictions_NP: np.ndarray,
    labels: EncodedLabels,
) -> list[Alarm]:
    """Returns the alarms, that of copies with metrics on all test rows and on the others.

    Args:
        alarms: Of a run.
        repeats: What was counted of its rows; None: it goes on with another, which has counted.
        config: Of the run.
        predictions_NP: Of all test rows.
        labels: Of all test rows.
    """
    if repeats is None or all(alarm.kind != "repeated_rows" for alarm in alarms):
        return list(alarms)
    rows, others = repeats.test_rows_S, repeats.test_rows_S[~repeats.copied_S]
    of_all, of_others = (
        metrics_of(config, predictions_NP[some], labels.taken(some), intervals=False)[0]
        if len(some)
        else {}
        for some in (rows, others)
    )
    effects = []
    for task in config.tasks:
        key = kind_of(task.kind).headline
        heading = kind_of(task.kind).column(key).heading
        one, other = (found.get(task.name, {}).get(key) for found in (of_all, of_others))
        if one is not None and other is not None:
            effects.append(Effect(task.name, heading, one, other))
    found = repeated_rows(repeats.validation, repeats.test, effects, by_file=_by_file(config))
    return [found if a.kind == "repeated_rows" and found else a for a in alarms]


def _by_file(config: RunConfig) -> bool:
    return config.data.split.by == "file"


# Where the keys of a split are not counted
_ROWS_OF_A_KEY = 10


def learn_columns(
    run: RunDirectory,
    config: RunConfig,
    encoder: FeatureEncoder,
    rows: EncodedData | None,
    repeats: Repeats | None = None,
) -> TrainingColumns | None:
    """Returns what the run knows of its training rows, on rank 0; writes it where it is new.

    Args:
        run: Whose folder this process may write into.
        config: Of the run.
        encoder: Fitted.
        rows: Sampled training rows with labels; None where there are none: a stream that was read
            for its encoder in an earlier process.
        repeats: What was counted of rows that come more than once.
    """
    if rank() > 0:
        return None
    stored = run.training_columns()
    if stored is not None or rows is None or rows.labels is None:
        return stored
    columns = list(columns_of(rows.features, encoder, of_training=True))
    labels = rows.labels
    found = [*alarm_of_copies(repeats, config), *rare_ids(columns)]
    found += leaks_in(
        columns, labels.labels_NT, labels.observed_NT, _tasks_of(config), _halves(len(rows))
    )
    learnt = TrainingColumns.of(
        columns,
        labels.labels_NT,
        labels.observed_NT,
        _events_of(config),
        judged_by=_independent_rows(config, labels),
        alarms=found,
    )
    write_json(run.columns_file, learnt.as_dict())
    return learnt


def _tasks_of(config: RunConfig) -> list[tuple[str, bool]]:
    """Lists the tasks: name, and whether labels are 0 and 1."""
    return [(task.name, kind_of(task.kind).is_event) for task in config.tasks]


def _events_of(config: RunConfig, *, trained: bool = False) -> Mapping[str, int]:
    """Returns the places of the tasks whose labels are 0 and 1, by name; `trained`: of weight."""
    return {
        task.name: t
        for t, task in enumerate(config.tasks)
        if kind_of(task.kind).is_event and (task.weight or not trained)
    }


def _independent_rows(config: RunConfig, labels: EncodedLabels) -> int:
    """Counts rows that say something of their own about how columns are distributed.

    A split by key puts all rows of a user on one side, and what is true of the user with them: then
    users count. Other splits have the same users on both sides.
    """
    split, groups_N = config.data.split, labels.groups_N
    if split.by != "hash":
        return len(labels)
    if groups_N is not None and split.column == config.data.group_column:
        return len(np.unique(groups_N))
    return max(len(labels) // _ROWS_OF_A_KEY, 1)


def _halves(rows: int) -> np.ndarray:
    """Returns which half each row belongs to, bool."""
    return (mix64(np.arange(rows, dtype=np.uint64)) & np.uint64(1)).astype(bool)


# Rows they are run on: a unit that is 0 for all of them is as good as dead
ROWS = 8 * ROWS_PER_TILE
_FEWEST_RUN = ROWS_PER_TILE
# Of the largest output in size; less is rounding
_CONSTANT = 1e-6


@torch.no_grad()
def _constant_experts(predictor: Predictor, rows: EncodedData) -> list[tuple[int, str]]:
    """Level and name of each expert with one output for all rows.

    On one process alone: spread experts are elsewhere.
    """
    network = predictor.ranker.network
    if not network.learned_gates or predictor.ranks > 1 or len(rows) < _FEWEST_RUN:
        return []
    read: list[Any] = []
    levels = network.levels
    hooks = [
        level.mixture.register_forward_pre_hook(lambda _, args: read.append(args[0]))
        for level in levels
    ]
    try:
        predictor.predict(rows.rows(0, min(len(rows), ROWS)))
    finally:
        for hook in hooks:
            hook.remove()
    found = []
    for number, (level, sources) in enumerate(zip(levels, read, strict=False), start=1):
        names = level.expert_names
        found += [(number, names[e]) for e in _constant(level.mixture, sources)]
    return found


def _constant(mixture: MultiGateMixture, sources: Sequence[torch.Tensor | Inputs]) -> list[int]:
    """Experts of one level; outputs that are no tensors are not looked at."""
    read = mixture.expert_source
    read = read[:1] if len({*read}) == 1 else read  # one input serves all experts
    outputs = mixture.experts.dense([Inputs.of(sources[s]).whole.float() for s in read])
    flat = [y.flatten(1) if isinstance(y, torch.Tensor) else None for y in outputs]
    return [
        e
        for e, y_BO in enumerate(flat)
        if y_BO is not None
        and bool((y_BO.amax(0) - y_BO.amin(0)).max() <= _CONSTANT * y_BO.abs().max())
    ]


_FEWEST_ALIKE = 100  # for all to be alike by no chance
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
        self.sample = _SampledRows(0)
        self.features: EncodedFeatures | None = None  # sampled, on rank 0
        self.glance: EncodedData | None = None

    def begin(self, total: int, first: int) -> None:
        """Learns before the first chunk how many rows there are, and which one comes first."""
        self.sample = _SampledRows(total, first, _rows_to_look_at(len(self.encoder.codecs)))

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
                columns, labels_NT, observed_NT, _tasks_of(self.config), _halves(len(labels_NT))
            )
        else:
            found = list(training.alarms)
        if len(labels_NT) >= _FEWEST_ALIKE and all_alike(self.features):
            found.append(_ALL_ALIKE)  # and what models do with such rows says nothing of them
        else:
            bias, leaking = self.config.model.bias, {alarm.about for alarm in found}
            # Nor can the model be outdone by what its scores do not read
            leaking |= {*own_lookups(bias, self.encoder), *(bias.features if bias else ())}
            fair = [column for column in columns if column.name not in leaking]
            found += self._of_model(predictor, training, fair, seen_NT, labels_NT, observed_NT)
        if training is not None:
            judged_by = min(_independent_rows(self.config, labels), len(labels_NT))
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
        """Collects alarms of predictions, experts and gates; tasks of weight 0 are left out."""
        found: list[Alarm] = []
        config, wide = self.config, predictor.ranker.wide
        if training is not None:
            events = _events_of(config, trained=True)
            found += tasks_outdone(training, columns, labels_NT, observed_NT, seen_NT, events)
        tasks, mixed = _tasks_of(config), [] if wide is None else wide.mixed_T.tolist()
        left = [task.name for task, own in zip(config.tasks, mixed, strict=False) if not own]
        trained = [
            t
            for t, task in enumerate(config.tasks)
            if task.weight and kind_of(task.kind).orders_rows
        ]
        found += same_predictions(
            seen_NT[:, trained],
            labels_NT[:, trained],
            observed_NT[:, trained],
            [tasks[t] for t in trained],
            left_at_mean=left,
        )
        # Nothing where gates are to be the same for every row, or to settle on few experts
        if config.model.has_gates and config.model.gate.varies:
            constant = [] if self.glance is None else _constant_experts(predictor, self.glance)
            found += gate_alarms(self.gates.summary(), constant)
        return found


def with_levels(
    alarms: Sequence[Alarm],
    config: RunConfig,
    metrics: Mapping[str, Mapping[str, Any]],
    labels: EncodedLabels,
    gains: Mapping[str, Any],
) -> list[Alarm]:
    """Returns the alarms, and behind them those that metrics of trained tasks give rise to.

    Args:
        alarms: Of the same rows; where all of these are alike to the model, nothing more is said.
        config: Of the run.
        metrics: Task → its metrics of some rows.
        labels: Of these rows.
        gains: As of `over_wide`.
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
    of_mixture = adds_nothing(gains["over_wide"]) if gains else []
    return [*alarms, *wrong_level(judged, deviations), *of_mixture]


def say_alarms(alarms: Sequence[Alarm], reporter: Reporter) -> dict[str, list[dict[str, str]]]:
    """Says each alarm on a line; returns what metrics.json has: nothing if there is none."""
    for line in lines_of(alarms):
        reporter.say(line)
    return {"alarms": [alarm.model_dump() for alarm in alarms]} if alarms else {}
