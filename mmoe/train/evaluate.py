"""Metrics of a model on labelled rows."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mmoe.alarms import Column
from mmoe.config import DeviceKind, RunConfig, ScoringPrecision, prediction_columns
from mmoe.config.tasks import further_columns
from mmoe.datasets import BatchSource, EncodedFeatures, EncodedLabels, FeatureEncoder, join_labels
from mmoe.datasets.files.fingerprint import DataPrint
from mmoe.datasets.labels.maturity import Maturity, moment_text
from mmoe.datasets.labels.targets import Means
from mmoe.datasets.rows.columns import columns_of
from mmoe.datasets.rows.frames import TableLike
from mmoe.datasets.rows.order import Share
from mmoe.datasets.values.arrow import check_room
from mmoe.embeddings import memory_of_tables
from mmoe.errors import RanksDiffer
from mmoe.metrics import gain_over_wide, kind_of, task_curves
from mmoe.models.columns import own_lookups
from mmoe.parallel import first_other, from_first, rank, to_first, world_size
from mmoe.predictor import Predictor, load_predictor
from mmoe.run import Reporter, RunDirectory, SilentReporter, Tracker
from mmoe.tasks import GateStatistics
from mmoe.train.alarms import Watch, say_alarms, with_levels
from mmoe.train.measure import (
    Metrics,
    domain_metrics,
    metrics_of,
    of_tasks,
    row_weights,
    rows_that_count,
)
from mmoe.train.prepare import PreparedData
from mmoe.train.run_data import (
    check_as_of,
    describe_other_rows,
    describe_own_split,
    held_out_rows,
    is_own_split,
    say_masked,
)


def predict_rows(
    predictor: Predictor,
    rows: BatchSource,
    *,
    tracker: Tracker | None = None,
    watch: Watch | None = None,
) -> tuple[np.ndarray, EncodedLabels]:
    """Returns predictions and labels of all rows; one chunk of features in memory at a time.

    Of a model with `model.bias` as many columns follow the predictions, those with the display as
    it was logged; with a `watch` at last those of a wide part alone (`apart`). Several ranks read
    and score a part each. Rank 0 gets all rows, in order; the others get theirs. What `watch` sees
    of gates and rows is then brought together on rank 0.
    """
    predictions: list[np.ndarray] = []
    labels: list[EncodedLabels] = []
    chunk, span = None, _own_span(predictor, rows)
    if watch is not None:
        watch.begin(len(rows), span[0])
    on_gates = None if watch is None else watch.gates.update
    with_bias, with_wide = predictor.has_bias, watch is not None and predictor.has_wide
    scored = predictor.predict_chunks(
        rows, *span, tracker=tracker, on_gates=on_gates, with_bias=with_bias, with_wide=with_wide
    )
    with closing(scored):  # in any case nothing reads on
        for chunk, predictions_NT in scored:
            assert chunk.labels is not None, "these rows carry labels"
            predictions.append(predictions_NT)
            labels.append(chunk.labels)
            if watch is not None:
                watch.see(chunk)
    assert chunk is not None, "one comes at least"
    predictor.help_others(chunk.rows(0, 0), with_bias=with_bias)
    if watch is not None:
        watch.gather()
    of_ranks = to_first(_joined(predictions, labels))
    return _joined(*map(list, zip(*of_ranks, strict=True)))


def apart(predictor: Predictor, found_NP: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Splits what `predict_rows` returns with a watch: the model's columns, and the wide part's.

    A model without a wide part has no columns of it.
    """
    if not predictor.has_wide:
        return found_NP, found_NP[:, :0]
    own = len(prediction_columns(predictor.tasks))
    return found_NP[:, :-own], found_NP[:, -own:]


