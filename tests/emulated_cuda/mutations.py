"""Switches mutations of the CUDA sources on, one at a time, and says which the checks notice.

python -m tests.emulated_cuda.mutations [--sample 30 --seed S] [--only PART]

Prints which were drawn, a line for each mutation that survives, with the reason why it is harmless
(survivors.toml), and as the last line JSON: {"mutations", "caught", "share"}. Exit status 1 where
the share is below 0.9.
"""

import argparse
import json
import os
import random
import resource
import signal
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from tests.emulated_cuda.build import ROOT
from tests.emulated_cuda.checks import Check, battery
from tests.emulated_cuda.device import EmulatedDevice, Kernels
from tests.emulated_cuda.mutants import Mutant, switched_sources
from tests.emulated_cuda.sanitizer import environment

SECONDS = 120  # of a processor, at least: a mutation may make a loop endless
# How a process says what came of its checks; AddressSanitizer's own is 1
SURVIVED, NOTICED, OTHER_ERROR = 0, 3, 4
SURVIVORS = Path(__file__).with_name("survivors.toml")
EVERY = (
    *("topk_gate", "route_plan", "permute", "unpermute", "gated_combine", "dense_combine"),
    *("exchange", "grouped_mm", "gathered_mm", "dense_mm", "gate_mm"),
)
# Whose checks a file's mutations are run against
OPERATORS: Mapping[str, tuple[str, ...]] = {
    "topk_gate.cu": ("topk_gate",),
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
    "rowwise.cuh": ("grouped_mm", "dense_mm"),
    "experts.cuh": ("grouped_mm", "dense_mm"),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs them, two at a time on two cores; exit status 1 where too many survive."""
    parser = argparse.ArgumentParser(prog="python -m tests.emulated_cuda.mutations")
    parser.add_argument("--sample", type=int, help="so many, drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--only", default="", help="those whose file and line hold this text")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    settings = parser.parse_args(arguments)
    mutants = switched_sources(ROOT / "csrc/cuda")[1]
    mutants = [mutant for mutant in mutants if settings.only in f"{mutant.key}"]
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
        os.execve(sys.executable, command, {**os.environ, **environment()})
    torch.set_num_threads(1)
    if settings.sample is not None:
        for mutant in mutants:
            print(f"drawn: {mutant.file}:{mutant.line}: {_words(mutant)}")
    print("compiling what has changed, and making the checks: minutes", flush=True)
    with EmulatedDevice(Kernels("mutants")) as device:
        checks = _prepare(device.kernels, mutants)
        caught = _run(device.kernels, mutants, checks, settings.jobs)
    _report(mutants, caught)


def operators_of(mutant: Mutant) -> tuple[str, ...]:
    """The builders whose checks concern a mutant's file."""
    for part, operators in OPERATORS.items():
        if part in mutant.file:
            return operators
    return EVERY


def _prepare(kernels: Kernels, mutants: Sequence[Mutant]) -> dict[str, list[Check]]:
    """The checks of each builder that is needed; all of them hold before any mutation."""
    started = time.monotonic()
    needed = {operator for mutant in mutants for operator in operators_of(mutant)}
    checks = {operator: battery(kernels, [operator]) for operator in EVERY if operator in needed}
    for operator, own in checks.items():
        begun, seconds = time.monotonic(), []
        for check in own:
            before = time.monotonic()
            check.run(kernels)
            seconds.append(time.monotonic() - before)
        # The quick ones first: most mutations are noticed at once
        own[:] = [own[i] for i in sorted(range(len(own)), key=seconds.__getitem__)]
        print(f"{operator}: {len(own)} checks in {time.monotonic() - begun:.1f} s", flush=True)
    print(f"ready after {time.monotonic() - started:.0f} s; {len(mutants)} mutations", flush=True)
    return checks


def _run(
    kernels: Kernels, mutants: Sequence[Mutant], checks: Mapping[str, list[Check]], jobs: int
) -> dict[int, bool]:
    """Whether each was noticed: by a check, a crash, or a loop that does not end."""
    seconds = max(SECONDS, 5 * _longest(kernels, mutants, checks))
    caught: dict[int, bool] = {}
    ways: Counter[str] = Counter()
    running: dict[int, Mutant] = {}
    for mutant in [*mutants, *[None] * jobs]:
        while running and (mutant is None or len(running) >= jobs):
            child, status = os.wait()
            ended, way = running.pop(child), noticed_by(status)
            caught[ended.number] = way is not None
            ways[way or "nothing"] += 1
            if way is None:
                print(f"survives: {ended.file}:{ended.line}: {_words(ended)}", flush=True)
        if mutant is not None:
            own = [checks[operator] for operator in operators_of(mutant)]
            running[_start(kernels, mutant.number, own, seconds)] = mutant
    print(f"noticed by: {dict(ways.most_common())}", flush=True)
    return caught


def _longest(kernels: Kernels, mutants: Sequence[Mutant], checks: Mapping[str, list[Check]]) -> int:
    """Seconds that checks take where nothing is mutated; they notice nothing, or all would count.

    Raises:
        SystemExit: They did notice something.
    """
    seconds: dict[str, float] = {}
    for operator, own in checks.items():
        child = _start(kernels, 0, [own], 3600)
        _, status, used = os.wait4(child, 0)
        if status:
            sys.exit(f"without a mutation, checks of {operator} noticed: {noticed_by(status)}")
        seconds[operator] = used.ru_utime + used.ru_stime
    together = {operators_of(mutant) for mutant in mutants}
    return 1 + int(max((sum(map(seconds.__getitem__, one)) for one in together), default=0))


def noticed_by(status: int) -> str | None:
    """What a process's end says; None: the mutation survived."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return "no end" if number == signal.SIGXCPU else f"a crash, {signal.Signals(number).name}"
    words = {SURVIVED: None, NOTICED: "a check", OTHER_ERROR: "an error of another kind"}
    return words.get(os.WEXITSTATUS(status), "AddressSanitizer")


def _start(kernels: Kernels, number: int, checks: Sequence[list[Check]], seconds: int) -> int:
    """A process that ends with 0 where no check noticed the mutation."""
    child = os.fork()
    if child:
        return child
    # Not by the clock: on a busy machine what survives would count as noticed
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 60))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    kernels.mutate(number)
    try:
        for own in checks:
            for check in own:
                check.run(kernels)
    except (AssertionError, RuntimeError, ValueError):
        os._exit(NOTICED)
    except BaseException:
        os._exit(OTHER_ERROR)
    os._exit(SURVIVED)


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
    sys.exit(0 if share >= 0.9 else 1)


def stale(
    reasons: Mapping[str, str], mutants: Sequence[Mutant], caught: Mapping[int, bool]
) -> list[str]:
    """Reasons for mutations that were caught, or that are not among the sources' any more."""
    every = {mutant.key for mutant in switched_sources(ROOT / "csrc/cuda")[1]}
    here = {mutant.key for mutant in mutants if caught[mutant.number]}
    return [key for key in reasons if key in here or key not in every]


if __name__ == "__main__":
    main()
