"""A new task on a live model: `python -m benchmarks.new_task`; the last line is JSON.

Four tasks of an invented log are trained, and frozen; a fifth one is trained on what they have. It
is compared with the same task in a model that is trained for all five, seed by seed.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.new_task.equal import unequal
from benchmarks.new_task.log import NEW, task_log
from benchmarks.new_task.models import Found, compare
from benchmarks.racing.harness import Result, Spread, Target, print_table, processor

TARGETS = {"frozen_equal": Target(1), "new_task_gap": Target(0.004, at_most=True)}
USERS, ITEMS = 30_000, 10_000


def main() -> None:
    """Runs the command line."""
    given = _arguments()
    started = time.perf_counter()
    folder = Path(given.folder or tempfile.mkdtemp(prefix="new-task-"))
    _say("old tasks' scores before and after:")
    small = task_log(given.equal_rows, correlation=0.7, seed=9, users=2_000, items=500)
    wrong = unequal(small, folder / "equal", _say)
    found: dict[float, list[Found]] = {}
    for correlation in given.correlations:
        _say(f"logits of correlation {correlation:g}:")
        found[correlation] = [
            compare(
                task_log(given.rows, correlation=correlation, seed=seed, users=USERS, items=ITEMS),
                folder / f"{correlation:g}",
                seed=seed,
                new_experts=given.new_experts,
                values=given.set,
                say=_say,
            )
            for seed in range(given.seeds)
        ]
    every = [one for of_one in found.values() for one in of_one]
    equal = float(not wrong and all(one.equal for one in every))
    first = given.correlations[0]
    results = [Result(key="frozen_equal", spread=_spread([equal]))]
    for correlation, of_one in found.items():
        more = "" if correlation == first else f"_c{100 * correlation:.0f}"
        gaps = [one.together - one.frozen for one in of_one]
        wins = [one.with_experts - one.frozen for one in of_one]
        note = f"{NEW}, correlation {correlation:g}"
        results.append(Result(key=f"new_task_gap{more}", spread=_spread(gaps), note=note, digits=4))
        note = f"{given.new_experts} new experts"
        results.append(
            Result(key=f"new_experts_win{more}", spread=_spread(wins), note=note, digits=4)
        )
    print_table(results, TARGETS, "a new task on a live model")
    keys = {r.key: round(r.spread.median, 5) for r in results}
    line = {
        "benchmark": "new_task",
        **keys,
        "missed": sorted(key for key, t in TARGETS.items() if not t.met(keys[key])),
        "unequal": wrong,
        "rows": given.rows,
        "seeds": given.seeds,
        "machine": processor(),
        "minutes": round((time.perf_counter() - started) / 60, 1),
        "auc": {
            f"{correlation:g}": [
                {k: v for k, v in vars(one).items() if k != "equal"} for one in of_one
            ]
            for correlation, of_one in found.items()
        },
    }
    text = json.dumps(line, ensure_ascii=False)
    if given.out:
        given.out.write_text(text + "\n", encoding="utf-8")
    print(text)


def _spread(values: list[float]) -> Spread:
    """The mean of the seeds, and their range."""
    return Spread(statistics.fmean(values), min(values), max(values), len(values))


def _say(text: str) -> None:
    print(text, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A fifth task on a frozen model of four.")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--equal-rows", type=int, default=6_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--correlations", nargs="+", type=float, default=[0.9, 0.5])
    parser.add_argument("--new-experts", type=int, default=4)
    parser.add_argument("--folder", help="where the runs stay")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path, help="a file for the JSON line")
    return parser.parse_args()


if __name__ == "__main__":
    main()