def wide_alone(config: RunConfig, predictor: Predictor, prepared: PreparedData) -> np.ndarray:
    """Returns what a wide part alone predicts of the test split.

    Predictions of curved targets are means by residuals of its own, which are larger than those of
    a better model.

    Args:
        config: Of the run.
        predictor: Of a model that has one.
        prepared: Its splits in memory, and the encoder, which knows no residuals yet.
    """
    held = prepared.validation.held
    assert held is not None and held.labels is not None, "rows in memory carry labels"
    of_validation, of_test = (
        np.concatenate([found for _, found in predictor.predict_chunks(rows, with_wide=True)])
        for rows in (prepared.validation, prepared.test)
    )
    judged_NP = apart(predictor, of_validation)[1]
    means = Means.fit(config, prepared.encoder.labels, judged_NP, held.labels)
    return means.of(apart(predictor, of_test)[1])


def over_wide(
    config: RunConfig,
    predictor: Predictor,
    metrics: Metrics,
    found_NP: np.ndarray,
    labels: EncodedLabels,
) -> dict[str, Any]:
    """Returns what metrics.json holds of the mixture's gain: nothing where a run has no wide part.

    Args:
        config: Of the run.
        predictor: The model.
        metrics: Its metrics of these rows.
        found_NP: What `predict_rows` returned with a watch.
        labels: Of all rows.
    """
    if not predictor.has_wide:
        return {}
    parts, tasks = apart(predictor, found_NP), {}
    for t, task in enumerate(config.tasks):
        kind = kind_of(task.kind)
        model = metrics[task.name].get(kind.headline)
        if not (task.weight and kind.linear_logit) or model is None:
            continue
        of_model, of_wide = (rows_that_count(config, labels, t, one_NP) for one_NP in parts)
        wide = kind.metrics(of_wide, task.name).values[kind.headline]
        assert wide is not None, "what the model has on these rows, its part has"
        tasks[task.name] = gain_over_wide(kind, model, wide, of_model, of_wide)
    untrained = predictor.leaves_mixture_out
    return {"over_wide": {"untrained": untrained, "tasks": tasks}} if tasks else {}


def _own_span(predictor: Predictor, rows: BatchSource) -> tuple[int, int]:
    """The rows that this rank scores: whole batches, so that none differs from those of one."""
    return Share(rank(), world_size()).span(len(rows), predictor.height)


def _joined(
    predictions: list[np.ndarray], labels: list[EncodedLabels]
) -> tuple[np.ndarray, EncodedLabels]:
    if len(labels) == 1:
        return predictions[0], labels[0]
    return np.concatenate(predictions), join_labels(labels)


def split_metrics(
    config: RunConfig, predictor: Predictor, rows: BatchSource
) -> tuple[Metrics, list[str]]:
    """Computes every task's metrics on one split, on rows where its label is observed.

    Without intervals, which take as long as an AUC each: validation comes after every epoch.

    Returns:
        Metrics by task as in metrics.json, and notes on what could not be computed.
    """
    predictions_NT, labels = predict_rows(predictor, rows)
    return from_first(lambda: metrics_of(config, predictions_NT, labels, intervals=False))


def validated(
    config: RunConfig, predictor: Predictor, prepared: PreparedData
) -> tuple[Means, Metrics, list[str]]:
    """Finds on the validation split how curved targets become means, and what metrics they have.

    Args:
        config: Of the run.
        predictor: Of a model in training, or of the best one.
        prepared: Its splits, and the encoder, which knows no residuals yet.

    Returns:
        The means, and what `split_metrics` returns.
    """
    predicted_NP, labels = predict_rows(predictor, prepared.validation)

    def found() -> tuple[Means, Metrics, list[str]]:
        means = Means.fit(config, prepared.encoder.labels, predicted_NP, labels)
        return means, *metrics_of(config, means.of(predicted_NP), labels, intervals=False)

    return from_first(found)


