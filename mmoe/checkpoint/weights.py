"""From a checkpoint into a model."""

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from mmoe.checkpoint.stored_tensors import StoredTensors
from mmoe.config import TableSpec
from mmoe.embeddings import (
    EmbeddingBackend,
    RowPrecision,
    ScoringEmbeddings,
    managed_ids,
    scoring_embeddings,
)
from mmoe.models.ranker import Ranker
from mmoe.parallel import world_size
from mmoe.parallel.sharded_tensors import Shard, cut_all


def load_weights(
    ranker: Ranker, model: StoredTensors, layout: Mapping[str, Sequence[Shard]] | None = None
) -> None:
    """Copies what scores into a ranker: network, tables, and the owners of managed rows.

    Args:
        ranker: Changed in place.
        model: Of a run of the same config.
        layout: How tensors of the network are cut, where this rank holds shards of them.

    Raises:
        ValueError: A name is missing on one side, or a shape differs.
    """
    load_network(ranker.network, model, "network", layout)
    load_wide(ranker, model)
    tables = scoring_embeddings(ranker.embeddings)
    if tables is None:
        model.load(ranker.tables.table_shards(), "tables", all_names=world_size() == 1)
    else:
        fill_tables(tables, model)
    load_id_maps(ranker.tables, model)


def load_network(
    network: nn.Module,
    stored: StoredTensors,
    prefix: str,
    layout: Mapping[str, Sequence[Shard]] | None = None,
) -> None:
    """Copies the tensors of a network, or this rank's shards of them.

    Raises:
        ValueError: A name is missing on one side, or a shape differs.
    """
    # A rank without experts does not know the names of their tensors
    every = world_size() == 1
    stored.load(cut_all(network.state_dict(), layout or {}), prefix, all_names=every)


def load_wide(ranker: Ranker, model: StoredTensors) -> None:
    """Copies the wide part of `model` into a ranker that has one."""
    if ranker.wide is not None:
        model.load(ranker.wide.state_dict(), "wide")


def load_id_maps(embeddings: EmbeddingBackend, model: StoredTensors) -> None:
    """Copies the owners of managed rows that belong to the weights of `model`, if there are any."""
    ids = managed_ids(embeddings)
    if ids is not None:
        model.load(ids.maps(), "ids")


def trained_precisions(
    model: StoredTensors, tables: Sequence[TableSpec]
) -> dict[str, RowPrecision]:
    """Returns fp16 for tables trained so; one that is missing is refused when it is loaded."""
    there = set(model.names("tables"))
    return {
        table.name: "fp16"
        if table.name in there and model.dtype(f"tables.{table.name}") == torch.float16
        else "fp32"
        for table in tables
    }


def check_tables(tables: Sequence[TableSpec], model: StoredTensors) -> None:
    """Refuses tables that are not those of a checkpoint, before memory is taken for them.

    Raises:
        ValueError: A name is missing on one side, or a shape differs.
    """
    _check_shapes({table.name: (table.num_rows, table.dim) for table in tables}, model)


def _check_shapes(shapes: Mapping[str, tuple[int, int]], model: StoredTensors) -> None:
    """On every rank alike, whatever it holds of them."""
    empty = {
        name: [Shard(torch.empty(0, dim), (rows, dim), (0, 0))]
        for name, (rows, dim) in shapes.items()
    }
    model.check(empty, "tables")


# fp32 numbers of a table held beside it while it is filled (64 MiB)
_BLOCK = 2**24


def fill_tables(tables: ScoringEmbeddings, model: StoredTensors) -> None:
    """Fills tables block by block, so that none is ever held twice, nor wider than it is to be."""
    _check_shapes(tables.shapes, model)
    for name, (rows, dim) in tables.shapes.items():
        held = tables.held[name]
        height = max(_BLOCK // dim, 1)
        for start in range(held.start, held.stop, height):
            block_HD = torch.empty(min(height, held.stop - start), dim)
            block = Shard(block_HD, (rows, dim), (start, 0))
            model.load({name: [block]}, "tables", all_names=False)
            tables.fill(name, start, block_HD)
