"""Races of training against other libraries, and the program that runs such races."""

import itertools
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch
from sklearn.metrics import log_loss, roc_auc_score
from torch import Tensor

from benchmarks.racing.child import onednn_is_exact
from benchmarks.racing.harness import (
    NothingToMeasure,
    ProductRates,
    Race,
    Result,
    Spread,
    Target,
    Times,
    keys_of,
    new_table,
    options,
    rotated,
    run,
    show,
    speedup,
    talker,
    temporary_folder,
)
from benchmarks.racing.ranks import ROOT, Ranks, Seat, run_child
from benchmarks.train.ours import with_overrides
from benchmarks.train.workloads import (
    BATCH,
    BIG_FLOPS_PER_ROW,
    WORKLOADS,
    Log,
    Spec,
    Tensors,
    raw_config,
    read_batches,
    write_log,
)
from mmoe.train.profiling import StepTimes, parts_text

# Contestants as processes of their own, of which, in a race, one runs at a time


class Contestant(Ranks):
    """The process, or processes, of one contestant."""

    def __init__(
        self, spec: Spec, python: str | None = None, seats: Sequence[Seat] | None = None
    ) -> None:
        self.spec = spec
        super().__init__(
            f"{spec.kind} on {spec.workload} in {spec.precision}",
            "benchmarks.train.worker",
            spec.to_json(),
            ranks=spec.ranks,
            threads=spec.threads,
            python=python,
            seats=seats,
        )


@contextmanager
def contestants(
    specs: Mapping[str, Spec],
    pythons: Mapping[str, str] | None = None,
    seats: Sequence[Seat] | None = None,
) -> Iterator[dict[str, Contestant]]:
    with ExitStack() as stack:
        started = {}
        for name, spec in specs.items():
            started[name] = Contestant(spec, (pythons or {}).get(name), seats)
            stack.callback(started[name].close)
        for contestant in started.values():
            contestant.wait_until_ready()
        yield started


# What every race gets

