"""What may happen to a scoring: `kill -9`, also of what Ray runs, a full disk, inputs that change.

Meanwhile a watcher reads what is published; a resume has to end with the bytes of a whole scoring.
"""

import logging
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from subprocess import Popen
from unittest.mock import patch

import fsspec
import pyarrow.parquet as pq

from benchmarks.racing.child import descendants
from tests.chaos.draft import cut, write_yaml
from tests.chaos.kills import TIME_OUT_SECONDS, wait_seconds, wait_while
from tests.chaos.processes import ROOT, Say, one_thread, run_command, start
from tests.chaos.small_log import small_config, small_log

ROWS, FILES, GROUP_ROWS, ROWS_PER_FILE = 60_000, 3, 1_000, 2_048
SUCCESS = "_SUCCESS"


@dataclass(frozen=True)
class Scoring:
    """A trained run, a folder of rows, and what comes of them undisturbed: seconds, and files."""

    run: Path
    log: Path
    seconds: float
    files: Mapping[str, bytes]

    def arguments(self, out: str | Path) -> list[str | Path]:
        return [
            "score", self.run, "--input", self.log, "--output", out, "--keep", "item", "note",
            "--rows-per-file", str(ROWS_PER_FILE), "--quiet",
        ]  # fmt: skip

    def difference(self, out: str | Path) -> str | None:
        return first_difference(self.files, contents(out))


@dataclass
class Watcher:
    """Looks at a folder or address again and again while somebody writes into it."""

    folder: str
    whole: Mapping[str, bytes]  # What may be seen under final names
    wrong: list[str] = field(default_factory=list)  # What was seen and is not as it must be

    def __post_init__(self) -> None:
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._known: set[str] = set()

    def __enter__(self) -> "Watcher":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()
        self.look()

    def _watch(self) -> None:
        while not self._ends.wait(0.0005):
            self.look()

    def look(self) -> None:
        """Reads what has a final name, once each, and everything when `_SUCCESS` is there."""
        found = _published(self.folder, self.whole, self._known)
        for name, content in found.items():
            if content != self.whole.get(name):
                self.wrong.append(f"{name}: {len(content)} bytes that are not the whole file")
            self._known.add(name)
        if SUCCESS in self._known and not self._known >= self.whole.keys():
            missing = sorted(self.whole.keys() - self._known)
            self.wrong.append(f"{SUCCESS} without {', '.join(missing[:3])}")


def _published(folder: str, whole: Mapping[str, bytes], known: set[str]) -> dict[str, bytes]:
    """New files that do not begin with an underscore, and the two that say that all are there."""
    filesystem, root = fsspec.url_to_fs(folder)
    filesystem.invalidate_cache()
    try:
        names = [path[len(root) :].lstrip("/") for path in filesystem.find(root)]
    except (FileNotFoundError, OSError):
        return {}
    found = {}
    for name in names:
        if name in known or (name not in whole and name.startswith(("_", "."))):
            continue
        try:
            found[name] = bytes(filesystem.cat_file(f"{root}/{name}"))
        except FileNotFoundError:  # of a folder that is being made anew
            continue
    return found


def first_difference(wanted: Mapping[str, bytes], found: Mapping[str, bytes]) -> str | None:
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            there = "is missing" if name not in found else "has other bytes"
            return f"{name} {there}" if name in wanted else f"{name} is left behind"
    return None


def contents(folder: str | Path) -> dict[str, bytes]:
    filesystem, root = fsspec.url_to_fs(str(folder))
    filesystem.invalidate_cache()
    return {
        path[len(root) :].lstrip("/"): bytes(filesystem.cat_file(path))
        for path in filesystem.find(root)
    }


