"""Breaks runs and inputs on purpose, prints a table and, last, one JSON line of counts.

python -m tests.chaos train [--kills N] [--inputs N] [--seed S] [--only-input NUMBER]
python -m tests.chaos growth [--groups N] [--ids N]
python -m tests.chaos ranks [--kills N] [--ranks W] [--seed S]
python -m tests.chaos score [--kills N] [--ray-kills N] [--inputs N] [--months N] [--seed S]
                            [--only-input NUMBER]
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from benchmarks.racing.harness import new_table, show, talker
from tests.chaos.cases import judge_inputs
from tests.chaos.growth import TIMES_AS_MANY, growth_keys, measure_growth
from tests.chaos.kills import Killed, kill_ranks, kill_runs
from tests.chaos.nights import watch_nights
from tests.chaos.processes import RIGHT, Say, Verdict
from tests.chaos.score_cases import judge_scorings
from tests.chaos.score_kills import (
    kill_ray_scorings,
    kill_scorings,
    local_bucket,
    prepare_scoring,
    scored_faults,
)

Options = argparse.Namespace
Counts = dict[str, float]
Program = Callable[[Options, Path, Say], tuple[Counts, bool]]  # and whether all is as it must be
VERDICTS = ("clear error", "right answer", "wrong answer", "failure", "traceback")


def train(options: Options, folder: Path, say: Say) -> tuple[Counts, bool]:
    """Broken inputs, kills."""
    only = options.only_input
    # First, while this process has no threads: each input is judged in a fork of it
    numbers = range(options.inputs) if only is None else [only]
    verdicts = judge_inputs(folder / "inputs", numbers, options.seed, say, jobs=options.jobs)
    kills = options.kills if only is None else 0
    killed = kill_runs(folder / "kills", kills, options.seed, say) if kills else []
    _print_kills("kill -9, then --resume", killed, "killed twice", "same bits",
                 lambda one: one.twice)  # fmt: skip
    _print_verdicts(verdicts)
    found = Counter(verdict.verdict for verdict in verdicts)
    counts = {
        "kills": len(killed), "resumed": sum(one.resumed for one in killed),
        "bit_identical": sum(one.same for one in killed), "inputs": len(verdicts),
        "clear_errors": found["clear error"], "right_answers": found["right answer"],
        "tracebacks": found["traceback"], "silently_wrong": found["wrong answer"],
    }  # fmt: skip
    return counts, all(one.same for one in killed) and all(v.verdict in RIGHT for v in verdicts)


def growth(options: Options, folder: Path, say: Say) -> tuple[Counts, bool]:
    """What grows with the size of the input alone: streamed row groups, distinct ids."""
    pairs = measure_growth(folder, say, options.groups, options.ids)
    columns = ("training on", "seconds", "beside", "times", "at most")
    _print("growth", columns, [pair.row for pair in pairs])
    return growth_keys(pairs), all(pair.times <= pair.most for pair in pairs)


def ranks(options: Options, folder: Path, say: Say) -> tuple[Counts, bool]:
    """Kills one rank of several, again and again."""
    killed = kill_ranks(folder, options.kills, options.ranks, options.seed, say)
    _print_kills("kill -9 of one rank, then --resume", killed, "survivors ended", "same result",
                 lambda one: one.survivors_ended)  # fmt: skip
    counts = {
        "kills": len(killed),
        "survivors_ended": sum(one.survivors_ended for one in killed),
        "resumed": sum(one.resumed for one in killed),
        "same_result": sum(one.same for one in killed),
    }
    return counts, set(counts.values()) == {len(killed)}


def score(options: Options, folder: Path, say: Say) -> tuple[Counts, bool]:
    """Broken inputs, kills, nights with faults upstream."""
    # First, while this process has no threads: each input is judged in a fork of it
    counts, passed = _scored_inputs(options, folder, say)
    if options.only_input is None:
        for section in (_scored_kills, _nights):
            more, well = section(options, folder, say)
            counts, passed = counts | more, passed and well
    return counts, passed


def _scored_inputs(options: Options, folder: Path, say: Say) -> tuple[Counts, bool]:
    only = options.only_input
    numbers = range(options.inputs) if only is None else [only]
    verdicts = judge_scorings(folder / "inputs", numbers, options.seed, say, jobs=options.jobs)
    found = Counter(verdict.verdict for verdict in verdicts)
    counts: Counts = {
        "inputs": len(verdicts),
        "inputs_harmless": found["harmless"],
        "inputs_refused": found["refused"] + found["rejected"],
        "inputs_tracebacks": found["traceback"],
        "inputs_half_written": found["half-written"],
        "silently_wrong": found["wrong"],
    }
    return counts, all(verdict.verdict in RIGHT for verdict in verdicts)


def _scored_kills(options: Options, folder: Path, say: Say) -> tuple[Counts, bool]:
    """Scorings that are killed, and what else may happen to one."""
    scoring = prepare_scoring(folder)
    say(f"undisturbed: {scoring.seconds:.1f} s, {len(scoring.files)} files")
    with local_bucket() as bucket:
        say("a local S3 is there, too" if bucket else "without s3fs and moto: no bucket")
        killed = kill_scorings(scoring, folder, options.kills, options.seed, bucket, say)
    on_ray = kill_ray_scorings(scoring, folder, options.ray_kills, options.seed, say)
    faults = scored_faults(scoring, folder, say)
    counts: Counts = {
        "kills": len(killed), "kills_in_bucket": sum(one.where == "bucket" for one in killed),
        "died": sum(one.died for one in killed),
        "same_bytes": sum(one.difference is None for one in killed),
        "seen_too_early": sum(len(one.seen) for one in [*killed, *on_ray]),
        "ray_kills": len(on_ray), "ray_died": sum(one.died for one in on_ray),
        "ray_same_bytes": sum(one.difference is None for one in on_ray), "faults": len(faults),
        "faults_as_they_must_be": faults.count(None),
    }  # fmt: skip
    same = all(one.difference is None for one in [*killed, *on_ray])
    return counts, same and counts["seen_too_early"] == 0 and not any(faults)


def _nights(options: Options, folder: Path, say: Say) -> tuple[Counts, bool]:
    seeds = range(options.seed, options.seed + options.months)
    nights = [n for seed in seeds for n in watch_nights(folder / f"month-{seed}", seed, say)]
    healthy = [night for night in nights if night.fault is None]
    broken = [night for night in nights if night.fault is not None]
    counts: Counts = {
        "nights": len(healthy),
        "nights_rejected": sum(night.code != 0 for night in healthy),
        "upstream_faults": len(broken),
        "upstream_faults_stopped": sum(night.stopped for night in broken),
    }
    missed = len(broken) - counts["upstream_faults_stopped"]
    return counts, counts["nights_rejected"] == 0 and missed <= options.months


# Tables


def _print(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    table = new_table(columns)
    for row in rows:
        table.add_row(*row)
    show(title, table)


def _print_kills(
    title: str, killed: list[Killed], other: str, same: str, counted: Callable[[Killed], bool]
) -> None:
    rows = []
    for name in dict.fromkeys(one.name for one in killed):
        mine = [one for one in killed if one.name == name]
        counts = (sum(f(one) for one in mine) for f in (
            lambda one: one.writing, counted, lambda one: one.resumed, lambda one: one.same
        ))  # fmt: skip
        rows.append((name, *map(str, (len(mine), *counts))))
    _print(title, ("run", "kills", "inside a checkpoint", other, "resumed", same), rows)


def _print_verdicts(verdicts: Sequence[Verdict]) -> None:
    """Verdicts by fault; all layouts of the data together."""
    by_fault: dict[str, Counter[str]] = {}
    for one in verdicts:
        by_fault.setdefault(one.fault.split(" (")[0], Counter())[one.verdict] += 1
    rows = [(fault.replace("_", " "), *(str(counts[name] or "·") for name in VERDICTS))
            for fault, counts in sorted(by_fault.items())]  # fmt: skip
    total = Counter(one.verdict for one in verdicts)
    rows.append(("all", *(str(total[name]) for name in VERDICTS)))
    _print("\nbroken inputs", ("fault", *VERDICTS), rows)


# The command line: a program's options are whole numbers, their defaults, and what they are

OPTIONS: dict[str, tuple[Program, dict[str, tuple[int, str]]]] = {
    "train": (train, {
        "--kills": (20, "runs that are killed and resumed"),
        "--inputs": (1000, "broken inputs"),
        "--seed": (0, "of moments and inputs"),
    }),
    "growth": (growth, {
        "--groups": (500, f"row groups, and {TIMES_AS_MANY} times these"),
        "--ids": (5_000_000, "distinct ids"),
    }),
    "ranks": (ranks, {
        "--kills": (20, "runs of which a rank is killed"),
        "--ranks": (2, "of each run"),
        "--seed": (0, "of ranks and moments"),
    }),
    "score": (score, {
        "--kills": (20, "scorings that are killed"),
        "--ray-kills": (6, "scorings on Ray of which a process is killed"),
        "--inputs": (500, "broken inputs"),
        "--months": (1, "logs of which 20 nights and 12 faults are scored"),
        "--seed": (0, "of moments, inputs and logs"),
    }),
}  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    programs = parser.add_subparsers(dest="what", required=True)
    for name, (work, numbers) in OPTIONS.items():
        program = programs.add_parser(name, help=str(work.__doc__))
        for option, (default, what) in numbers.items():
            program.add_argument(option, type=int, default=default, help=what)
        if "--inputs" in numbers:
            program.add_argument("--only-input", type=int, help="judges this one alone")
            jobs = os.cpu_count() or 1
            program.add_argument("--jobs", type=int, default=jobs, help="inputs at a time")
    options = parser.parse_args(arguments)
    say = talker()
    folder = Path(tempfile.mkdtemp(prefix=f"mmoe-{options.what}-"))
    counts, passed = OPTIONS[options.what][0](options, folder, say)
    if passed or options.what == "growth":
        shutil.rmtree(folder, ignore_errors=True)
    else:
        say(f"what failed lies in {folder}")
    print(json.dumps(counts))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
