"""Writes checkpoints, from one process or many, while training goes on."""

import json
import threading
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_saver import save as distributed_save

from mmoe.checkpoint.folder import CheckpointFolder
from mmoe.checkpoint.step_writer import ShardPlanner, StepWriter
from mmoe.parallel import ensure_process_group, rank, world_size
from mmoe.parallel.sharded_tensors import Shard, TensorMap, local_shards

# After an error on this rank others may be stuck; longer than writing takes, shorter than patience
_SECONDS_AFTER_AN_ERROR = 60.0


class CheckpointSaver:
    """Saves step after step into a `CheckpointFolder`, in the background.

    All ranks call `save` together. Each copies what it holds to buffers (so the checkpoint has the
    bits of that moment) and goes on; a thread writes the rank's own files. When all ranks have
    written theirs, rank 0 gives the folder its name and moves index.json: the process may die at
    any moment and the checkpoint before is whole. The next `save` waits for the one before.

    As a context it waits at the end. It holds a process group of its own, so that ranks talk about
    files without disturbing those that train, and buffers as large as what this rank saves.

    Args:
        folder: On a file system that all ranks share.
        keep: How many of the latest checkpoints stay, beside the best.
        background: False: `save` returns when all is written, and needs no buffers.

    Example:
        >>> import tempfile, torch
        >>> from pathlib import Path
        >>> from mmoe.checkpoint.folder import CheckpointFolder
        >>> from mmoe.checkpoint.saver import CheckpointSaver
        >>> folder = CheckpointFolder(Path(tempfile.mkdtemp()))
        >>> weight = torch.zeros(2)
        >>> with CheckpointSaver(folder) as saver:
        ...     saver.save(1, {"weight": weight}, {}, {"epoch": 1}, best=True)
        ...     _ = weight.fill_(7)  # too late for this checkpoint
        >>> folder.model("latest")["weight"]
        tensor([0., 0.])
    """

    def __init__(self, folder: CheckpointFolder, *, keep: int = 1, background: bool = True) -> None:
        self.folder, self.keep, self.background = folder, keep, background
        self._group: Any = None  # of gloo, where the ranks' may be NCCL's
        self._buffers: dict[tuple[str, int], Tensor] = {}
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def save(
        self,
        step: int,
        model: TensorMap,
        training: TensorMap,
        state: Mapping[str, Any],
        *,
        best: bool,
    ) -> None:
        """Writes a checkpoint, points to it, removes those nobody points to.

        Args:
            step: Names it.
            model: What scores. A tensor has to be the same on all ranks; rank 0's is written.
            training: What training needs beside it to go on.
            state: JSON; rank 0's is written.
            best: Whether it is the best so far.

        Raises:
            ValueError: The ranks' shards overlap or leave a hole: when waited for.
            OSError: This checkpoint or, in the background, the one before cannot be written.
        """
        self.wait()
        ensure_process_group()
        if self._group is None:
            self._group = dist.new_group(backend="gloo")
        text = json.dumps(state, allow_nan=False)
        writer = StepWriter(self.folder, step, text, best=best, keep=self.keep)
        # What every rank has whole, rank 0 alone writes
        held = {
            f"{state}/{name}": local_shards(value)
            for state, tensors in (("model", model), ("training", training))
            for name, value in tensors.items()
            if rank() == 0 or not isinstance(value, Tensor)
        }
        if not self.background:
            self._write(writer, held)
            self._raise()
            return
        # The next step changes the tensors while they are written
        copies = self._copies(held)
        self._thread = threading.Thread(
            target=self._write, args=(writer, copies), name="checkpoint", daemon=True
        )
        self._thread.start()

    def wait(self) -> None:
        """Waits until the last checkpoint is written.

        Raises:
            ValueError, OSError: It could not be.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._raise()

    def __enter__(self) -> "CheckpointSaver":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.wait()
            if self._group is not None:
                dist.destroy_process_group(self._group)
                self._group = None
            self._buffers.clear()
        elif self._thread is not None:
            # What went wrong is told first; the rest of the ranks may never answer
            self._thread.join(None if world_size() == 1 else _SECONDS_AFTER_AN_ERROR)

    def _copies(self, held: Mapping[str, list[Shard]]) -> dict[str, list[Shard]]:
        """Copies into host memory that is kept: fresh pages cost more than the copying."""
        buffers = {}
        for name, shards in held.items():
            for n, shard in enumerate(shards):
                source, buffer = shard.tensor.detach(), self._buffers.get((name, n))
                if buffer is None or (buffer.shape, buffer.dtype) != (source.shape, source.dtype):
                    buffer = torch.empty(
                        source.shape, dtype=source.dtype, pin_memory=source.is_cuda
                    )
                buffers[name, n] = buffer.copy_(source, non_blocking=source.is_cuda)
        if any(shard.tensor.is_cuda for shards in held.values() for shard in shards):
            torch.cuda.synchronize()
        self._buffers = buffers
        return {
            name: [
                Shard(buffers[name, n], shard.shape, shard.offsets)
                for n, shard in enumerate(shards)
            ]
            for name, shards in held.items()
        }

    def _write(self, writer: StepWriter, held: dict[str, list[Shard]]) -> None:
        try:
            distributed_save(
                held, storage_writer=writer, planner=ShardPlanner(), process_group=self._group
            )
        except CheckpointException as error:  # the same one on every rank
            writer.give_up()
            failed, (cause, _) = min(error.failures.items(), key=lambda failure: failure[0])
            what = f"{writer.what}: cannot be written"
            what += f": {cause}" if world_size() == 1 else f" by rank {failed}: {cause}"
            kind = OSError if isinstance(cause, OSError) else ValueError
            self._error = kind(what) if isinstance(cause, (OSError, ValueError)) else cause
        except BaseException as error:  # of a thread: told to whoever waits
            self._error = error

    def _raise(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error
