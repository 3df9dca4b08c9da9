"""`RayEngine`: `mmoe score --engine ray`, which shares the parts of a folder out among actors."""

import logging
import math
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from mmoe.integrations.ray_worker import PartWorker
from mmoe.parallel import launched_ranks
from mmoe.plugins import check_extra, import_extra
from mmoe.process_settings import environment
from mmoe.run import RunDirectory, Tracker
from mmoe.score import ScoreRequest
from mmoe.score.file_scorer import InputColumns, ScoreParts
from mmoe.score.folder import FolderJob, Part
from mmoe.score.guard import ScoreCounts, added

_PORT_SECONDS, _CHECK_SECONDS = 5.0, 30.0  # for a port to answer, and what is behind it
# Of Ray's store for objects, which holds nothing of ours: rows go from file to file
_STORE_BYTES = 100 << 20
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else a warning of what later versions do
}
# By this name Ray has its processes listen on loopback alone, on any system
_ON_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}


@contextmanager
def _cluster(address: str | None) -> Generator[Any]:
    """Gives `ray`, connected to a cluster as `RayEngine` says; what was begun for it is ended.

    A process that is connected already stays so, and is asked for no other cluster.
    """
    with environment(_QUIET if address is not None else {**_QUIET, **_ON_LOOPBACK}):
        ray = import_extra("ray")
        ours = not ray.is_initialized()
        if ours:
            _connect(ray, address)
        elif address is not None:
            raise ValueError(
                f"--address {address}: this process is connected to a cluster already; leave "
                "the address out to use that one, or call ray.shutdown() first"
            )
    try:
        yield ray
    finally:
        if ours:
            ray.shutdown()


def _connect(ray: Any, address: str | None) -> None:
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL}
    if address is None:
        options |= {"include_dashboard": False, "object_store_memory": _STORE_BYTES}
        what = "no cluster of Ray can be started on this machine"
    elif address.startswith("ray://"):
        raise ValueError(
            f"--address {address}: expected HOST:PORT, or auto, of a cluster that this machine is "
            "a node of; start the command there (such as by `ray job submit`)"
        )
    else:
        _check_answers(address)
        what = f"--address {address}: cannot be connected to"
    try:
        ray.init(address=address or "local", **options)
    except (OSError, RuntimeError, ValueError) as error:
        ray.shutdown()
        why = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ValueError(f"{what}: {why}") from None


def _check_answers(address: str) -> None:
    """Ray itself would wait for minutes, and say so in lines of its own."""
    host, _, port = address.rpartition(":")
    if address != "auto" and not (host and port.isdigit() and int(port) <= 65535):
        raise ValueError(f"--address {address}: expected HOST:PORT, or auto")
    check = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", address]
    try:
        if address != "auto":
            socket.create_connection((host.strip("[]"), int(port)), _PORT_SECONDS).close()
        done = subprocess.run(
            check, capture_output=True, timeout=_CHECK_SECONDS, stdin=subprocess.DEVNULL
        )
        if done.returncode == 0:
            return
        said = done.stderr.decode(errors="replace").strip().splitlines()
        why = said[-1] if said else f"its health check ended with {done.returncode}"
    except OSError as error:
        why = error.strerror or str(error)
    except subprocess.TimeoutExpired:
        why = "something else does, or it is of another version"
    where = "on this machine" if address == "auto" else f"there ({why})"
    raise ValueError(
        f"--address {address}: no cluster of Ray answers {where}; start one with `ray start "
        "--head`, or leave --address out for one of its own"
    )


_TRIES = 3  # workers that one part, or the loading of the model, may take with it
_PLACE_SECONDS = 60.0  # within which a worker must be given a CPU


@contextmanager
def _started(
    ray: Any, made: PartWorker, address: str | None, workers: int | None, parts: int
) -> Generator[list[Any]]:
    """Starts actors, no more than parts, and waits until one of them has loaded the model."""
    takes = {"num_cpus": 1, "num_gpus": int(made.request.device == "cuda")}
    count = _count(ray, address, workers, parts, takes)
    again = {"max_restarts": -1, "max_task_retries": _TRIES - 1}
    worker = ray.remote(**takes, **again, scheduling_strategy="SPREAD")(PartWorker)
    actors = [worker.remote(**vars(made)) for _ in range(count)]
    try:
        # Whoever still loads it is handed parts, which wait for that
        loaded, _ = ray.wait([actor.score.remote(None) for actor in actors])
        _answer_of(ray, loaded[0], "the loading of the model")
        yield actors
    finally:
        _end(ray, actors)


