"""Makes interactions of features for a network, as a config says."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Any

from mmoe.config import InteractionConfig, RunConfig
from mmoe.config.model import BiasConfig
from mmoe.datasets import FeatureEncoder
from mmoe.models.bias_tower import own_lookups, own_names
from mmoe.models.inputs import replaced_names
from mmoe.models.interactions.autoint import AutoInt
from mmoe.models.interactions.cross_network import CrossNetwork
from mmoe.models.interactions.factorization_machine import DeepFM, FactorizationMachine
from mmoe.models.interactions.layers import Beside, Interaction
from mmoe.models.interactions.masknet import MaskNet
from mmoe.models.network import MixtureNetwork
from mmoe.models.sequences import sequence_columns


@dataclass(frozen=True)
class Columns:
    """Layout of a row of inputs: numbers first, then embeddings.

    Those of `model.bias`, which its tower alone reads, are not among them.

    Attributes:
        numbers: Names of the columns of numbers, as `InputLayers` returns them.
        embeddings: Start, width and name of each embedding, `feature@table`; then of the vectors
            that sequences become.
    """

    numbers: list[str]
    embeddings: list[tuple[int, int, str]]

    @classmethod
    def of(cls, encoder: FeatureEncoder, bias: BiasConfig | None = None) -> "Columns":
        """Returns those of a fitted encoder, without those that the tower of `bias` reads."""
        own = own_names(bias, encoder)
        names = replaced_names(encoder.dense_names, encoder.input_layers)
        numbers, biased = [name for name in names if name not in own], own_lookups(bias, encoder)
        dims = {table.name: table.dim for table in encoder.tables}
        specs = [*encoder.categorical, *encoder.lists]
        # A feature that looks up another table now gives other numbers
        named = [
            (f"{spec.name}@{spec.table}", dims[spec.table])
            for spec in specs
            if spec.pooling != "none" and spec.name not in biased
        ]
        named += sequence_columns(encoder)
        starts = accumulate((width for _, width in named), initial=len(numbers))
        found = [(start, width, name) for start, (name, width) in zip(starts, named, strict=False)]
        return cls(numbers, found)

    @property
    def names(self) -> list[str]:
        """Names every column."""
        embeddings = [f"{name}[{i}]" for _, dim, name in self.embeddings for i in range(dim)]
        return self.numbers + embeddings

    def of_width(self, dim: int) -> list[tuple[int, str]]:
        """Start and name of each embedding of this width."""
        return [(start, name) for start, own, name in self.embeddings if own == dim]

    @property
    def number_runs(self) -> dict[str, list[tuple[int, int]]]:
        """Returns, by feature, the runs [start, stop) of its columns of numbers."""
        runs: dict[str, list[tuple[int, int]]] = {}
        start = 0
        for feature, columns in groupby(self.numbers, _feature):
            stop = start + sum(1 for _ in columns)
            runs.setdefault(feature, []).append((start, stop))
            start = stop
        return runs


def fields_of(columns: Columns, dim: int) -> list[str]:
    """Names the fields of attention: embeddings of the common width, then features of numbers.

    Example:
        >>> fields_of(Columns(["age", "t[0]", "t[1]"], [(3, 4, "user@user"), (7, 8, "x@x")]), 4)
        ['user@user', 'age', 't']
    """
    return [name for _, name in columns.of_width(dim)] + list(columns.number_runs)


def added_names(config: RunConfig, columns: Columns) -> list[str]:
    """Names the columns that the interaction puts beside the inputs.

    Those of a field have its name, so that a run that goes on with other fields finds them.
    """
    interaction = config.model.interaction
    if not interaction.adds_to_fields:
        return [f"{interaction.kind} [{i}]" for i in range(interaction.added_width)]
    fields = fields_of(columns, config.model.embedding_dim)
    each = range(interaction.added_width)
    return [f"{interaction.kind} {field}[{i}]" for field in fields for i in each]


def add_cross_network(
    network: MixtureNetwork, config: RunConfig, encoder: FeatureEncoder, width: int
) -> Interaction:
    """Makes a cross network, through which the network reads its inputs."""
    return CrossNetwork(width, None, **_keys(config.model.interaction))


def add_factorization_machine(
    network: MixtureNetwork, config: RunConfig, encoder: FeatureEncoder, width: int
) -> Interaction:
    """Makes one of the features of ids that have the common width."""
    starts = _paired(config, encoder)
    return FactorizationMachine(starts, config.model.embedding_dim, _row_logits(network))


def add_deepfm(
    network: MixtureNetwork, config: RunConfig, encoder: FeatureEncoder, width: int
) -> Interaction:
    """Makes one of the features of ids of the common width, with an MLP of all embeddings."""
    starts, model = _paired(config, encoder), config.model
    embedded = width - len(Columns.of(encoder, config.model.bias).numbers)
    return DeepFM(
        starts, model.embedding_dim, embedded, _row_logits(network), **_keys(model.interaction)
    )


def add_masknet(
    network: MixtureNetwork, config: RunConfig, encoder: FeatureEncoder, width: int
) -> Interaction:
    """Makes a MaskNet beside the inputs; it normalises each embedding alone."""
    fields = [
        (start, dim)
        for start, dim, _ in Columns.of(encoder, config.model.bias).embeddings
        if dim > 1
    ]
    keys = _keys(config.model.interaction)
    return Beside(MaskNet(width, None, fields=fields, **keys))


def add_autoint(
    network: MixtureNetwork, config: RunConfig, encoder: FeatureEncoder, width: int
) -> Interaction:
    """Makes attention among embeddings of the common width, and numbers, beside the inputs."""
    columns, dim = Columns.of(encoder, config.model.bias), config.model.embedding_dim
    fields = fields_of(columns, dim)
    if len(fields) < 2:
        alone = f"{fields[0].partition('@')[0]} alone" if fields else "none"
        raise ValueError(
            f"model.interaction is autoint, but there is {alone} among features of numbers and "
            f"those with an embedding of width model.embedding_dim ({dim}), expected two or more; "
            "set interaction: none"
        )
    starts, runs = [start for start, _ in columns.of_width(dim)], columns.number_runs
    keys = _keys(config.model.interaction)
    return Beside(AutoInt(dim, starts, list(runs.values()), **keys))


def _row_logits(network: MixtureNetwork) -> int:
    """Logits that differ from row to row: those to which products are added."""
    return sum(map(len, network.towers.columns.of_rows))


def _keys(interaction: InteractionConfig) -> dict[str, Any]:
    return {key: value for key, value in interaction if key != "kind"}


def _paired(config: RunConfig, encoder: FeatureEncoder) -> Sequence[int]:
    """Returns where embeddings of ids of the common width begin among those the model reads."""
    dim, starts, start = config.model.embedding_dim, [], 0
    biased = own_lookups(config.model.bias, encoder)
    tables = {table.name: table for table in encoder.tables}
    for feature in (*encoder.categorical, *encoder.lists):
        if feature.pooling == "none" or feature.name in biased:
            continue
        table = tables[feature.table]
        if table.ids and table.dim == dim:
            starts.append(start)
        start += table.dim
    if len(starts) < 2:  # a config of known kinds of features says so itself
        raise ValueError(
            f"model.interaction is {config.model.interaction.kind}, but {len(starts)} feature(s) "
            "of ids have embeddings of width model.embedding_dim "
            f"({dim}), expected two or more; set interaction: none"
        )
    return starts


def _feature(column: str) -> str:
    """The feature of a column of numbers: its name, without `[3]` or ` piece[3]`."""
    return re.split(r"[\[ ]", column, maxsplit=1)[0]
