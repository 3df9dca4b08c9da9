"""Builds a model of a config and a fitted encoder."""

from collections.abc import Callable, Mapping
from typing import cast

import torch
from torch import nn

from mmoe.config import INTERACTIONS, RunConfig, ScoringPrecision
from mmoe.config.experts import CrossNetworkConfig
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.embeddings import (
    EmbeddingBackend,
    RowPrecision,
    build_embeddings,
    build_scoring_embeddings,
)
from mmoe.models.cross_network import CrossNetwork
from mmoe.models.input_layers import InputLayers, widened_by
from mmoe.models.interactions import FactorizationMachine
from mmoe.models.network import MixtureNetwork
from mmoe.models.ranker import Ranker
from mmoe.models.registry import build_network
from mmoe.models.wide import WidePart
from mmoe.tasks import Tower

# Of a network, its config and encoder, and the width of its inputs
AddInteraction = Callable[[MixtureNetwork, RunConfig, FeatureEncoder, int], None]


def build_ranker(
    config: RunConfig,
    encoder: FeatureEncoder,
    device: torch.device | None = None,
    *,
    table_precision: ScoringPrecision | Mapping[str, RowPrecision] | None = None,
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

    Raises:
        ValueError: The embedding backend that was asked for is not installed, or a factorization
            machine has no two features.
    """
    # Backends differ in how many numbers they draw themselves, which the network must not feel
    with torch.random.fork_rng(devices=[]):
        embeddings = _build_tables(config, encoder, device, table_precision)
    num_dense, layers = len(encoder.dense_names), encoder.input_layers
    width = num_dense + cast(EmbeddingBackend, embeddings).output_dim
    network = build_network(
        config.model,
        width + widened_by(layers),
        [task.name for task in config.tasks],
        config.parallel,
    )
    if layers:
        network.inputs = InputLayers(layers)
    add_interaction: AddInteraction = INTERACTIONS.implementation(config.model.interaction)
    add_interaction(network, config, encoder, width + widened_by(layers))
    wide = None
    if config.model.wide:
        features = [*encoder.categorical, *encoder.lists]
        wide = WidePart(encoder.tables, features, num_dense, len(config.tasks)).to(device)
        for tower in network.towers:
            if isinstance(tower, Tower):  # the model begins as its wide part
                tower.start_at_zero()
    return Ranker(embeddings, network.to(device), num_dense, wide)


def no_interaction(
    network: MixtureNetwork, config: RunConfig, encoder: FeatureEncoder, width: int
) -> None:
    """Leaves the network as it is."""


def add_cross_network(
    network: MixtureNetwork, config: RunConfig, encoder: FeatureEncoder, width: int
) -> None:
    """Lets the network read its inputs through a cross network."""
    settings = config.model.interaction
    assert isinstance(settings, CrossNetworkConfig)
    network.crossing = CrossNetwork(width, None, layers=settings.layers, rank=settings.rank)


def add_factorization_machine(
    network: MixtureNetwork, config: RunConfig, encoder: FeatureEncoder, width: int
) -> None:
    """Adds one of the features of ids that have the common width."""
    dim, starts, start = config.model.embedding_dim, [], 0
    tables = {table.name: table for table in encoder.tables}
    for feature in (*encoder.categorical, *encoder.lists):
        table = tables[feature.table]
        if table.ids and table.dim == dim:
            starts.append(start)
        start += table.dim
    if len(starts) < 2:  # a config of known kinds of features says so itself
        raise ValueError(
            f"model.interaction is fm, but {len(starts)} feature(s) of ids have embeddings of "
            f"width model.embedding_dim ({dim}), expected two or more; set interaction: none"
        )
    network.interaction = FactorizationMachine(starts, dim, len(config.tasks))


def _build_tables(
    config: RunConfig,
    encoder: FeatureEncoder,
    device: torch.device | None,
    precision: ScoringPrecision | Mapping[str, RowPrecision] | None,
) -> nn.Module:
    features = [*encoder.categorical, *encoder.lists]
    if precision is not None:
        return build_scoring_embeddings(encoder.tables, features, precision, device)
    return build_embeddings(
        encoder.tables,
        features,
        optimizer=config.training.embedding_optimizer,
        backend=config.training.embedding_backend,
        seed=config.seed,
        device=device,
        parallel=config.parallel,
    )
