"""The record of a check: a line of JSON for each thing, and the processes whose lines they are.

As a process, it writes down what this machine has: versions, the GPU, packages that are missing.
"""

import argparse
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.racing.ranks import ROOT, with_modules_of

# Lines, on the disk as soon as they are known

PASSED, MEASURED, FAILED = "passed", "measured", "failed"
LEFT_OUT, NO_TIME = "left out", "no time"
STATUSES = (PASSED, MEASURED, FAILED, LEFT_OUT, NO_TIME)
# A thing with one of these is not done again
KNOWN = (PASSED, MEASURED)
# What a result depends on: changed, it is measured again
SOURCES = ("setup.py", "csrc/**/*.[ch]*", "mmoe/ops/**/*.py", "mmoe/mixture/**/*.py")
# Set for the processes of an item: one process asks nvidia-smi, and all write one name
MACHINE = "GPU_CHECK_MACHINE"


class Record:
    """Lines of one file, and of older ones that count as done too.

    Several processes may write to it at the same time: each line is one append.
    """

    def __init__(self, path: Path, machine: str, older: Collection[Path] = ()) -> None:
        self.path, self.machine, self.older = path, machine, tuple(older)
        self.code = digest(SOURCES)
        path.parent.mkdir(parents=True, exist_ok=True)

    def add(self, key: str, status: str, **values: Any) -> None:
        """Writes one line."""
        assert status in STATUSES, status
        line = {"key": key, "status": status, **values, "machine": self.machine, "code": self.code}
        text = json.dumps({**line, "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())})
        with self.path.open("a", encoding="utf-8") as file:
            # A line that was cut off must not swallow this one
            file.write(f"{_missing_end(self.path)}{text}\n")
            file.flush()
            os.fsync(file.fileno())

    def lines(self) -> dict[str, dict[str, Any]]:
        return _last_lines([*self.older, self.path], self.machine, self.code)

    def done(self) -> set[str]:
        return {key for key, line in self.lines().items() if line["status"] in KNOWN}


def done_by(paths: Iterable[Path], machine: str) -> set[str]:
    lines = _last_lines(paths, machine, digest(SOURCES))
    return {key for key, line in lines.items() if line["status"] in KNOWN}


def _last_lines(paths: Iterable[Path], machine: str, code: str) -> dict[str, dict[str, Any]]:
    return {
        line["key"]: line
        for line in read_lines(paths)
        if (line.get("machine"), line.get("code")) == (machine, code)
    }


def _missing_end(path: Path) -> str:
    """What ends the last line of a file, where a machine stopped in it."""
    with path.open("rb") as file:
        if not file.seek(0, os.SEEK_END):
            return ""
        file.seek(-1, os.SEEK_END)
        return "" if file.read(1) == b"\n" else "\n"


def read_lines(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """All lines of these files; one that was cut off is passed over."""
    found = []
    for path in paths:
        text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        for line in text.splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
    return [line for line in found if isinstance(line, dict) and "key" in line]


def digest(patterns: Iterable[str]) -> str:
    total = hashlib.sha256()
    paths = {path for pattern in patterns for path in ROOT.glob(pattern)}
    for path in sorted(paths):
        total.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return total.hexdigest()[:12]


def machine_name(device: str) -> str:
    if MACHINE in os.environ:
        return os.environ[MACHINE]
    if device != "cuda":
        return f"{device} {platform.machine()}"
    try:
        asked = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        said = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return "unknown GPU"
    return said.strip().splitlines()[0] if said.strip() else "unknown GPU"


def file_name(machine: str) -> str:
    return f"gpu_check_{re.sub(r'[^a-z0-9]+', '-', machine.lower()).strip('-')}.jsonl"


# Runs the items of a stage, each in a process and with a clock of its own

# How a process says that nothing failed and yet not all was done
EXIT_LEFT_OUT, EXIT_NO_TIME = 77, 75
# Its own clock had time left: it says nothing about the process
CUT = "the stage's clock ended in it"
TAIL = 600  # characters of the last words of a process that failed


@dataclass(frozen=True)
class Item:
    """One process of a stage."""

    key: str  # Of the line that says how it ended
    command: tuple[str, ...]  # Arguments of this Python
    seconds: float  # Its clock
    needs: tuple[str, ...] = ()  # Modules without which it is left out


@dataclass(frozen=True)
class Ended:
    code: int | None
    seconds: float
    words: str


def run_items(
    items: Sequence[Item],  # In order of value
    record: Record,  # Of what is known
    log: Path,  # A file that gets all that the processes print
    seconds: float,  # The clock
    workers: int = 1,  # Processes at a time
    say: Callable[[str], None] = print,  # Told of each end
) -> None:
    """Runs what is not done yet until the clock of the stage ends; the record says the rest."""
    ends_at, done = time.monotonic() + seconds, record.done()

    def one(item: Item) -> None:
        if item.key not in done:
            _run_item(item, record, log, ends_at - time.monotonic(), say)

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(one, items))


def _run_item(
    item: Item, record: Record, log: Path, left: float, say: Callable[[str], None]
) -> None:
    missing = missing_modules(item.needs)
    if missing:
        record.add(item.key, LEFT_OUT, reason=f"without {', '.join(missing)}")
    elif left < 1:
        record.add(item.key, NO_TIME, reason="the stage's clock ended before it began")
    else:
        # What stands at the start of a line that never came tells of a machine that stopped
        say(f"  {item.key}: at most {min(item.seconds, left):.0f} s")
        ended = run_process(item, log, min(item.seconds, left), record)
        cut = ended.code is None and left < item.seconds
        status, reason = (NO_TIME, CUT) if cut else _judged(ended)
        rest = {"reason": reason} if reason else _result(ended.words)
        record.add(item.key, status, seconds=round(ended.seconds, 2), **rest)
        say(f"  {item.key}: {status} in {ended.seconds:.1f} s{f', {reason}' if reason else ''}")


def run_process(item: Item, log: Path, seconds: float, record: Record) -> Ended:
    environment = {
        **os.environ,
        "PYTHONUNBUFFERED": "1",
        **with_modules_of(ROOT),
        MACHINE: record.machine,
    }
    started = time.monotonic()
    with subprocess.Popen(
        [sys.executable, *item.command],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        code: int | None
        try:
            words, _ = process.communicate(timeout=max(seconds, 0.1))
            code = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            words, _ = process.communicate()
            code = None
    with log.open("a", encoding="utf-8") as file:
        file.write(f"== {item.key}\n{words}\n")
    return Ended(code, time.monotonic() - started, words)


def _judged(ended: Ended) -> tuple[str, str]:
    words = ended.words.strip()
    last = words.splitlines()[-1] if words else "it said nothing"
    if ended.code is None:
        return FAILED, f"its clock of {ended.seconds:.0f} s ended; its last line: {last[-TAIL:]}"
    if ended.code == 0:
        return PASSED, ""
    named = {EXIT_LEFT_OUT: LEFT_OUT, EXIT_NO_TIME: NO_TIME}
    if ended.code in named:
        return named[ended.code], last[-TAIL:]
    return FAILED, f"exit status {ended.code}: {last[-TAIL:]}"


def _result(words: str) -> dict[str, Any]:
    last = (words.strip().splitlines() or [""])[-1]
    try:
        found = json.loads(last)
    except ValueError:
        return {}
    return {"result": found} if isinstance(found, dict) else {}


def missing_modules(names: Sequence[str]) -> list[str]:
    """Those that a process of this Python could not import; asked of one, as hooks may refuse."""
    return [name for name in names if not _importable(name)]


@cache
def _importable(name: str) -> bool:
    call = [sys.executable, "-c", f"import {name}"]
    return subprocess.run(call, cwd=ROOT, capture_output=True).returncode == 0


# What a process of a check is told, and works on: a GPU, the emulated one, or the CPU

DEVICES = ("cuda", "cpu", "emulated")


def process_options(
    module: str, devices: Sequence[str] = ("cuda", "cpu"), small: str = "a rehearsal's sizes"
) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.gpu_check.{module}")
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--device", choices=devices, default="cuda")
    parser.add_argument("--small", action="store_true", help=small)
    return parser


def opened_record(settings: argparse.Namespace) -> Record:
    """Returns the record of a process's options, once kernels for its device are there."""
    if settings.device == "cuda":
        require_kernels()
    return Record(settings.record, machine_name(settings.device))


def require_kernels() -> None:
    """Ends the process where operators on a GPU would be plain PyTorch."""
    from mmoe.ops import extension_status

    if not extension_status().cuda:
        sys.exit(f"mmoe has no CUDA kernels here: {extension_status().detail}")


@contextmanager
def opened(device: str) -> Iterator[str]:
    """Gives the name under which tensors are put on it, while kernels for it are there.

    Emulated, "cuda" means the CUDA sources compiled for the host, in this process.
    """
    if device == "emulated":
        from tests.emulated_cuda.device import EmulatedDevice, Kernels  # compiles where it must

        with EmulatedDevice(Kernels()):
            yield "cuda"
        return
    if device == "cuda":
        require_kernels()
    yield device


# What this machine has

PACKAGES = (
    "numpy", "pyarrow", "pandas", "pydantic", "pytest", "hypothesis", "torchrec", "fbgemm_gpu",
    "triton", "rich", "scattermoe",
)  # fmt: skip
ASKED = "name,driver_version,memory.total,clocks.sm,clocks.max.sm,power.limit,temperature.gpu"


def main(arguments: Sequence[str] | None = None) -> None:
    settings = process_options("record", DEVICES).parse_args(arguments)
    found = describe(settings.device)
    Record(settings.record, machine_name(settings.device)).add("env/versions", MEASURED, **found)
    for name, value in found.items():
        print(f"{name}: {value}")


def describe(device: str) -> dict[str, Any]:
    import torch  # not before it is needed: --help should be quick

    found: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_cuda": torch.version.cuda,
        "cores": os.cpu_count(),
        "nvcc": _said(["nvcc", "--version"]).splitlines()[-2:],
        "nvidia_smi": _said(["nvidia-smi", f"--query-gpu={ASKED}", "--format=csv,noheader"]),
        "compute_sanitizer": shutil.which("compute-sanitizer"),
        "packages": {name: version(name) for name in PACKAGES},
    }
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        found |= {
            "gpu": properties.name,
            "gpus": torch.cuda.device_count(),
            "capability": [properties.major, properties.minor],
            "memory": properties.total_memory,
            "multiprocessors": properties.multi_processor_count,
            "l2": properties.L2_cache_size,
        }
    return found


def version(name: str) -> str | None:
    if missing_modules([name]):
        return None
    try:
        return importlib.metadata.version(name.replace("_", "-"))
    except importlib.metadata.PackageNotFoundError:
        return "?"


def _said(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError) as error:
        return f"none ({error})"
    return done.stdout.strip()


if __name__ == "__main__":
    main()