FEWEST_ROUNDS, WANTED_ROUNDS, MOST_ROUNDS = 5, 8, 60
# Before each window, not counted: enough to use up what a contestant has read ahead
SETTLING_STEPS = 4
PILOT_STEPS = 2
ROUNDS_BETWEEN_RATES = 5


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Settings, the product rates seen so far, and progress."""

    folder: Path  # For logs, kept between runs where the user names it
    runs: Path  # For what is written while this one lasts
    rows: int  # Of `big`
    seconds: float  # Of one race
    seeds: int  # Of `auc_gap`
    threads: int  # Of every process
    overrides: tuple[str, ...]  # `key.path=value` for our config
    rates: ProductRates  # Of products
    say: Callable[[str], None]  # Told of progress
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    def log(self, workload: str, rows: int | None = None) -> Log:
        self.say(f"  log of {workload}, {rows or self.rows:,} rows")
        return write_log(WORKLOADS[workload], rows or self.rows, self.folder, held_out=self.rows)

    def empty_folder(self) -> Path:
        return self.runs / f"{next(self._numbers)}"

    def spec(self, kind: str, workload: str, precision: str, **settings) -> Spec:
        log = self.log(workload)
        return Spec(
            kind=kind,
            workload=workload,
            folder=str(log.folder),
            rows=log.rows,
            precision=precision,
            threads=self.threads,
            out=str(self.empty_folder()),
            overrides=self.overrides if kind == "mmoe" else (),
            **settings,
        )

    def race(
        self,
        specs: Mapping[str, Spec],
        *,
        pythons: Mapping[str, str] | None = None,
        seats: Sequence[Seat] | None = None,  # Where the ranks of each of them run; None: here
        before: Callable[[Mapping[str, Contestant]], None] = lambda _: None,
        after: Callable[[Mapping[str, Contestant]], None] = lambda _: None,
    ) -> Times:
        """Seconds of a batch of `BATCH` rows, window by window, the contestants in turn."""
        self.rates.measure()
        with contestants(specs, pythons, seats) as running:
            self.say(f"  {', '.join(running)}: ready")
            before(running)
            steps = self._steps(running)
            times = self._rounds(running, steps)
            shown = ", ".join(f"{name} {count}" for name, count in steps.items())
            self.say(f"  {times.rounds} rounds; steps of a window: {shown}")
            after(running)
        self.rates.measure()
        return times

    def _rounds(self, running: Mapping[str, Contestant], steps: Mapping[str, int]) -> Times:
        seconds: dict[str, list[float]] = {name: [] for name in running}
        started = time.perf_counter()
        for turn in range(MOST_ROUNDS):
            for name in rotated(list(running), turn):
                seconds[name].append(window(running[name], steps[name]))
            if turn + 1 >= FEWEST_ROUNDS and time.perf_counter() - started > self.seconds:
                break
            if turn % ROUNDS_BETWEEN_RATES == 0:
                self.rates.measure()
        return Times(seconds)

    def _steps(self, running: Mapping[str, Contestant]) -> dict[str, int]:
        """Steps of a window: fewer where the race would be over before it had enough rounds."""
        steps = {n: c.spec.steps or c.spec.sizes.steps for n, c in running.items()}
        one_round = sum(
            window(contestant, PILOT_STEPS) * (steps[name] + SETTLING_STEPS)
            for name, contestant in running.items()
        )
        share = min(1.0, self.seconds / WANTED_ROUNDS / max(one_round, 1e-9))
        return {name: max(PILOT_STEPS, int(count * share)) for name, count in steps.items()}


def window(contestant: Contestant, steps: int) -> float:
    """Seconds of a batch of `BATCH` rows, of which every rank is done."""
    settle = min(SETTLING_STEPS, steps)
    answers = contestant.ask_all("run", rows=steps * BATCH, settle=settle * BATCH)
    # Ranks share every batch: a step is done when the last of them is
    return max(answer["seconds"] for answer in answers) / answers[0]["rows"] * BATCH


# Prints where a step's time goes


def print_step_tables(results: Sequence[Result]) -> None:
    for result in results:
        for detail in result.details:
            if "step_times" in detail:
                times = StepTimes.of(detail["step_times"])
                print(f"A step, {result.key}, while it is recorded\n{parts_text(times)}")
                print(f"{detail['page_faults']:,.0f} page faults a step\n")
                print_operators(f"A step, {result.key}: operators", times.operators)


def print_operators(title: str, operators: Sequence[Mapping[str, Any]]) -> None:
    table = new_table(("operator", "ms", "calls"))
    for operator in operators:
        table.add_row(operator["name"][:90], f"{operator['ms']:.2f}", f"{operator['calls']:.0f}")
    show(title, table)


# What programs that race whole steps share: options, races, tables, the last line


def run_program(
    name: str,  # Of the program
    races: Sequence[Race[Bench]],  # In turn
    title: str,  # Of the table
    details: Callable[[Sequence[Result]], None],  # Prints what comes before the table
    *,
    threads: int | None = None,  # Of one process; None: an option
    changes: str = "our config",  # What `--set` changes
    seeds: int | None = None,
) -> None:
    """Prints tables and, last, one JSON line; exits with 1 where a race failed."""
    parser = options(name, keys_of(races), seconds=90.0, seeds=seeds, threads=threads)
    parser.add_argument("--rows", type=int, default=400_000, help="of big")
    parser.add_argument("--folder", type=Path, help="logs are kept there for the next run")
    parser.add_argument(
        "--set", nargs="+", default=[], metavar="KEY.PATH=VALUE", help=f"changes {changes}"
    )
    arguments = parser.parse_args()
    with temporary_folder(name) as temporary:
        bench = Bench(
            folder=arguments.folder or temporary / "logs",
            runs=temporary,
            rows=arguments.rows,
            seconds=arguments.seconds,
            seeds=arguments.seeds,
            threads=arguments.threads,
            overrides=tuple(arguments.set),
            rates=ProductRates("cpu"),
            say=talker(),
        )
        run(
            arguments,
            races,
            bench,
            settings={"rows": arguments.rows, "overrides": list(bench.overrides)},
            title=title,
            rates=bench.rates,
            details=details,
        )


# Our training speed beside plain torch, and as a share of what the machine's products reach

PARTS_STEPS = 20
# What the profiler found goes into the details of this key, by precision
PROFILED = "gemm_share_train_big"


def big_bf16(bench: Bench) -> list[Result]:
    specs = {
        "mmoe": bench.spec("mmoe", "big", "bf16"),
        "plain torch": bench.spec("plain", "big", "bf16"),
        "mmoe small": bench.spec("mmoe", "small", "bf16"),
    }
    found: list[Mapping[str, Any]] = []
    times = bench.race(specs, after=partial(_profile, found))
    return [
        replace(_share(times, "bf16"), details=found),
        _versus("vs_plain_torch_big_bf16", times, "plain torch"),
        replace(
            _versus("big_over_small", times, "mmoe small"), note="bf16; other: ours on small tables"
        ),
    ]


def big_fp32(bench: Bench) -> list[Result]:
    specs = {
        "mmoe": bench.spec("mmoe", "big", "fp32"),
        "plain torch": bench.spec("plain", "big", "fp32"),
    }
    if onednn_is_exact("cpu"):
        specs["oneDNN"] = bench.spec("plain", "big", "fp32", onednn=True)
    found: list[Mapping[str, Any]] = []
    times = bench.race(specs, after=partial(_profile, found))
    results = [
        replace(_share(times, "fp32"), details=found),
        _versus("vs_plain_torch_big_fp32", times, "plain torch"),
    ]
    if "oneDNN" in specs:
        results.append(_versus("vs_plain_torch_big_fp32_onednn", times, "oneDNN"))
    return results


def ranker(bench: Bench) -> list[Result]:
    specs = {
        "mmoe": bench.spec("mmoe", "ranker", "bf16"),
        "plain torch": bench.spec("plain", "ranker", "bf16"),
    }
    return [_versus("vs_plain_torch_ranker_bf16", bench.race(specs), "plain torch")]


def rows_per_second(times: Times, name: str) -> float:
    return BATCH / times.median(name)


def _share(times: Times, precision: str) -> Result:
    """FLOP/s, still to be divided by the product rate."""
    spread = Spread.of([BATCH * BIG_FLOPS_PER_ROW / s for s in times.seconds["mmoe"]])
    ours_ms = times.ms("mmoe")
    return Result(
        f"{PROFILED}_{precision}",
        spread,
        ours_ms,
        product_rate=precision,
        note=f"{rows_per_second(times, 'mmoe'):,.0f} rows/s",
    )


def _versus(key: str, times: Times, other: str) -> Result:
    ours, theirs = rows_per_second(times, "mmoe"), rows_per_second(times, other)
    return speedup(key, times, other, note=f"{ours:,.0f} against {theirs:,.0f} rows/s")


def _profile(found: list[Mapping[str, Any]], running: Mapping[str, Contestant]) -> None:
    found.append(running["mmoe"].ask("parts", steps=PARTS_STEPS))


SPEED_RACES = (
    Race(
        {
            "gemm_share_train_big_bf16": Target(0.60),
            "vs_plain_torch_big_bf16": Target(1.5),
            "big_over_small": Target(0.85),
        },
        big_bf16,
    ),
    Race(
        {"gemm_share_train_big_fp32": Target(0.55), "vs_plain_torch_big_fp32": Target(1.8)},
        big_fp32,
    ),
    Race({"vs_plain_torch_ranker_bf16": Target(1.3)}, ranker),
)


# Our training speed beside libraries that are installed in an environment of their own

# `make bench-peers` makes it
PYTHON = ROOT / ".venv-peers" / "bin" / "python"
MODULES = {"torch_rechub": "torch_rechub.trainers", "deepctr": "deepctr_torch.models"}
STEPS = 3  # of a window: they take up to a second each


def peers(bench: Bench) -> list[Result]:
    found = [name for name, module in MODULES.items() if imports(module)]
    if not found:
        raise NothingToMeasure("`make bench-peers` installs what this compares with")
    specs = {
        "mmoe": bench.spec("mmoe", "big", "bf16"),
        "mmoe fp32": bench.spec("mmoe", "big", "fp32"),
        **{name: bench.spec(name, "big", "fp32", steps=STEPS) for name in found},
    }
    times = bench.race(specs, pythons=dict.fromkeys(found, str(PYTHON)))
    results = []
    for name in found:
        for key, ours in ((f"vs_{name}_big", "mmoe"), (f"vs_{name}_big_fp32", "mmoe fp32")):
            rates = [f"{rows_per_second(times, who):,.0f}" for who in (ours, name)]
            note = f"{rates[0]} against {rates[1]} rows/s"
            results.append(speedup(key, times, name, ours, note=note))
    return results


def imports(module: str) -> bool:
    if not PYTHON.exists():
        return False
    command = [str(PYTHON), "-c", f"import {module}"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


PEER_RACES = (Race({"vs_torch_rechub_big": Target(9), "vs_deepctr_big": Target(12)}, peers),)


# The command line: how soon it answers, and how much memory it takes

STARTS, HELPS = 5, 15
# The larger data set, in rows of the smaller one
LARGER = 10
STREAM_PRECISION = "bf16"
# What turns on input whose memory does not grow with the data
STREAM = ("data.input=stream",)
MODULE = {"train": "benchmarks.train.ours", "help": "mmoe"}


def startup(bench: Bench) -> list[Result]:
    """`mmoe train` until its first step, after a run that warmed the caches."""
    log = bench.log("big")
    config = _write_config(bench, raw_config(log, precision="bf16"), bench.overrides)
    seconds = []
    for _ in range(1 + STARTS):
        out = bench.empty_folder()
        seconds.append(_seconds(bench, ["train", str(config), "--out", str(out)], MODULE["train"]))
        shutil.rmtree(out, ignore_errors=True)
    return [_in_seconds("startup_seconds", seconds[1:], f"{log.rows:,} rows to read; warm")]


def help_text(bench: Bench) -> list[Result]:
    seconds = [_seconds(bench, ["--help"], MODULE["help"]) for _ in range(1 + HELPS)]
    return [_in_seconds("help_seconds", seconds[1:], "warm")]


def streaming_memory(bench: Bench) -> list[Result]:
    overrides = (*STREAM, *bench.overrides)
    peaks = {}
    for rows in (bench.rows, LARGER * bench.rows):
        raw = raw_config(bench.log("big", rows), precision=STREAM_PRECISION, epochs=1)
        out = bench.empty_folder()
        config = _write_config(bench, raw, overrides)
        peaks[rows] = _peak_bytes(bench, ["train", str(config), "--out", str(out), "--quiet"])
        bench.say(f"  {rows:,} rows: {peaks[rows] / 2**30:.2f} GiB")
        shutil.rmtree(out, ignore_errors=True)
    small, large = peaks.values()
    ratio = large / small
    note = f"{large / 2**30:.2f} over {small / 2**30:.2f} GiB"
    return [Result("peak_rss_ratio_stream", Spread.single(ratio), note=note)]


def _write_config(bench: Bench, raw: Mapping[str, Any], overrides: Sequence[str]) -> Path:
    """As a file; JSON is YAML."""
    path = bench.empty_folder().with_suffix(".yaml")
    checked = with_overrides(dict(raw), tuple(overrides)).model_dump(mode="json")
    path.write_text(json.dumps(checked), encoding="utf-8")
    return path


def _seconds(bench: Bench, arguments: Sequence[str], module: str) -> float:
    return run_child([sys.executable, "-m", module, *arguments], threads=bench.threads)[1]


def _peak_bytes(bench: Bench, arguments: Sequence[str]) -> int:
    # A new process begins with the peak of the one that started it: here one that did nothing else
    command = [sys.executable, "-c", _WATCH, sys.executable, "-m", MODULE["help"], *arguments]
    printed, _ = run_child(command, threads=bench.threads)
    return int(printed) * 1024  # Linux counts in KiB


_WATCH = """
import resource, subprocess, sys

