"""Races of scoring against earlier mmoe, other libraries and engines."""

import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.racing.harness import (
    NothingToMeasure,
    ProductRates,
    Race,
    Result,
    Spread,
    Target,
    Times,
    in_turns,
    speedup,
)
from benchmarks.racing.ranks import ROOT, ask_child, run_child, with_modules_of
from benchmarks.train.races import MODULES, PYTHON, imports
from benchmarks.train.workloads import (
    BATCH,
    BIG_FLOPS_PER_ROW,
    DIM,
    WORKLOADS,
    Log,
    raw_config,
    write_log,
)

# What every race gets: logs, trained runs, and scorings in turn

# Forward alone; backward takes twice as many
FLOPS_PER_ROW = BIG_FLOPS_PER_ROW / 3
# Enough for weights and statistics of columns, which do not depend on how well it predicts
TRAINING_ROWS = 4 * BATCH
PROGRAM = Path(__file__).with_name("scoring.py")

Answer = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Settings, what has been made so far, the product rates seen, and progress."""

    folder: Path  # For logs and the build of an earlier mmoe, kept where the user names it
    runs: Path  # For what is written while this one lasts
    rows: int  # To score
    many: int  # To score where what grows with the rows is to be seen
    repeats: int  # Scorings of each contestant
    threads: int  # Of a process that has all cores
    engines: Path  # Interpreter of the environment with Ray and Spark
    table_bytes: float  # Of all embedding tables together, on Spark
    wanted: Collection[str]  # Keys
    rates: ProductRates  # Of products
    say: Callable[[str], None]  # Told of progress
    # Why keys have no value although their race has run
    skipped: dict[str, str] = field(default_factory=dict)
    _trained: dict[tuple[str, Path], Path] = field(default_factory=dict)
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    def log(self, rows: int) -> Log:
        self.say(f"  log of big, {rows:,} rows")
        return write_log(WORKLOADS["big"], rows, self.folder, held_out=TRAINING_ROWS)

    def new(self, name: str = "") -> Path:
        return self.runs / f"{next(self._numbers)}{name}"

    def config(self, precision: str) -> dict[str, Any]:
        """`big`, one epoch of a few rows; batches of scoring are as high as they are by default."""
        raw = raw_config(self.log(TRAINING_ROWS), precision=precision, epochs=1)
        del raw["training"]["eval_batch_size"]
        return raw

    def trained(self, precision: str, tree: Path = ROOT) -> Path:
        key = precision, tree
        if key not in self._trained:
            self.say(f"  training {precision} with {'mmoe' if tree == ROOT else tree.name}")
            self._trained[key] = self.train(self.config(precision), tree)
        return self._trained[key]

    def train(self, raw: Mapping[str, Any], tree: Path = ROOT) -> Path:
        config, out = self.new(".yaml"), self.new()
        config.write_text(json.dumps(raw), encoding="utf-8")
        command = [sys.executable, "-m", "mmoe", "train", str(config), "--out", str(out), "--quiet"]
        run_child(command, threads=self.threads, cwd=tree)
        return out

    def score(
        self,
        precision: str,  # Of the run
        source: Path,  # What is scored
        *,
        tree: Path = ROOT,  # Of the mmoe that does it
        threads: int = 0,  # Of the process; 0: as many as it has by default here
        cores: Sequence[int] = (),  # On which it stays; none: all
    ) -> Answer:
        """One scoring into a Parquet file, in a process of its own; see `scoring.py`."""
        output = self.new(".parquet")
        asked = {
            "run": str(self.trained(precision, tree)),
            "source": str(source),
            "output": str(output),
            "cores": list(cores),
        }
        found = ask_child(
            [sys.executable, "-P", str(PROGRAM), json.dumps(asked)],
            threads=threads or self.threads,
            cwd=self.runs,
            variables=with_modules_of(tree),
        )
        output.unlink()
        if Path(found["mmoe"]) != tree / "mmoe":
            raise RuntimeError(f"{found['mmoe']} has scored, instead of {tree / 'mmoe'}")
        return found

    def in_turns(
        self, calls: Mapping[str, Callable[[], Answer]], rounds: int
    ) -> dict[str, list[Answer]]:
        """Calls each so many times, in another order every round; products are timed in between."""

        def told(name: str, call: Callable[[], Answer]) -> Answer:
            answer = call()
            self.say(f"  {name}: {rows_per_second(answer)}")
            return answer

        self.rates.measure()
        every = {name: partial(told, name, call) for name, call in calls.items()}
        return in_turns(every, rounds, self.rates.measure)


def times_of(answers: Mapping[str, Sequence[Answer]], what: str = "seconds") -> Times:
    return Times({name: [a[what] / a["rows"] * BATCH for a in of] for name, of in answers.items()})


def flops_per_second(answers: Sequence[Answer]) -> list[float]:
    return [a["rows"] * FLOPS_PER_ROW / a["seconds"] for a in answers]


def rows_per_second(answer: Answer) -> str:
    return f"{answer['rows'] / answer['seconds']:,.0f} rows/s"


# mmoe as it was before scoring was made fast: its sources and its own compiled operators

COMMIT = "7da9e84"


def earlier_mmoe(folder: Path, say: Callable[[str], None]) -> Path:
    """The folder of its sources, built unless an earlier run has; takes a minute or two."""
    place = folder / f"mmoe-{COMMIT}"
    if place.exists():
        return place
    if _git(ROOT, "cat-file", "-e", f"{COMMIT}^{{commit}}") is not None:
        raise NothingToMeasure(f"commit {COMMIT} is not in the history of {ROOT}")
    say(f"  building mmoe of commit {COMMIT}")
    partial = place.with_suffix(".part")
    shutil.rmtree(partial, ignore_errors=True)
    partial.parent.mkdir(parents=True, exist_ok=True)
    # Shares the objects: nothing is fetched, and no worktree is left behind in the history
    clone = _git(folder, "clone", "--quiet", "--shared", "--no-checkout", str(ROOT), str(partial))
    problem = clone or _git(partial, "checkout", "--quiet", COMMIT)
    if problem is not None:
        raise RuntimeError(f"commit {COMMIT}: {problem}")
    command = [sys.executable, "setup.py", "build_ext", "--inplace"]
    run_child(command, threads=1, cwd=partial, variables={"MMOE_BUILD": "cpu"})
    partial.rename(place)  # a killed run leaves no half build
    return place


def _git(folder: Path, *arguments: str) -> str | None:
    """What is wrong; None: nothing."""
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False
    )
    return (done.stderr.strip() or "git failed") if done.returncode else None


# A log that reaches into every corner of large tables, and a config that has them

ROWS_PER_GROUP = 50_000
BYTES_PER_NUMBER = 4


def config_of_size(raw: Mapping[str, Any], table_bytes: float) -> dict[str, Any]:
    """A config of `big` whose tables take so many bytes together, all larger by one factor."""
    tables = WORKLOADS["big"].tables
    factor = table_bytes / (sum(tables.values()) * DIM * BYTES_PER_NUMBER)
    features = [
        {**feature, "hash_size": max(1, round(feature["hash_size"] * factor))}
        if "hash_size" in feature
        else feature
        for feature in raw["features"]
    ]
    return {**raw, "features": features}


def write_spread_log(folder: Path, rows: int) -> Path:
    """Rows without labels whose ids are uniform: popular ones would leave most pages untouched.

    Returns the Parquet file, kept for the next run.
    """
    path = folder / f"spread-{rows}.parquet"
    if path.exists():
        return path
    partial, work = path.with_suffix(".part"), WORKLOADS["big"]
    rng, writer = np.random.default_rng(0), None
    for start in range(0, rows, ROWS_PER_GROUP):
        size = min(ROWS_PER_GROUP, rows - start)
        columns: dict[str, np.ndarray] = {
            column.column: rng.integers(0, 2**31 - 1, size, np.int32) for column in work.single
        }
        for name in work.dense_columns:
            columns[name] = rng.standard_normal(size, np.float32)
        table = pa.table(columns)
        writer = writer or pq.ParquetWriter(partial, table.schema)
        writer.write_table(table)
    if writer is not None:
        writer.close()
    partial.rename(path)
    return path


# Rows/s of scoring as a share of what the machine's products reach, and beside those of before

PRECISIONS = ("bf16", "fp32")
SHARES = tuple(f"gemm_share_score_{precision}" for precision in PRECISIONS)


def ours(bench: Bench) -> list[Result]:
    """Both precisions, and both of the earlier mmoe where it can be had, in turn.

    What is compared is the scoring: from the first row that is read until the output is there. The
    start of a process and the loading of the model come before; `vs_before_whole` counts them.
    """
    source = bench.log(bench.rows).train
    calls = {f"mmoe {p}": partial(bench.score, p, source) for p in PRECISIONS}
    calls |= _before(bench, source)
    answers = bench.in_turns(calls, bench.repeats)
    shares = [_share(p, answers[f"mmoe {p}"], _parts(answers)) for p in PRECISIONS]
    return [*shares, *(_versus(answers) if "before bf16" in answers else ())]


def share(key: str, precision: str, answers: Sequence[Answer], note: str = "", **more) -> Result:
    seconds = [a["seconds"] / a["rows"] for a in answers]
    rate = f"{1 / statistics.median(seconds):,.0f} rows/s"
    return Result(
        key,
        Spread.of(flops_per_second(answers)),
        statistics.median(seconds) * BATCH * 1e3,
        product_rate=precision,
        note=f"{rate} {note}".strip(),
        **more,
    )


def _share(precision: str, answers: Sequence[Answer], parts: Sequence[Mapping[str, Any]]) -> Result:
    return share(
        f"gemm_share_score_{precision}",
        precision,
        answers,
        details=[part for part in parts if str(part["who"]).endswith(precision)],
    )


def _before(bench: Bench, source: Path) -> dict[str, Callable[[], Answer]]:
    if "vs_before" not in bench.wanted:
        return {}
    try:
        tree = earlier_mmoe(bench.folder, bench.say)
    except NothingToMeasure as reason:  # the shares do not depend on it
        bench.skipped["vs_before"] = str(reason)
        return {}
    return {f"before {p}": partial(bench.score, p, source, tree=tree) for p in PRECISIONS}


def _versus(answers: Mapping[str, Sequence[Answer]]) -> list[Result]:
    scoring, whole = times_of(answers), times_of(answers, "whole")
    cases = {
        "vs_before": (scoring, "bf16"),
        "vs_before_fp32": (scoring, "fp32"),
        "vs_before_whole": (whole, "bf16"),
        "vs_before_whole_fp32": (whole, "fp32"),
    }
    return [
        speedup(key, times, f"before {p}", f"mmoe {p}", note=f"{COMMIT} over ours, {p}")
        for key, (times, p) in cases.items()
    ]


def _parts(answers: Mapping[str, Sequence[Answer]]) -> list[dict[str, Any]]:
    return [
        {
            "who": who,
            "rows": of[0]["rows"],
            **{what: _median(of, what) for what in ("imports", "loading", "seconds", "whole")},
            "peak_gib": _median(of, "peak") / 2**30,
        }
        for who, of in answers.items()
    ]


def _median(answers: Sequence[Answer], what: str) -> float:
    return float(statistics.median(answer[what] for answer in answers))


SPEED_RACES = (
    Race({SHARES[0]: Target(0.50), SHARES[1]: Target(0.60), "vs_before": Target(1.3)}, ours),
)


# What more rows cost in memory, and what a second core gives

# A scoring of many rows takes as long as ten of few; of memory a run in four took a tenth more
MOST_OF_MANY, MOST_OF_ONE_CORE = 3, 3
# Of `many`, for the race of cores: a last chunk without company weighs less than in `rows`
CORES_FILES = "part-00[01].parquet"
PRECISION = "bf16"


def peaks(bench: Bench) -> list[Result]:
    calls = {
        name: partial(bench.score, PRECISION, bench.log(rows).train)
        for name, rows in (("few", bench.rows), ("many", bench.many))
    }
    answers = bench.in_turns(calls, min(bench.repeats, MOST_OF_MANY))
    pairs = list(zip(answers["many"], answers["few"], strict=True))
    large, small = (max(a["peak"] for a in answers[name]) / 2**30 for name in ("many", "few"))
    return [
        Result(
            "peak_rss_ratio",
            Spread.of([many["peak"] / few["peak"] for many, few in pairs]),
            note=f"{large:.2f} over {small:.2f} GiB",
        ),
        share(
            f"gemm_share_score_{PRECISION}_many",
            PRECISION,
            answers["many"],
            note=f"over {bench.many:,} rows",
        ),
    ]


def cores(bench: Bench) -> list[Result]:
    there = sorted(os.sched_getaffinity(0))
    if len(there) < 2:
        raise NothingToMeasure("this process has one core")
    source = bench.log(bench.many).train / CORES_FILES
    calls = {
        f"{count} cores": partial(
            bench.score, PRECISION, source, threads=count, cores=there[:count]
        )
        for count in (2, 1)
    }
    answers = bench.in_turns(calls, min(bench.repeats, MOST_OF_ONE_CORE))
    rows = answers["2 cores"][0]["rows"]
    note = f"{rows:,} rows, {PRECISION}; other: one core"
    return [speedup("cores_gain", times_of(answers), "1 cores", "2 cores", note=note)]


GROWTH_RACES = (
    Race({"peak_rss_ratio": Target(1.15, at_most=True)}, peaks),
    Race({"cores_gain": Target(1.7)}, cores),
)


# Our scoring beside libraries that are installed in an environment of their own

# Theirs take four times as long as ours
MOST_ROUNDS = 3


def peers(bench: Bench) -> list[Result]:
    found = [name for name, module in MODULES.items() if imports(module)]
    if not found:
        raise NothingToMeasure("`make bench-peers` installs what this compares with")
    for name in sorted(set(MODULES) - set(found)):
        bench.skipped[f"vs_{name}_score"] = f"{MODULES[name]} cannot be imported by {PYTHON}"
    source = bench.log(bench.rows).train
    calls = {f"mmoe {p}": partial(bench.score, p, source) for p in ("bf16", "fp32")}
    calls |= {name: partial(_score, bench, name, source) for name in found}
    answers = bench.in_turns(calls, min(bench.repeats, MOST_ROUNDS))
    return [result for name in found for result in versus(name, answers)]


def versus(name: str, answers: Mapping[str, Sequence[Answer]]) -> list[Result]:
    """Theirs over ours: in bf16, in fp32, and their model alone over all of ours in bf16."""
    key, times = f"vs_{name}_score", times_of(answers)
    alone = [a["forward_seconds"] / a["forward_rows"] * BATCH for a in answers[name]]
    forward = Times({**times.seconds, name: alone})
    results = []
    for suffix, ours, of in (
        ("", "mmoe bf16", times),
        ("_fp32", "mmoe fp32", times),
        ("_forward", "mmoe bf16", forward),
    ):
        rates = " against ".join(f"{BATCH / of.median(who):,.0f}" for who in (ours, name))
        what = "; theirs: the model alone" if of is forward else ""
        results.append(speedup(key + suffix, of, name, ours, note=f"{rates} rows/s{what}"))
    return results


def _score(bench: Bench, name: str, source: Path) -> Answer:
    output = bench.new(".parquet")
    asked = {"kind": name, "source": str(source), "output": str(output), "threads": bench.threads}
    command = [str(PYTHON), "-m", "benchmarks.score.peer", json.dumps(asked)]
    answer = ask_child(command, threads=bench.threads)
    output.unlink()
    return answer


PEER_RACES = (Race({"vs_torch_rechub_score": Target(3.2), "vs_deepctr_score": Target(2.2)}, peers),)


# Scoring on Ray and on Spark, in an environment that has them

MOST_ENGINE_ROUNDS = 2
ENGINE_PRECISION = "bf16"
PARTS = 64  # of the many rows, about: workers are busy until the end
WORKERS = 2
SLOTS = (1, 4)
# Of the many rows: enough to touch nearly every page of the large tables
SPARK_SHARE = 1 / 8


def ray(bench: Bench) -> list[Result]:
    """Two workers of one thread each over one process of two threads.

    A start is what the command takes over a part for each worker: processes, imports, the model
    and, on Ray, the cluster. It is taken off the times of both.
    """
    check_there(bench.engines, "import ray, mmoe.integrations.ray_engine")
    few, many = bench.log(WORKERS * BATCH), bench.log(bench.many)
    piece = max(BATCH, bench.many // PARTS)
    calls: dict[str, Callable[[], Answer]] = {}
    for name, log, rows in (("few", few, BATCH), ("many", many, piece)):
        for engine in ("local", "ray"):
            calls[f"{engine} {name}"] = partial(_command, bench, engine, log.train, rows, log.rows)
    calls["ray few"]()  # not counted: what it imports is read from the disk
    answers = bench.in_turns(calls, min(bench.repeats, MOST_ENGINE_ROUNDS))
    return overheads({name: [a["whole"] for a in of] for name, of in answers.items()})


def overheads(whole: Mapping[str, Sequence[float]]) -> list[Result]:
    """Of the seconds of whole commands: with starts (their medians) taken off, and as they are."""
    start = {who: statistics.median(whole[f"{who} few"]) for who in ("ray", "local")}
    rounds = list(zip(whole["ray many"], whole["local many"], strict=True))
    left = [(ray - start["ray"], local - start["local"]) for ray, local in rounds]
    if any(ray < start["ray"] or local < start["local"] for ray, local in left):
        raise RuntimeError("starts take longer than all rows: say a larger --many")
    total = {who: statistics.median(whole[f"{who} many"]) for who in ("ray", "local")}
    return [
        Result(
            "ray_overhead",
            Spread.of([ray / local for ray, local in left]),
            note=f"start: {start['ray']:.1f} s on Ray, {start['local']:.1f} s without",
        ),
        Result(
            "ray_overhead_with_start",
            Spread.of([ray / local for ray, local in rounds]),
            note=f"{total['ray']:.1f} over {total['local']:.1f} s",
        ),
    ]


def spark(bench: Bench) -> list[Result]:
    """Memory of the Python workers of four slots over that of one: do they share the tables?"""
    check_there(bench.engines, "import pyspark; from mmoe.integrations.spark import score")
    rows = round(bench.many * SPARK_SHARE)
    log = write_spread_log(bench.folder, rows)
    bench.say(f"  training a run of {bench.table_bytes / 2**30:.2f} GiB of tables")
    run = bench.train(config_of_size(bench.config("fp32"), bench.table_bytes))
    answers = [_spark(bench, run, log, slots) for slots in SLOTS]
    shutil.rmtree(run, ignore_errors=True)
    return [memory(answers)]


def memory(answers: Sequence[Mapping[str, Any]]) -> Result:
    """The ratio of the peaks; one slot first."""
    for slots, answer in zip(SLOTS, answers, strict=True):
        if answer["workers"] < slots:
            raise RuntimeError(f"{answer['workers']} of {slots} slots had a worker")
    one, all_of_them = (answer["peak"] for answer in answers)
    return Result(
        "spark_rss_ratio",
        Spread.single(all_of_them / one),
        note=f"{all_of_them / 2**30:.2f} over {one / 2**30:.2f} GiB",
        details=[{**answer, "peak": answer["peak"] / 2**30} for answer in answers],
    )


def check_there(python: Path, code: str) -> None:
    """Can an interpreter do it, with the sources that are measured?"""
    if not python.exists():
        raise NothingToMeasure(f"{python} is not there; --engines names one with Ray and PySpark")
    try:
        run_child([str(python), "-c", code], threads=1)
    except RuntimeError as error:
        raise NothingToMeasure(str(error)) from None


def _command(bench: Bench, engine: str, source: Path, piece: int, rows: int) -> Answer:
    output = bench.new()
    paths = [str(bench.trained(ENGINE_PRECISION)), "--input", str(source), "--output", str(output)]
    command = [str(bench.engines), "-m", "mmoe", "score", *paths]
    command += ["--rows-per-file", str(piece), "--quiet"]
    if engine == "ray":
        command += ["--engine", "ray", "--workers", str(WORKERS)]
    threads = 1 if engine == "ray" else WORKERS
    own = {**with_modules_of(ROOT), "RAY_USAGE_STATS_ENABLED": "0"}
    _, whole = run_child(command, threads=threads, variables=own)
    shutil.rmtree(output, ignore_errors=True)
    return {"whole": whole, "seconds": whole, "rows": rows}


def _spark(bench: Bench, run: Path, log: Path, slots: int) -> dict[str, Any]:
    asked = {"run": str(run), "source": str(log), "slots": slots, "room": str(bench.new())}
    bench.say(f"  Spark with {slots} slots")
    return ask_child(
        [str(bench.engines), "-m", "benchmarks.score.spark_program", json.dumps(asked)],
        threads=1,
        variables={**with_modules_of(ROOT), "PYSPARK_PYTHON": str(bench.engines)},
    )


ENGINE_RACES = (
    Race({"ray_overhead": Target(1.25, at_most=True)}, ray),
    Race({"spark_rss_ratio": Target(1.3, at_most=True)}, spark),
)
RACES = (*SPEED_RACES, *PEER_RACES, *GROWTH_RACES, *ENGINE_RACES)
