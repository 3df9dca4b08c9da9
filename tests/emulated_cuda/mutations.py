"""Switches mutations of the CUDA sources on, one at a time, and says which the checks notice.

python -m tests.emulated_cuda.mutations [--sample 30 --seed S] [--only PART]

Prints which were drawn, a line for each mutation that survives, with the reason why it is harmless
(survivors.toml), and as the last line JSON: {"mutations", "caught", "share"}. Exit status 1 where
one survives without a reason, or of all of them the share is below 0.9.
"""

import argparse
import json
import math
import os
import random
import resource
import signal
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from tests.emulated_cuda.build import ROOT, NoCompiler
from tests.emulated_cuda.check import Check
from tests.emulated_cuda.checks import battery
from tests.emulated_cuda.device import EmulatedDevice, Kernels
from tests.emulated_cuda.mutants import Mutant, switched_sources
from tests.emulated_cuda.sanitizer import environment

SECONDS = 20  # of a processor, for a check, at least: a mutation may make a loop endless
# How a process says what came of its checks; AddressSanitizer's own is 1
SURVIVED, NOTICED, OTHER_ERROR = 0, 3, 4
SURVIVORS = Path(__file__).with_name("survivors.toml")
EVERY = (
    *("topk_gate", "joint_select", "route_plan", "permute", "unpermute"),
    *("gated_combine", "dense_combine"),
    *("exchange", "grouped_mm", "gathered_mm", "dense_mm", "gate_mm", "target_attention"),
)
# Whose checks a file's mutations are run against
OPERATORS: Mapping[str, tuple[str, ...]] = {
    "topk_gate.cu": ("topk_gate",),
    "joint_select.cu": ("joint_select",),
    "route_plan.cu": ("route_plan",),
    "permute.cu": ("permute", "unpermute"),
    "gated_combine.cu": ("gated_combine",),
    "dense_combine.cu": ("dense_combine",),
    "exchange": ("exchange",),
    "grouped": ("grouped_mm", "gathered_mm"),
    "pair_rows.cuh": ("grouped_mm", "gathered_mm"),
    "gemm.cuh": ("grouped_mm", "gate_mm"),
    "dense_mm.cu": ("dense_mm",),
    "gate_mm.cu": ("gate_mm",),
    "attention": ("target_attention",),
    "rowwise.cuh": ("grouped_mm", "dense_mm", "target_attention"),
    "experts.cuh": ("grouped_mm", "dense_mm"),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs them, two at a time on two cores; exit status as above."""
    parser = argparse.ArgumentParser(prog="python -m tests.emulated_cuda.mutations")
    parser.add_argument("--sample", type=_count, help="so many, drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--only", default="", help="those whose file and line hold this text")
    parser.add_argument("--jobs", type=_count, default=os.cpu_count() or 1)
    settings = parser.parse_args(arguments)
    mutants = switched_sources(ROOT / "csrc/cuda")[1]
    mutants = [mutant for mutant in mutants if settings.only in mutant.key]
    if not mutants:
        parser.error(f"--only: no mutation's file and line hold {settings.only!r}")
    if settings.sample is not None:
        drawn = random.Random(settings.seed).sample(mutants, min(settings.sample, len(mutants)))
        mutants = sorted(drawn, key=lambda mutant: mutant.number)
    if "LD_PRELOAD" not in os.environ:  # AddressSanitizer comes before everything
        command = [
            sys.executable,
            "-m",
            "tests.emulated_cuda.mutations",
            *(arguments or sys.argv[1:]),
        ]
        try:
            os.execve(sys.executable, command, {**os.environ, **environment()})
        except NoCompiler as error:
            sys.exit(f"tests.emulated_cuda.mutations: {error}")
    torch.set_num_threads(1)
    if settings.sample is not None:
        for mutant in mutants:
            print(f"drawn: {mutant.file}:{mutant.line}: {_words(mutant)}")
    print("compiling what has changed, and making the checks: minutes", flush=True)
    with EmulatedDevice(Kernels("mutants")) as device:
        checks = _prepare(device.kernels, mutants)
        caught = _run(device.kernels, mutants, checks, settings.jobs)
    _report(mutants, caught)


def _count(text: str) -> int:
    """A number of things: without any, nothing would be looked at."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"expected 1 or more, got {text}")
    return number


def operators_of(mutant: Mutant) -> tuple[str, ...]:
    """The builders whose checks concern a mutant's file."""
    for part, operators in OPERATORS.items():
        if part in mutant.file:
            return operators
    return EVERY


@dataclass(frozen=True)
class Timed:
    """A check that holds, how long it takes, and the mutations whose places it executes."""

    check: Check
    seconds: float
    reached: frozenset[int]


def _prepare(kernels: Kernels, mutants: Sequence[Mutant]) -> dict[str, list[Timed]]:
    """The checks of each builder that is needed; all of them hold before any mutation."""
    started = time.monotonic()
    needed = {operator for mutant in mutants for operator in operators_of(mutant)}
    checks: dict[str, list[Timed]] = {}
    for operator in (one for one in EVERY if one in needed):
        begun, own = time.monotonic(), list[Timed]()
        for check in battery(kernels, [operator]):
            before, _ = time.monotonic(), kernels.reached()
            check.run(kernels)
            own.append(Timed(check, time.monotonic() - before, kernels.reached()))
        # The quick ones first: most mutations are noticed at once
        checks[operator] = sorted(own, key=lambda timed: timed.seconds)
        print(f"{operator}: {len(own)} checks in {time.monotonic() - begun:.0f} s", flush=True)
    print(f"ready after {time.monotonic() - started:.0f} s; {len(mutants)} mutations", flush=True)
    return checks


def _run(
    kernels: Kernels, mutants: Sequence[Mutant], checks: Mapping[str, list[Timed]], jobs: int
) -> dict[int, bool]:
    """Whether each was noticed: by a check, a crash, or a loop that does not end.

    Raises:
        SystemExit: Checks notice something where nothing is mutated: then all would count.
    """
    for operator, way in _ends(kernels, [(one, 0, checks[one]) for one in checks], jobs):
        if way is not None:
            sys.exit(f"without a mutation, checks of {operator} noticed: {way}")
    caught: dict[int, bool] = {}
    ways: Counter[str] = Counter()
    of_each = ((mutant, mutant.number, _reaching(mutant, checks)) for mutant in mutants)
    for mutant, way in _ends(kernels, of_each, jobs):
        caught[mutant.number] = way is not None
        ways[way or "nothing"] += 1
        if way is None:
            print(f"survives: {mutant.file}:{mutant.line}: {_words(mutant)}", flush=True)
    print(f"noticed by: {dict(ways.most_common())}", flush=True)
    return caught


def _reaching(mutant: Mutant, checks: Mapping[str, list[Timed]]) -> list[Timed]:
    """The checks that execute its place: the others give what they gave."""
    own = [timed for operator in operators_of(mutant) for timed in checks[operator]]
    return [timed for timed in own if mutant.number in timed.reached]


Key = TypeVar("Key")


def _ends(
    kernels: Kernels, work: Iterable[tuple[Key, int, Sequence[Timed]]], jobs: int
) -> Iterator[tuple[Key, str | None]]:
    """Runs checks with a mutation in a process of its own each; says who noticed what."""
    running: dict[int, Key] = {}
    for key, number, checks in work:
        if len(running) >= jobs:
            yield _next_end(running)
        running[_start(kernels, number, checks)] = key
    while running:
        yield _next_end(running)


def _next_end(running: dict[int, Key]) -> tuple[Key, str | None]:
    child, status = os.wait()
    return running.pop(child), noticed_by(status)


def noticed_by(status: int) -> str | None:
    """What a process's end says; None: the mutation survived."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return "no end" if number == signal.SIGXCPU else f"a crash, {signal.Signals(number).name}"
    words = {SURVIVED: None, NOTICED: "a check", OTHER_ERROR: "an error of another kind"}
    return words.get(os.WEXITSTATUS(status), "AddressSanitizer")


def _start(kernels: Kernels, number: int, checks: Sequence[Timed]) -> int:
    """A process that ends with 0 where no check noticed the mutation."""
    child = os.fork()
    if child:
        return child
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    kernels.mutate(number)
    try:
        for timed in checks:
            _limit(timed)
            timed.check.run(kernels)
    except (AssertionError, RuntimeError, ValueError):
        os._exit(NOTICED)
    except BaseException:
        os._exit(OTHER_ERROR)
    os._exit(SURVIVED)


def _limit(timed: Timed) -> None:
    """Ends the process where a check takes far longer than it does without a mutation."""
    # Not by the clock: on a busy machine what survives would count as noticed
    used = resource.getrusage(resource.RUSAGE_SELF)
    until = used.ru_utime + used.ru_stime + SECONDS + 20 * timed.seconds
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(until), resource.RLIM_INFINITY))


def _words(mutant: Mutant) -> str:
    return f"{mutant.change} in column {mutant.column}: {mutant.text.strip()}"


def _report(mutants: Sequence[Mutant], caught: Mapping[int, bool]) -> None:
    reasons: dict[str, str] = tomllib.loads(SURVIVORS.read_text(encoding="utf-8"))
    alive = [mutant for mutant in mutants if not caught[mutant.number]]
    print(f"\n{len(alive)} of {len(mutants)} mutations survive:")
    for mutant in alive:
        reason = reasons.get(mutant.key, "NO REASON IS KNOWN (tests/emulated_cuda/survivors.toml)")
        print(f"{mutant.file}:{mutant.line}: {_words(mutant)}\n    {reason}")
    for key in stale(reasons, mutants, caught):
        print(f"no longer true in tests/emulated_cuda/survivors.toml: {key}")
    count = len(mutants) - len(alive)
    share = round(count / max(1, len(mutants)), 4)
    print(json.dumps({"mutations": len(mutants), "caught": count, "share": share}))
    known = all(mutant.key in reasons for mutant in alive)
    few = len(mutants) < len(switched_sources(ROOT / "csrc/cuda")[1])
    sys.exit(0 if known and (few or share >= 0.9) else 1)


def stale(
    reasons: Mapping[str, str], mutants: Sequence[Mutant], caught: Mapping[int, bool]
) -> list[str]:
    """Reasons for mutations that were caught, or that are not among the sources' any more."""
    every = {mutant.key for mutant in switched_sources(ROOT / "csrc/cuda")[1]}
    here = {mutant.key for mutant in mutants if caught[mutant.number]}
    return [key for key in reasons if key in here or key not in every]


if __name__ == "__main__":
    main()
