"""`kill -9` of one of several ranks at random moments; then all are started again with --resume."""

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

import yaml

from benchmarks.faults.commands import start
from benchmarks.faults.kills import ROWS, TIME_OUT_SECONDS, TRAINING, write_log
from benchmarks.faults.same_end import without_clock
from benchmarks.faults.small_log import small_config
from benchmarks.racing.ranks import free_port

# One kind of each: replicated and spread experts, in memory and streamed
KINDS = {
    "replicated, memory": {"experts": "replicated", "input": "memory"},
    "spread, streamed": {"experts": "spread", "input": "stream"},
}
# Seconds in which every survivor has to end; after 30 torchrun kills what has not
SURVIVORS_SECONDS = 25.0
_LOOK_SECONDS = 0.0005
_INSIDE_SECONDS = 0.01  # most time between the sign of a checkpoint and the kill


@dataclass(frozen=True)
class Base:
    """A run that nobody killed."""

    name: str
    config: Path
    seconds: float
    checkpoints: int
    result: dict[str, object]


@dataclass(frozen=True)
class KilledRank:
    """One killed rank, and what became of the others and of the run.

    Attributes:
        survivors_ended: All in time.
        writing: A checkpoint was being written.
        resumed: All ranks ended well after --resume.
        difference: Where the metrics differ from those of the undisturbed run.
    """

    name: str
    when: str
    writing: bool
    survivors_ended: bool
    resumed: bool
    difference: str | None

    @property
    def same_result(self) -> bool:
        """As if nobody had been killed."""
        return self.resumed and self.difference is None


def kill_ranks(
    folder: Path, count: int, ranks: int, seed: int, say: Callable[[str], None]
) -> list[KilledRank]:
    """Kills a rank of each of `count` runs."""
    draw = random.Random(f"ranks {seed}")
    write_log(folder / "log")
    bases = [_undisturbed(folder, name, ranks) for name in KINDS]
    for base in bases:
        say(f"undisturbed, {base.name}: {base.seconds:.1f} s, {base.checkpoints} checkpoints")
    killed = []
    for number in range(count):
        base, victim = bases[number % len(bases)], draw.randrange(ranks)
        run = folder / f"killed-{number}"
        checkpoint = draw.randint(1, base.checkpoints - 1) if number // 2 % 2 else None
        after = draw.uniform(0, _INSIDE_SECONDS if checkpoint else 0.97 * base.seconds)
        killed.append(_kill_one(base, run, ranks, victim, checkpoint, after))
        one = killed[-1]
        end = "same result" if one.same_result else f"FAILED: {one.difference}"
        late = "" if one.survivors_ended else ", SURVIVORS DID NOT END"
        say(f"kill {number + 1}/{count}  {one.name}: {one.when}{late}: {end}")
    return killed


def _kill_one(
    base: Base, run: Path, ranks: int, victim: int, checkpoint: int | None, after: float
) -> KilledRank:
    launched = Launched(_arguments(base.config, run), run, ranks)
    when = f"rank {victim} of {ranks} after {after:.2f} s"
    if checkpoint is not None:
        when = f"rank {victim} of {ranks}, {after * 1e3:.1f} ms into checkpoint {checkpoint}"
        _wait_for_checkpoint(checkpoint, launched, run / "checkpoint")
    launched.kill(victim, after)
    ended = launched.end_in_time(SURVIVORS_SECONDS)
    writing = any((run / "checkpoint").glob(".*.tmp"))
    again = Launched([*_arguments(base.config, run), "--resume"], run, ranks)
    if not again.end_in_time(TIME_OUT_SECONDS) or again.agent.returncode:
        what = f"--resume ended with {again.agent.returncode}, see {again.log}"
        return KilledRank(base.name, when, writing, ended, False, what)
    found = _result(run)
    differing = [key for key in base.result if base.result[key] != found[key]]
    differing += [f"left behind: {path.name}" for path in run.rglob(".*")]
    return KilledRank(base.name, when, writing, ended, True, next(iter(differing), None))


class Launched:
    """`torchrun … -m mmoe …`: the ranks, and the agent that started them.

    Args:
        arguments: Of mmoe.
        run: Beside it the log is written.
        ranks: How many.
    """

    def __init__(self, arguments: Sequence[str | Path], run: Path, ranks: int) -> None:
        self.log = run.with_name(f"{run.name}.log")
        torchrun = ["--nproc-per-node", str(ranks), "--master-port", str(free_port())]
        self.agent = start(
            [*torchrun, "-m", "mmoe", *arguments], self.log, ("torch.distributed.run",)
        )
        self.pids: list[int] = []
        while len(self.pids) < ranks and self.agent.poll() is None:
            self.pids = _children(self.agent.pid)
            time.sleep(_LOOK_SECONDS)

    def kill(self, victim: int, after: float) -> None:
        """`kill -9` of a rank, after so many seconds, unless all is over by then."""
        end = time.perf_counter() + after
        while time.perf_counter() < end and self.agent.poll() is None:
            time.sleep(min(_LOOK_SECONDS, max(0.0, end - time.perf_counter())))
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


def _children(pid: int) -> list[int]:
    try:
        return [
            int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ]
    except OSError:
        return []


def _arguments(config: Path, run: Path) -> list[str | Path]:
    return ["train", config, "--out", run, "--quiet"]


def _wait_for_checkpoint(number: int, launched: Launched, folder: Path) -> None:
    """Until the number-th folder of a checkpoint has appeared that is being written."""
    seen: set[str] = set()
    while launched.agent.poll() is None:
        seen |= {path.name for path in folder.glob(".step-*.tmp")}
        if len(seen) >= number:
            return
        time.sleep(_LOOK_SECONDS)


def _undisturbed(folder: Path, name: str, ranks: int) -> Base:
    kind = KINDS[name]
    raw = small_config(str(folder / "log"), **TRAINING)
    raw["data"] |= {"input": kind["input"], "streaming": {"shuffle_buffer_rows": 400}}
    raw["parallel"] = {"experts": kind["experts"]}
    label = re.sub(r"\W+", "-", name)
    config = folder / f"{label}.yaml"
    config.write_text(yaml.safe_dump(raw), encoding="utf-8")
    run = folder / f"whole-{label}"
    before = time.perf_counter()
    launched = Launched(_arguments(config, run), run, ranks)
    ended = launched.end_in_time(TIME_OUT_SECONDS)
    seconds = time.perf_counter() - before
    if not ended or launched.agent.returncode:
        said = launched.log.read_text(encoding="utf-8")
        raise RuntimeError(f"the undisturbed run failed: {said.strip()[-2000:]}")
    steps = -(-int(0.8 * ROWS) // int(str(TRAINING["batch_size"]))) * int(str(TRAINING["epochs"]))
    checkpoints = steps // int(str(TRAINING["checkpoint_every_steps"]))
    return Base(name, config, seconds, checkpoints, _result(run))


def _result(run: Path) -> dict[str, object]:
    """What metrics.json and history.json hold, but for the times."""
    files = ("metrics.json", "history.json")
    return {f: without_clock(json.loads((run / f).read_text(encoding="utf-8"))) for f in files}
