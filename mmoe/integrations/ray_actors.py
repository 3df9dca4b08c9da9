"""Workers on a cluster of Ray: how many there is room for, what they answer, and their end."""

import math
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from mmoe.integrations.ray_worker import PartWorker
from mmoe.score.guard import ScoreCounts

_TRIES = 3  # workers that one part, or the loading of the model, may take with it
_PLACE_SECONDS = 60.0  # within which a worker must be given a CPU


@contextmanager
def started(
    ray: Any, made: PartWorker, address: str | None, workers: int | None, parts: int
) -> Generator[list[Any]]:
    """Starts actors, which Ray starts again where they die, until one of them has loaded the model.

    Args:
        ray: Connected.
        made: What each of them is.
        address: As for `cluster`.
        workers: As they were asked for; None: one for each CPU.
        parts: To be scored; no more workers are needed.

    Raises:
        ValueError: The cluster has too few CPUs or GPUs, or all are taken for long; or the model
            cannot be loaded.
    """
    takes = {"num_cpus": 1, "num_gpus": int(made.request.device == "cuda")}
    count = _count(ray, address, workers, parts, takes)
    again = {"max_restarts": -1, "max_task_retries": _TRIES - 1}
    worker = ray.remote(**takes, **again, scheduling_strategy="SPREAD")(PartWorker)
    actors = [worker.remote(**vars(made)) for _ in range(count)]
    try:
        # Whoever still loads it is handed parts, which wait for that
        loaded, _ = ray.wait([actor.score.remote(None) for actor in actors])
        answer_of(ray, loaded[0], "the loading of the model")
        yield actors
    finally:
        end(ray, actors)


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


def answer_of(ray: Any, owed: Any, what: str) -> ScoreCounts:
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


def end(ray: Any, actors: Sequence[Any]) -> None:
    """Ends workers, in the middle of what they do."""
    for actor in actors:
        with suppress(Exception):  # of a cluster that is gone
            ray.kill(actor)
