"""Builds a model of a config and a fitted encoder."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import nn

from mmoe.config import (
    INTERACTIONS,
    InputLayerSpec,
    ModelConfig,
    RunConfig,
    ScoringPrecision,
    TaskConfig,
)
from mmoe.config.relations import TRANSFERS, AdaptiveTransferConfig, parents_of
from mmoe.config.training import domains_known_to
from mmoe.datasets import FeatureEncoder
from mmoe.datasets.features.domains import Domains, asked_tasks
from mmoe.embeddings import (
    EmbeddingBackend,
    RowPrecision,
    build_embeddings,
    build_scoring_embeddings,
)
from mmoe.mixture import GateTraits, traits_of
from mmoe.mixture.gates.joined import groups_of, modules_of
from mmoe.mixture.inputs import RequestColumns
from mmoe.models.bias_tower import BiasTower
from mmoe.models.columns import (
    BiasColumns,
    Columns,
    columns_left_by_bias,
    own_dense,
    own_lookups,
    request_columns,
)
from mmoe.models.inputs import InputLayers, widened_by
from mmoe.models.interactions.add import added_names
from mmoe.models.interactions.layers import Interaction, Products
from mmoe.models.network import ImputationTowers, Level, MixtureNetwork, NetworkDomains
from mmoe.models.ranker import Ranker
from mmoe.models.requests import LookedUp, RequestInputs
from mmoe.models.sections import build_network, build_towers
from mmoe.models.sequences import SequenceInputs, build_sequences
from mmoe.models.wide import WidePart
from mmoe.parallel import is_spread
from mmoe.process_settings import borrowed_generators
from mmoe.tasks import TaskTowers, Tower
from mmoe.tasks.kinds import objective_of
from mmoe.tasks.towers import DomainTower
from mmoe.tasks.transfer import AdaptiveTransfer, BayesianTransfer, Calibrator

# Of a network, its config and encoder, and the width of its inputs
MakeInteraction = Callable[[MixtureNetwork, RunConfig, FeatureEncoder, int], Interaction]


def build_ranker(
    config: RunConfig,
    encoder: FeatureEncoder,
    device: torch.device | None = None,
    *,
    table_precision: ScoringPrecision | Mapping[str, RowPrecision] | None = None,
    empty_tables: bool = False,
) -> Ranker:
    """Builds the embeddings, mixture and towers of a run, freshly initialised.

    The dense weights come from torch's global generator (seed it first, alike on all ranks); the
    tables from `config.seed`. Both are drawn on the CPU, so they are the same on every device.

    Args:
        config: Of the run.
        encoder: Knows the features and tables.
        device: Default: the CPU (`mmoe.models.layout.resolve_device` finds it).
        table_precision: Of tables that are only looked up, and hold nothing yet: one for all, or
            each table's own, as it was trained. None: tables as `config` trains them.
        empty_tables: Those that are only looked up take no memory: see `ScoringEmbeddings.use`.

    Raises:
        ValueError: The embedding backend that was asked for is not installed, an interaction has no
            two features, or a frozen expert cannot be made.
    """
    # Backends differ in how many numbers they draw themselves, which the network must not feel
    with borrowed_generators():
        embeddings = _build_tables(config, encoder, device, table_precision, empty_tables)
    num_dense, layers = len(encoder.dense_names), encoder.input_layers
    width = num_dense + cast(EmbeddingBackend, embeddings).output_dim + widened_by(layers)
    sequences = build_sequences(encoder) if encoder.sequences else None
    width += 0 if sequences is None else sequences.output_dim
    bias = None if config.model.bias is None else BiasColumns.of(config, encoder)
    width -= 0 if bias is None else bias.width
    added = 0
    if config.model.interaction.added_width:
        added = len(added_names(config, Columns.of(encoder, config.model.bias)))
    stages = stage_columns(config, encoder) if config.model.stages else []
    if stages:
        check_stages(encoder, stages)
    network = build_network(
        config.model,
        width + added,
        [task.name for task in config.tasks],
        config.parallel,
        stages,
        request_columns(encoder, config.model.bias, added) if encoder.has_requests else None,
    )
    _complete(network, config, encoder, width, sequences, bias)
    wide = None
    if config.model.wide:
        wide = _wide_part(config, encoder).to(device)
        network.towers.start_at_zero()  # the model begins as its wide part
    # Ranks that exchange rows of experts go through the same backward passes, also those without
    learn = not all(table.frozen for table in encoder.tables) or (
        not config.training.freeze and is_spread(network)
    )
    return Ranker(embeddings, network.to(device), num_dense, wide, tables_learn=learn)


def _complete(
    network: MixtureNetwork,
    config: RunConfig,
    encoder: FeatureEncoder,
    width: int,
    sequences: SequenceInputs | None,
    bias: BiasColumns | None,
) -> None:
    """Puts all around levels and towers that the config asks for; `width` is that of the inputs."""
    layers, tasks, model = encoder.input_layers, config.tasks, config.model
    # Each draws its weights where it is made: their order is part of a seed's meaning
    network.inputs = InputLayers(layers, input_layers_of_levels(encoder)) if layers else None
    network.sequences, network.requests = sequences, build_requests(encoder)
    widen_towers(network, tasks)
    interact: MakeInteraction | None = INTERACTIONS.implementation(model.interaction)
    if interact is not None:
        interaction = interact(network, config, encoder, width)
        if isinstance(interaction, Products):
            network.interaction = interaction
        else:
            network.crossing = interaction
    relate_tasks(network, model, tasks)
    add_domains(network, config, encoder.domains)
    if bias is not None and model.bias is not None:
        counts = [len(columns) for columns in network.towers.columns.of_rows]
        network.bias_tower = BiasTower(bias, model.bias, [task.name for task in tasks], counts)


def _wide_part(config: RunConfig, encoder: FeatureEncoder) -> WidePart:
    return WidePart(
        encoder.tables,
        [*encoder.categorical, *encoder.lists],
        len(encoder.dense_names),
        len(config.tasks),
        unread=own_lookups(config.model.bias, encoder),
        unread_dense=own_dense(config.model.bias, encoder),
    )


def widen_towers(network: MixtureNetwork, tasks: Sequence[TaskConfig]) -> None:
    """Gives towers the columns that their tasks need, where that is more than one.

    Raises:
        ValueError: Such a tower is a module of somebody's, which computes one number of a row.
    """
    for task, tower in zip(tasks, network.towers, strict=True):
        objective = objective_of(task.kind)
        columns = objective.num_logits(task), objective.num_constants(task)
        if columns == (1, 0):
            continue
        if not isinstance(tower, Tower):
            raise ValueError(
                f"task {task.name!r}: kind {task.kind} needs {sum(columns)} logits of a row, but "
                f"model.tower makes a {type(tower).__name__}, which gives one; set "
                "model.tower.kind: mlp"
            )
        tower.widen(*columns)


def _build_tables(
    config: RunConfig,
    encoder: FeatureEncoder,
    device: torch.device | None,
    precision: ScoringPrecision | Mapping[str, RowPrecision] | None,
    empty: bool,
) -> nn.Module:
    features = [*encoder.categorical, *encoder.lists]
    if precision is not None:
        return build_scoring_embeddings(encoder.tables, features, precision, device, empty=empty)
    return build_embeddings(
        encoder.tables,
        features,
        optimizer=config.training.embedding_optimizer,
        backend=config.training.embedding_backend,
        seed=config.seed,
        device=device,
        parallel=config.parallel,
    )


def add_domains(network: MixtureNetwork, config: RunConfig, domains: Domains | None) -> None:
    """Gives each domain gates of its own, and a tower for each task where the config says so.

    Nothing is drawn: at first every domain has the gates and towers of a network without domains.

    Args:
        network: Of `config.model`; changed in place, after its towers were widened.
        config: Of the run.
        domains: That its encoder learnt; None: there are none.

    Raises:
        ValueError: Gates are of a kind of somebody's that knows no domains.
    """
    section = config.model.domains
    if section is None or domains is None:
        return
    asked = asked_tasks(config.tasks, domains)
    tasks = [task.name for task in config.tasks]
    network.domains = NetworkDomains(
        domains.names,
        tasks,
        None if asked is None else torch.from_numpy(asked),
        own_gates=network.learned_gates,
    )
    for level in network.levels if network.learned_gates else ():
        _add_gates(level, config, domains)
    if section.towers == "own":
        _check_towers(network, "model.domains.towers is own", "model.domains.towers: shared")
        stages = config.model.stages
        known = [len(domains_known_to(task, stages, domains.names)) for task in tasks]
        network.towers = TaskTowers.of(
            DomainTower(cast(Tower, tower), count) if count else tower
            for tower, count in zip(network.towers, known, strict=True)
        )


def _add_gates(level: Level, config: RunConfig, domains: Domains) -> None:
    """Gives each domain gates of its own, and gates of a stage those of its domains."""
    gate = level.mixture.gate
    for module in modules_of(gate):
        if not (traits_of(module, GateTraits).takes_rows and hasattr(module, "add_domains")):
            raise ValueError(
                f"model.domains does not go with gates of kind {config.model.gate.kind}, whose "
                f"{type(module).__name__} has none of each domain (takes_rows, and a method "
                "add_domains); set model.gate.kind to another one, or remove model.domains"
            )
    firsts = [level.gate_names[group.places[0]] for group in groups_of(gate)]
    known = [_known_to(name, config, domains) for name in firsts]
    cast(Any, gate).add_domains(known or len(domains.names))


def _known_to(gate_name: str, config: RunConfig, domains: Domains) -> int:
    """Returns the number of domains that such gates know."""
    stages = [stage for stage in config.model.stages if stage.experts]
    # A gate of no task has been there from the first
    tasks = [task.name for task in config.tasks]
    task = gate_name if gate_name in tasks else stages[0].tasks[0]
    return len(domains_known_to(task, stages, domains.names))


# Of a network, its config and its tasks
MakeTransfer = Callable[
    [MixtureNetwork, ModelConfig, Sequence[TaskConfig]], AdaptiveTransfer | BayesianTransfer
]


def relate_tasks(network: MixtureNetwork, model: ModelConfig, tasks: Sequence[TaskConfig]) -> None:
    """Lets towers read others, as `model.transfer` says, and adds imputation towers.

    What it adds draws its weights from torch's random generator, after all that the network has.

    Args:
        network: Of `model`; changed in place.
        model: The `model` section of a config.
        tasks: In the order of the towers.

    Example:
        >>> tasks = [TaskConfig(name="click", label="click"),
        ...          TaskConfig(name="buy", label="buy", after="click")]
        >>> model = ModelConfig(transfer="aitm")
        >>> network = build_network(model, 20, ["click", "buy"])
        >>> relate_tasks(network, model, tasks)
        >>> type(network.transfer).__name__
        'AdaptiveTransfer'
    """
    make: MakeTransfer | None = TRANSFERS.implementation(model.transfer)
    if make is not None:
        network.transfer = make(network, model, tasks)
    asking = [column for column, task in enumerate(tasks) if task.imputes]
    if asking:
        towers = build_towers(model, len(asking), network.width)
        network.imputation = ImputationTowers(dict(zip(asking, towers, strict=True)))


def adaptive_transfer(
    network: MixtureNetwork, model: ModelConfig, tasks: Sequence[TaskConfig]
) -> AdaptiveTransfer:
    """Makes AITM's attention, through which goes what towers read."""
    settings = model.transfer
    assert isinstance(settings, AdaptiveTransferConfig)
    trained = model.trained_tasks(tasks)
    weight, pairs = settings.calibrator(trained)
    return AdaptiveTransfer(
        parents_of(tasks),
        network.width,
        dim=settings.dim,
        calibrator=Calibrator(weight, pairs, trained) if pairs else None,
    )


