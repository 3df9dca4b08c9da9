"""Seconds of `mmoe train` over more row groups that are streamed, and over more distinct ids."""

import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.chaos.draft import write_yaml
from tests.chaos.processes import Say, run_in_process

GROUP_ROWS, TIMES_AS_MANY = 100, 4
MODEL = {"embedding_dim": 4, "num_experts": 2, "expert": {"hidden": [8]}, "tower": {"hidden": [4]}}


@dataclass(frozen=True)
class Pair:
    """Two runs, of which the second, `what`, may take `most` times as long as that `beside`."""

    what: str
    beside: str
    most: float
    seconds: tuple[float, float]

    @property
    def times(self) -> float:
        return self.seconds[1] / self.seconds[0]

    @property
    def row(self) -> tuple[str, ...]:
        beside, slower = (f"{seconds:.1f}" for seconds in self.seconds)
        what = f"{self.what}: {self.times:.1f} times what {self.beside}"
        return what, slower, beside, f"{self.times:.2f}", f"{self.most:.0f}"


def measure_growth(folder: Path, say: Say, groups: int, ids: int) -> list[Pair]:
    """Trains on each log, streamed, in this process: row groups, then ids as integers and text."""
    folder.mkdir(parents=True, exist_ok=True)
    _train(folder, _groups_log(folder, 10), {"encoding": "hash", "hash_size": 64})  # warms up
    counts = (groups, TIMES_AS_MANY * groups)
    logs, took = [_groups_log(folder, count) for count in counts], ([], [])
    for _ in range(2):  # they are short; the faster one counts
        for found, log in zip(took, logs, strict=True):
            found.append(_train(folder, log, {"encoding": "vocabulary"}))
    say(f"row groups: {', '.join(f'{min(found):.1f} s' for found in took)}")
    seconds = (min(took[0]), min(took[1]))
    pairs = [Pair(f"streaming {counts[1]:,} row groups", f"{counts[0]:,} take", 5.0, seconds)]
    short = f"{ids // 10**6}M" if ids % 10**6 == 0 else f"{ids:,}"
    for kind in ("integers", "text"):
        log = _ids_log(folder, ids, kind)
        hashed = _train(folder, log, {"encoding": "hash", "hash_size": ids})
        counted = _train(folder, log, {"encoding": "vocabulary"})
        say(f"{ids:,} ids, {kind}: hashed {hashed:.1f} s, counted {counted:.1f} s")
        what = f"{short} distinct ids ({kind})"
        pairs.append(Pair(what, "hashing takes", 3.0, (hashed, counted)))
        log.unlink()
    return pairs


def growth_keys(pairs: list[Pair]) -> dict[str, float]:
    return {
        "row_groups_2000_over_500": round(pairs[0].times, 2),
        "distinct_ids_over_hashed": round(max(pair.times for pair in pairs[1:]), 2),
    }


def _train(folder: Path, log: Path, ids: dict[str, Any]) -> float:
    """Seconds of `mmoe train` over the streamed log, with the ids of its users as it says."""
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
    config, out = write_yaml(folder / "config.yaml", raw), folder / "run"
    started = time.perf_counter()
    ended = run_in_process(["train", config, "--out", str(out), "--quiet"], 1_800.0)
    took = time.perf_counter() - started
    if ended.code != 0:
        raise RuntimeError(f"mmoe train ended with {ended.code}: {ended.stderr[-2_000:]}")
    shutil.rmtree(out)
    return took


def _groups_log(folder: Path, groups: int) -> Path:
    users = np.random.default_rng(groups).integers(0, 400, groups * GROUP_ROWS)
    return _write(folder / f"groups-{groups}.parquet", users, GROUP_ROWS)


def _ids_log(folder: Path, ids: int, kind: str) -> Path:
    """As many rows as ids; the ids are far from consecutive."""
    users = np.random.default_rng(ids).permutation(ids) * 7_919 + 12_345
    values = users if kind == "integers" else pa.array(np.char.add("user ", users.astype(str)))
    return _write(folder / f"ids-{kind}.parquet", values, 100_000)


def _write(path: Path, users: Any, group_rows: int) -> Path:
    draw = np.random.default_rng(len(users))
    price = draw.random(len(users))
    click = (draw.random(len(users)) < price).astype(np.int64)
    pq.write_table(pa.table({"user": users, "price": price, "click": click}), path,
                   row_group_size=group_rows)  # fmt: skip
    return path
