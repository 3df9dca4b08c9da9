"""Switches mutations of the CUDA sources on, one at a time, and says which the checks notice.

python -m tests.emulated_cuda.mutations [--sample 30 --seed S] [--only PART]

Prints a line for each mutation that survives, with the reason why it is harmless (survivors.toml),
and as the last line JSON: {"mutations", "caught", "share"}.
"""

import argparse
import json
import os
import random
import signal
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from tests.emulated_cuda.build import ROOT
from tests.emulated_cuda.checks import Check, battery
from tests.emulated_cuda.device import EmulatedDevice, Kernels
from tests.emulated_cuda.mutants import Mutant, switched_sources
from tests.emulated_cuda.sanitizer import environment

# A mutation may make a loop endless: it is ended after so many times the checks' own time, and more
PATIENCE, SECONDS = 12, 60
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
    "product_choice": ("grouped_mm",),
    "gemm.cuh": ("grouped_mm", "gathered_mm", "gate_mm"),
    "dense_mm.cu": ("dense_mm",),
    "dense_choice.cu": ("dense_mm",),
    "gate_mm.cu": ("gate_mm",),
    "bf16_parts.cuh": ("gate_mm",),
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
    with EmulatedDevice(Kernels("mutants")) as device:
        checks = _prepare(device.kernels, mutants)
        _control(device.kernels, mutants, checks)
        caught = _run(device.kernels, mutants, checks, settings.jobs)
    _report(mutants, caught)


def operators_of(mutant: Mutant) -> tuple[str, ...]:
    """The builders whose checks concern a mutant's file."""
    for part, operators in OPERATORS.items():
        if part in mutant.file:
            return operators
    return EVERY


class Battery(list[Check]):
    """The checks of one builder, the quick ones first, and the seconds of all."""

    seconds = 0.0


def _prepare(kernels: Kernels, mutants: Sequence[Mutant]) -> dict[str, Battery]:
    """The checks of each builder that is needed; all of them hold before any mutation."""
    started = time.monotonic()
    needed = {operator for mutant in mutants for operator in operators_of(mutant)}
    checks = {
        operator: Battery(battery(kernels, [operator])) for operator in EVERY if operator in needed
    }
    for operator, own in checks.items():
        begun, seconds = time.monotonic(), []
        for check in own:
            before = time.monotonic()
            check.run(kernels)
            seconds.append(time.monotonic() - before)
        own.seconds = sum(seconds)
        own[:] = [own[i] for i in sorted(range(len(own)), key=seconds.__getitem__)]
        print(f"{operator}: {len(own)} checks in {time.monotonic() - begun:.1f} s", flush=True)
    print(f"ready after {time.monotonic() - started:.0f} s; {len(mutants)} mutations", flush=True)
    return checks


def _control(kernels: Kernels, mutants: Sequence[Mutant], checks: Mapping[str, Battery]) -> None:
    """A process without a mutation must notice nothing, or what others notice says nothing."""
    alike = {operators_of(mutant): mutant.file for mutant in mutants}
    for operators, file in alike.items():
        _, status = os.waitpid(_start(kernels, Mutant(0, file, 0, 0, "", "", ""), checks), 0)
        if status:
            sys.exit(f"the checks of {', '.join(operators)} fail without any mutation: {status}")


def _run(
    kernels: Kernels, mutants: Sequence[Mutant], checks: Mapping[str, Battery], jobs: int
) -> dict[int, bool]:
    """Whether each was noticed: by a check, a crash, or a loop that does not end."""
    caught: dict[int, bool] = {}
    running: dict[int, Mutant] = {}
    for mutant in [*mutants, *[None] * jobs]:
        while running and (mutant is None or len(running) >= jobs):
            child, status = os.wait()
            ended = running.pop(child)
            caught[ended.number] = status != 0
            if status == 0:
                print(f"survives: {ended.file}:{ended.line}: {_words(ended)}", flush=True)
        if mutant is not None:
            running[_start(kernels, mutant, checks)] = mutant
    return caught


def _start(kernels: Kernels, mutant: Mutant, checks: Mapping[str, Battery]) -> int:
    """A process that ends with 0 where no check noticed the mutation."""
    child = os.fork()
    if child:
        return child
    seconds = sum(checks[operator].seconds for operator in operators_of(mutant))
    signal.alarm(SECONDS + round(PATIENCE * seconds))
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    kernels.mutate(mutant.number)
    try:
        for operator in operators_of(mutant):
            for check in checks[operator]:
                check.run(kernels)
    except BaseException:
        os._exit(1)
    os._exit(0)


def _words(mutant: Mutant) -> str:
    return f"{mutant.change} in column {mutant.column}: {mutant.text.strip()}"


def _report(mutants: Sequence[Mutant], caught: Mapping[int, bool]) -> None:
    reasons: dict[str, str] = tomllib.loads(SURVIVORS.read_text(encoding="utf-8"))
    alive = [mutant for mutant in mutants if not caught[mutant.number]]
    print(f"\n{len(alive)} of {len(mutants)} mutations survive:")
    for mutant in alive:
        reason = reasons.get(mutant.key, "NO REASON IS KNOWN (tests/emulated_cuda/survivors.toml)")
        print(f"{mutant.file}:{mutant.line}: {_words(mutant)}\n    {reason}")
    count = len(mutants) - len(alive)
    share = round(count / max(1, len(mutants)), 4)
    print(json.dumps({"mutations": len(mutants), "caught": count, "share": share}))
    sys.exit(0 if share >= 0.9 else 1)


if __name__ == "__main__":
    main()
