"""Transfers an earlier run's best checkpoint into a new training state."""

import torch

from mmoe.checkpoint.optimizer_state import unflatten_optimizer
from mmoe.checkpoint.outline import outline
from mmoe.checkpoint.stored_tensors import StoredTensors
from mmoe.config import RunConfig
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.models.network import MixtureNetwork
from mmoe.parallel import from_all
from mmoe.train.state import TrainingState
from mmoe.train.warm_start.dense import DenseTransfer
from mmoe.train.warm_start.earlier import EarlierRun
from mmoe.train.warm_start.places import NewExperts
from mmoe.train.warm_start.rates import rate_shifts
from mmoe.train.warm_start.report import WarmStartReport
from mmoe.train.warm_start.sources import Shape, tensor_sources
from mmoe.train.warm_start.stored import Stored
from mmoe.train.warm_start.tables import (
    check_tables,
    continue_accumulators,
    continue_ids,
    continue_tables,
)


@torch.no_grad()
def transfer(
    earlier: EarlierRun,
    state: TrainingState,
    config: RunConfig,
    encoder: FeatureEncoder,
    new_experts: NewExperts = "fresh",
) -> WarmStartReport:
    """Copies into a fresh state what the earlier run had learnt.

    Tables, their optimizer state, owners of managed rows, the network, its average and its
    optimizer's moments start from the best checkpoint. New rows of tables, new gates, experts and
    towers keep the values that `state` has. Kept gates and experts read new features with weights
    of zero: at first they compute what they did; the weights' own gradients are not zero, so they
    learn at once. Where a task's negative_sampling_rate changed, its logit is moved so that its
    probabilities stay.

    Over several ranks each reads what it holds shards of, one tensor at a time: rows of tables
    straight into them, tensors of experts whole. So the ranks hold what one process would, whatever
    ranks trained the earlier run, and return the same report.

    Args:
        earlier: Passed `check(config)`.
        state: As for a new run of `config`; changed in place, unless it raises.
        config: Of the new run.
        encoder: Of the new run, as `extend_encoder` made it.
        new_experts: `copy`: new experts begin as copies of kept ones of the same owner.

    Returns:
        What was kept, grown, initialised and dropped.

    Raises:
        ValueError: A tensor cannot be mapped; names it and the key of the config that differs.
    """
    report = WarmStartReport(str(earlier.path), earlier.step, new_experts)
    model, training = earlier.model(), earlier.training()
    network = state.ranker.network
    assert isinstance(network, MixtureNetwork)
    now = Shape.of(network, config, encoder)
    before = _shape_of(earlier, model)
    try:
        sources = tensor_sources(now, before, new_experts)
    except ValueError as error:
        raise ValueError(f"--warm-start {earlier.path}: {error}") from None
    old_tables, tables = Stored.of(model, "tables"), encoder.tables
    check_tables(tables, old_tables, str(earlier.path))
    scoring = Stored.of(model, "network")
    # Scores continue from the average; training from the weights behind it, where both runs average
    raw = Stored.of(training, "raw") if state.average is not None else scoring.nothing()
    continued = raw if raw.names else scoring
    dense = DenseTransfer(sources, state.layout, earlier, config)
    for stored in (continued, scoring):
        dense.check(network, stored)

    dense.check_frozen(state.frozen.names, now.domains)
    dense.copy(network, continued)
    dense.copy(network, scoring, only=state.frozen.names)  # the average, where there is one
    _start_average(state, scoring, training, dense)
    _say_names(report, now, before, config, earlier)
    if state.ranker.wide is not None:
        report.initialised.append("the wide part (fitted to these rows)")
    embeddings = state.ranker.tables
    continue_tables(tables, embeddings.table_shards(), old_tables, report)
    accumulators, moments = _usable_state(training, earlier.config, config)
    continue_accumulators(embeddings.optimizer_shards(), accumulators, old_tables, report)
    continue_ids(embeddings, model, training, report)
    kept, left = dense.moments(network, moments)
    unflatten_optimizer(state.optimizer, network, kept)
    (report.kept if kept else report.initialised).append("the optimizer's moments")
    left = [*dense.not_carried(scoring), *(f"optimizer's moments of {name}" for name in left)]
    # A rank may hold none of some experts
    report.not_carried += sorted({name for names in from_all(left) for name in names})
    return report


def _usable_state(
    training: StoredTensors, before: RunConfig, now: RunConfig
) -> tuple[Stored, Stored]:
    """State of the tables' optimizer and of the dense one; empty where another kind follows."""
    accumulators, moments = (Stored.of(training, name) for name in ("accumulators", "optimizer"))
    one, two = before.training, now.training
    if one.embedding_optimizer.kind != two.embedding_optimizer.kind:
        accumulators = accumulators.nothing()
    kinds = {one.optimizer.kind, two.optimizer.kind}
    if len(kinds) > 1 and not kinds <= {"adam", "adamw"}:  # these two have the same moments
        moments = moments.nothing()
    return accumulators, moments


def _shape_of(earlier: EarlierRun, model: StoredTensors) -> Shape:
    """Of the earlier network, whose tensors are those that were stored, by name and shape."""
    network = outline(earlier.config, earlier.encoder, model)
    model.check(network.state_dict(), "network")
    return Shape.of(network, earlier.config, earlier.encoder)


def _start_average(
    state: TrainingState, scoring: Stored, training: StoredTensors, dense: DenseTransfer
) -> None:
    """The average goes on; where there was none it begins with the network as it is."""
    average = state.average
    if average is None:
        return
    module, weights = average.module.state_dict(), state.ranker.network.state_dict()
    for name, value in weights.items():
        module[name].copy_(value)
    if "averaged" in training.names():
        training.load({"averaged": average.n_averaged}, all_names=False)
        dense.copy(average.module, scoring)


def _say_names(
    report: WarmStartReport, now: Shape, before: Shape, config: RunConfig, earlier: EarlierRun
) -> None:
    zero = " (read with weights of zero at first)"
    if any(stage.experts for stage in config.model.stages):
        zero = " (read by new gates and experts alone)"
    features, there = ([f.name for f in c.features] for c in (config, earlier.config))
    report.compare("feature", features, there, zero)
    report.compare("task", now.tasks, before.tasks)
    report.compare("domain", now.domains, before.domains, " (as the mean of the others at first)")
    for task, shift in rate_shifts(earlier.config, config).items():
        report.kept.append(f"probabilities of {task} (logit {shift:+.3f}: negative_sampling_rate)")
    # All levels have the same experts
    note = " (copies, where their owner has others)" if report.new_experts == "copy" else ""
    report.compare("expert", now.levels[0].expert_names, before.levels[0].expert_names, note)
