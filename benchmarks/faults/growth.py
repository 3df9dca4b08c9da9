"""What grows with the size of the input alone: row groups that are streamed, distinct ids.

python -m benchmarks.faults growth [--groups N] [--ids N]
"""

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from rich.console import Console
from rich.table import Table

from benchmarks.faults.inputs.in_process import run_in_process

GROUP_ROWS = 100
TIMES_AS_MANY = 4
MOST_FOR_GROUPS, MOST_FOR_IDS = 5.0, 3.0
ROUNDS = 2  # of the runs over row groups, which are short; the faster one counts
TIME_OUT_SECONDS = 1_800.0
MODEL = {"embedding_dim": 4, "num_experts": 2, "expert": {"hidden": [8]}, "tower": {"hidden": [4]}}


@dataclass(frozen=True)
class Pair:
    """Two runs, of which one should not take much longer.

    Attributes:
        what: The slower one, in words.
        beside: What it is compared with.
        most: How many times as long it may take.
        seconds: Of the one compared with, and of the slower one.
    """

    what: str
    beside: str
    most: float
    seconds: tuple[float, float]

    @property
    def times(self) -> float:
        """How many times as long it took."""
        return self.seconds[1] / self.seconds[0]

    def __str__(self) -> str:
        return f"{self.what}: {self.times:.1f} times what {self.beside}"


@dataclass(frozen=True)
class Growth:
    """Both comparisons; that of ids once for integers and once for text."""

    groups: Pair
    ids: tuple[Pair, ...]

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """All of them."""
        return (self.groups, *self.ids)

    @property
    def passed(self) -> bool:
        """Nothing took longer than it may."""
        return all(pair.times <= pair.most for pair in self.pairs)

    @property
    def keys(self) -> dict[str, float]:
        """The figures for the last line; of ids the worse one."""
        return {
            "row_groups_2000_over_500": round(self.groups.times, 2),
            "distinct_ids_over_hashed": round(max(pair.times for pair in self.ids), 2),
        }


def main(arguments: Sequence[str]) -> int:
    """Prints a table and, last, the two figures; 1 where one is over its limit."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults growth")
    parser.add_argument("--groups", type=int, default=500, help=f"and {TIMES_AS_MANY} times these")
    parser.add_argument("--ids", type=int, default=5_000_000, help="distinct ids")
    options = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="mmoe-growth-"))
    console = Console(stderr=True, highlight=False)
    try:
        growth = measure_growth(folder, console.print, groups=options.groups, ids=options.ids)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print_growth(growth)
    print(json.dumps(growth.keys))
    return 0 if growth.passed else 1


def measure_growth(
    folder: Path, say: Callable[[str], Any], *, groups: int = 500, ids: int = 5_000_000
) -> Growth:
    """Trains on each log, streamed, in this process."""
    folder.mkdir(parents=True, exist_ok=True)
    _train(folder, _groups_log(folder, 10), {"encoding": "hash", "hash_size": 64})  # warms up
    return Growth(groups=_row_groups(folder, groups, say), ids=_distinct_ids(folder, ids, say))


def print_growth(growth: Growth) -> None:
    """One line for each pair, with what they took."""
    table = Table(title="\ngrowth", title_justify="left", box=None)
    for name in ("training on", "seconds", "beside", "times", "at most"):
        table.add_column(name, justify="left" if name == "training on" else "right")
    for pair in growth.pairs:
        beside, slower = (f"{seconds:.1f}" for seconds in pair.seconds)
        table.add_row(str(pair), slower, beside, f"{pair.times:.2f}", f"{pair.most:.0f}")
    Console(width=120, highlight=False).print(table)


def _row_groups(folder: Path, groups: int, say: Callable[[str], Any]) -> Pair:
    counts = (groups, TIMES_AS_MANY * groups)
    logs = [_groups_log(folder, count) for count in counts]
    took: list[list[float]] = [[], []]
    for _ in range(ROUNDS):
        for found, log in zip(took, logs, strict=True):
            found.append(_train(folder, log, {"encoding": "vocabulary"}))
    say(f"row groups: {', '.join(f'{min(found):.1f} s' for found in took)}")
    return Pair(
        f"streaming {counts[1]:,} row groups",
        f"{counts[0]:,} take",
        MOST_FOR_GROUPS,
        (min(took[0]), min(took[1])),
    )


def _distinct_ids(folder: Path, ids: int, say: Callable[[str], Any]) -> tuple[Pair, ...]:
    pairs = []
    for kind in ("integers", "text"):
        log = _ids_log(folder, ids, kind)
        hashed = _train(folder, log, {"encoding": "hash", "hash_size": ids})
        counted = _train(folder, log, {"encoding": "vocabulary"})
        say(f"{ids:,} ids, {kind}: hashed {hashed:.1f} s, counted {counted:.1f} s")
        what = f"{_short(ids)} distinct ids ({kind})"
        pairs.append(Pair(what, "hashing takes", MOST_FOR_IDS, (hashed, counted)))
        log.unlink()
    return tuple(pairs)


def _short(count: int) -> str:
    return f"{count // 10**6}M" if count % 10**6 == 0 else f"{count:,}"


def _train(folder: Path, log: Path, ids: dict[str, Any]) -> float:
    """Seconds of `mmoe train` over the streamed log, with the ids of its users as it says."""
    config, out = folder / "config.yaml", folder / "run"
    raw = {
        "data": {"path": str(log), "input": "stream", "split": {"by": "random"}},
        "features": [
            {"kind": "categorical", "name": "user", **ids},
            {"kind": "numeric", "name": "price"},
        ],
        "tasks": [{"name": "click", "label": "click"}],
        "model": MODEL,
        "training": {"epochs": 1, "batch_size": 8_192},
    }
    config.write_text(yaml.safe_dump(raw), encoding="utf-8")
    started = time.perf_counter()
    ended = run_in_process(["train", str(config), "--out", str(out), "--quiet"], TIME_OUT_SECONDS)
    took = time.perf_counter() - started
    if ended.code != 0:
        raise RuntimeError(f"mmoe train ended with {ended.code}: {ended.stderr[-2_000:]}")
    shutil.rmtree(out)
    return took


def _groups_log(folder: Path, groups: int) -> Path:
    draw = np.random.default_rng(groups)
    return _write(folder / f"groups-{groups}.parquet", draw.integers(0, 400, groups * GROUP_ROWS),
                  GROUP_ROWS)  # fmt: skip


def _ids_log(folder: Path, ids: int, kind: str) -> Path:
    """As many rows as ids; the ids are far from consecutive."""
    users = np.random.default_rng(ids).permutation(ids) * 7_919 + 12_345
    values = users if kind == "integers" else pa.array(np.char.add("user ", users.astype(str)))
    return _write(folder / f"ids-{kind}.parquet", values, 100_000)


def _write(path: Path, users: Any, group_rows: int) -> Path:
    draw = np.random.default_rng(len(users))
    price = draw.random(len(users))
    click = (draw.random(len(users)) < price).astype(np.int64)
    log = pa.table({"user": users, "price": price, "click": click})
    pq.write_table(log, path, row_group_size=group_rows)
    return path