def prepare_scoring(folder: Path) -> Scoring:
    """Trains a small run, and scores once to warm the caches and once to be measured."""
    log, run = folder / "log", folder / "run"
    log.mkdir()
    for n, part in enumerate(cut(small_log(ROWS, seed=5), FILES)):
        pq.write_table(part, log / f"{n}.parquet", row_group_size=GROUP_ROWS)
    pq.write_table(small_log(3_000, seed=4), folder / "train.parquet")
    config = write_yaml(folder / "config.yaml", small_config(str(folder / "train.parquet")))
    scoring = Scoring(run, log, 0.0, {})
    train: list[str | Path] = ["train", config, "--out", run, "--quiet"]
    seconds = 0.0
    for name, given in (
        ("train", train),
        ("warm", scoring.arguments(folder / "warm")),
        ("whole", scoring.arguments(folder / "whole")),
    ):
        begun, said = time.perf_counter(), folder / f"{name}.log"
        if start(given, said).wait(TIME_OUT_SECONDS) != 0:
            raise RuntimeError(f"the undisturbed command failed: {said.read_text().strip()}")
        seconds = time.perf_counter() - begun
    return Scoring(run, log, seconds, contents(folder / "whole"))


@dataclass(frozen=True)
class Killed:
    """One scoring that was killed, and resumed; and what was seen too early."""

    where: str
    seen: list[str]
    died: bool
    difference: str | None


def kill_scorings(
    scoring: Scoring, folder: Path, count: int, seed: int, bucket: str | None, say: Say
) -> list[Killed]:
    draw, killed = random.Random(f"scores {seed}"), list[Killed]()
    # Half of the moments lie in the second half of the scoring itself, where files get their names
    for number in range(count):
        in_bucket = bucket is not None and number % 4 == 3
        out = f"{bucket}/{number}" if in_bucket else str(folder / f"killed-{number}")
        log = folder / f"killed-{number}.log"
        seconds = scoring.seconds * draw.uniform(0.6 if number % 2 else 0.0, 1.0)
        with Watcher(out, scoring.files) as watcher:
            process = start(scoring.arguments(out), log)
            wait_seconds(seconds, process)
            process.kill()
            died = process.wait() < 0
            code = start([*scoring.arguments(out), "--resume"], log).wait(TIME_OUT_SECONDS)
        difference = f"--resume ended with {code}: {log}" if code else scoring.difference(out)
        where = "bucket" if in_bucket else "disk"
        killed.append(Killed(where, watcher.wrong, died, difference))
        end = difference or "same bytes"
        say(f"kill {number + 1}/{count}, {where}: after {seconds:.2f} s: {end}")
    return killed


def kill_ray_scorings(
    scoring: Scoring, folder: Path, count: int, seed: int, say: Say
) -> list[Killed]:
    """Kills a worker of Ray in one half of `count` scorings, the asking process in the other.

    Each at a part drawn at random. Where a worker was killed the scoring itself has to go on; what
    the asking process left is resumed, by Ray or by one process in turns. None where Ray is not
    installed.
    """
    if find_spec("ray") is None:
        say("without ray: no worker of it is killed")
        return []
    draw, killed = random.Random(f"ray {seed}"), list[Killed]()
    for number in range(count):
        out, log = folder / f"ray-{number}", folder / f"ray-{number}.log"
        parts, worker = draw.randint(0, len(scoring.files) * 2 // 3), number % 2 == 0
        with Watcher(str(out), scoring.files) as watcher:
            process = start([*scoring.arguments(out), "--engine", "ray"], log)
            workers = _wait_for_workers(process, out, parts)
            if worker:
                died = bool(workers)
                if workers:
                    os.kill(workers[0], signal.SIGKILL)
                code = process.wait(TIME_OUT_SECONDS)
            else:
                process.kill()
                died = process.wait() < 0
                more = ["--resume", *(["--engine", "ray"] if number % 4 == 1 else [])]
                code = start([*scoring.arguments(out), *more], log).wait(TIME_OUT_SECONDS)
        difference = f"ended with {code}: {log}" if code else scoring.difference(out)
        where = f"{'a worker' if worker else 'the driver'} of Ray"
        killed.append(Killed(where, watcher.wrong, died, difference))
        end = difference or "same bytes"
        say(f"kill {number + 1}/{count} with {where}: at part {parts}: {end}")
    return killed


def _wait_for_workers(process: Popen[bytes], out: Path, parts: int) -> list[int]:
    """Workers that have begun to score, of the cluster that a process has started."""
    found: list[int] = []
    while process.poll() is None and not found:
        if len(list((out / "_staging").glob("*.parquet"))) >= parts:
            # What Ray has a worker call itself
            names = descendants(process.pid).items()
            found = [p for p, name in names if name.startswith("ray::PartWorker.score")]
        time.sleep(0.005)
    return found


@contextmanager
def local_bucket() -> Iterator[str | None]:
    """The address of a bucket of moto's server on loopback; None where it is not installed."""
    try:
        from moto.server import ThreadedMotoServer
    except ImportError:
        yield None
        return
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for each request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    # The scorings are processes of their own, which find the bucket by what they inherit
    settings = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "nobody",
        "AWS_SECRET_ACCESS_KEY": "nothing",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    try:
        with patch.dict(os.environ, settings):
            fsspec.filesystem("s3").mkdir("scores")
            yield "s3://scores"
    finally:
        server.stop()


# A full disk, a place that cannot be written, inputs that vanish or change while they are read:
# one line, exit code 2, nothing published, and a resume mends it


def scored_faults(scoring: Scoring, folder: Path, say: Say) -> list[str | None]:
    """Runs each fault once; what is wrong, or None where it is as it must be."""
    found = []
    for name, fault in _FAULTS.items():
        where = folder / name.replace(" ", "-")
        where.mkdir()
        found.append(fault(scoring, where))
        say(f"{name}: {found[-1] or 'as it must be'}")
    return found


def _full_disk(scoring: Scoring, where: Path) -> str | None:
    out, limit = where / "out", (15_000, 15_000)  # bytes of a file; a part of scores takes more
    said = _run(scoring, out, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit))
    wrong = _refused(said, out, "cannot be written")
    if wrong is not None:
        return wrong
    ended = run_command([*scoring.arguments(out), "--resume"], TIME_OUT_SECONDS)
    if ended.code != 0:
        return f"--resume ended with {ended.code}: {ended.stderr.strip()[-300:]}"
    return scoring.difference(out)