code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(code)
"""


def _in_seconds(key: str, seconds: Sequence[float], note: str) -> Result:
    spread = Spread.of(seconds)
    return Result(key, spread, spread.median * 1e3, note=note)


COMMAND_RACES = (
    Race({"peak_rss_ratio_stream": Target(1.15, at_most=True)}, streaming_memory),
    Race({"startup_seconds": Target(8, at_most=True)}, startup),
    Race({"help_seconds": Target(0.5, at_most=True)}, help_text),
)


# How well our training learns, beside the honest rival on the same rows

if TYPE_CHECKING:
    from mmoe.run import RunDirectory

PRECISION = "bf16"
Scores = Mapping[str, Mapping[str, float]]  # task → auc and logloss


def gaps(bench: Bench) -> list[Result]:
    log = bench.log("big")
    held_out = read_batches(log.workload, log.test)
    details = []
    for seed in range(bench.seeds):
        ours, first = _ours(bench, log, seed)
        theirs = _theirs(log, held_out, first, seed)
        details.append({"seed": seed, "ours": ours, "theirs": theirs})
        shown = ", ".join(
            f"{task} {ours[task]['auc']:.4f} / {theirs[task]['auc']:.4f}" for task in ours
        )
        bench.say(f"  seed {seed}: AUC ours / theirs: {shown}")
    tasks = log.workload.tasks
    auc = {t: [d["theirs"][t]["auc"] - d["ours"][t]["auc"] for d in details] for t in tasks}
    # Both entropies are of the same labels: the ratio of NEs is that of the log-losses
    ne = {
        t: [d["ours"][t]["logloss"] / d["theirs"][t]["logloss"] - 1 for d in details] for t in tasks
    }
    return [_worse("auc_gap", auc, details), _worse("ne_gap", ne, details)]


def _worse(key: str, gaps: Mapping[str, list[float]], details: list[dict]) -> Result:
    """The task with the larger mean gap: its mean, and the range over seeds."""
    task = max(gaps, key=lambda name: float(np.mean(gaps[name])))
    spread = Spread.of(gaps[task])
    mean = Spread(float(np.mean(gaps[task])), spread.low, spread.high, spread.count)
    means = (f"{side} {_mean_auc(details, side, task):.4f}" for side in ("ours", "theirs"))
    note = f"mean of {spread.count} seeds, {PRECISION}, {task}; AUC {', '.join(means)}"
    return Result(key, mean, note=note, digits=5, details=details)


def _mean_auc(details: list[dict], side: str, task: str) -> float:
    return float(np.mean([detail[side][task]["auc"] for detail in details]))


@dataclass(frozen=True)
class FirstWeights:
    """Where training starts: the dense weights by name, and a row for each id of every table."""

    network: Mapping[str, Tensor]
    tables: Mapping[str, Tensor]


def _ours(bench: Bench, log: Log, seed: int) -> tuple[Scores, FirstWeights]:
    """By the library's own report on the test rows; and what it started from."""
    from mmoe.train import train_run

    # As the rival has a row for every id, not a hash that lets ids collide
    raw = raw_config(log, precision=PRECISION, encoding="vocabulary", epochs=1, seed=seed)
    config, out = with_overrides(raw, bench.overrides), bench.empty_folder()
    run = train_run(config, out)
    metrics, first = run.metrics["tasks"], _first_weights(log, run.directory)
    shutil.rmtree(out)
    scores = {
        task: {"auc": metrics[task]["auc"], "logloss": metrics[task]["logloss"]}
        for task in log.workload.tasks
    }
    return scores, first


