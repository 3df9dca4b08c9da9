"""`RayEngine`: `mmoe score --engine ray`, which shares the parts of a folder out among actors."""

from collections import deque
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from mmoe.integrations.ray_actors import answer_of, end, started
from mmoe.integrations.ray_cluster import cluster
from mmoe.integrations.ray_worker import PartWorker
from mmoe.parallel import launched_ranks
from mmoe.plugins import check_extra
from mmoe.run import RunDirectory, Tracker
from mmoe.score.file_scorer import InputColumns, ScoreParts
from mmoe.score.folder import FolderJob, Part
from mmoe.score.guard import ScoreCounts, added
from mmoe.score.scorer import ScoreRequest


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
        with cluster(self.address) as ray, started(ray, made, *asked) as actors:
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
            end(ray, idle)  # their CPUs are for those that are started again elsewhere
            (done,), _ = ray.wait(list(going))
            actor, part = going.pop(done)
            counts[part.name] = answer_of(ray, done, f"{part.file} ({part.name})")
            job.check_written(part)
            tracker.advance(counts[part.name].rows)
            idle = [actor]
    finally:
        end(ray, actors)  # before others are let into the folder
    return added(counts[part.name] for part in job.mine)  # in one order: sums are rounded
