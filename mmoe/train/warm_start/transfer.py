"""From an earlier run's best checkpoint into a new training state."""

from collections.abc import Mapping

import torch
from torch import Tensor

from mmoe.config import RunConfig
from mmoe.datasets.encoder import FeatureEncoder
from mmoe.models.network import MixtureNetwork
from mmoe.models.registry import build_network
from mmoe.score.checkpoint import without_prefix
from mmoe.train.optim import unflatten_optimizer
from mmoe.train.state import TrainingState
from mmoe.train.warm_start.earlier import EarlierRun, model_difference
from mmoe.train.warm_start.grow import fits, moved, moved_moments
from mmoe.train.warm_start.rates import rate_shifts, shift_logits
from mmoe.train.warm_start.report import WarmStartReport
from mmoe.train.warm_start.sources import (
    NewExperts,
    Shape,
    TensorSource,
    input_names,
    tensor_sources,
)
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
    now = Shape(network, [task.name for task in config.tasks], input_names(encoder))
    before = _shape_of(earlier)
    try:
        sources = tensor_sources(now, before, new_experts)
    except ValueError as error:
        raise ValueError(f"--warm-start {earlier.path}: {error}") from None
    scoring = without_prefix("network", model)
    # Scores continue from the average; training from the weights behind it, where both runs average
    raw = without_prefix("raw", training) if state.average is not None else {}
    values = _network_values(network, raw or scoring, sources, earlier, config)
    tables = state.ranker.tables.table_weights()
    old_tables = without_prefix("tables", model)
    check_tables(tables, old_tables, str(earlier.path))

    _copy(network.state_dict(), values)
    _start_average(state, scoring, training, sources, earlier, config)
    _say_names(report, now, before, config, earlier)
    continue_tables(tables, old_tables, report)
    accumulators, moments = _usable_state(training, earlier.config, config)
    states = state.ranker.tables.optimizer_state()
    continue_accumulators(states, accumulators, old_tables, report)
    continue_ids(state.ranker.tables, model, training, report)
    _continue_moments(state, moments, sources, report)
    return report


def _usable_state(
    training: Mapping[str, Tensor], before: RunConfig, now: RunConfig
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """State of the tables' optimizer and of the dense one; empty where another kind follows."""
    accumulators, moments = (without_prefix(p, training) for p in ("accumulators", "optimizer"))
    one, two = before.training, now.training
    if one.embedding_optimizer.kind != two.embedding_optimizer.kind:
        accumulators = {}
    kinds = {one.optimizer.kind, two.optimizer.kind}
    if len(kinds) > 1 and not kinds <= {"adam", "adamw"}:  # these two have the same moments
        moments = {}
    return accumulators, moments


def _shape_of(earlier: EarlierRun) -> Shape:
    """Of the earlier network; built anew to ask it for names, its values do not matter."""
    tasks, inputs = [t.name for t in earlier.config.tasks], input_names(earlier.encoder)
    with torch.random.fork_rng(devices=[]):
        network = build_network(earlier.config.model, len(inputs), tasks)
    return Shape(network, tasks, inputs)


def _network_values(
    network: MixtureNetwork,
    old: Mapping[str, Tensor],
    sources: Mapping[str, TensorSource],
    earlier: EarlierRun,
    config: RunConfig,
) -> dict[str, Tensor]:
    """A value for every tensor that has an origin."""
    values = {}
    for name, own in network.state_dict().items():
        source = sources.get(name)
        if source is None or source.name is None:
            continue
        there = old.get(source.name)
        if there is None or not fits(own, there, source):
            what = "does not exist" if there is None else f"has shape {list(there.shape)}"
            key = model_difference(earlier.config.model.model_dump(), config.model.model_dump())
            raise ValueError(
                f"--warm-start {earlier.path}: tensor {source.name!r} {what} there, but "
                f"{list(own.shape)} is needed here{f' ({key})' if key else ''}; keep the model's "
                "sizes, or train without --warm-start"
            )
        values[name] = moved(own, there, source)
    shift_logits(values, [t.name for t in config.tasks], rate_shifts(earlier.config, config))
    return values


def _start_average(
    state: TrainingState,
    scoring: Mapping[str, Tensor],
    training: Mapping[str, Tensor],
    sources: Mapping[str, TensorSource],
    earlier: EarlierRun,
    config: RunConfig,
) -> None:
    """The average goes on; where there was none it begins with the network as it is."""
    average = state.average
    if average is None:
        return
    module = average.module
    assert isinstance(module, MixtureNetwork)
    _copy(module.state_dict(), state.ranker.network.state_dict())
    if "averaged" in training:
        average.n_averaged.copy_(training["averaged"])
        _copy(module.state_dict(), _network_values(module, scoring, sources, earlier, config))


def _continue_moments(
    state: TrainingState,
    old: Mapping[str, Tensor],
    sources: Mapping[str, TensorSource],
    report: WarmStartReport,
) -> None:
    """The dense optimizer's moments of every parameter that has an origin."""
    by_parameter: dict[str, dict[str, Tensor]] = {}
    for full_name, moment in old.items():
        name, _, key = full_name.rpartition("/")
        by_parameter.setdefault(name, {})[key] = moment
    flat = {}
    network = state.ranker.network
    for name, own in network.named_parameters():
        source = sources.get(name)
        moments = {} if source is None or source.name is None else by_parameter.get(source.name, {})
        if source is not None and all(
            m.dim() == 0 or fits(own, m, source) for m in moments.values()
        ):
            for key, moment in moved_moments(own, moments, source).items():
                flat[f"{name}/{key}"] = moment
    unflatten_optimizer(state.optimizer, network, flat)
    said = report.kept if flat else report.initialised
    said.append("the optimizer's moments")


def _say_names(
    report: WarmStartReport, now: Shape, before: Shape, config: RunConfig, earlier: EarlierRun
) -> None:
    zero = " (read with weights of zero at first)"
    features, there = ([f.name for f in c.features] for c in (config, earlier.config))
    report.compare("feature", features, there, zero)
    report.compare("task", now.tasks, before.tasks)
    for task, shift in rate_shifts(earlier.config, config).items():
        report.kept.append(f"probabilities of {task} (logit {shift:+.3f}: negative_sampling_rate)")
    # All levels have the same experts
    note = " (copies, where their owner has others)" if report.new_experts == "copy" else ""
    report.compare("expert", now.levels[0].expert_names, before.levels[0].expert_names, note)


def _copy(targets: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    for name, value in values.items():
        targets[name].copy_(value)
