"""The record of a check: a line of JSON for each thing, on the disk as soon as it is known."""

import hashlib
import json
import os
import platform
import re
import subprocess
import time
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
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

    Args:
        path: Of the file; its folder is made.
        machine: The GPU's name, or the processor's.
        older: More files whose lines count.
    """

    def __init__(self, path: Path, machine: str, older: Collection[Path] = ()) -> None:
        self.path, self.machine, self.older = path, machine, tuple(older)
        self.code = digest(SOURCES)
        path.parent.mkdir(parents=True, exist_ok=True)

    def add(self, key: str, status: str, **values: Any) -> None:
        """Writes one line.

        Args:
            key: `stage/what`.
            status: One of `STATUSES`.
            values: What else is known.
        """
        assert status in STATUSES, status
        line = {"key": key, "status": status, **values, "machine": self.machine, "code": self.code}
        text = json.dumps({**line, "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())})
        with self.path.open("a", encoding="utf-8") as file:
            # A line that was cut off must not swallow this one
            file.write(f"{_missing_end(self.path)}{text}\n")
            file.flush()
            os.fsync(file.fileno())

    def lines(self) -> dict[str, dict[str, Any]]:
        """The last line of each key, of this code on this machine."""
        return _last_lines([*self.older, self.path], self.machine, self.code)

    def done(self) -> set[str]:
        """Keys that need not be done again."""
        return {key for key, line in self.lines().items() if line["status"] in KNOWN}


def done_by(paths: Iterable[Path], machine: str) -> set[str]:
    """Keys of this code that some files say need not be done again on a machine."""
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
    """Twelve digits that stand for the contents of all files of these patterns."""
    total = hashlib.sha256()
    paths = {path for pattern in patterns for path in ROOT.glob(pattern)}
    for path in sorted(paths):
        total.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return total.hexdigest()[:12]


def machine_name(device: str) -> str:
    """The first GPU's name by `nvidia-smi`, or the processor's architecture after `device`."""
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
    """Of a machine's record."""
    return f"gpu_check_{re.sub(r'[^a-z0-9]+', '-', machine.lower()).strip('-')}.jsonl"
