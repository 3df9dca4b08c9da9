"""Builds a model of a config and a fitted encoder."""

from collections.abc import Callable, Mapping, Sequence
from typing import cast

import torch
from torch import nn

from mmoe.config import INTERACTIONS, RunConfig, ScoringPrecision, TaskConfig
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.embeddings import (
    EmbeddingBackend,
    RowPrecision,
    build_embeddings,
    build_scoring_embeddings,
)
from mmoe.mixture.draws import borrowed_generators
from mmoe.models.bias_tower import BiasColumns, BiasTower, own_dense, own_lookups
from mmoe.models.domains import add_domains
from mmoe.models.input_layers import InputLayers, widened_by
from mmoe.models.interactions.add import Columns, added_names
from mmoe.models.network import MixtureNetwork
from mmoe.models.ranker import Ranker
from mmoe.models.registry import build_network
from mmoe.models.relations import relate_tasks
from mmoe.models.requests.build import (
    build_requests,
    check_stages,
    input_layers_of_levels,
    request_columns,
)
from mmoe.models.sequences.build import build_sequences
from mmoe.models.stages.columns import stage_columns
from mmoe.models.wide import WidePart
from mmoe.parallel import is_spread
from mmoe.tasks import Tower
from mmoe.tasks.kinds import objective_of

# Of a network, its config and encoder, and the width of its inputs
AddInteraction = Callable[[MixtureNetwork, RunConfig, FeatureEncoder, int], None]


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
        device: Default: the CPU (`mmoe.models.device.resolve_device` finds it).
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
    sequences = build_sequences(encoder)
    width += 0 if sequences is None else sequences.output_dim
    bias = None if config.model.bias is None else BiasColumns.of(config, encoder)
    width -= 0 if bias is None else bias.width
    names = [task.name for task in config.tasks]
    added = len(added_names(config, Columns.of(encoder, config.model.bias)))
    stages = stage_columns(config, encoder)
    check_stages(encoder, stages)
    network = build_network(
        config.model,
        width + added,
        names,
        config.parallel,
        stages,
        request_columns(encoder, config.model.bias, added) if encoder.has_requests else None,
    )
    if layers:
        network.inputs = InputLayers(layers, input_layers_of_levels(encoder))
    network.sequences = sequences
    network.requests = build_requests(encoder)
    widen_towers(network, config.tasks)
    add_interaction: AddInteraction = INTERACTIONS.implementation(config.model.interaction)
    add_interaction(network, config, encoder, width)
    relate_tasks(network, config.model, config.tasks)
    add_domains(network, config, encoder.domains)
    if bias is not None and config.model.bias is not None:
        counts = [len(columns) for columns in network.towers.columns.of_rows]
        network.bias_tower = BiasTower(bias, config.model.bias, names, counts)
    wide = None
    if config.model.wide:
        features = [*encoder.categorical, *encoder.lists]
        wide = WidePart(
            encoder.tables,
            features,
            num_dense,
            len(config.tasks),
            unread=own_lookups(config.model.bias, encoder),
            unread_dense=own_dense(config.model.bias, encoder),
        ).to(device)
        for tower in network.towers:
            if isinstance(tower, Tower):  # the model begins as its wide part
                tower.start_at_zero()
    learn = not all(table.frozen for table in encoder.tables)
    # Ranks that exchange rows of experts go through the same backward passes, also those without
    learn |= is_spread(network) and not config.training.freeze
    return Ranker(embeddings, network.to(device), num_dense, wide, tables_learn=learn)


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
