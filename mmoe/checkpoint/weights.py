"""Weights from a checkpoint into a model, no larger than what was stored."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from mmoe.checkpoint.folder import StoredTensors
from mmoe.config import ParallelConfig, RunConfig, TableSpec
from mmoe.datasets import FeatureEncoder
from mmoe.embeddings import (
    EmbeddingBackend,
    RowPrecision,
    ScoringEmbeddings,
    managed_ids,
    scoring_embeddings,
)
from mmoe.models import MixtureNetwork, Ranker
from mmoe.models.build import build_ranker
from mmoe.parallel import Shard, world_size
from mmoe.parallel.sharded_tensors import cut_all
from mmoe.process_settings import borrowed_generators
from mmoe.terminal import byte_size


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
    load_network(ranker.network, model.part("network"), layout)
    if ranker.wide is not None:
        model.part("wide").load(ranker.wide.state_dict())
    tables = scoring_embeddings(ranker.embeddings)
    if tables is None:
        # A rank of several may hold no row of a table, and then has none of its names
        one = world_size() == 1
        model.part("tables").load(ranker.tables.table_shards(), all_names=one)
    else:
        fill_tables(tables, model)
    load_id_maps(ranker.tables, model)


def load_network(
    network: nn.Module, stored: StoredTensors, layout: Mapping[str, Sequence[Shard]] | None = None
) -> None:
    """Copies the tensors of a network, or this rank's shards of them.

    Args:
        network: Filled in place.
        stored: Of a whole network, by its names.
        layout: This rank's shards of tensors that lie on several ranks; None: it has all of each.

    Raises:
        ValueError: A name is missing on one side, or a shape differs.
    """
    # A rank without experts does not know the names of their tensors
    stored.load(cut_all(network.state_dict(), layout or {}), all_names=world_size() == 1)


def load_id_maps(embeddings: EmbeddingBackend, model: StoredTensors) -> None:
    """Copies the owners of managed rows that belong to the weights of `model`, if there are any."""
    ids = managed_ids(embeddings)
    if ids is not None:
        model.part("ids").load(ids.maps())


def trained_precisions(
    model: StoredTensors, tables: Sequence[TableSpec]
) -> dict[str, RowPrecision]:
    """Returns fp16 for tables trained so; one that is missing is refused when it is loaded."""
    there = model.part("tables")
    narrow = {t.name for t in tables if t.name in there and there.dtype(t.name) == torch.float16}
    return {table.name: "fp16" if table.name in narrow else "fp32" for table in tables}


def check_tables(tables: Sequence[TableSpec], model: StoredTensors) -> None:
    """Refuses tables that are not those of a checkpoint, before memory is taken for them.

    Raises:
        ValueError: A name is missing on one side, or a shape differs.
    """
    _check_shapes({table.name: (table.num_rows, table.dim) for table in tables}, model)


def _check_shapes(shapes: Mapping[str, tuple[int, int]], model: StoredTensors) -> None:
    """Checks shapes on every rank alike, whatever it holds of them."""
    empty = {
        name: [Shard(torch.empty(0, dim), (rows, dim), (0, 0))]
        for name, (rows, dim) in shapes.items()
    }
    model.part("tables").check(empty)


def fill_tables(tables: ScoringEmbeddings, model: StoredTensors) -> None:
    """Fills tables block by block, so that none is ever held twice, nor wider than it is to be."""
    _check_shapes(tables.shapes, model)
    stored = model.part("tables")
    for name in tables.shapes:
        for start, block_HD in stored.blocks(name, tables.held[name], torch.float32):
            tables.fill(name, start, block_HD)


_MAKERS = {
    *(torch.empty, torch.zeros, torch.ones, torch.full, torch.eye, torch.arange, torch.linspace),
    *(torch.rand, torch.randn, torch.randint, torch.randperm),
    *(torch.empty_like, torch.zeros_like, torch.ones_like, torch.full_like),
    *(torch.rand_like, torch.randn_like),
    *(Tensor.new_empty, Tensor.new_zeros, Tensor.new_ones, Tensor.new_full),
}
_FILLS = {Tensor.uniform_, Tensor.normal_, Tensor.fill_, Tensor.zero_}
_LARGE = 2**16  # bytes; smaller tensors may be settings, which a constructor looks at
# Numbers in fewer bits, optimizers' sums and copies while it is built; buffers that are not stored
_TIMES, _BESIDE = 8, 2**24


class SizeLimit(TorchFunctionMode):
    """Refuses to make more tensors than a stored model can fill, before memory is taken.

    A stranger's config may name any size, but the tensors beside it are as large as their files.

    Args:
        stored: Bytes of the model's tensors, all together.
        origin: The run, for the error.
        filled: False: large tensors hold no numbers, and so take addresses but no memory.

    Example:
        >>> with SizeLimit(2**20, "runs/mine"):
        ...     torch.nn.Linear(10**6, 10**6)
        Traceback (most recent call last):
            ...
        ValueError: runs/mine: its config asks for a tensor of shape [1000000, 1000000], 3.6 TiB ...
    """

    def __init__(self, stored: int, origin: object, *, filled: bool = True) -> None:
        super().__init__()
        self.stored, self.origin, self.filled, self.made = stored, origin, filled, 0

    @classmethod
    def of(cls, stored: StoredTensors, *, filled: bool = True) -> "SizeLimit":
        """Returns that of a checkpoint's model."""
        return cls(stored.num_bytes, stored.path, filled=filled)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Counts calls that make tensors; without numbers skips those that fill large ones."""
        keys = dict(kwargs or {})
        if func in _FILLS and not self.filled and args[0].nbytes > _LARGE:
            return args[0]
        if func in _MAKERS and str(keys.get("device")) != "meta":
            made = self._counted(func, args, keys)
            if not self.filled and made.nbytes > _LARGE:
                return torch.empty(made.shape, dtype=made.dtype)
        return func(*args, **keys)

    def _counted(
        self, func: Callable[..., Any], args: tuple[Any, ...], keys: Mapping[str, Any]
    ) -> Tensor:
        """Adds up the bytes that a call would make, and returns its tensors without memory."""
        outer = {name: value for name, value in keys.items() if name not in ("generator", "out")}
        try:
            made = func(*args, **{**outer, "device": "meta"})
        except RuntimeError as error:  # more bytes than there are numbers for
            raise ValueError(f"{self.origin}: its config asks for too much: {error}") from None
        self.made += made.nbytes
        if self.made > _TIMES * self.stored + _BESIDE:
            raise ValueError(
                f"{self.origin}: its config asks for a tensor of shape {list(made.shape)}, "
                f"{byte_size(self.made)} with those before it, but all that are stored take "
                f"{byte_size(self.stored)}; the config was changed after training"
            )
        return made


def outline(config: RunConfig, encoder: FeatureEncoder, stored: StoredTensors) -> MixtureNetwork:
    """Builds the network of a stored run, as on one process, for its names, shapes and modules.

    Large tensors of it hold no numbers.

    Args:
        config: Of the run.
        encoder: Of the run.
        stored: The model of a checkpoint.

    Raises:
        ValueError: It would be much larger than what is stored, or cannot be built.
    """
    config = config.without_weight_files().model_copy(
        update={"parallel": ParallelConfig(experts="replicated")}
    )
    with borrowed_generators(), SizeLimit.of(stored, filled=False):
        built = build_ranker(config, encoder, table_precision="fp16", empty_tables=True)
    return built.network
