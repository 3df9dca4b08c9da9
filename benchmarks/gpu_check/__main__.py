"""Checks mmoe on a machine with a GPU: kernels that run, right results, times.

python -m benchmarks.gpu_check [--stage env|smoke|tests|kernels|train|ranks|rivals|sanitize ...]
                               [--only TEXT ...] [--dry-run] [--device cuda|cpu|emulated]
                               [--fresh] [--done FILE ...] [--out DIR] [--bundle DIR]

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
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.gpu_check.device import DEVICES
from benchmarks.gpu_check.record import ROOT, Record, done_by, file_name, machine_name
from benchmarks.gpu_check.running import Item, run_items
from benchmarks.gpu_check.settings import Settings
from benchmarks.gpu_check.stages import EMULATED, FIRST, STAGES, Stage, slower
from benchmarks.gpu_check.summary import problems, summary

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
    """Runs the stages; 1 where anything failed, was not reached, or nothing ran."""
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
    """The stages with those of their items whose key holds one of these texts."""

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
    """Processes at a time; in a rehearsal one, whose machine may be small."""
    return stage.workers if settings.device == "cuda" else 1


def _of(record: Record, stages: Sequence[str]) -> dict:
    return {key: line for key, line in record.lines().items() if key.partition("/")[0] in stages}


def _say(text: str) -> None:
    print(text, flush=True)


def _print_plan(stages: Sequence[Stage], settings: Settings, done: Collection[str]) -> None:
    """For people: every process of these stages, and its clock; a stage's ends what is left."""
    print(f"Nothing is run. python is {sys.executable}, in {ROOT}")
    for stage in stages:
        at_a_time = f", {stage.workers} at a time" if _workers(stage, settings) > 1 else ""
        asked = "" if stage.name in FIRST else f"; runs where asked for: --stage {stage.name}"
        print(f"== {stage.name}: {stage.about}; clock {stage.seconds:.0f} s{at_a_time}{asked}")
        for item in stage.plan(settings):
            needs = f"  (needs {', '.join(item.needs)})" if item.needs else ""
            known = "  (done: not again)" if item.key in done else ""
            argv = " ".join(["python", *item.argv[1:]])
            print(f"  {item.seconds:>4.0f} s  {argv}{needs}{known}")
    first = [stage.seconds for stage in stages if stage.name in FIRST]
    if len(first) == len(FIRST):
        print(f"{', '.join(FIRST)}, as without --stage: at most {sum(first):.0f} s")
    print(f"all of these: at most {sum(stage.seconds for stage in stages):.0f} s")
    print(f"lines go to {settings.record}, what is printed to its .log; last a summary")


def _not_ready() -> str:
    """Why no stage can run, in one line."""
    done = subprocess.run([sys.executable, "-c", READY], capture_output=True, text=True, cwd=ROOT)
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["?"])[-1]


def _not_writable(record_file: Path) -> str:
    """Why results would be lost, in one line."""
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