def bayesian_transfer(
    network: MixtureNetwork, model: ModelConfig, tasks: Sequence[TaskConfig]
) -> BayesianTransfer:
    """Makes layers by which towers' hidden layers read one another, as in DBMTL."""
    _check_towers(network, "model.transfer is dbmtl", "model.transfer: none")
    return BayesianTransfer(parents_of(tasks), network.towers)


def _check_towers(network: MixtureNetwork, what: str, mend: str) -> None:
    """Refuses towers that a model computes in a way of its own, which would be left out."""
    if type(network.towers) is not TaskTowers:
        raise ValueError(
            f"{what}, which computes each tower by itself, but this model's are "
            f"{type(network.towers).__name__}, which compute theirs together; set {mend}"
        )


def stage_columns(config: RunConfig, encoder: FeatureEncoder) -> list[list[int] | None]:
    """Returns for each of `model.stages` the columns that its parts read, in its own order.

    Args:
        config: Of the run.
        encoder: Of the run.

    Returns:
        Their numbers; None: all, in the order that there is.
    """
    places = {name: place for place, name in enumerate(_input_names(encoder))}
    features = {feature.name: feature for feature in config.features}
    found: list[list[int] | None] = []
    for stage in config.model.stages:
        own = config.model_copy(update={"features": [features[name] for name in stage.features]})
        columns = [places[name] for name in _input_names(replace(encoder, config=own))]
        found.append(None if columns == list(range(len(places))) else columns)
    return found


