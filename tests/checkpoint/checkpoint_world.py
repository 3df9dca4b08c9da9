"""Gloo worlds that write checkpoints, and processes that die while they do; run by the tests.

    python tests/checkpoint/checkpoint_world.py FOLDER

What four ranks hold is `held`; what it all is together is `whole`. Processes are forked, so that
they need not import torch again. What they found goes to FOLDER/found.json.
"""

import json
import multiprocessing
import os
import shutil
import signal
import sys
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist

from mmoe.checkpoint import saver as saver_module
from mmoe.checkpoint.folder import CheckpointFolder
from mmoe.checkpoint.saver import CheckpointSaver
from mmoe.parallel.sharded_tensors import Shard
from tests.ranks import PATIENCE, join_world

# For each tensor the boxes of each of four ranks: (offsets, sizes).
CUTS = {
    "rows": [[], [((0, 0), (3, 6))], [((3, 0), (0, 6)), ((3, 0), (3, 6))], [((6, 0), (4, 6))]],
    "columns": [[((0, 2 * rank), (5, 2))] for rank in range(4)],
    "grid": [[((0, 0), (4, 5))], [((4, 0), (3, 5))], [((0, 5), (2, 4)), ((2, 5), (5, 4))], []],
    "experts": [
        [((0, 0, 0), (1, 4, 3)), ((3, 0, 0), (1, 4, 3))],
        [],
        [((1, 0, 0), (2, 4, 3)), ((5, 0, 0), (1, 4, 3))],
        [((4, 0, 0), (1, 4, 3))],
    ],
    "on every rank": [[((0, 0), (3, 2))]] * 4,
    "steps of two ranks": [[], [], [((), ())], [((), ())]],
    "nothing": [[((0, 0), (0, 3))], [], [], [((0, 0), (0, 3))]],
}


def whole(salt=0):
    """All numbers, different in every place."""
    shapes = {"rows": (10, 6), "columns": (5, 8), "grid": (7, 9), "experts": (6, 4, 3),
              "on every rank": (3, 2), "steps of two ranks": (), "nothing": (0, 3),
              "same": (4, 4), "flags": (5,), "count": ()}  # fmt: skip
    dtypes = {"columns": torch.float64, "same": torch.bfloat16, "count": torch.int64}
    found = {}
    for n, (name, shape) in enumerate(shapes.items()):
        numbers = torch.arange(torch.Size(shape).numel()).reshape(shape) + 7 * n + salt
        found[name] = numbers.to(dtypes.get(name, torch.float32))
    found["flags"] = found["flags"] % 2 == 0
    return found


def box(tensor, offsets, sizes):
    """A piece of a tensor."""
    return tensor[tuple(slice(o, o + s) for o, s in zip(offsets, sizes, strict=True))]


def held(tensors, rank):
    """What a rank has of them, in memory of its own."""
    return {
        name: [
            Shard(box(tensor, *cut).clone(), tuple(tensor.shape), cut[0])
            for cut in CUTS[name][rank]
        ]
        if name in CUTS
        else tensor.clone()
        for name, tensor in tensors.items()
    }


def spoil(tensors):
    """A step goes on while files are written."""
    for value in tensors.values():
        for tensor in [value] if isinstance(value, torch.Tensor) else [s.tensor for s in value]:
            tensor.zero_()


