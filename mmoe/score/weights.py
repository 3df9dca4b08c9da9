"""From a checkpoint into a model."""

from collections.abc import Mapping, Sequence

from torch import nn

from mmoe.embeddings import EmbeddingBackend, managed_ids
from mmoe.models.ranker import Ranker
from mmoe.parallel import world_size
from mmoe.parallel.shards import Shard, cut_all
from mmoe.score.stored_tensors import StoredTensors


def load_weights(
    ranker: Ranker, model: StoredTensors, layout: Mapping[str, Sequence[Shard]] | None = None
) -> None:
    """Copies what scores into a ranker: network, tables, and the owners of managed rows.

    Args:
        ranker: Changed in place.
        model: Of a run of the same config.
        layout: How tensors of the network are cut, where this rank holds pieces of them.

    Raises:
        ValueError: A name is missing on one side, or a shape differs.
    """
    load_network(ranker.network, model, "network", layout)
    model.load(ranker.tables.table_shards(), "tables", all_names=world_size() == 1)
    load_id_maps(ranker.tables, model)


def load_network(
    network: nn.Module,
    stored: StoredTensors,
    prefix: str,
    layout: Mapping[str, Sequence[Shard]] | None = None,
) -> None:
    """Copies the tensors of a network, or this rank's pieces of them.

    Raises:
        ValueError: A name is missing on one side, or a shape differs.
    """
    # A rank without experts does not know the names of their tensors
    every = world_size() == 1
    stored.load(cut_all(network.state_dict(), layout or {}), prefix, all_names=every)


def load_id_maps(embeddings: EmbeddingBackend, model: StoredTensors) -> None:
    """Copies the owners of managed rows that belong to the weights of `model`, if there are any."""
    ids = managed_ids(embeddings)
    if ids is not None:
        model.load(ids.maps(), "ids")
