"""Stages: what a model had before more was added (`model.stages`, written by training)."""

from collections.abc import Callable
from functools import partial
from typing import Any

from mmoe.config import RunConfig, config_from_dict
from mmoe.config.model import SingleTaskConfig
from mmoe.config.training import ENCODER, StageConfig, check_stages, keeps_pool, keeps_towers
from mmoe.run import RunDirectory
from mmoe.train.warm_start import EarlierRun
from mmoe.train.warm_start.earlier import named_pairs


def with_stages(config: RunConfig, earlier: EarlierRun | None) -> RunConfig:
    """Returns the config with what the earlier run had among `model.stages`.

    A run that adds nothing to one that grew goes on as it did: the same parts stay frozen.

    Args:
        config: Of a new run.
        earlier: That it continues; passed `check(config)`.

    Raises:
        ValueError: There is none, though something is to be frozen; or what is frozen could not
            stay as it was.
    """
    freeze = config.training.freeze
    if config.training.extend_ids and not freeze:
        raise ValueError(
            "training.extend_ids gives rows to ids that a frozen encoder does not know, but "
            "training.freeze is empty; add encoder to it, or remove extend_ids"
        )
    if earlier is None:
        if freeze:
            raise ValueError(
                f"training.freeze: {', '.join(freeze)} would keep weights that nothing has trained;"
                " name the run that has, --warm-start RUN_DIR, or remove training.freeze"
            )
        return config
    config = _with_voters(
        _with_known_features(config, earlier.config), earlier.config, f"--warm-start {earlier.path}"
    )
    before = earlier.config.model.stages
    by_stage = keeps_pool(freeze) or any(stage.experts for stage in before)
    was = _whole(earlier.config, earlier, by_stage=by_stage)
    if by_stage or keeps_towers(freeze):
        there = earlier.encoder.domains
        was = was.model_copy(update={"domains": [] if there is None else there.names})
    now = _whole(config, None, by_stage=by_stage)
    grows = any(set(getattr(now, part)) - set(getattr(was, part)) for part in _PARTS)
    if not freeze:
        if before and grows:
            raise ValueError(
                f"--warm-start {earlier.path}: grew from another run, whose parts were frozen "
                "(model.stages); say --freeze for what is to stay, or add no task, expert or "
                "feature"
            )
        check_stages(before, now.tasks, now.features)
        return _staged(config, before)
    goes_on = bool(before) and not grows
    stages = before if goes_on else [*before, was]
    config = _staged(config, stages)
    if config.training.extend_ids and not goes_on:
        config = _with_new_features(config, stages)
    _check_settings(config, earlier, stages[-1])
    return config


def with_recorded_stages(config: RunConfig, run: RunDirectory) -> RunConfig:
    """Returns the config of a run to be resumed with the stages that it found when it began."""
    began_with_another = run.warm_start_file.exists() and run.config_file.exists()
    if config.model.stages or not began_with_another:
        return config
    recorded = run.config()
    config = _with_voters(_with_known_features(config, recorded), recorded, str(run.path))
    return _staged(config, recorded.model.stages)


_PARTS = ("tasks", "experts", "features")


def _staged(config: RunConfig, stages: list[StageConfig]) -> RunConfig:
    return config.model_copy(update={"model": config.model.model_copy(update={"stages": stages})})


def _with_voters(config: RunConfig, earlier: RunConfig, origin: str) -> RunConfig:
    """Keeps the voters where some gates are frozen: a task that is added has no vote."""
    if not (config.model.has_gates and earlier.model.has_gates):
        return config
    gate, there = config.model.gate, earlier.model.gate
    frozen = bool(config.training.freeze or earlier.model.stages)
    tasks, voters = [task.name for task in config.tasks], there.voters
    if not frozen or gate.selection() is None or voters is None:
        return config
    # All tasks: nobody said who votes
    if gate.voters not in (tasks, voters):
        raise ValueError(
            f"model.gate.select_voters is {gate.voters}, but {voters} in {origin}, and "
            "tasks that join frozen gates have no vote; name those, or leave select_voters out"
        )
    gate = gate.model_copy(update={"select_voters": voters})
    gate = gate.with_voters(tasks, config.model.most_gates(len(tasks)))
    model = config.model.model_copy(update={"gate": gate})
    return config.model_copy(update={"model": model})


def _whole(config: RunConfig, earlier: EarlierRun | None, *, by_stage: bool) -> StageConfig:
    """Returns all that a model has as a stage; of the earlier run, with its tables."""
    tables = [] if earlier is None else [table.name for table in earlier.encoder.tables]
    tasks = [task.name for task in config.tasks]
    return StageConfig(
        tasks=tasks,
        experts=config.model.expert_names(tasks) if by_stage else [],
        features=[feature.name for feature in config.features],
        tables=tables,
    )