def split_curves(
    config: RunConfig,
    predictions_NT: np.ndarray,
    labels: EncodedLabels,
    gates: GateStatistics,
    oracle: Mapping[str, np.ndarray] | None = None,
) -> dict[str, Any]:
    """Computes what curves.json holds about a split."""

    def found(t: int) -> dict[str, Any]:
        task = config.tasks[t]
        return task_curves(
            task.kind,
            labels.labels_NT[:, t],
            predictions_NT[:, t],
            labels.observed_NT[:, t],
            weights=row_weights(task, labels, t),
            oracle=None if oracle is None else oracle.get(task.name),
            name=task.name,
            further=predictions_NT[:, further_columns(config.tasks, t)] if task.further else None,
        )

    names = [task.name for task in config.tasks]
    curves = dict(zip(names, of_tasks(found, len(names)), strict=True))
    return {"tasks": curves, "gates": gates.summary()}


# In metrics.json: of the rows that training tested
_OF_THE_ROWS = ("data_changed", "alarms", "as_of", "over_wide")


def evaluate_run(
    run: RunDirectory,
    data: str | Path | TableLike | None = None,
    reporter: Reporter | None = None,
    *,
    all_negatives: bool = False,
    device: DeviceKind = "auto",
    table_precision: ScoringPrecision | None = None,
    budget: int | None = None,
    changed_data: bool = False,
    as_of: str | None = None,
) -> dict[str, Any]:
    """Evaluates a run's best model; the result has the form of metrics.json.

    Args:
        run: A trained run.
        data: Labelled rows, in files or in memory; None: the run's own test split. Bundled sources
            take their folder and evaluate on its test split.
        reporter: Told of progress and of what could not be computed.
        all_negatives: The rows hold all negatives, also where those of training were sampled
            (`negative_sampling_rate`); False: they were sampled like those.
        device: To compute on; auto: a GPU where there is one.
        table_precision: int8 or fp16: tables in fewer bits, and a word on it; None: as trained.
        budget: Experts that one row computes at most; None: `score.budget` of the run's config.
        changed_data: It is known that the data has changed since training: no word about it.
        as_of: When the labels of `data` were collected, such as 2024-01-31T00:00, for tasks with
            `matures_after`; None: at the newest time of its rows. Of the own split it is known.

    Returns:
        As metrics.json, with the `alarms` of these rows; with `data_changed`, where the test split
        is the run's own and its data is not what it was.

    Raises:
        ValueError: The run, the data or the device cannot be used.
    """
    check_room()
    reporter = reporter or SilentReporter()
    stored = run.metrics()
    predictor, encoder, config = load_predictor(
        run, device, table_precision=table_precision, budget=budget
    )
    if all_negatives:
        _check_sampled(run, config)
    if table_precision is not None:
        reporter.say(memory_of_tables(encoder.tables, table_precision))
    own = is_own_split(config, data)
    check_as_of(run, config, as_of, own=own)
    rows, oracle, seen, maturity = held_out_rows(run, config, encoder, data, as_of)
    changes = _compare(run, config, seen, data, reporter, silent=changed_data)
    _check_same_rows(len(rows))
    first, stop = _own_span(predictor, rows)
    with reporter.track("evaluating", stop - first, "rows") as tracker:
        watch = Watch(config, encoder)
        found_NP, labels = predict_rows(predictor, rows, tracker=tracker, watch=watch)
    judge = _Judge(run, predictor, watch, oracle, maturity, own, all_negatives)
    comparable = table_precision is not None and data is None and not all_negatives
    trained = stored["tasks"] if comparable else {}  # what narrower tables are held against
    found = from_first(lambda: judge.measure(found_NP, labels, trained, table_precision, reporter))
    kept = {key: stored[key] for key in stored if key not in _OF_THE_ROWS}
    return {**kept, **found, **({"data_changed": changes} if changes else {})}


