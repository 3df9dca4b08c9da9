"""What a run begins with: a fresh model and optimizer, and what comes over from elsewhere."""

from contextlib import nullcontext
from typing import cast

import torch

from mmoe.checkpoint.outline import SizeLimit
from mmoe.checkpoint.random_state import RandomState
from mmoe.checkpoint.stored_tensors import StoredTensors
from mmoe.checkpoint.weights import check_tables
from mmoe.config import RunConfig
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.labels.targets import SECTION as LABELS
from mmoe.metrics.task_kinds import kind_of
from mmoe.models.build import build_ranker
from mmoe.models.frozen import without_weight_files
from mmoe.models.network import MixtureNetwork
from mmoe.models.ranker import Ranker
from mmoe.models.table_vectors import start_from_vectors
from mmoe.parallel import count_loads, rank, spread_layout
from mmoe.run.console import Reporter
from mmoe.tasks.kinds import objective_of
from mmoe.train.fit_wide import fit_wide
from mmoe.train.freezing.frozen import Frozen
from mmoe.train.freezing.linear_models import keep_linear_models
from mmoe.train.optim import build_average, build_optimizer
from mmoe.train.prepare import PreparedData
from mmoe.train.run_folder.start import same_warm_start_on_all_ranks
from mmoe.train.state import Position, TrainingState
from mmoe.train.warm_start import EarlierRun, WarmStart, WarmStartReport, transfer


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
        built, limit = without_weight_files(config), SizeLimit.of(stored)
        check_tables(prepared.encoder.tables, stored)
    with draws.drawing(), limit:
        ranker = build_ranker(built, prepared.encoder, device)
    start_at_base_rates(ranker, config, prepared.encoder)
    frozen = Frozen.of(ranker, config, prepared.encoder.tables)
    optimizer = build_optimizer(ranker.network, config.training.optimizer)
    average = build_average(ranker.network, config.training.ema_decay)
    if rank() > 0:
        draws.seed(config.seed + rank())  # dropout and noise of its own rows
    if config.parallel.rebalance == "epoch":
        count_loads(ranker.network)
    layout = spread_layout(ranker.network)
    return TrainingState(ranker, optimizer, average, Position(), layout, frozen, draws)


def start_at_base_rates(ranker: Ranker, config: RunConfig, encoder: FeatureEncoder) -> None:
    """Gives each tower the bias with which it says the same of every row, and is right on average.

    Towers of one's own kind stay as they are, unless they have a method `start_at`. A wide part
    has the base rate of the tasks that it is fitted to.

    Args:
        ranker: New; changed in place.
        config: Its tasks.
        encoder: Has statistics of the training labels; of a run of before it has none.
    """
    labels = encoder.rules.get(LABELS, {})
    towers = cast(MixtureNetwork, ranker.network).towers
    for task, tower in zip(config.trained_tasks, towers, strict=True):
        of_wide = config.model.wide and task.weight > 0 and kind_of(task.kind).linear_logit
        start_at = getattr(tower, "start_at", None)
        if task.name in labels and start_at is not None and not of_wide:
            start_at(objective_of(task.kind).start(task, labels[task.name]))


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
    vectors = start_from_vectors(state.ranker, prepared.encoder, learnt)
    for line in [*(report.lines() if report else ()), *vectors]:
        reporter.say(line)
    fit_wide(state.ranker.wide, config, prepared, reporter)
    keep_linear_models(state.ranker.wide, earlier, config, prepared.encoder, reporter)
    return report