def _first_weights(log: Log, run: "RunDirectory") -> FirstWeights:
    """Drawn again as the run drew them; an id without a row has that of unseen ids."""
    from mmoe.datasets.features.encoder import FeatureEncoder
    from mmoe.models.build import build_ranker
    from mmoe.parallel import training_group

    config, encoder = run.config(), FeatureEncoder.load(run.vocabulary)
    torch.manual_seed(config.seed)
    tables = {}
    with training_group():
        ranker = build_ranker(config, encoder)
        for name, rows in log.workload.tables.items():
            rows_R = encoder.ids[name].lookup(pa.chunked_array([np.arange(rows)]), name)
            tables[name] = ranker.tables.table_weights()[name][torch.from_numpy(rows_R)]
    return FirstWeights(ranker.network.state_dict(), tables)


def _theirs(log: Log, held_out: list[Tensors], first: FirstWeights, seed: int) -> Scores:
    from benchmarks.train.plain_torch import Lookups, PlainTorch

    rival = PlainTorch(log.workload, bf16=PRECISION == "bf16", seed=seed)
    rival.model.start_from(first.network, first.tables)
    for batch in read_batches(log.workload, log.train, seed=[seed, 0]):  # the order of ours
        rival.step(Lookups(batch))
    predicted_NT = np.concatenate([rival.predict(Lookups(b)).numpy() for b in held_out])
    labels_NT = np.concatenate([batch.labels_BT.numpy() for batch in held_out])
    return {
        task: {
            "auc": float(roc_auc_score(labels_NT[:, t], predicted_NT[:, t])),
            "logloss": float(log_loss(labels_NT[:, t], predicted_NT[:, t].astype(np.float64))),
        }
        for t, task in enumerate(log.workload.tasks)
    }


_GAP = Target(0.001, at_most=True)
QUALITY_RACES = (Race({"auc_gap": _GAP, "ne_gap": _GAP}, gaps),)
RACES = (*SPEED_RACES, *PEER_RACES, *QUALITY_RACES, *COMMAND_RACES)
