"""Settings and random states of the whole process: set by its owner or a call, by no import."""

import gc
import logging
import os
import sys
import threading
import warnings
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# Turns of an OpenMP thread at a barrier before it sleeps (GNU's default: 300,000). Where other jobs
# share the cores, the default spins away the very time it waits for; see benchmarks/README.md
_SPINS = ("GOMP_SPINCOUNT", "3000")
# Objects between two collections of the young ones; Python begins with 700
_YOUNG = 20_000
_tuned = False
# Held while generators are lent. Reentrant: a module that is made while a run draws borrows again
LENT = threading.RLock()


def tune_process() -> None:
    """Sets this process up to train and score fast; to be called before torch is imported.

    As the command line does for itself: OpenMP's threads wait for each other for a short time only
    (`GOMP_SPINCOUNT=3000`, unless that or `OMP_WAIT_POLICY` is set); the first training keeps the
    memory that a step frees for the next one; several ranks keep to cores of their own
    (`parallel.bind_cores`); and warnings of torch's tracer and profiler about what nobody can
    change are not shown. Without it a process is left as it is.

    Warns:
        RuntimeWarning: torch has been imported already, and has read the first of these; once.

    Example:
        >>> import mmoe
        >>> mmoe.tune_process()  # doctest: +SKIP
        >>> import torch
    """
    if set_up() and "torch" in sys.modules:
        warnings.warn(
            "mmoe.tune_process(): torch is imported already and has read how long threads wait "
            f"for each other; call it before `import torch`, or set {'='.join(_SPINS)} in the "
            "environment",
            RuntimeWarning,
            stacklevel=2,
        )


def set_up() -> bool:
    """Does what `tune_process` does, silently; returns whether torch has yet to read it."""
    global _tuned
    _tuned = True
    # The first forward of TorchRec's modules warns about a check of tracing inside it
    logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # torch's profiler writes lines of its own
    name, turns = _SPINS
    if name in os.environ or "OMP_WAIT_POLICY" in os.environ:  # a policy would be overruled
        return False
    os.environ[name] = turns
    return True


def is_tuned() -> bool:
    """Returns whether this process has been set up, so that more of it may be changed later."""
    return _tuned


def spare_collections() -> None:
    """Collects garbage in larger portions: imports alone would start several full collections.

    Each of them walks over all objects of torch, for a quarter of a second.
    """
    _, *older = gc.get_threshold()
    gc.set_threshold(_YOUNG, *older)


@contextmanager
def spared_collections() -> Generator[None]:
    """Does the same while a block runs that makes few cycles, such as one that scores."""
    before = gc.get_threshold()
    if before[0]:  # 0: the user collects nothing
        spare_collections()
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextmanager
def environment(settings: Mapping[str, str]) -> Generator[None]:
    """Sets variables that are not set, for a block and the processes that it starts."""
    new = {name: value for name, value in settings.items() if name not in os.environ}
    os.environ.update(new)
    try:
        yield
    finally:
        for name in new:
            os.environ.pop(name, None)


@contextmanager
def borrowed_generators(device: "torch.device | None" = None) -> Iterator[None]:
    """Encloses draws after which torch's global generators are in the states of before.

    Dropout and initialisers draw from those alone, so two runs in two threads would take numbers
    from each other: another thread that borrows them waits.

    Args:
        device: A GPU, whose generator is kept in addition to the CPU's.

    Example:
        >>> import torch
        >>> from mmoe.process_settings import borrowed_generators
        >>> state = torch.get_rng_state()
        >>> with borrowed_generators():
        ...     x = torch.rand(3)
        >>> torch.equal(torch.get_rng_state(), state)
        True
    """
    import torch  # by now it has been: this module is read before it

    devices = [device] if device is not None and device.type == "cuda" else []
    with LENT, torch.random.fork_rng(devices=devices):
        yield


def use_cpus_of_ray() -> None:
    """Sets torch's and Arrow's threads to the CPUs that Ray gave this worker, if any.

    Ray says so to OpenMP alone (`OMP_NUM_THREADS`), and not where the user has set that.
    """
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return
    context = ray.get_runtime_context()
    if context.worker.mode != ray.WORKER_MODE:
        return  # the process that asks, which has its threads to itself
    import pyarrow as pa
    import torch

    threads = max(1, int(context.get_assigned_resources().get("CPU", 1)))
    torch.set_num_threads(threads)
    pa.set_cpu_count(threads)