def _input_names(encoder: FeatureEncoder) -> list[str]:
    return Columns.of(encoder, encoder.config.model.bias).names


def build_requests(encoder: FeatureEncoder) -> RequestInputs | None:
    """Makes it; None: no feature is of requests."""
    if not encoder.has_requests:
        return None
    requests = encoder.config.data.requests
    dims = {table.name: table.dim for table in encoder.tables}
    dense = [place for place, shared in enumerate(encoder.layout.dense) if shared]
    flags = [*encoder.layout.ids, *encoder.layout.lists]
    lookups = [
        LookedUp(spec.name, 0 if spec.pooling == "none" else dims[spec.table], flag)
        for spec, flag in zip([*encoder.categorical, *encoder.lists], flags, strict=True)
    ]
    return RequestInputs(
        request_columns(encoder),
        RequestColumns(dense, len(encoder.dense_names)),
        len(Columns.of(encoder).numbers),
        lookups,
        [(spec.events, spec.targets) for spec in encoder.sequences],
        read=columns_left_by_bias(encoder),
        exact=requests is not None and requests.exact,
    )


def check_stages(encoder: FeatureEncoder, stages: Sequence[Sequence[int] | None]) -> None:
    """Refuses new features of frozen parts, whose scores would no longer be the same bits.

    Args:
        encoder: Of the run.
        stages: The columns that parts of each stage read; None: all.

    Raises:
        ValueError: There are such, requests, and layers that are split by them.
    """
    requests = encoder.config.data.requests
    split = encoder.has_requests and requests is not None and not requests.exact
    if split and any(columns is not None for columns in stages):
        raise ValueError(
            "training.freeze: features that come to frozen gates or experts would change last bits "
            "of what these make of rows of requests; keep the features, or set "
            "data.requests.exact: true in both runs"
        )


def input_layers_of_levels(encoder: FeatureEncoder) -> Mapping[str, Sequence[InputLayerSpec]]:
    """Returns what is made of the dense columns of each level; nothing without requests."""
    if not encoder.has_requests:
        return {}
    return {level: encoder.of_level(level).input_layers for level in ("request", "row")}
