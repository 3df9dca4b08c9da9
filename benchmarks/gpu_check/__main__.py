"""Checks mmoe on a machine with a GPU: kernels that run, right results, times.

Without --stage: env, smoke, tests and kernels, which together take at most nine minutes. What is
known goes line by line into DIR (default: $OUT, or benchmarks/results), and is not done again by
the next run of the same code on the same GPU. --device cpu is a rehearsal of smoke, kernels,
train, ranks and rivals at tiny sizes: what it measures means nothing. --device emulated runs env,
smoke and tests on the CUDA sources compiled for the host (tests/emulated_cuda), with clocks
EMULATED_TIMES as long.
"""

import argparse
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_check import kernels, smoke, train
from benchmarks.gpu_check.pytest_file import TEST_SECONDS
from benchmarks.gpu_check.record import (
    DEVICES,
    FAILED,
    LEFT_OUT,
    MEASURED,
    NO_TIME,
    PASSED,
    ROOT,
    STATUSES,
    Item,
    Record,
    done_by,
    file_name,
    machine_name,
    run_items,
)

# What a check is asked for


@dataclass(frozen=True)
class Settings:
    """What every stage gets."""

    device: str  # cuda; for a rehearsal cpu, or emulated: the CUDA sources compiled for the host
    record: Path  # The file that lines go to
    bundle: Path  # The folder with a prebuilt extension, if it is there
    small: bool = False  # A rehearsal's sizes: nothing that is measured with them means anything

    @property
    def words(self) -> tuple[object, ...]:
        small = ("--small",) if self.small else ()
        return ("--record", self.record, "--device", self.device, *small)


# The stages of a check: what each runs, in which order, and its clock


MODULE = "benchmarks.gpu_check"
RANKS_SECONDS = 80
# Emulated, every clock is so many times as long
EMULATED_TIMES = 8
# Which name the mark, and hold no test with it
OWN_TESTS = ROOT / "tests" / "benchmarks" / "gpu_check"


@dataclass(frozen=True)
class Stage:
    """Items that are run one after another, or a few at a time."""

    name: str  # On the command line
    seconds: float  # Its clock
    about: str  # One line for people
    plan: Callable[[Settings], list[Item]]  # Its items, in order of value
    workers: int = 1  # Items at a time; times are taken one by one


def _own(module: str, *arguments: object) -> tuple[str, ...]:
    return ("-m", f"{MODULE}.{module}", *map(str, arguments))


def env(settings: Settings) -> list[Item]:
    described = _own("record", "--record", settings.record, "--device", settings.device)
    items = [Item("env/described", described, 40)]
    extension = {
        "cuda": _own("extension", "--bundle", settings.bundle),
        "emulated": ("-m", "tests.emulated_cuda.build"),
    }
    if settings.device in extension:
        items.append(Item("env/extension", extension[settings.device], 130))
    return items


def smokes(settings: Settings) -> list[Item]:
    few = ("--few",) if settings.small else ()
    return [
        Item(f"smoke/{name}", _own("smoke", name, "--device", settings.device, *few), 45)
        for name in smoke.NAMES
    ]


def tests(settings: Settings) -> list[Item]:
    where = "--record", settings.record, "--device", settings.device
    if settings.device == "emulated":
        where = *where, "--seconds", TEST_SECONDS * EMULATED_TIMES
    files = test_files(settings.device)
    return [Item(f"tests/{file}", _own("pytest_file", file, *where), 150) for file in files]


def test_files(device: str) -> list[str]:
    """Files that hold a test marked gpu, those of the emulation only where it is the device."""
    found = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        serves = device == "emulated" or "mark.of_emulation" not in text
        if "mark.gpu" in text and serves and OWN_TESTS not in path.parents:
            found.append(path.relative_to(ROOT).as_posix())
    folders = ("tests/ops/test_cuda", "tests/ops/cuda/", "tests/ops/", "tests/mixture/")

    def place(file: str) -> int:
        return next((n for n, start in enumerate(folders) if file.startswith(start)), len(folders))

    return sorted(found, key=place)


def timed_kernels(settings: Settings) -> list[Item]:
    where = settings.words
    return [
        Item(f"kernels/{group}", _own("kernels", group, *where, "--seconds", seconds), seconds + 15)
        for group, seconds in kernels.GROUPS.items()
    ]


def training(settings: Settings) -> list[Item]:
    where = settings.words
    steps = [Item(f"train/{name}", _own("train", name, *where), 120) for name in train.STEPS]
    needs = ("pydantic", "pyarrow", "mmoe.train")
    whole = [
        Item(f"train/whole-{batch}", _own("train", f"whole-{batch}", *where), 120, needs)
        for batch in train.BATCHES
    ]
    # The smaller batch first, with tables and without
    return [*steps[:2], whole[0], *steps[2:], whole[1]]


