"""Our scoring beside libraries that are installed in an environment of their own."""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from benchmarks.racing.races import NothingToMeasure, Race
from benchmarks.racing.ranks import ROOT
from benchmarks.racing.results import Result, speedup
from benchmarks.racing.times import Times
from benchmarks.score.bench import Answer, Bench, times_of
from benchmarks.score.child import ask_child
from benchmarks.train.peer_races import MODULES, PYTHON, imports
from benchmarks.train.workloads import BATCH

# Theirs take four times as long as ours
MOST_ROUNDS = 3


def peers(bench: Bench) -> list[Result]:
    """Ours in both precisions, and theirs; every one from Parquet to Parquet."""
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
    asked = {
        "kind": name,
        "source": str(source),
        "output": str(output),
        "threads": bench.threads,
    }
    command = [str(PYTHON), "-m", "benchmarks.score.peer", json.dumps(asked)]
    answer = ask_child(command, threads=bench.threads, cwd=ROOT)
    output.unlink()
    return answer


PEER_RACES = (Race(tuple(f"vs_{name}_score" for name in MODULES), peers),)
