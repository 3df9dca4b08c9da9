"""`kill -9` while a folder is scored; what is seen meanwhile, and what a resume makes of it."""

import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import fsspec
import pyarrow.parquet as pq
import yaml

from benchmarks.faults.commands import start
from benchmarks.faults.small_log import small_config, small_log

ROWS, FILES, GROUP_ROWS, ROWS_PER_FILE = 60_000, 3, 1_000, 2_048
TIME_OUT_SECONDS = 300.0
_LOOK_SECONDS = 0.0005
SUCCESS = "_SUCCESS"


@dataclass(frozen=True)
class Scoring:
    """What is scored, and what comes of it undisturbed.

    Attributes:
        run: A trained run.
        log: A folder of rows.
        seconds: That it takes.
        files: Name → bytes of each file of the output.
    """

    run: Path
    log: Path
    seconds: float
    files: Mapping[str, bytes]

    def arguments(self, out: str | Path) -> list[str | Path]:
        """Of the command."""
        return [
            "score", self.run, "--input", self.log, "--output", out, "--keep", "item", "note",
            "--rows-per-file", str(ROWS_PER_FILE), "--quiet",
        ]  # fmt: skip


@dataclass
class Watcher:
    """Looks at a folder again and again while somebody writes into it.

    Attributes:
        folder: Local one, or an address.
        whole: What may be seen under final names.
        wrong: What was seen and is not as it must be.
        looks: How often.
    """

    folder: str
    whole: Mapping[str, bytes]
    wrong: list[str] = field(default_factory=list)
    looks: int = 0

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

    def _watch(self) -> None:
        while not self._ends.is_set():
            self.look()
            time.sleep(_LOOK_SECONDS)

    def look(self) -> None:
        """Reads what has a final name, once each, and everything when `_SUCCESS` is there."""
        found = _published(self.folder, self.whole, self._known)
        self.looks += 1
        for name, content in found.items():
            if content != self.whole.get(name):
                self.wrong.append(f"{name}: {len(content)} bytes that are not the whole file")
            self._known.add(name)
        if SUCCESS in self._known and not self._known >= self.whole.keys():
            missing = sorted(self.whole.keys() - self._known)
            self.wrong.append(f"{SUCCESS} without {', '.join(missing[:3])}")


@dataclass(frozen=True)
class Killed:
    """One scoring that was killed, and resumed."""

    where: str
    seconds: float
    seen: list[str]
    died: bool
    difference: str | None


def prepare(folder: Path) -> Scoring:
    """Trains a small run, and scores once to warm the caches and once to be measured."""
    log = folder / "log"
    log.mkdir()
    rows = small_log(ROWS, seed=5)
    for n in range(FILES):
        part = rows.slice(n * ROWS // FILES, ROWS // FILES)
        pq.write_table(part, log / f"{n}.parquet", row_group_size=GROUP_ROWS)
    pq.write_table(small_log(3_000, seed=4), folder / "train.parquet")
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump(small_config(str(folder / "train.parquet"))))
    run = folder / "run"
    _succeed(["train", config, "--out", run, "--quiet"], folder / "train.log")
    scoring = Scoring(run, log, 0.0, {})
    _succeed(scoring.arguments(folder / "warm"), folder / "warm.log")
    begun = time.perf_counter()
    _succeed(scoring.arguments(folder / "whole"), folder / "whole.log")
    seconds = time.perf_counter() - begun
    return Scoring(run, log, seconds, contents(folder / "whole"))


def kill_scorings(
    scoring: Scoring,
    folder: Path,
    count: int,
    seed: int,
    bucket: str | None,
    say: Callable[[str], None],
) -> list[Killed]:
    """Kills `count` scorings, every fourth of them into a bucket where there is one."""
    draw, killed = random.Random(f"scores {seed}"), []
    # Half of the moments lie in the second half of the scoring itself, where files get their names
    for number in range(count):
        in_bucket = bucket is not None and number % 4 == 3
        out = f"{bucket}/{number}" if in_bucket else str(folder / f"killed-{number}")
        late = 0.6 if number % 2 else 0.0
        seconds = scoring.seconds * draw.uniform(late, 1.0)
        killed.append(_kill_one(scoring, out, folder / f"killed-{number}.log", seconds))
        end = killed[-1].difference or "same bytes"
        say(f"kill {number + 1}/{count}, {killed[-1].where}: after {seconds:.2f} s: {end}")
    return killed


def _kill_one(scoring: Scoring, out: str, log: Path, seconds: float) -> Killed:
    with Watcher(out, scoring.files) as watcher:
        process = start(scoring.arguments(out), log)
        end = time.perf_counter() + seconds
        while process.poll() is None and time.perf_counter() < end:
            time.sleep(_LOOK_SECONDS)
        process.kill()
        process.wait()
        died = process.returncode < 0
        resumed = start([*scoring.arguments(out), "--resume"], log).wait(TIME_OUT_SECONDS)
    watcher.look()
    where = "bucket" if "://" in out else "disk"
    if resumed != 0:
        return Killed(where, seconds, watcher.wrong, died, f"--resume ended with {resumed}: {log}")
    return Killed(
        where, seconds, watcher.wrong, died, first_difference(scoring.files, contents(out))
    )


def first_difference(wanted: Mapping[str, bytes], found: Mapping[str, bytes]) -> str | None:
    """Says which file differs, or is there alone; None where none does."""
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            there = "is missing" if name not in found else "has other bytes"
            return f"{name} {there}" if name in wanted else f"{name} is left behind"
    return None


def contents(folder: str | Path) -> dict[str, bytes]:
    """Bytes of every file below a folder, or an address."""
    filesystem, root = fsspec.url_to_fs(str(folder))
    filesystem.invalidate_cache()
    return {
        path[len(root) :].lstrip("/"): bytes(filesystem.cat_file(path))
        for path in filesystem.find(root)
    }


def _published(folder: str, whole: Mapping[str, bytes], known: set[str]) -> dict[str, bytes]:
    """New files that do not begin with an underscore, and the two that say that all are there."""
    filesystem, root = fsspec.url_to_fs(folder)
    filesystem.invalidate_cache()
    try:
        names = [path[len(root) :].lstrip("/") for path in filesystem.find(root)]
    except (FileNotFoundError, OSError):
        return {}
    names = [n for n in names if n in whole or not n.startswith(("_", "."))]
    found = {}
    for name in (n for n in names if n not in known):
        try:
            found[name] = bytes(filesystem.cat_file(f"{root}/{name}"))
        except FileNotFoundError:  # of a folder that is being made anew
            continue
    return found


def _succeed(arguments: list[str | Path], log: Path) -> None:
    if start(arguments, log).wait(TIME_OUT_SECONDS) != 0:
        raise RuntimeError(f"the undisturbed command failed: {log.read_text().strip()}")