def _no_place(scoring: Scoring, where: Path) -> str | None:
    (where / "file").write_text("no folder")
    said = _run(scoring, where / "file" / "out")
    return _refused(said, where / "out", "is a file; name a folder that can be made")


def _vanished(scoring: Scoring, where: Path) -> str | None:
    scoring = _with_own_log(scoring, where)
    last = scoring.log / f"{FILES - 1}.parquet"
    return _refused(_run(scoring, where / "out", meanwhile=last.unlink), where / "out", str(last))


def _changed(scoring: Scoring, where: Path) -> str | None:
    scoring, other = _with_own_log(scoring, where), where / "other.parquet"
    pq.write_table(small_log(ROWS // FILES, seed=6), other)
    said = _run(scoring, where / "out", meanwhile=lambda: other.replace(scoring.log / "0.parquet"))
    return _refused(said, where / "out", "0.parquet")


def _with_own_log(scoring: Scoring, where: Path) -> Scoring:
    return replace(scoring, log=Path(shutil.copytree(scoring.log, where / "log")))


_FAULTS: dict[str, Callable[[Scoring, Path], str | None]] = {
    "full disk": _full_disk,
    "no place for a folder": _no_place,
    "an input vanishes": _vanished,
    "an input changes": _changed,
}


def _run(
    scoring: Scoring,
    out: Path,
    before: Callable[[], object] | None = None,
    meanwhile: Callable[[], object] | None = None,
) -> tuple[int, str]:
    """Exit code and standard error; `meanwhile` is called when the first part is there."""
    process = subprocess.Popen(
        [sys.executable, "-m", "mmoe", *map(str, scoring.arguments(out))],
        cwd=ROOT,
        env=one_thread(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        preexec_fn=before,
    )
    if meanwhile is not None:
        wait_while(lambda: not any((out / "_staging").glob("*.parquet")), process)
        meanwhile()
    said = process.communicate(timeout=TIME_OUT_SECONDS)[1]
    return process.returncode, said.decode()


def _refused(ended: tuple[int, str], out: Path, words: str) -> str | None:
    code, said = ended
    if code != 2 or len(said.strip().splitlines()) != 1 or words not in said:
        return f"exit code {code}: {said.strip()[-300:]}"
    seen = [n for n in contents(out) if not n.startswith("_staging/")] if out.exists() else []
    return f"published {', '.join(seen[:3])}" if seen else None