@dataclass(frozen=True)
class _Judge:
    """Measures what a run's model predicts of some rows.

    Attributes:
        run: Of the model.
        predictor: Has scored the rows.
        watch: Has seen them.
        oracle: Their true probabilities, by task, where they are known.
        maturity: When their labels were collected, where that matters.
        own: They are the run's own test split.
        all_negatives: As of `evaluate_run`.
    """

    run: RunDirectory
    predictor: Predictor
    watch: Watch
    oracle: Mapping[str, np.ndarray] | None
    maturity: Maturity | None
    own: bool
    all_negatives: bool

    def measure(
        self,
        found_NP: np.ndarray,
        labels: EncodedLabels,
        trained: Mapping[str, Mapping[str, Any]],
        precision: ScoringPrecision | None,
        reporter: Reporter,
    ) -> dict[str, Any]:
        """Returns metrics.json's entries for these rows; logs what changed from `trained`."""
        config, oracle, every = self.watch.config, self.oracle, self.all_negatives
        predictions_NT, _ = apart(self.predictor, found_NP)
        metrics, notes = metrics_of(config, predictions_NT, labels, oracle, all_negatives=every)
        for note in notes:
            reporter.say(f"note: {note}")
        say_masked(config, labels, self.maturity, reporter)
        for line in _cost_of_precision(config, trained, metrics, precision):
            reporter.say(line)
        domains = self.watch.encoder.domains
        by_domain = domain_metrics(
            config, domains, predictions_NT, labels, oracle, all_negatives=every
        )
        gains = over_wide(config, self.predictor, metrics, found_NP, labels)
        return {
            **({} if self.maturity is None else {"as_of": moment_text(self.maturity.as_of)}),
            "tasks": metrics,
            **gains,
            **self._alarms(predictions_NT, labels, metrics, gains, reporter),
            **by_domain,
        }

    def _alarms(
        self,
        predictions_NT: np.ndarray,
        labels: EncodedLabels,
        metrics: Metrics,
        gains: Mapping[str, Any],
        reporter: Reporter,
    ) -> dict[str, Any]:
        """Raises the alarms of these rows; returns them for the result."""
        # Columns of all negatives are not distributed as those of a log that kept a share
        columns = None if self.all_negatives else self.run.training_columns()
        config, where = self.watch.config, "test" if self.own else "evaluated"
        seen_NT = predictions_NT[:, : len(config.tasks)]
        alarms = self.watch.alarms(
            self.predictor, columns, seen_NT, labels, where, look_for_leaks=not self.own
        )
        alarms = with_levels(alarms, config, metrics, labels, gains)
        return say_alarms(alarms, reporter)


def _check_sampled(run: RunDirectory, config: RunConfig) -> None:
    if all(task.negative_sampling_rate == 1 for task in config.tasks):
        raise ValueError(
            f"{run.path}: --all-negatives: no task of this run has a negative_sampling_rate, so "
            "every row counts once already; leave the flag out"
        )


def _compare(
    run: RunDirectory,
    config: RunConfig,
    seen: DataPrint,
    data: str | Path | TableLike | None,
    reporter: Reporter,
    *,
    silent: bool,
) -> list[str]:
    """Says what has changed since training where that matters; returns it for the result."""
    if is_own_split(config, data):
        changes, line = from_first(lambda: describe_own_split(run, config, seen))
    else:
        changes, line = [], from_first(lambda: describe_other_rows(run, config, seen))
    if line is not None and not silent:
        reporter.say(line)
    return changes


def _cost_of_precision(
    config: RunConfig,
    trained: Mapping[str, Mapping[str, Any]],
    metrics: Metrics,
    precision: ScoringPrecision | None,
) -> Iterator[str]:
    """Lines on how narrower tables change the test metrics, task by task."""
    for task in config.tasks:
        kind = kind_of(task.kind)
        key = kind.headline
        now, before = metrics[task.name].get(key), trained.get(task.name, {}).get(key)
        if now is not None and before is not None:
            change = round(now - before, 5) + 0.0  # -0.0 + 0.0 is 0.0, printed without a minus
            yield (
                f"{task.name}: {kind.column(key).heading} {now:.5f} with tables in {precision}, "
                f"{before:.5f} as trained ({change:+.5f})"
            )


