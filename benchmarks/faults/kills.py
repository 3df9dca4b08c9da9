"""`kill -9` at random moments; each run is resumed and compared with an undisturbed one."""

import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import yaml

from benchmarks.faults.commands import start
from benchmarks.faults.moments import Moment, draw_moments, kill_at, was_writing
from benchmarks.faults.same_end import first_difference, leftovers
from benchmarks.faults.small_log import small_config, small_log

ROWS, FILES, GROUP_ROWS = 3_000, 3, 250
TRAINING = {
    "epochs": 3,
    "batch_size": 32,
    "checkpoint_every_steps": 7,
    "ema_decay": 0.9,
    "optimizer": {"kind": "adamw", "learning_rate": 0.003, "schedule": "cosine"},
}
# Small enough that the order of rows depends on where reading stands
STREAMING = {"shuffle_buffer_rows": 400, "chunk_rows": 100, "interleave": 3}
TIME_OUT_SECONDS = 300.0
# Every so many-th run is killed a second time while it is resumed
_TWICE = 5  # odd, so that both kinds of input get their turn


@dataclass(frozen=True)
class Undisturbed:
    """A run that nobody killed, and what moments are drawn from."""

    name: str
    config: Path
    run: Path
    seconds: float
    operations: int
    checkpoints: int


@dataclass(frozen=True)
class Killed:
    """One killed run."""

    name: str
    moments: list[Moment]
    writing: bool
    resumed: bool
    difference: str | None

    @property
    def bit_identical(self) -> bool:
        """Resumed to the same bits."""
        return self.resumed and self.difference is None


def kill_runs(folder: Path, count: int, seed: int, say: Callable[[str], None]) -> list[Killed]:
    """Kills `count` runs, in memory and streamed in turns."""
    draw = random.Random(f"kills {seed}")
    bases = [_undisturbed(folder, name) for name in ("memory", "stream")]
    for base in bases:
        say(
            f"undisturbed, {base.name}: {base.seconds:.1f} s, {base.checkpoints} checkpoints, "
            f"{base.operations} file operations"
        )
    killed = []
    moments = {
        base.name: draw_moments(
            count, draw, seconds=base.seconds, checkpoints=base.checkpoints,
            operations=base.operations,
        )
        for base in bases
    }  # fmt: skip
    for number in range(count):
        base = bases[number % 2]
        mine = [moments[base.name][number]]
        if number % _TWICE == _TWICE - 1:
            mine.append(moments[base.name][number - 1])
        killed.append(_kill_one(base, folder / f"killed-{number}", mine))
        say(f"kill {number + 1}/{count}  {_words(killed[-1])}")
    return killed


def _words(killed: Killed) -> str:
    when = ", then ".join(map(str, killed.moments))
    inside = " (inside a checkpoint)" if killed.writing else ""
    end = "same bits" if killed.bit_identical else f"FAILED: {killed.difference}"
    return f"{killed.name}: {when}{inside}: {end}"


def _kill_one(base: Undisturbed, run: Path, moments: list[Moment]) -> Killed:
    log = run.with_suffix(".log")
    writing, resume = False, False
    for moment in moments:
        died = kill_at(moment, _start(base.config, run, log, moment, resume), run)
        if not died and moment.kind != "time" and not resume:
            return Killed(base.name, moments, writing, False, f"{moment} never came ({log})")
        writing |= was_writing(run)
        resume = True
    process = start([*_arguments(base.config, run), "--resume"], log)
    code = process.wait(TIME_OUT_SECONDS)
    if code != 0:
        return Killed(base.name, moments, writing, False, f"--resume ended with {code}, see {log}")
    difference = first_difference(base.run, run)
    if difference is None and leftovers(run):
        difference = f"left behind: {', '.join(leftovers(run))}"
    return Killed(base.name, moments, writing, True, difference)


def _start(config: Path, run: Path, log: Path, moment: Moment, resume: bool):
    arguments = [*_arguments(config, run), *(["--resume"] if resume else [])]
    if moment.kind != "operation":
        return start(arguments, log)
    return start([str(moment.number), run, *arguments], log, ("benchmarks.faults.dies_at",))


def _arguments(config: Path, run: Path) -> list[str | Path]:
    return ["train", config, "--out", run, "--quiet"]


def _undisturbed(folder: Path, name: str) -> Undisturbed:
    """Trains once to warm the caches and to compare with, and once to be measured."""
    data = folder / "log"
    if not data.exists():
        write_log(data)
    raw = small_config(str(data), **TRAINING)
    raw["data"] |= {"input": name, "streaming": STREAMING}
    config = folder / f"{name}.yaml"
    config.write_text(yaml.safe_dump(raw), encoding="utf-8")
    run, log = folder / f"whole-{name}", folder / f"whole-{name}.log"
    counting = start(
        ["0", run, *_arguments(config, run)], log, ("benchmarks.faults.dies_at",)
    ).wait(TIME_OUT_SECONDS)
    said = log.read_text(encoding="utf-8")
    if counting != 0:
        raise RuntimeError(f"the undisturbed run failed: {said.strip()}")
    again = folder / f"again-{name}"
    before = time.perf_counter()
    start(_arguments(config, again), log).wait(TIME_OUT_SECONDS)
    seconds = time.perf_counter() - before
    difference = first_difference(run, again)
    if difference is not None:
        raise RuntimeError(f"two undisturbed runs differ in {difference}")
    operations = int(re.findall(r"operations: (\d+)", said)[-1])
    steps = -(-int(0.8 * ROWS) // int(TRAINING["batch_size"])) * int(TRAINING["epochs"])
    checkpoints = steps // int(TRAINING["checkpoint_every_steps"])
    return Undisturbed(name, config, run, seconds, operations, checkpoints)


def write_log(folder: Path) -> None:
    """The small log as files of several row groups."""
    folder.mkdir()
    table = small_log(ROWS, seed=1)
    for n in range(FILES):
        part = table.slice(n * ROWS // FILES, ROWS // FILES)
        pq.write_table(part, folder / f"part-{n}.parquet", row_group_size=GROUP_ROWS)
