"""A cluster of Ray to score on: one that is there, or one of this machine's own, kept quiet."""

import logging
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from mmoe.plugins import import_extra
from mmoe.process_settings import environment

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
def cluster(address: str | None) -> Generator[Any]:
    """Gives `ray`, connected; what was begun for it is ended.

    A process that is connected already stays so, and is asked for no other cluster.

    Args:
        address: Of a cluster, `HOST:PORT`, or `auto`: the one that this machine is a node of; None:
            one is started on this machine, on loopback.

    Raises:
        ValueError: Ray is not installed, or no cluster answers there, or none can be started.
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
