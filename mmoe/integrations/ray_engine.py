"""`RayEngine`: `mmoe score --engine ray`, which shares the parts of a folder out among actors."""

from collections import deque
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from mmoe.integrations.ray_cluster import check_installed, check_room, cluster
from mmoe.integrations.ray_worker import PartWorker
from mmoe.parallel import launched_ranks
from mmoe.run.console import Tracker
from mmoe.run.directory import RunDirectory
from mmoe.score.file_scorer import InputColumns
from mmoe.score.folder import FolderJob, Part, ScoreParts
from mmoe.score.guard import ScoreCounts, added
from mmoe.score.scorer import ScoreRequest

_TRIES = 3  # workers that one part, or the loading of the model, may take with it


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
        check_installed()

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
        if job.store.address.startswith("memory://"):
            raise ValueError(
                f"--output {job.store.address}: is the memory of one process, and workers are "
                "others; name a folder, or an object store"
            )
        if not job.mine:
            yield lambda tracker: ScoreCounts()
            return
        with cluster(self.address) as ray:
            takes = {"num_cpus": 1, "num_gpus": int(request.device == "cuda")}
            count = check_room(ray, self.address, self.count, len(job.mine), takes)
            again = {"max_restarts": -1, "max_task_retries": _TRIES - 1}
            worker = ray.remote(**takes, **again, scheduling_strategy="SPREAD")(PartWorker)
            actors = [
                worker.remote(
                    run=str(run.path) if self.run is None else self.run,
                    # Ray gives GPUs to who asks for them: nobody has one by chance
                    request=replace(request, device="cuda" if takes["num_gpus"] else "cpu"),
                    found=found,
                    by=dict(job.by),
                    output=job.store.address,
                    mode=job.mode,
                    imports=tuple(self.imports),
                    folder=str(Path.cwd()),
                )
                for _ in range(count)
            ]
            try:
                # Whoever still loads it is handed parts, which wait for that
                loaded, _ = ray.wait([actor.score.remote(None) for actor in actors])
                _answer(ray, loaded[0], "the loading of the model")
                yield partial(_score_parts, ray, actors, job)
            finally:
                _end(ray, actors)


def _score_parts(ray: Any, actors: Sequence[Any], job: FolderJob, tracker: Tracker) -> ScoreCounts:
    """Hands out parts until all are written; counts their rows."""
    waiting, idle = deque(job.mine), list(actors)
    going, counts = dict[Any, tuple[Any, Part]](), dict[str, ScoreCounts]()
    try:
        while len(counts) < len(job.mine):
            while waiting and idle:
                actor, part = idle.pop(), waiting.popleft()
                going[actor.score.remote(part)] = actor, part
            (done,), _ = ray.wait(list(going))
            actor, part = going.pop(done)
            counts[part.name] = _answer(ray, done, f"{part.file} ({part.name})")
            try:
                job.record(part.name)
            except FileNotFoundError:
                raise ValueError(
                    f"--output {job.store.address}: a worker wrote {part.name} there, and it is "
                    "not here; name a folder on a file system that all nodes of the cluster share, "
                    "or an object store"
                ) from None
            tracker.advance(counts[part.name].rows)
            if waiting:
                idle.append(actor)
            else:  # its CPU is for one that is started again elsewhere
                _end(ray, [actor])
    finally:
        _end(ray, actors)  # before others are let into the folder
    return added(counts[part.name] for part in job.mine)  # in one order: sums are rounded


def _answer(ray: Any, owed: Any, what: str) -> ScoreCounts:
    """Returns what a worker says; refuses what it refuses, and what ends whoever tries it."""
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
