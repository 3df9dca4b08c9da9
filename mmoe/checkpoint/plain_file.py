"""What many ranks wrote as one plain file: for other programs, or mapped by a host's processes.

torch's own `consolidate_safetensors_files` joins no integers or flags, and names no damaged piece.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save, save_file
from torch import Tensor, nn

from mmoe.checkpoint.folder import CheckpointFolder, StoredTensors, with_prefix
from mmoe.checkpoint.weights import fill_tables, load_id_maps
from mmoe.config import ScoringPrecision
from mmoe.datasets import FeatureEncoder
from mmoe.embeddings import ScoringEmbeddings, scoring_embeddings
from mmoe.embeddings.quantized import row_bytes
from mmoe.models import Ranker
from mmoe.run import Reporter, RunDirectory, SilentReporter
from mmoe.run.atomic_files import check_new_file, not_written, remove_dead, temporary_beside
from mmoe.run.host_cache import cache_folder, cached_name, made_once
from mmoe.run.memory import check_fits
from mmoe.run.store import check_not_of_run
from mmoe.terminal import byte_size

# Of a safetensors file: the header's length in bytes comes first, as a little-endian number
_LENGTH_BYTES = 8


def unshard(
    run: RunDirectory,
    output: str | Path,
    which: str = "best",
    *,
    overwrite: bool = False,
    reporter: Reporter | None = None,
) -> None:
    """Writes a run's model as one safetensors file, tensor by tensor, on one CPU.

    `mmoe score` and `mmoe evaluate` read what many ranks wrote as it is; this is for other
    programs. The file is written block by block, not held in memory, and gets its name when it is
    complete.

    Args:
        run: Trained on any number of ranks.
        output: The file.
        which: `best`, `latest`, or a folder that index.json names.
        overwrite: Replace `output` where it exists.
        reporter: Told of progress.

    Raises:
        ValueError: The output exists, is no name for such a file or one of the run's own, or the
            checkpoint is damaged, or the disk has no room.
    """
    output, reporter = Path(output), reporter or SilentReporter()
    if output.suffix != ".safetensors":
        raise ValueError(f"--output {output}: end the name in .safetensors")
    check_new_file(output, "model.safetensors", overwrite)
    check_not_of_run(output, run)
    stored = CheckpointFolder(run.checkpoint).tensors(which, "model")
    # Wide types first, so that every tensor begins at a multiple of its own width
    names = sorted(stored.names(), key=lambda name: (-stored.dtype(name).itemsize, name))
    header, sizes = _header(stored, names)
    output.parent.mkdir(parents=True, exist_ok=True)
    remove_dead(output.parent, output.name)
    temporary = temporary_beside(output)
    try:
        with temporary.open("wb") as file:
            file.write(header)
            with reporter.track("joining", sum(sizes) >> 20, "MiB") as tracker:
                done = 0
                for name in names:
                    for _, block in stored.blocks(name):
                        # No file is mapped, which a full disk would end
                        file.write(block.reshape(-1).view(torch.uint8).numpy().data)
                        size = block.numel() * block.element_size()
                        tracker.advance(((done + size) >> 20) - (done >> 20))
                        done += size
        temporary.replace(output)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise not_written(output, error, len(header) + sum(sizes)) from None
    finally:
        temporary.unlink(missing_ok=True)
    reporter.say(f"{len(names):,} tensors, {byte_size(sum(sizes))}, joined into {output}")


def _header(stored: StoredTensors, names: list[str]) -> tuple[bytes, list[int]]:
    """The bytes before the numbers, and how many bytes of numbers each tensor has."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    sizes: list[int] = []
    for name in names:
        shape, dtype = stored.shape(name), stored.dtype(name)
        begin = sum(sizes)
        sizes.append(dtype.itemsize * math.prod(shape))
        entries[name] = {
            "dtype": _safetensors_dtype(dtype),
            "shape": list(shape),
            "data_offsets": [begin, begin + sizes[-1]],
        }
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % _LENGTH_BYTES)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text, sizes


def _safetensors_dtype(dtype: torch.dtype) -> str:
    """`torch.bfloat16` → `BF16`, as the library says it."""
    written = save({"x": torch.empty(0, dtype=dtype)})
    length = int.from_bytes(written[:_LENGTH_BYTES], "little")
    return json.loads(written[_LENGTH_BYTES : _LENGTH_BYTES + length])["x"]["dtype"]


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
    needed = stored.num_bytes
    if precision is not None:
        names = [f"tables.{table.name}" for table in encoder.tables]
        for name in [name for name in names if name in stored]:
            rows, dim = stored.shape(name)
            needed += rows * (row_bytes(dim, precision) - dim * stored.dtype(name).itemsize)
    check_fits(needed, f"{run.path}: the model")

    def make(folder: Path) -> None:
        if precision is None:
            unshard(run, folder / _FILE)
            return
        # In memory while it is written, which a process that scores with it would need too
        narrow = ScoringEmbeddings(list(encoder.tables), [], precision)
        fill_tables(narrow, stored)
        names = [name for name in stored.names() if not name.startswith("tables.")]
        tensors = {name: stored.read(name) for name in names}
        save_file({**tensors, **with_prefix("tables", narrow.stored())}, folder / _FILE)

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
        held = tables.stored()
        for name in sorted(held.keys() ^ set(stored.part("tables").names())):
            has = "has no tensor" if name in held else "has a tensor, and the model none,"
            raise ValueError(f"{stored.path}: the checkpoint {has} 'tables.{name}'")
        for name in held:
            tables.use(name, take(f"tables.{name}"))
    load_id_maps(ranker.tables, stored)


def _assign(
    module: nn.Module, stored: StoredTensors, prefix: str, take: Callable[[str], Tensor]
) -> None:
    own = module.state_dict()
    stored.part(prefix).check(own)
    found = {name: take(f"{prefix}.{name}").to(own[name].dtype) for name in own}
    module.load_state_dict(found, assign=True)


def _identity(run: RunDirectory) -> str:
    """A text that differs where the best checkpoint does, at no cost."""
    step = CheckpointFolder(run.checkpoint).step("best")
    files = [run.config_file, *sorted(step.glob("model*")), step / "state.json"]
    stats = [(path.name, path.stat()) for path in files]
    return json.dumps([[name, s.st_size, s.st_mtime_ns, s.st_ino] for name, s in stats])