def _count(
    ray: Any, address: str | None, workers: int | None, parts: int, takes: Mapping[str, int]
) -> int:
    """How many there are to be, when the cluster has a CPU for one of them."""
    cpus, gpus = (math.floor(ray.cluster_resources().get(kind, 0)) for kind in ("CPU", "GPU"))
    where = "this machine" if address is None else f"the cluster at {address}"
    count = cpus if workers is None else workers
    short = "too few resources of Ray"
    if count > cpus or not cpus:
        raise ValueError(
            f"--workers {max(count, 1)}: {short}: {where} has {cpus} CPU{'s' * (cpus != 1)}, and "
            "each worker takes one; ask for fewer workers, or add nodes"
        )
    count = min(count, parts)
    if takes["num_gpus"] and count > gpus:
        raise ValueError(
            f"--device cuda: {short}: {where} has {gpus} GPU{'s' * (gpus != 1)}, and each of "
            f"{count} workers takes one; ask for fewer --workers, or score on the CPU"
        )
    # A task that imports nothing: a worker on a busy machine may take minutes to import torch
    # after it was given its CPU
    first = ray.remote(**takes)(lambda: None).remote()
    if not ray.wait([first], timeout=_PLACE_SECONDS)[0]:
        ray.cancel(first)
        free = ray.available_resources().get("CPU", 0)
        raise ValueError(
            f"--workers {count}: {short}: no worker was given a CPU in {_PLACE_SECONDS:.0f} s; the "
            f"cluster has {free:g} free, others hold the rest; wait until they end"
        )
    return count


def _answer_of(ray: Any, owed: Any, what: str) -> ScoreCounts:
    """Returns a worker's answer; raises its refusal, or that a part ends its workers."""
    try:
        answer: ScoreCounts | str = ray.get(owed)
    except (ray.exceptions.RayActorError, ray.exceptions.OutOfMemoryError) as error:
        why = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        raise ValueError(
            f"{what} ended {_TRIES} workers of Ray ({type(error).__name__}: {why.rstrip('.')}); "
            "most often they have too little memory: say fewer --workers, or --table-precision "
            "int8, and go on with --resume"
        ) from None
    if isinstance(answer, str):
        raise ValueError(answer)
    return answer


def _end(ray: Any, actors: Sequence[Any]) -> None:
    """Ends workers, in the middle of what they do."""
    for actor in actors:
        with suppress(Exception):  # of a cluster that is gone
            ray.kill(actor)


@dataclass(frozen=True)
class RayEngine:
    """Scores a folder on a cluster of Ray: each worker is an actor of one CPU, and one thread.

    Workers read the run and the input, and write the folder, by the names that they have here: on
    one machine any, else those of a file system that all nodes share, or addresses. Parts are the
    ones that `score_files` writes by itself, bit for bit, so either goes on with the other's work.
    With `device="cuda"` a worker takes a GPU too; with `auto` none. Ray itself starts a worker that
    dies again, with the part that it had.

    Attributes:
        address: Of a cluster that is there, as `HOST:PORT` or `auto`; None: one is started on this
            machine and ended with the scoring, or that which this process is connected to is used.
        count: Of workers; None: one for each CPU of the cluster, but no more than parts.
        run: What workers call the run; None: its path.
        imports: Modules that they import first, with kinds of the user's own.

    Raises:
        ValueError: Ray is not installed.
    """

    address: str | None = None
    count: int | None = None
    run: str | None = None
    imports: Sequence[str] = ()
    name: str = field(default="ray", init=False)

    def __post_init__(self) -> None:
        check_extra("ray")  # imported later: it then reads where it is to listen

    @contextmanager
    def workers(
        self, run: RunDirectory, request: ScoreRequest, found: InputColumns, job: FolderJob
    ) -> Generator[ScoreParts]:
        """Starts workers, and waits until one of them has loaded the model; ends them after that.

        Raises:
            ValueError: No cluster, too few CPUs, or a model that cannot be loaded.
        """
        if launched_ranks() > 1:
            raise ValueError(
                "--engine ray under torchrun: Ray starts the workers itself; start one process"
            )
        if self.count is not None and self.count < 1:
            raise ValueError(f"--workers {self.count}: expected one at least")
        job.check_shared()
        if not job.mine:
            yield lambda tracker: ScoreCounts()
            return
        # Ray gives GPUs to who asks for them: nobody has one by chance
        request = replace(request, device="cuda" if request.device == "cuda" else "cpu")
        path, here = str(run.path) if self.run is None else self.run, str(Path.cwd())
        made = PartWorker(path, request, found, job.by, job.store.address, self.imports, here)
        asked = self.address, self.count, len(job.mine)
        with _cluster(self.address) as ray, _started(ray, made, *asked) as actors:
            yield partial(_score_parts, ray, actors, job)


def _score_parts(ray: Any, actors: Sequence[Any], job: FolderJob, tracker: Tracker) -> ScoreCounts:
    """Hands out parts until all are written; counts their rows."""
    waiting, idle = deque(job.mine), list(actors)
    going, counts = dict[Any, tuple[Any, Part]](), dict[str, ScoreCounts]()
    try:
        while waiting or going:
            while waiting and idle:
                actor, part = idle.pop(), waiting.popleft()
                going[actor.score.remote(part)] = actor, part
            _end(ray, idle)  # their CPUs are for those that are started again elsewhere
            (done,), _ = ray.wait(list(going))
            actor, part = going.pop(done)
            counts[part.name] = _answer_of(ray, done, f"{part.file} ({part.name})")
            job.check_written(part)
            tracker.advance(counts[part.name].rows)
            idle = [actor]
    finally:
        _end(ray, actors)  # before others are let into the folder
    return added(counts[part.name] for part in job.mine)  # in one order: sums are rounded
