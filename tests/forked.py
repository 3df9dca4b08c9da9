"""Python programs as processes of their own that start at once: forked, where the system can."""

import contextlib
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Ranks begin with different orders of their sets, as real processes do
HASH_SEEDS = ("1", "2")


class Forked:
    """A started program: what the tests use of `subprocess.Popen`, its output kept in files."""

    processor_s = 0.0  # of all that have ended

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str] = os.environ,
        number: int = 0,
        errors_of: Sequence[str] = (),
    ) -> None:
        self.arguments = list(arguments)
        # They live as long as it does
        self.files = [tempfile.TemporaryFile() for _ in range(2)]  # noqa: SIM115
        self.told, told = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        request = {
            "arguments": self.arguments,
            "environment": {**environment},
            "folder": str(ROOT),
            "errors_of": list(errors_of),
        }
        with told, Path(os.devnull).open("rb") as nothing:
            files = [told.fileno(), *(file.fileno() for file in (nothing, *self.files))]
            server = _server(HASH_SEEDS[number % len(HASH_SEEDS)])
            socket.send_fds(server, [json.dumps(request).encode()], files)
        self.pid = int(self.told.recv(64))
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code; minus the signal that ended it.

        Raises:
            subprocess.TimeoutExpired: It goes on longer than so many seconds.
        """
        if self.returncode is None:
            self.told.settimeout(timeout)
            try:
                code, seconds = self.told.recv(64).split()
            except TimeoutError:
                raise subprocess.TimeoutExpired(self.arguments, timeout or 0.0) from None
            self.returncode = int(code)
            Forked.processor_s += float(seconds)
        return self.returncode

    def poll(self) -> int | None:
        """Its exit code; None while it goes on."""
        if self.returncode is None and select.select([self.told], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it wrote, when it has ended."""
        self.wait(timeout)
        out, err = (self._read(file) for file in self.files)
        return out, err

    def wait_for(self, text: str, timeout: float = 60.0) -> None:
        """Until its standard output holds `text`."""
        end = time.monotonic() + timeout
        while text not in self._read(self.files[0]):
            assert time.monotonic() < end, f"{self.arguments} never said {text!r}"
            time.sleep(0.02)

    def send_signal(self, number: int) -> None:
        """Nothing where it has ended."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Ends it at once."""
        self.send_signal(signal.SIGKILL)

    @staticmethod
    def _read(file) -> str:
        """From its beginning; the program writes at a place of its own."""
        size = os.fstat(file.fileno()).st_size
        return os.pread(file.fileno(), size, 0).decode(errors="replace")


def start_servers() -> None:
    """Those of all ranks at once: the first rank would wait for the others' imports."""
    for seed in HASH_SEEDS:
        _server(seed)


@functools.cache
def _server(hash_seed: str) -> socket.socket:
    """One for each worker of pytest and hash seed; it ends with the worker."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "fork_server.py"), str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env={
                **os.environ,
                "PYTHONHASHSEED": hash_seed,
                "OMP_NUM_THREADS": "1",
                "TORCH_CPP_LOG_LEVEL": "ERROR",  # which torch reads when it is imported
            },
        )
    return ours
