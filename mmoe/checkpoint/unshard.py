"""`mmoe unshard`: one plain safetensors file out of what many ranks wrote.

torch's own `consolidate_safetensors_files` joins no integers or flags, and names no damaged piece.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from mmoe.checkpoint.folder import CheckpointFolder, StoredTensors
from mmoe.parallel import Shard
from mmoe.run import Reporter, RunDirectory, SilentReporter
from mmoe.run.atomic_files import check_new_file, not_written, remove_dead, temporary_beside
from mmoe.run.store import check_not_of_run
from mmoe.terminal import byte_size

# Of a safetensors file: the header's length in bytes comes first, as a little-endian number
_LENGTH_BYTES = 8
# Held at a time
_BLOCK_BYTES = 2**26


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
                    for block in _blocks(stored, name):
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


def _blocks(stored: StoredTensors, name: str) -> Iterator[Tensor]:
    """A tensor as rows of at most so many bytes; no file is mapped, which a full disk would end."""
    shape, dtype = stored.shape(name), stored.dtype(name)
    if math.prod(shape) == 0:
        return
    if not shape:
        yield stored.read(name)
        return
    height = max(_BLOCK_BYTES // (dtype.itemsize * math.prod(shape[1:])), 1)
    for start in range(0, shape[0], height):
        block = torch.empty((min(height, shape[0] - start), *shape[1:]), dtype=dtype)
        shard = Shard(block, shape, (start, *[0] * len(shape[1:])))
        stored.load({name: [shard]}, all_names=False)
        yield block
