"""Makes interactions of features for a network, as a config says."""

from collections.abc import Sequence

from mmoe.config import RunConfig
from mmoe.datasets import FeatureEncoder
from mmoe.models.columns import Columns
from mmoe.models.interactions.autoint import AutoInt
from mmoe.models.interactions.cross_network import CrossNetwork
from mmoe.models.interactions.factorization_machine import DeepFM, FactorizationMachine
from mmoe.models.interactions.layers import Beside, Interaction
from mmoe.models.interactions.masknet import MaskNet
from mmoe.models.network import MixtureNetwork


def fields_of(columns: Columns, dim: int) -> list[str]:
    """Names the fields of attention: embeddings of the common width, then features of numbers.

    Example:
        >>> from mmoe.models.columns import Embedding
        >>> embeddings = [Embedding(3, 4, "user", "user"), Embedding(7, 8, "x", "x")]
        >>> fields_of(Columns(["age", "t[0]", "t[1]"], embeddings), 4)
        ['user@user', 'age', 't']
    """
    return [embedding.name for embedding in columns.of_width(dim)] + list(columns.number_runs)


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
    return CrossNetwork(width, None, **config.model.interaction.keywords())


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
    keywords = model.interaction.keywords()
    return DeepFM(starts, model.embedding_dim, embedded, _row_logits(network), **keywords)


def add_masknet(
    network: MixtureNetwork, config: RunConfig, encoder: FeatureEncoder, width: int
) -> Interaction:
    """Makes a MaskNet beside the inputs; it normalises each embedding alone."""
    embeddings = Columns.of(encoder, config.model.bias).embeddings
    fields = [(start, dim) for start, dim, *_ in embeddings if dim > 1]
    return Beside(MaskNet(width, None, fields=fields, **config.model.interaction.keywords()))


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
    starts, runs = [start for start, *_ in columns.of_width(dim)], columns.number_runs
    keywords = config.model.interaction.keywords()
    return Beside(AutoInt(dim, starts, list(runs.values()), **keywords))


def _row_logits(network: MixtureNetwork) -> int:
    """Logits that differ from row to row: those to which products are added."""
    return sum(map(len, network.towers.columns.of_rows))


def _paired(config: RunConfig, encoder: FeatureEncoder) -> Sequence[int]:
    """Returns where embeddings of ids of the common width begin among those the model reads."""
    dim, columns = config.model.embedding_dim, Columns.of(encoder, config.model.bias)
    of_ids = {table.name for table in encoder.tables if table.ids}
    places = [embedding.start for embedding in columns.of_width(dim) if embedding.table in of_ids]
    if len(places) < 2:  # a config of known kinds of features says so itself
        raise ValueError(
            f"model.interaction is {config.model.interaction.kind}, but {len(places)} feature(s) "
            "of ids have embeddings of width model.embedding_dim "
            f"({dim}), expected two or more; set interaction: none"
        )
    return [place - len(columns.numbers) for place in places]