def _check_settings(config: RunConfig, earlier: EarlierRun, last: StageConfig) -> None:
    """Refuses settings that change what frozen parts compute, beyond those a warm start refuses."""
    model = config.model
    features = [feature.name for feature in config.features]
    of_before = [name for name in features if name in last.features]
    if model.wide and of_before != last.features:
        raise ValueError(
            "training.freeze: model.wide adds features up in their order, which is another than in "
            f"{earlier.path}; keep those there were in their order"
        )
    tasks = [task.name for task in config.tasks]
    have = {*features, *tasks, *model.expert_names(tasks)}
    gone = [name for name in (*last.features, *last.tasks, *last.experts) if name not in have]
    if gone:
        raise ValueError(
            f"training.freeze: {gone[0]} of {earlier.path} is not in this config, though what is "
            "frozen may need it; bring it back"
        )
    if last.experts:
        _check_readers(config, last)
    if features != last.features and model.interaction.kind != "none":
        new = [name for name in features if name not in last.features]
        what = f"new ones ({', '.join(new)})" if new else "the same in another order"
        raise ValueError(
            f"training.freeze: model.interaction is {model.interaction.kind}, which reads all "
            f"features, and there are {what}; keep those of {earlier.path}, in their order"
        )
    _check_same("training.precision", earlier, config, lambda c: c.training.precision)
    for section in ("expert", "experts", "gate", "tower", "execution"):
        _check_same(f"model.{section}", earlier, config, partial(_settings, section=section))
    if config.keeps_encoder:
        _check_encoder(config, earlier)


def _check_readers(config: RunConfig, last: StageConfig) -> None:
    """Refuses new features or experts that no part of the model would read."""
    model, tasks = config.model, [task.name for task in config.tasks]
    experts = [name for name in model.expert_names(tasks) if name not in last.experts]
    own_gates = model.most_gates(2) > 1  # a gate for each task
    new_tasks = [name for name in tasks if name not in last.tasks]
    gates = new_tasks if own_gates else experts if isinstance(model, SingleTaskConfig) else []
    unread = [] if gates else experts
    if not gates and not experts:
        unread = [f"feature {f.name}" for f in config.features if f.name not in last.features]
    if unread:
        why = " (its tasks share them)" if new_tasks else ""
        raise ValueError(
            f"training.freeze: {unread[0]} is new, but gates and experts of before do not read it, "
            f"and this model.kind {model.kind} gets no new ones{why}; add a task with a gate of "
            "its own, or freeze neither experts nor gates"
        )


# Of experts, gates and towers: what scores do not depend on
_OF_TRAINING = {
    *("dropout", "count", "z_loss", "balance_loss", "balance_scope", "importance_loss"),
    *("load_loss", "bias_speed", "entropy_loss", "code_loss", "jitter"),
}


def _settings(config: RunConfig, section: str) -> Any:
    """Returns a section's settings, as scores depend on them."""
    found = config.model.model_dump().get(section)
    if isinstance(found, dict):
        return {key: value for key, value in found.items() if key not in _OF_TRAINING}
    if isinstance(found, list):
        return [{k: v for k, v in one.items() if k not in _OF_TRAINING} for one in found]
    return found


def _check_same(
    key: str, earlier: EarlierRun, config: RunConfig, of: Callable[[RunConfig], Any]
) -> None:
    there, here = of(earlier.config), of(config)
    if there == here:
        return
    if isinstance(here, dict) and isinstance(there, dict):
        name = next(name for name in {**here, **there} if here.get(name) != there.get(name))
        key, there, here = f"{key}.{name}", there.get(name), here.get(name)
    mend = ", and what training.freeze keeps would score otherwise; keep it as it was"
    raise earlier.other(key, there, here, mend)


def _check_encoder(config: RunConfig, earlier: EarlierRun) -> None:
    """No setting of a frozen feature may be another: it would have no effect."""
    mend = f", but training.freeze keeps the {ENCODER}; keep it as it was, or do not freeze it"
    for section in ("features", "tables"):
        pairs = named_pairs(earlier.config, config, lambda c, name=section: getattr(c, name))
        for there, here in pairs:
            one, two = there.model_dump(), here.model_dump()
            for key in two:
                if key not in ("learning_rate", "vectors") and one.get(key) != two[key]:
                    where = f"{section}.{here.name}.{key}"
                    raise earlier.other(where, one.get(key), two[key], mend)


_NEW = "__new"  # then the number of the stage


def _with_known_features(config: RunConfig, other: RunConfig) -> RunConfig:
    """Returns the config with the features for new ids that another one has beside it."""
    names = {feature.name for feature in config.features}
    more = [
        feature
        for feature in other.features
        if feature.known_elsewhere and feature.name not in names
    ]
    return config.model_copy(update={"features": [*config.features, *more]}) if more else config


def _with_new_features(config: RunConfig, stages: list[StageConfig]) -> RunConfig:
    """The config with a feature for the new ids of each that has a frozen vocabulary."""
    raw = config.model_dump(mode="json")
    shared = {table["name"]: table for table in raw["tables"]}
    by_name = {feature["name"]: feature for feature in raw["features"]}
    kept = config.keeps_encoder
    found: list[dict[str, Any]] = []
    for feature in config.features:
        if not feature.grows or feature.known_elsewhere:
            continue
        if feature.name not in stages[-1].features:
            continue
        table = feature.table_names[0]
        encoding = next((t for t in config.tables if t.name == table), feature).table_encoding
        if encoding is None or not encoding.lists_ids:
            continue  # every id has a row, or may get one
        if kept or table in config.frozen_tables:
            own = {**by_name[feature.name], **shared.get(table, {})}
            earlier = [f"{feature.name}{_NEW}{n}" for n in range(1, len(stages))]
            found.append(
                {
                    **own,
                    "name": f"{feature.name}{_NEW}{len(stages)}",
                    "column": feature.source_columns[0],
                    "table": None,
                    "vectors": None,
                    "beyond": [table, *(name for name in earlier if name in by_name)],
                }
            )
    if not found:
        raise ValueError(
            "training.extend_ids gives rows to ids that a frozen vocabulary does not know, and "
            "none is frozen: add encoder to training.freeze, or remove extend_ids"
        )
    return config_from_dict({**raw, "features": [*raw["features"], *found]}, of_run=True)
