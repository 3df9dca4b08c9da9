"""A cluster of Ray to score on: one that is there, or one of this machine's own, kept quiet."""

import logging
import math
import os
import socket
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from mmoe.plugins import import_extra

# What a port must answer within, and a worker be given a CPU
_PORT_SECONDS, _CHECK_SECONDS, _PLACE_SECONDS = 5.0, 30.0, 60.0
# Of Ray's store for objects, which holds nothing of ours: rows go from file to file
_STORE_BYTES = 100 << 20
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else a warning of what later versions do
}
# By this name Ray has its processes listen on loopback alone, on any system
_ON_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}


@contextmanager
def cluster(address: str | None) -> Generator[Any]:
    """Gives `ray`, connected; what was begun for it is ended.

    A process that is connected already stays so, and is asked for no other cluster.

    Args:
        address: Of a cluster, `HOST:PORT`, or `auto`: the one that this machine is a node of; None:
            one is started on this machine, on loopback.

    Raises:
        ValueError: Ray is not installed, or no cluster answers there, or none can be started.
    """
    with _environment(_QUIET if address is not None else {**_QUIET, **_ON_LOOPBACK}):
        ray = import_extra("ray")
        if ray.is_initialized():
            if address is not None:
                raise ValueError(
                    f"--address {address}: this process is connected to a cluster already; leave "
                    "the address out to use that one, or call ray.shutdown() first"
                )
            yield ray
            return
        _connect(ray, address)
    try:
        yield ray
    finally:
        ray.shutdown()


def check_installed() -> None:
    """Looks for Ray, which is imported later: it then reads where it is to listen.

    Raises:
        ValueError: It is not installed.
    """
    if "ray" in sys.modules or find_spec("ray") is None:
        import_extra("ray")


def check_room(
    ray: Any, address: str | None, workers: int | None, parts: int, takes: Mapping[str, int]
) -> int:
    """Returns how many workers there are to be, when the cluster has a CPU for one of them.

    Args:
        ray: Connected.
        address: As for `cluster`.
        workers: As they were asked for; None: one for each CPU.
        parts: To be scored; no more workers are needed.
        takes: What each worker takes of the cluster.

    Raises:
        ValueError: It has too few CPUs or GPUs, or all are taken for long.
    """
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
    hint = "start one with `ray start --head`, or leave --address out for one of its own"
    why = ""
    if address != "auto":
        host, colon, port = address.rpartition(":")
        if not colon or not host or not port.isdigit() or int(port) > 65535:
            raise ValueError(f"--address {address}: expected HOST:PORT, or auto")
        try:
            socket.create_connection((host.strip("[]"), int(port)), _PORT_SECONDS).close()
        except OSError as error:
            why = error.strerror or str(error)
    if not why:
        check = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", address]
        try:
            done = subprocess.run(
                check, capture_output=True, timeout=_CHECK_SECONDS, stdin=subprocess.DEVNULL
            )
            if done.returncode == 0:
                return
            said = done.stderr.decode(errors="replace").strip().splitlines()
            why = said[-1] if said else f"its health check ended with {done.returncode}"
        except subprocess.TimeoutExpired:
            why = "something else does, or it is of another version"
    where = "on this machine" if address == "auto" else f"there ({why})"
    raise ValueError(f"--address {address}: no cluster of Ray answers {where}; {hint}")


@contextmanager
def _environment(settings: Mapping[str, str]) -> Generator[None]:
    """Sets what is not set, for Ray and the processes that it starts."""
    new = {name: value for name, value in settings.items() if name not in os.environ}
    os.environ.update(new)
    try:
        yield
    finally:
        for name in new:
            os.environ.pop(name, None)
