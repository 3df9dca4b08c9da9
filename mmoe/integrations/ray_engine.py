"""`RayEngine`: `mmoe score --engine ray`, which shares the parts of a folder out among workers."""

import math
from collections import Counter, deque
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from mmoe.config import DeviceKind
from mmoe.integrations.ray_cluster import check_installed, cluster
from mmoe.integrations.ray_worker import Answer, Order, PartWorker
from mmoe.parallel import launched_ranks
from mmoe.run.console import Tracker
from mmoe.run.directory import RunDirectory
from mmoe.score.counts import ScoreCounts, added
from mmoe.score.file_scorer import InputColumns, ScoreRequest
from mmoe.score.files import ScoreParts
from mmoe.score.folder import FolderJob, Part

# Workers that one part, or the loading of the model, may take with it
_TRIES = 3
_PLACE_SECONDS = 60.0  # until a worker may have a CPU
_LOOK_SECONDS = 1.0  # between two looks at how far the workers are


@dataclass(frozen=True)
class RayEngine:
    """Scores a folder on a cluster of Ray: each worker is an actor of one CPU, and one thread.

    Workers read the run and the input, and write the folder, by the names that they have here: on
    one machine any, else those of a file system that all nodes share, or addresses. Parts are the
    ones that `score_files` writes by itself, bit for bit, so either goes on with the other's work.
    With `device="cuda"` a worker takes a GPU too; with `auto` none.

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
        self._check(job)
        if not job.mine:
            yield lambda tracker: ScoreCounts()
            return
        order = Order(
            run=str(run.path) if self.run is None else self.run,
            # Ray gives GPUs to who asks for them: nobody has one by chance
            request=replace(request, device="cpu") if request.device == "auto" else request,
            found=found,
            by=dict(job.by),
            output=job.store.address,
            mode=job.mode,
            imports=tuple(self.imports),
            folder=str(Path.cwd()),
        )
        with cluster(self.address) as ray:
            crew = _Crew(ray, order, self._workers(ray, len(job.mine), request.device))
            try:
                crew.begin()
                yield partial(crew.score, job)
            finally:
                crew.end()

    def _check(self, job: FolderJob) -> None:
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

    def _workers(self, ray: Any, parts: int, device: DeviceKind) -> int:
        """How many workers there are to be."""
        there = ray.cluster_resources()
        cpus, gpus = (math.floor(there.get(kind, 0)) for kind in ("CPU", "GPU"))
        count = cpus if self.count is None else self.count
        where = "this machine" if self.address is None else f"the cluster at {self.address}"
        if count > cpus or not cpus:
            raise ValueError(
                f"--workers {max(count, 1)}: too few resources of Ray: {where} has {cpus} "
                f"CPU{'s' * (cpus != 1)}, and each worker takes one; ask for fewer workers, or add "
                "nodes"
            )
        count = min(count, parts)
        if device == "cuda" and count > gpus:
            raise ValueError(
                f"--device cuda: too few resources of Ray: {where} has {gpus} "
                f"GPU{'s' * (gpus != 1)}, and each of {count} workers takes one; ask for fewer "
                "--workers, or score on the CPU"
            )
        return count


@dataclass
class _Hand:
    """One worker: what it does, and how many rows of that have been told of."""

    actor: Any
    part: Part | None = None
    told: int = 0


class _Crew:
    """Workers, of which those that die are replaced, and the parts that they are handed."""

    def __init__(self, ray: Any, order: Order, count: int) -> None:
        self.ray, self.count = ray, count
        self.takes = {"num_cpus": 1, "num_gpus": int(order.request.device == "cuda")}
        self.actor_class = ray.remote(
            **self.takes,
            max_restarts=0,  # those that die are replaced here, and told what to do
            scheduling_strategy="SPREAD",
            concurrency_groups={"look": 1},
        )(PartWorker)
        self.order = ray.put(order)
        self.going: dict[Any, _Hand] = {}  # by what they owe: an answer
        self.idle: list[_Hand] = []
        self.died_loading = 0
        self.losses = Counter[str]()

    def begin(self) -> None:
        """Starts them, and waits until the first one has loaded the model."""
        # A task that imports nothing, as a worker on a busy machine may take minutes to import
        # torch after it was given its CPU
        first = self.ray.remote(**self.takes)(lambda: None).remote()
        placed, _ = self.ray.wait([first], timeout=_PLACE_SECONDS)
        if not placed:
            self.ray.cancel(first)
            free = self.ray.available_resources()
            raise ValueError(
                f"--workers {self.count}: too few resources of Ray: no worker was given a CPU in "
                f"{_PLACE_SECONDS:.0f} s; the cluster has {free.get('CPU', 0):g} free, others hold "
                "the rest; wait until they end"
            )
        for _ in range(self.count):
            self._hire()
        while not self.idle:
            for hand, _ in self._answers(None):
                self.idle.append(hand)

    def score(self, job: FolderJob, tracker: Tracker) -> ScoreCounts:
        """Hands parts out until all are written; counts their rows."""
        waiting, counts = deque(job.mine), dict[str, ScoreCounts]()
        try:
            while len(counts) < len(job.mine):
                while waiting and self.idle:
                    self._hand_out(self.idle.pop(), waiting.popleft())
                for hand, answer in self._answers(waiting, tracker):
                    part, hand.part = hand.part, None
                    self.idle.append(hand)
                    if part is None:
                        continue  # it has loaded the model
                    _check_arrived(job, part)
                    tracker.advance(answer.counts.rows - hand.told)
                    counts[part.name] = answer.counts
        finally:
            self.end()  # before others are let into the folder
        return added(counts[part.name] for part in job.mine)  # in one order: sums are rounded

    def end(self) -> None:
        """Ends all of them, in the middle of what they do."""
        for hand in (*self.going.values(), *self.idle):
            with suppress(Exception):  # of a cluster that is gone
                self.ray.kill(hand.actor)
        self.going, self.idle = {}, []

    def _hire(self) -> None:
        hand = _Hand(self.actor_class.remote(self.order))
        self.going[hand.actor.load.remote()] = hand

    def _hand_out(self, hand: _Hand, part: Part) -> None:
        hand.part, hand.told = part, 0
        self.going[hand.actor.score.remote(part)] = hand

    def _answers(
        self, waiting: deque[Part] | None, tracker: Tracker | None = None
    ) -> list[tuple[_Hand, Answer]]:
        """Waits for what workers answer; puts back what dead ones had in work."""
        ready, _ = self.ray.wait(
            list(self.going), num_returns=1, timeout=None if tracker is None else _LOOK_SECONDS
        )
        if not ready and tracker is not None:
            self._look(tracker)
        found = []
        for owed in ready:
            hand = self.going.pop(owed)
            try:
                answer: Answer = self.ray.get(owed)
            except self._deaths() as error:
                self._replace(hand, waiting, tracker, error)
                continue
            if answer.refused is not None:
                raise ValueError(answer.refused)
            if hand.part is None:
                self.died_loading = 0
            found.append((hand, answer))
        return found

    def _deaths(self) -> tuple[type[Exception], ...]:
        """What is raised where a worker, or the node that it was on, is no more."""
        names = ("RayActorError", "WorkerCrashedError", "OutOfMemoryError", "NodeDiedError")
        return tuple(getattr(self.ray.exceptions, name) for name in names)

    def _replace(
        self,
        hand: _Hand,
        waiting: deque[Part] | None,
        tracker: Tracker | None,
        error: Exception,
    ) -> None:
        with suppress(Exception):  # one that does not answer may still live
            self.ray.kill(hand.actor)
        if hand.part is None:
            self.died_loading += 1
            if self.died_loading >= _TRIES * self.count:
                raise ValueError(_killed("the loading of the model", self.died_loading, error))
        else:
            assert waiting is not None and tracker is not None, "parts are scored"
            self.losses[hand.part.name] += 1
            if self.losses[hand.part.name] >= _TRIES:
                raise ValueError(_killed(f"{hand.part.file} ({hand.part.name})", _TRIES, error))
            tracker.advance(-hand.told)
            waiting.appendleft(hand.part)
        self._hire()

    def _look(self, tracker: Tracker) -> None:
        """Tells of the rows of parts in work; who does not answer at once is asked next time."""
        asked = {
            hand.actor.rows_so_far.options(concurrency_group="look").remote(): hand
            for hand in self.going.values()
            if hand.part is not None
        }
        if not asked:
            return
        answered, _ = self.ray.wait(list(asked), num_returns=len(asked), timeout=_LOOK_SECONDS)
        for answer in answered:
            hand = asked[answer]
            with suppress(*self._deaths()):  # which is found out where its part is waited for
                rows = self.ray.get(answer)
                tracker.advance(rows - hand.told)
                hand.told = rows


def _check_arrived(job: FolderJob, part: Part) -> None:
    """A worker elsewhere writes into a folder of the same name that is another one."""
    try:
        job.record(part.name)
    except FileNotFoundError:
        raise ValueError(
            f"--output {job.store.address}: a worker wrote {part.name} there, and it is not here; "
            "name a folder on a file system that all nodes of the cluster share, or an object store"
        ) from None


def _killed(what: str, times: int, error: Exception) -> str:
    why = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return (
        f"{what} ended {times} workers of Ray ({type(error).__name__}: {why.rstrip('.')}); most "
        "often they have too little memory: say fewer --workers, or --table-precision int8, and "
        "go on with --resume"
    )
