"""`kill -9` of a training, or of one of its ranks; it is resumed and compared with a whole one."""

import json
import os
import random
import re
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen
from typing import Any

import pyarrow.parquet as pq

from benchmarks.racing.ranks import free_port
from tests.chaos.draft import cut, write_yaml
from tests.chaos.judge import first_difference, leftovers, without_clock
from tests.chaos.processes import Say, start
from tests.chaos.small_log import small_config, small_log

ROWS, FILES, GROUP_ROWS, EPOCHS, BATCH, EVERY = 3_000, 3, 250, 3, 32, 7
TRAINING = {
    "epochs": EPOCHS, "batch_size": BATCH, "checkpoint_every_steps": EVERY, "ema_decay": 0.9,
    "optimizer": {"kind": "adamw", "learning_rate": 0.003, "schedule": "cosine"},
}  # fmt: skip
CHECKPOINTS = -(-int(0.8 * ROWS) // BATCH) * EPOCHS // EVERY
# Small enough that the order of rows depends on where reading stands
STREAMING = {"shuffle_buffer_rows": 400, "chunk_rows": 100, "interleave": 3}
TIME_OUT_SECONDS = 300.0
# Pause between two looks at the run directory; a checkpoint of the small run takes some 10 ms
_LOOK_SECONDS = 0.0005
# Every so many-th run is killed a second time while it is resumed
_TWICE = 5  # odd, so that both kinds of input get their turn


@dataclass(frozen=True)
class Moment:
    """One kill."""

    # `time`: seconds after the start; `writing`: the n-th new folder of a checkpoint that is being
    # written, and so many seconds; `operation`: the n-th file operation
    kind: str
    number: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        if self.kind == "time":
            return f"after {self.seconds:.2f} s"
        if self.kind == "writing":
            return f"{self.seconds * 1e3:.1f} ms into checkpoint {self.number}"
        return f"at file operation {self.number}"


@dataclass(frozen=True)
class Killed:
    """A killed run or rank, and what became of the rest and of the resumed run."""

    name: str
    when: str
    writing: bool  # a checkpoint was being written
    resumed: bool
    difference: str | None
    twice: bool = False
    survivors_ended: bool = True  # by themselves, in time

    @property
    def same(self) -> bool:
        """Resumed, to what an undisturbed run comes to."""
        return self.resumed and self.difference is None


def _arguments(config: Path, run: Path) -> list[str | Path]:
    return ["train", config, "--out", run, "--quiet"]


def write_log(folder: Path) -> Path:
    folder.mkdir()
    for n, part in enumerate(cut(small_log(ROWS, seed=1), FILES)):
        pq.write_table(part, folder / f"part-{n}.parquet", row_group_size=GROUP_ROWS)
    return folder


def wait_while(busy: Callable[[], bool], process: Popen[bytes]) -> None:
    while process.poll() is None and busy():
        time.sleep(_LOOK_SECONDS)


def wait_seconds(seconds: float, process: Popen[bytes]) -> None:
    end = time.perf_counter() + seconds
    wait_while(lambda: time.perf_counter() < end, process)


def _wait_for_checkpoint(number: int, process: Popen[bytes], run: Path) -> None:
    """Until the number-th folder of a checkpoint has appeared that is being written."""
    seen: set[str] = set()

    def missing() -> bool:
        seen.update(path.name for path in (run / "checkpoint").glob(".step-*.tmp"))
        return len(seen) < number

    wait_while(missing, process)


def _was_writing(run: Path) -> bool:
    return any((run / "checkpoint").glob(".*.tmp"))


# One process


@dataclass(frozen=True)
class _Whole:
    """A run that nobody killed, and what moments are drawn from."""

    name: str
    config: Path
    run: Path
    seconds: float
    operations: int = 0  # on files; 0: not counted


def kill_runs(folder: Path, count: int, seed: int, say: Say) -> list[Killed]:
    folder.mkdir()
    draw, log = random.Random(f"kills {seed}"), write_log(folder / "log")
    bases = [_undisturbed(folder, log, name) for name in ("memory", "stream")]
    for base in bases:
        say(f"undisturbed, {base.name}: {base.seconds:.1f} s, {CHECKPOINTS} checkpoints, "
            f"{base.operations} file operations")  # fmt: skip
    moments = {base.name: _draw_moments(count, draw, base) for base in bases}
    killed = []
    for number in range(count):
        base = bases[number % 2]
        mine = [moments[base.name][number]]
        if number % _TWICE == _TWICE - 1:
            mine.append(moments[base.name][number - 1])
        killed.append(one := _kill_run(base, folder / f"killed-{number}", mine))
        inside = " (inside a checkpoint)" if one.writing else ""
        end = "same bits" if one.same else f"FAILED: {one.difference}"
        say(f"kill {number + 1}/{count}  {one.name}: {one.when}{inside}: {end}")
    return killed


def _draw_moments(count: int, draw: random.Random, base: _Whole) -> list[Moment]:
    """Of ten moments four are uniform in time, three inside checkpoints, three at operations."""
    kinds = ("time", "writing", "operation") * 3 + ("time",)
    moments = []
    for number in range(count):
        kind = kinds[number % len(kinds)]
        if kind == "time":
            moments.append(Moment(kind, seconds=draw.uniform(0, 0.97 * base.seconds)))
        elif kind == "writing":
            inside = draw.uniform(0, 0.0015)
            moments.append(Moment(kind, draw.randint(1, max(1, CHECKPOINTS - 1)), inside))
        else:
            moments.append(Moment(kind, draw.randint(1, base.operations)))
    return moments


def _kill_run(base: _Whole, run: Path, moments: list[Moment]) -> Killed:
    log, arguments = run.with_suffix(".log"), _arguments(base.config, run)
    when, twice = ", then ".join(map(str, moments)), len(moments) > 1
    writing, resume = False, list[str]()
    for moment in moments:
        died = _kill_at(moment, [*arguments, *resume], run, log)
        if not died and moment.kind != "time" and not resume:
            return Killed(base.name, when, writing, False, f"{moment} never came ({log})", twice)
        writing |= _was_writing(run)
        resume = ["--resume"]
    code = start([*arguments, "--resume"], log).wait(TIME_OUT_SECONDS)
    if code != 0:
        failed = f"--resume ended with {code}, see {log}"
        return Killed(base.name, when, writing, False, failed, twice)
    difference = first_difference(base.run, run)
    if difference is None and leftovers(run):
        difference = f"left behind: {', '.join(leftovers(run))}"
    return Killed(base.name, when, writing, True, difference, twice)


def _kill_at(moment: Moment, arguments: list[str | Path], run: Path, log: Path) -> bool:
    """Kills the process at the moment; False where it ended before."""
    if moment.kind == "operation":  # kills itself
        return _counting(moment.number, run, arguments, log).wait() < 0
    process = start(arguments, log)
    if moment.kind == "writing":
        _wait_for_checkpoint(moment.number, process, run)
    wait_seconds(moment.seconds, process)
    process.kill()  # SIGKILL
    return process.wait() < 0


def _counting(number: int, run: Path, arguments: list[str | Path], log: Path) -> Popen[bytes]:
    return start([str(number), run, *arguments], log, ("tests.chaos.dies_at",))


def _undisturbed(folder: Path, log: Path, name: str) -> _Whole:
    """Trains once to warm the caches and to compare with, and once to be measured."""
    raw = small_config(str(log), **TRAINING)
    raw["data"] |= {"input": name, "streaming": STREAMING}
    config = Path(write_yaml(folder / f"{name}.yaml", raw))
    run, again, said = (folder / f"{what}-{name}" for what in ("whole", "again", "log"))
    if _counting(0, run, _arguments(config, run), said).wait(TIME_OUT_SECONDS) != 0:
        raise RuntimeError(f"the undisturbed run failed: {said.read_text('utf-8').strip()}")
    before = time.perf_counter()
    start(_arguments(config, again), folder / f"again-{name}.log").wait(TIME_OUT_SECONDS)
    seconds = time.perf_counter() - before
    difference = first_difference(run, again)
    if difference is not None:
        raise RuntimeError(f"two undisturbed runs differ in {difference}")
    operations = int(re.findall(r"operations: (\d+)", said.read_text("utf-8"))[-1])
    return _Whole(name, config, run, seconds, operations)


# One of several ranks

# One kind of each: replicated and spread experts, in memory and streamed
KINDS = {
    "replicated, memory": {"experts": "replicated", "input": "memory"},
    "spread, streamed": {"experts": "spread", "input": "stream"},
}
# Seconds in which every survivor has to end; after 30 torchrun kills what has not
SURVIVORS_SECONDS = 25.0


def kill_ranks(folder: Path, count: int, ranks: int, seed: int, say: Say) -> list[Killed]:
    draw, log = random.Random(f"ranks {seed}"), write_log(folder / "log")
    bases = [_whole_ranks(folder, log, name, ranks) for name in KINDS]
    for base in bases:
        say(f"undisturbed, {base.name}: {base.seconds:.1f} s, {CHECKPOINTS} checkpoints")
    killed = []
    for number in range(count):
        base = bases[number % len(bases)]
        run, victim = folder / f"killed-{number}", draw.randrange(ranks)
        checkpoint = draw.randint(1, CHECKPOINTS - 1) if number // 2 % 2 else None
        after = draw.uniform(0, 0.01 if checkpoint else 0.97 * base.seconds)
        moment = Moment("writing" if checkpoint else "time", checkpoint or 0, after)
        killed.append(one := _kill_rank(base, run, victim, ranks, moment))
        end = "same result" if one.same else f"FAILED: {one.difference}"
        late = "" if one.survivors_ended else ", SURVIVORS DID NOT END"
        say(f"kill {number + 1}/{count}  {one.name}: {one.when}{late}: {end}")
    return killed


def _kill_rank(base: _Whole, run: Path, victim: int, ranks: int, at: Moment) -> Killed:
    launched = _Launched(_arguments(base.config, run), run, ranks)
    when = f"rank {victim} of {ranks}, {at}"
    if at.kind == "writing":
        _wait_for_checkpoint(at.number, launched.agent, run)
    launched.kill(victim, at.seconds)
    ended, writing = launched.end_in_time(SURVIVORS_SECONDS), _was_writing(run)
    again = _Launched([*_arguments(base.config, run), "--resume"], run, ranks)
    if not again.end_in_time(TIME_OUT_SECONDS) or again.agent.returncode:
        what = f"--resume ended with {again.agent.returncode}, see {again.log}"
        return Killed(base.name, when, writing, False, what, survivors_ended=ended)
    wanted, found = _result(base.run), _result(run)
    differing = [key for key in wanted if wanted[key] != found[key]]
    differing += [f"left behind: {path}" for path in leftovers(run)]
    difference = next(iter(differing), None)
    return Killed(base.name, when, writing, True, difference, survivors_ended=ended)


class _Launched:
    """`torchrun … -m mmoe …`: the ranks, and the agent that started them."""

    def __init__(self, arguments: Sequence[str | Path], run: Path, ranks: int) -> None:
        self.log = run.with_name(f"{run.name}.log")
        port = str(free_port())
        torchrun = ["--nproc-per-node", str(ranks), "--master-port", port, "-m", "mmoe"]
        self.agent = start([*torchrun, *arguments], self.log, ("torch.distributed.run",))
        self.pids: list[int] = []
        while len(self.pids) < ranks and self.agent.poll() is None:
            children = Path(f"/proc/{self.agent.pid}/task/{self.agent.pid}/children")
            with suppress(OSError):
                self.pids = [int(child) for child in children.read_text().split()]
            time.sleep(_LOOK_SECONDS)

    def kill(self, victim: int, after: float) -> None:
        """Sends `kill -9` to a rank, after so many seconds, unless all is over by then."""
        wait_seconds(after, self.agent)
        if self.agent.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pids[victim], signal.SIGKILL)

    def end_in_time(self, seconds: float) -> bool:
        """Whether all end by themselves; what does not is killed."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.agent.poll() is None:
            time.sleep(0.01)
        in_time = self.agent.poll() is not None
        for pid in [] if in_time else self.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.agent.kill()
        self.agent.wait()
        return in_time


def _whole_ranks(folder: Path, log: Path, name: str, ranks: int) -> _Whole:
    raw = small_config(str(log), **TRAINING)
    raw["data"] |= {"input": KINDS[name]["input"], "streaming": {"shuffle_buffer_rows": 400}}
    raw["parallel"] = {"experts": KINDS[name]["experts"]}
    label = re.sub(r"\W+", "-", name)
    config = Path(write_yaml(folder / f"{label}.yaml", raw))
    run, before = folder / f"whole-{label}", time.perf_counter()
    launched = _Launched(_arguments(config, run), run, ranks)
    ended = launched.end_in_time(TIME_OUT_SECONDS)
    seconds = time.perf_counter() - before
    if not ended or launched.agent.returncode:
        said = launched.log.read_text(encoding="utf-8")
        raise RuntimeError(f"the undisturbed run failed: {said.strip()[-2000:]}")
    return _Whole(name, config, run, seconds)


def _result(run: Path) -> dict[str, Any]:
    files = ("metrics.json", "history.json")
    return {f: without_clock(json.loads((run / f).read_text(encoding="utf-8"))) for f in files}