def error_of(action):
    try:
        action()
    except (ValueError, OSError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def write(folder, rank):
    """Two checkpoints, and three that cannot be written."""
    found = {}
    with CheckpointSaver(folder, keep=2) as saver:
        for step in (1, 2):
            model, training = held(whole(step), rank), held(whole(-step), rank)
            saver.save(step, model, training, {"by": rank, "step": step}, best=step == 1)
            spoil(model)
            spoil(training)

        def save(tensors):
            saver.save(3, tensors, {}, {}, best=True)
            saver.wait()

        four = torch.zeros(4, 2)
        hole = {"table": [Shard(four, (20, 2), (4 * rank, 0))]}
        found["hole"] = error_of(lambda: save(hole))
        overlap = {"table": [Shard(four, (16, 2), (3 * rank, 0))]}
        found["overlap"] = error_of(lambda: save(overlap))
        with disk_full(rank == 2):
            found["full"] = error_of(lambda: save(held(whole(), rank)))
        with CheckpointSaver(folder, keep=2, background=False) as at_once:
            at_once.save(4, held(whole(4), rank), held(whole(-4), rank), {"step": 4}, best=False)
    return found


@contextmanager
def disk_full(full):
    """This rank cannot write."""

    def fails(*_):
        raise OSError(28, "No space left on device")

    saved = saver_module.save_file
    saver_module.save_file = fails if full else saved
    try:
        yield
    finally:
        saver_module.save_file = saved


def die(folder, rank):
    """The last rank is killed while it writes step 2."""
    table = {"table": [Shard(torch.ones(3, 2), (6, 2), (3 * rank, 0))]}
    with CheckpointSaver(folder) as saver:
        saver.save(1, table, {}, {"step": 1}, best=True)
        saver.wait()
        if rank == dist.get_world_size() - 1:
            saver_module.save_file = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        saver.save(2, table, {}, {"step": 2}, best=True)
        return {"error": error_of(saver.wait)}


def save_alone(folder, step, dies_at=0):
    """One process saves; it is killed just before its n-th file operation."""
    seen = 0

    def count(event, arguments):
        nonlocal seen
        if event in ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir"):
            seen += str(arguments[0]).startswith(str(folder.path))
            if seen == dies_at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    with CheckpointSaver(folder) as saver:
        tensors = {"table": torch.full((3, 2), float(step))}
        saver.save(step, tensors, tensors, {"step": step}, best=True)


def killed_at_every_operation(path):
    """For each operation: the exit code, the step, the numbers, and the files after a resume."""
    run(save_alone, CheckpointFolder(path / "before"), 1)
    found = []
    while not found or found[-1]["code"]:
        folder = CheckpointFolder(path / str(len(found) + 1))
        shutil.copytree(path / "before", folder.path)
        code = run(save_alone, folder, 2, len(found) + 1)
        step = folder.state()["step"]
        numbers = {float(t) for w in ("latest", "best") for t in folder.model(w)["table"].flatten()}
        folder.remove_strays()
        files = sorted(file.name for file in folder.path.iterdir())
        found.append({"code": code, "step": step, "numbers": sorted(numbers), "files": files})
    return found


def rank_of_world(action, path, rank, world_size, checkpoint):
    """Joins the others, acts, and writes what it found."""
    join_world(rank, world_size, path / "store")
    found = action(CheckpointFolder(checkpoint), rank)
    (path / f"{rank}.json").write_text(json.dumps(found))


def world(action, path, world_size, checkpoint=None):
    """Exit codes, and what each rank found."""
    path.mkdir()
    checkpoint = checkpoint or path / "checkpoint"
    ranks = [
        fork(rank_of_world, action, path, rank, world_size, checkpoint)
        for rank in range(world_size)
    ]
    for rank in ranks:
        rank.join(PATIENCE)
        rank.kill()
    codes = [rank.exitcode for rank in ranks]
    reports = [path / f"{rank}.json" for rank in range(world_size)]
    return codes, [json.loads(r.read_text()) if r.exists() else None for r in reports]


def fork(action, *arguments):
    process = multiprocessing.get_context("fork").Process(target=action, args=arguments)
    process.start()
    return process


def run(action, *arguments):
    process = fork(action, *arguments)
    process.join()
    return process.exitcode


def main(path):
    torch.set_num_threads(1)

    def refused(*_, **__):
        raise AssertionError("a pickle")

    torch.load = torch.save = refused
    import state_of_ranks

    state = path / "states" / "checkpoint"
    found = {
        "four": world(write, path / "four", 4),
        "dies": world(die, path / "dies", 2),
        "states": [
            world(state_of_ranks.save, path / "states", 3),
            *(world(state_of_ranks.restore, path / f"states-{n}", n, state) for n in (2, 1)),
        ],
        "kills": killed_at_every_operation(path / "kills"),
    }
    (path / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