def ranks(settings: Settings) -> list[Item]:
    where = settings.words
    here = torch.cuda.device_count() if settings.device == "cuda" else 0
    worlds = sorted(
        {*((1, 2) if settings.device == "cpu" else (1, 2, 4, 8)), *([here] if here else [])}
    )
    return [
        Item(
            f"ranks/{world}",
            _own("ranks", world, *where, "--seconds", RANKS_SECONDS - 10),
            RANKS_SECONDS,
            needs=("mmoe.parallel",),
        )
        for world in worlds
    ]


def rivals(settings: Settings) -> list[Item]:
    device = ("--device", settings.device)
    operators = ("-m", "benchmarks.bench_ops", *device, "--rounds", "1" if settings.small else "15")
    rounds = ("--rounds", "1") if settings.small else ("--seconds", "3")
    layer = ("-m", "benchmarks.mixture", *device, *rounds)
    rates = _own("cost_rates", *settings.words)
    return [
        Item("rivals/cost-rates", rates, 60),
        Item("rivals/operators", operators, 200, needs=("mmoe.parallel",)),
        Item("rivals/mixture", layer, 300, needs=("rich",)),
    ]


def sanitize(settings: Settings) -> list[Item]:
    return [
        Item(
            f"sanitize/{tool}/{name}",
            _own("smoke", name, "--device", settings.device, "--tool", tool),
            90,
        )
        for tool in ("memcheck", "racecheck")
        for name in smoke.NAMES
    ]


def slower(stage: Stage) -> Stage:

    def plan(settings: Settings) -> list[Item]:
        items = stage.plan(settings)
        return [replace(item, seconds=item.seconds * EMULATED_TIMES) for item in items]

    return replace(stage, seconds=stage.seconds * EMULATED_TIMES, plan=plan)


# env, smoke, tests and kernels together take at most nine minutes, and so does each of the others
STAGES = {
    stage.name: stage
    for stage in (
        Stage("env", 140, "versions, and kernels that run: in place, a bundle's, or built", env),
        Stage("smoke", 65, "every operator against its specification", smokes, workers=8),
        Stage("tests", 150, "pytest -m gpu, a process for each file", tests, workers=8),
        Stage("kernels", 180, "times of the operators beside their alternatives", timed_kernels),
        Stage("train", 520, "whole training steps beside plain torch", training),
        Stage("ranks", 300, "a mixture's exchange by NCCL, a GPU for each rank", ranks),
        Stage("rivals", 520, "the benchmarks of operators and layer", rivals),
        Stage("sanitize", 520, "memcheck and racecheck of the smoke", sanitize, workers=2),
    )
}
FIRST = ("env", "smoke", "tests", "kernels")
# Times of an emulation mean nothing, and it has neither streams nor graphs
EMULATED = ("env", "smoke", "tests")


# What a record says, in at most 100 lines


MOST_LINES = 100
WIDTH = 160
FAILURES, REASONS, TIMES = 25, 15, 45
OF_KIND = 3
Lines = Mapping[str, Mapping[str, Any]]


def summary(lines: Lines, stages: Sequence[str]) -> list[str]:
    """A line for each stage, what failed, why things were left out, times, and the verdict."""
    own = {
        key: line for key, line in lines.items() if _stage(key) in stages and "marks" not in line
    }
    found = []
    for stage in stages:
        statuses = [line["status"] for key, line in own.items() if _stage(key) == stage]
        found.append(f"{stage:<9} {_counted(statuses)}")
    failed = [f"{key}: {_reason(line)}" for key, line in own.items() if line["status"] == FAILED]
    for title, of, most in (
        ("failed", failed, FAILURES),
        ("not reached, or left out", _grouped(own), REASONS),
        ("times: ours in ms, how many times as long the others take", _times(own), TIMES),
    ):
        found += [f"{title}:"] * bool(of) + [f"  {line}" for line in of[:most]]
        found += [f"  and {len(of) - most} more: see the record"] * (len(of) > most)
    return [*[line[:WIDTH] for line in found][: MOST_LINES - 1], verdict(own, stages)]


def verdict(lines: Lines, stages: Sequence[str]) -> str:
    statuses = [line["status"] for line in lines.values()]
    state = "; ".join(problems(lines, stages)) or "all well"
    if NO_TIME in statuses:
        state += " (run the same command again: what is done stays)"
    return f"gpu-check: {_counted(statuses)}: {state}"


