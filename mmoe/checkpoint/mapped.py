"""Weights that are pages of a file, so that all processes of a host share them."""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from mmoe.checkpoint.folder import CheckpointFolder, StoredTensors, with_prefix
from mmoe.checkpoint.unshard import unshard
from mmoe.checkpoint.weights import fill_tables, load_id_maps
from mmoe.config import ScoringPrecision, TableSpec
from mmoe.datasets import FeatureEncoder
from mmoe.embeddings import ScoringEmbeddings, scoring_embeddings
from mmoe.embeddings.quantized import row_bytes
from mmoe.models import Ranker
from mmoe.run import RunDirectory
from mmoe.run.host_cache import cache_folder, cached_name, made_once
from mmoe.run.host_memory import check_fits

_FILE = "model.safetensors"


def weights_of_host(
    run: RunDirectory,
    stored: StoredTensors,
    encoder: FeatureEncoder,
    precision: ScoringPrecision | None = None,
) -> Path:
    """Returns the folder of the host's cache that holds a run's best weights as one plain file.

    The first process of the host writes it: what ranks wrote in pieces is joined, and tables in
    fewer bits are written as they are looked up. A checkpoint that was replaced is written anew.

    Args:
        run: Trained on any number of ranks.
        stored: Its best model.
        encoder: Knows the tables.
        precision: int8 or fp16: tables in fewer bits; None: as they were trained.

    Raises:
        ValueError: The weights do not fit into the host's memory, the checkpoint is damaged, or the
            cache cannot be written.
    """
    narrow = {} if precision is None else {table.name: table for table in encoder.tables}
    check_fits(_bytes(stored, narrow, precision), f"{run.path}: the model")

    def make(folder: Path) -> None:
        if precision is None:
            unshard(run, folder / _FILE)
        else:
            _write_narrow(folder / _FILE, stored, encoder.tables, precision)

    path = run.path.absolute()
    # Copies of what an address has held are called alike but for their ends
    is_copy = path.parent == cache_folder() / "runs"
    whose = path.name.rpartition("-")[0] if is_copy else str(path)
    name = cached_name(path.name, f"{whose} {precision}", f"{path} {_identity(run)}")
    return made_once(cache_folder() / "weights" / name, make)


def map_weights(ranker: Ranker, folder: Path) -> None:
    """Makes tensors of a mapped file the weights of a ranker, without a copy of them.

    Pages are read from the disk when they are first needed.

    Args:
        ranker: Built with empty tables; changed in place.
        folder: Of `weights_of_host`, of a run of the same config.

    Raises:
        ValueError: A name is missing on one side, or a shape differs.
    """
    stored, tables = StoredTensors(folder, "model"), scoring_embeddings(ranker.embeddings)
    assert tables is not None, "others are trained"
    with safe_open(folder / _FILE, framework="pt") as file:
        take: Callable[[str], Tensor] = file.get_tensor
        _assign(ranker.network, stored, "network", take)
        if ranker.wide is not None:
            _assign(ranker.wide, stored, "wide", take)
        for name, there in _named(tables.stored(), stored.part("tables").names(), stored.path):
            tables.use(name, take(there))
    load_id_maps(ranker.tables, stored)


def _assign(
    module: nn.Module, stored: StoredTensors, prefix: str, take: Callable[[str], Tensor]
) -> None:
    own = module.state_dict()
    stored.part(prefix).check(own)
    found = {name: take(f"{prefix}.{name}").to(own[name].dtype) for name in own}
    module.load_state_dict(found, assign=True)


def _named(held: Mapping[str, Tensor], there: list[str], path: Path) -> list[tuple[str, str]]:
    """The tables' names, and those of their tensors; all have to be there, and no others."""
    for name in sorted(held.keys() ^ set(there)):
        has = "has no tensor" if name in held else "has a tensor, and the model none,"
        raise ValueError(f"{path}: the checkpoint {has} 'tables.{name}'")
    return [(name, f"tables.{name}") for name in held]


def _write_narrow(
    file: Path, stored: StoredTensors, tables: Iterable[TableSpec], precision: ScoringPrecision
) -> None:
    """Held in memory while it is written, which a process that scores with it would need too."""
    narrow = ScoringEmbeddings(list(tables), [], precision)
    fill_tables(narrow, stored)
    rest = {name: stored.read(name) for name in stored.names() if not name.startswith("tables.")}
    save_file({**rest, **with_prefix("tables", narrow.stored())}, file)


def _identity(run: RunDirectory) -> str:
    """A text that differs where the best checkpoint does, at no cost."""
    step = CheckpointFolder(run.checkpoint).step("best")
    files = [run.config_file, *sorted(step.glob("model*")), step / "state.json"]
    return json.dumps(
        [
            [path.name, found.st_size, found.st_mtime_ns, found.st_ino]
            for path in files
            for found in (path.stat(),)
        ]
    )


def _bytes(
    stored: StoredTensors, narrow: Mapping[str, TableSpec], precision: ScoringPrecision | None
) -> int:
    """The bytes of all weights, as they will lie in memory."""
    total = 0
    for name in stored.names():
        shape, table = stored.shape(name), narrow.get(name.removeprefix("tables."))
        if precision is not None and table is not None and name.startswith("tables."):
            total += shape[0] * row_bytes(shape[1], precision)
        else:
            total += math.prod(shape) * stored.dtype(name).itemsize
    return total