def _check_same_rows(count: int) -> None:
    """They are shared out by their numbers."""
    found = first_other(count)
    if found is not None:
        r, other, first = found
        raise RanksDiffer(
            f"rank {r} has read {other:,} rows to evaluate on, rank 0 {first:,}; give all "
            "ranks the same files, on a file system that they share"
        )


# Values of a feature that are shown, of those seen most
_MOST_VALUES = 20
_FEWEST_ROWS = 20  # of a value, below which its mean says little
_TINY = 1e-7


def learnt_bias(
    config: RunConfig, encoder: FeatureEncoder, rows: EncodedFeatures, seen_NT: np.ndarray
) -> list[dict[str, Any]]:
    """Returns for each feature how much likelier an event is at each value than at the first.

    With d the mean over the rows of a value of the logit with bias less that of the score, and z
    the scores' logits of all rows, a value's ratio is `Σ σ(z + d) / Σ σ(z + d₁)`.

    Args:
        config: Of the run, with `model.bias`.
        encoder: Fitted.
        rows: Some rows, N.
        seen_NT: Their predictions (`prediction_columns`), then those with the display as logged.

    Returns:
        `[{feature, values, rows, tasks: {name: [ratio of each value]}}]`; regressions are left out.
    """
    bias, tasks = config.model.bias, config.tasks
    assert bias is not None, "asked for where there is one"
    names = own_lookups(bias, encoder) | {*bias.features}
    columns = [c for c in columns_of(rows, encoder) if c.name in names and c.kind != "list"]
    # Of each half the tasks' own numbers; what some predict beside them stands behind these
    halves = np.split(_logit(seen_NT.astype(np.float64)), 2, axis=1)
    z_NT, with_bias_NT = (half_NT[:, : len(tasks)] for half_NT in halves)
    biased = [
        t
        for t, task in enumerate(tasks)
        if kind_of(task.kind).is_event and task.name in (bias.tasks or [task.name])
    ]
    found = []
    for column in columns:
        shown, masks = _values(column)
        if len(shown) < 2:
            continue
        ratios = {
            tasks[t].name: _ratios(z_NT[:, t], with_bias_NT[:, t] - z_NT[:, t], masks)
            for t in biased
        }
        counts = [int(mask_N.sum()) for mask_N in masks]
        found.append({"feature": column.name, "values": shown, "rows": counts, "tasks": ratios})
    return found


def _ratios(z_N: np.ndarray, added_N: np.ndarray, masks: Sequence[np.ndarray]) -> list[float]:
    means = [float((1 / (1 + np.exp(-z_N - added_N[mask_N].mean()))).mean()) for mask_N in masks]
    return [mean / max(means[0], _TINY) for mean in means]


def _values(column: Column) -> tuple[list[str], list[np.ndarray]]:
    """Values seen often enough, smallest number or most frequent text first, and their rows."""
    items, counts = np.unique(column.items[~column.missing], return_counts=True)
    often = items[np.argsort(-counts, kind="stable")][:_MOST_VALUES]
    often = [item for item in often if (column.items == item).sum() >= _FEWEST_ROWS]
    if column.kind == "number":
        named = [f"{float(column.unscale(np.asarray([item]))[0]):.6g}" for item in often]
    else:
        named = [column.shown(int(item)).strip("'") for item in often]
    pairs = list(zip(named, often, strict=True))
    if all(_is_number(name) for name in named):
        pairs.sort(key=lambda pair: float(pair[0]))
    masks = [(column.items == item) & ~column.missing for _, item in pairs]
    return [name for name, _ in pairs], masks


def _is_number(text: str) -> bool:
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False


def _logit(p: np.ndarray) -> np.ndarray:
    p = np.clip(p, _TINY, 1 - _TINY)
    return np.log(p) - np.log1p(-p)