def problems(lines: Lines, stages: Sequence[str]) -> list[str]:
    found = []
    counts = Counter(line["status"] for line in lines.values())
    for status in (FAILED, NO_TIME):
        if counts[status]:
            found.append(f"{counts[status]} {status}")
    for stage in stages:
        own = [line["status"] for key, line in lines.items() if _stage(key) == stage]
        if not {PASSED, MEASURED} & set(own):
            found.append(f"nothing of {stage} ran")
    return found


def _stage(key: str) -> str:
    return key.partition("/")[0]


def _counted(statuses: Iterable[str]) -> str:
    counts = Counter(statuses)
    words = (f"{counts[status]} {status}" for status in STATUSES if counts[status])
    return ", ".join(words) or "nothing ran"


def _reason(line: Mapping[str, Any]) -> str:
    return " ".join(str(line.get("reason", "")).split())


def _grouped(lines: Lines) -> list[str]:
    """Reasons with how often each was given: a thousand tests may be left out for one."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for key, line in lines.items():
        if line["status"] in (LEFT_OUT, NO_TIME):
            found.setdefault((_stage(key), line["status"], _reason(line)), []).append(key)
    ordered = sorted(found.items(), key=lambda item: -len(item[1]))
    return [
        f"{len(keys)} of {stage}, {status}: {reason} ({keys[0]})"
        for (stage, status, reason), keys in ordered
    ]


def _times(lines: Lines) -> list[str]:
    """The first of each kind: the most telling sizes are measured first."""
    found, of_kind = [], Counter[tuple[str, ...]]()
    for key, line in lines.items():
        kind = tuple(key.split()[:3])
        of_kind[kind] += 1
        if line["status"] != MEASURED or of_kind[kind] > OF_KIND:
            continue
        share = line.get("share_of_product_rate")
        of_rate = f", {share:.0%} of the product rate" if share is not None else ""
        if "times_as_fast" in line:
            others = "  ".join(f"{who} {ratio}x" for who, ratio in line["times_as_fast"].items())
            found.append(f"{key}, hoped for {line['hoped_for']}x: {others}")
        elif "rows_per_second" in line:
            waits = line.get("share_waiting_for_host")
            host = f", {waits:.0%} waits for the host" if waits is not None else ""
            tables = f", tables {line['tables']}" if "tables" in line else ""
            found.append(f"{key}: {line['rows_per_second']:,} rows/s{of_rate}{host}{tables}")
        elif "mmoe" in line.get("milliseconds", {}):
            others = "  ".join(f"{who} {ratio}x" for who, ratio in line["times_as_long"].items())
            found.append(f"{key}: {line['milliseconds']['mmoe']:.4g} ms{of_rate}  {others}")
    return found


# The command line

READY = """
import sys
try:
    import torch
except ImportError as error:
    sys.exit(f"{sys.executable} cannot import torch ({error}); install a CUDA build of it")
if torch.version.cuda is None:
    sys.exit(f"torch {torch.__version__} is built without CUDA; install a build with it")
if not torch.cuda.is_available():
    sys.exit(f"torch {torch.__version__} sees no CUDA device")
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.device == "emulated" and set(options.stage or ()) - set(EMULATED):
        parser.error(f"--device emulated: expected stages of {', '.join(EMULATED)}")
    machine = machine_name(options.device)
    record_file = options.out.resolve() / file_name(machine)
    small = options.small or options.device != "cuda"
    settings = Settings(options.device, record_file, options.bundle.resolve(), small)
    asked = options.stage
    if options.dry_run and not asked and options.device != "emulated":
        asked = list(STAGES)
    stages = _chosen(asked, options.device)
    if options.only:
        stages = [stage for stage in _with(options.only, stages) if stage.plan(settings)]
        if not stages:
            parser.error(f"--only: no item of these stages holds {' or '.join(options.only)}")
    if missing := [str(file) for file in options.done if not file.is_file()]:
        parser.error(f"--done: expected records of older runs, no file is {', '.join(missing)}")
    if options.dry_run:
        _print_plan(stages, settings, done_by([*options.done, record_file], machine))
        return 0
    problem = _not_ready() if options.device == "cuda" else ""
    if problem := problem or _not_writable(record_file):
        print(f"gpu-check: {problem}", file=sys.stderr)
        return 1
    _use_packages(settings.bundle)
    if options.fresh:
        record_file.unlink(missing_ok=True)
    record = Record(record_file, machine, options.done)
    return _run(stages, settings, record)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_check")
    # Given twice, a word adds to what it said
    several = partial(parser.add_argument, nargs="+", action="extend")
    several("--stage", choices=tuple(STAGES))
    several("--only", help="items whose key holds one of these")
    parser.add_argument("--device", choices=DEVICES, default="cuda")
    parser.add_argument("--dry-run", action="store_true", help="what would be run, and its clocks")
    parser.add_argument("--small", action="store_true", help="few cases, tiny sizes")
    parser.add_argument("--fresh", action="store_true", help="forget what the record holds")
    several("--done", type=Path, default=[], help="older records")
    out = Path(os.environ.get("OUT") or ROOT / "benchmarks" / "results")
    parser.add_argument("--out", type=Path, default=out, help="folder of the record and the log")
    bundle = ROOT / "gpu-bundle"
    parser.add_argument("--bundle", type=Path, default=bundle, help="from make gpu-bundle")
    return parser


