"""Writes checkpoints, from one process or many, while training goes on: safetensors and JSON."""

import json
import math
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count, islice, takewhile
from operator import le, lt
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from mmoe.checkpoint.folder import CheckpointFolder, file_name
from mmoe.parallel import from_all, local_shards, rank, world_size
from mmoe.parallel.sharded_tensors import TensorMap
from mmoe.run.atomic_files import flush
from mmoe.run.folder_claim import STEP_FILE, remove_files

# After an error on this rank others may be stuck; longer than writing takes, shorter than patience
_SECONDS_AFTER_AN_ERROR = 60.0


class _Piece(NamedTuple):
    """A shard, as ranks tell each other of it."""

    state: str
    name: str
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def ends(self) -> tuple[int, ...]:
        """Where it ends in the whole tensor."""
        return tuple(o + n for o, n in zip(self.offsets, self.sizes, strict=True))


class _Failure(Exception):
    """An error of some rank, on all of them."""

    def __init__(self, rank: int, cause: BaseException) -> None:
        self.rank, self.cause = rank, cause


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
        self._buffers: dict[_Piece, Tensor] = {}
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
        if self._group is None and world_size() > 1:
            self._group = dist.new_group(backend="gloo")
        text = json.dumps(state, allow_nan=False)
        held = {
            _Piece(kind, name, shard.offsets, tuple(shard.tensor.shape), shard.shape): shard.tensor
            for kind, tensors in (("model", model), ("training", training))
            for name, value in tensors.items()
            if rank() == 0 or not isinstance(value, Tensor)  # what every rank has whole
            for shard in local_shards(value)
        }
        if not self.background:
            self._write(step, text, held, best=best)
            self._raise()
            return
        # The next step changes the tensors while they are written
        copies = self._copies(held)
        self._thread = threading.Thread(
            target=partial(self._write, step, text, copies, best=best),
            name="checkpoint",
            daemon=True,
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

    def _copies(self, held: Mapping[_Piece, Tensor]) -> dict[_Piece, Tensor]:
        """Copies into host memory that is kept: fresh pages cost more than the copying."""
        buffers = {}
        for piece, tensor in held.items():
            source, buffer = tensor.detach(), self._buffers.get(piece)
            if buffer is None or buffer.dtype != source.dtype:
                buffer = torch.empty(source.shape, dtype=source.dtype, pin_memory=source.is_cuda)
            buffers[piece] = buffer.copy_(source, non_blocking=source.is_cuda)
        if any(tensor.is_cuda for tensor in held.values()):
            torch.cuda.synchronize()
        self._buffers = buffers
        return buffers

    def _write(self, step: int, state: str, held: Mapping[_Piece, Tensor], *, best: bool) -> None:
        """Writes a step's files and points to it; what goes wrong is told to whoever waits."""
        folder, first = None, rank() == 0
        try:
            files = _shared_out(from_all(list(held), self._group))
            folder = made = self._together(lambda: self.folder.begin(step) if first else None)
            self._together(lambda: _write_files(made, files[rank()], held))
            points = partial(self.folder.publish, made, state, best=best, keep=self.keep)
            self._together(points if first else lambda: None)
        except (_Failure, ValueError) as error:  # the same one on every rank
            if first and folder is not None:
                remove_files(folder, STEP_FILE)
            what = f"{self.folder.path}: the checkpoint of step {step}: cannot be written"
            failed = isinstance(error, _Failure)
            what += f" by rank {error.rank}" if failed and world_size() > 1 else ""
            cause = error.cause if failed else error
            kind = OSError if isinstance(cause, OSError) else ValueError
            known = isinstance(cause, OSError | ValueError)
            self._error = kind(f"{what}: {cause}") if known else cause
        except BaseException as error:  # of a thread
            self._error = error

    def _together(self, work: Callable[[], Any]) -> Any:
        """Does something on every rank; returns what rank 0 got.

        Raises:
            _Failure: A rank could not, on all of them.
        """
        value, error = None, None
        try:
            value = work()
        except BaseException as caught:
            error = caught
        found = from_all((value, error and _as_told(error)), self._group)
        for r, (_, told) in enumerate(found):
            if told is not None:
                raise _Failure(r, error if error is not None and r == rank() else told)
        return found[0][0]

    def _raise(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error


def _as_told(error: BaseException) -> BaseException:
    """Returns an error with the same words that other ranks can read, whatever its class."""
    kinds = (OSError, ValueError, MemoryError, KeyboardInterrupt)
    return next((k for k in kinds if isinstance(error, k)), RuntimeError)(str(error))


def _write_files(
    folder: Path, files: Mapping[str, Sequence[_Piece]], held: Mapping[_Piece, Tensor]
) -> None:
    """Writes a rank's files, as `torch.distributed.checkpoint` does and reads them."""
    if files and not folder.is_dir():
        raise FileNotFoundError(
            f"{folder} was made by rank 0 and is not there for this one; put the run on a file "
            "system that all machines share"
        )
    for name, pieces in files.items():
        tensors = {piece.name: held[piece].detach().cpu().contiguous() for piece in pieces}
        offsets = {piece.name: {"saved_offsets": list(piece.offsets)} for piece in pieces}
        notes = {"format": "pt"}
        if any(piece.sizes != piece.shape for piece in pieces):  # else there is nothing to say
            notes |= {"DCP_SHARDING_INFO": json.dumps(offsets), "DCP_VERSION": "1.0"}
        try:
            save_file(tensors, folder / name, notes)
        except SafetensorError as error:  # what it makes of a full disk
            raise OSError(str(error)) from error
        flush(folder / name)


def _shared_out(held: Sequence[Sequence[_Piece]]) -> list[dict[str, list[_Piece]]]:
    """For each rank its files and what is in them: pieces that several ranks have only once.

    Of a rank's pieces of one tensor each is in another file. Files are numbered over all ranks, so
    that a missing one is noticed.

    Raises:
        ValueError: Pieces of a tensor overlap or leave a hole.
    """
    owners: dict[_Piece, list[int]] = {}
    for r, pieces in enumerate(held):
        for piece in pieces:
            owners.setdefault(piece, []).append(r)
    tensors: dict[tuple[str, str], list[_Piece]] = {}
    writers, load = {}, [0] * len(held)
    for piece, ranks in owners.items():
        tensors.setdefault(piece[:2], []).append(piece)
        writers[piece] = writer = min(ranks, key=load.__getitem__)  # whoever has the least to write
        load[writer] += math.prod(piece.sizes)
    grouped: list[dict[tuple[str, int], list[_Piece]]] = [{} for _ in held]
    for pieces in tensors.values():
        pieces = [piece for piece in pieces if 0 not in piece.sizes] or pieces[:1]
        _check_whole(pieces)
        seen: Counter[int] = Counter()
        for piece in pieces:
            r = writers[piece]
            grouped[r].setdefault((piece.state, seen[r]), []).append(piece)
            seen[r] += 1
    total = Counter(state for files in grouped for state, _ in files)
    numbers = {state: count(1) for state in total}
    return [
        {file_name(s, next(numbers[s]), total[s]): pieces for (s, _), pieces in files.items()}
        for files in grouped
    ]


def _check_whole(pieces: Sequence[_Piece]) -> None:
    """Refuses pieces that are not a tensor together."""
    whole = pieces[0].shape
    what = f"the shards of tensor {pieces[0].name!r} of {pieces[0].state}, {list(whole)},"
    ordered = sorted(pieces)
    for number, one in enumerate(ordered, start=1):
        # Of shards that follow each other along dimension 0, with the next one alone
        near = takewhile(lambda p, end=one.ends: p.offsets < end, islice(ordered, number, None))
        for other in near:
            if all(map(lt, other.offsets, one.ends)) and all(map(lt, one.offsets, other.ends)):
                raise ValueError(f"{what} at {list(one.offsets)} and {list(other.offsets)} overlap")
    inside = all(piece.shape == whole and all(map(le, piece.ends, whole)) for piece in pieces)
    if not inside or sum(math.prod(piece.sizes) for piece in pieces) != math.prod(whole):
        raise ValueError(f"{what} leave a hole, or reach beyond it")