def _chosen(names: Sequence[str] | None, device: str) -> list[Stage]:
    """Stages in their order; emulated with longer clocks, for all that they start too."""
    names = names or (EMULATED if device == "emulated" else FIRST)
    chosen = [STAGES[name] for name in STAGES if name in names]
    return [slower(stage) for stage in chosen] if device == "emulated" else chosen


def _with(texts: Sequence[str], stages: Sequence[Stage]) -> list[Stage]:

    def plan(stage: Stage, settings: Settings) -> list[Item]:
        return [item for item in stage.plan(settings) if any(text in item.key for text in texts)]

    return [replace(stage, plan=partial(plan, stage)) for stage in stages]


def _run(stages: Sequence[Stage], settings: Settings, record: Record) -> int:
    log, names = record.path.with_suffix(".log"), [stage.name for stage in stages]
    for stage in stages:
        started = time.monotonic()
        print(f"== {stage.name}: {stage.about}, at most {stage.seconds:.0f} s", flush=True)
        items = stage.plan(settings)
        run_items(items, record, log, stage.seconds, _workers(stage, settings), say=_say)
        _say(f"   {stage.name}: {time.monotonic() - started:.1f} s")
        if stage.name == "env" and problems(_of(record, ["env"]), ["env"]):
            _say("   the kernels do not run: nothing else is tried")
            break
    lines = _of(record, names)
    print("\n".join(summary(lines, names)), flush=True)
    return 1 if problems(lines, names) else 0


def _workers(stage: Stage, settings: Settings) -> int:
    return stage.workers if settings.device == "cuda" else 1


def _of(record: Record, stages: Sequence[str]) -> dict:
    return {key: line for key, line in record.lines().items() if key.partition("/")[0] in stages}


def _say(text: str) -> None:
    print(text, flush=True)


def _print_plan(stages: Sequence[Stage], settings: Settings, done: Collection[str]) -> None:
    print(f"Nothing is run. python is {sys.executable}, in {ROOT}")
    for stage in stages:
        at_a_time = f", {stage.workers} at a time" if _workers(stage, settings) > 1 else ""
        asked = "" if stage.name in FIRST else f"; runs where asked for: --stage {stage.name}"
        print(f"== {stage.name}: {stage.about}; clock {stage.seconds:.0f} s{at_a_time}{asked}")
        for item in stage.plan(settings):
            needs = f"  (needs {', '.join(item.needs)})" if item.needs else ""
            known = "  (done: not again)" if item.key in done else ""
            command = " ".join(["python", *item.command])
            print(f"  {item.seconds:>4.0f} s  {command}{needs}{known}")
    first = [stage.seconds for stage in stages if stage.name in FIRST]
    if len(first) == len(FIRST):
        print(f"{', '.join(FIRST)}, as without --stage: at most {sum(first):.0f} s")
    print(f"all of these: at most {sum(stage.seconds for stage in stages):.0f} s")
    print(f"lines go to {settings.record}, what is printed to its .log; last a summary")


def _not_ready() -> str:
    done = subprocess.run([sys.executable, "-c", READY], capture_output=True, text=True, cwd=ROOT)
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["?"])[-1]


def _not_writable(record_file: Path) -> str:
    try:
        record_file.parent.mkdir(parents=True, exist_ok=True)
        for file in (record_file, record_file.with_suffix(".log")):
            file.open("a", encoding="utf-8").close()
    except OSError as error:
        return f"--out: expected a folder that can be written to: {error}"
    return ""


def _use_packages(bundle: Path) -> None:
    """Lets processes import the packages that a bundle brings, after those of the repository."""
    if (bundle / "site").is_dir():
        paths = [os.environ.get("PYTHONPATH", ""), str(bundle / "site")]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))


if __name__ == "__main__":
    sys.exit(main())
