"""One generated log: the untouched config against the rivals, task by task."""

import hashlib
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.first_try.careful import Columns, frame_of
from benchmarks.first_try.judge import Verdict, judged
from benchmarks.first_try.logs import Log
from benchmarks.first_try.ours import Trained, inferred, kinds_found, trained
from benchmarks.first_try.rivals import Rival, rivals, seconds_of_trees
from mmoe.config import RunConfig
from mmoe.datasets import load_splits

_SMALL = 30_000  # rows below which seeds vary more
_SEEDS, _SEEDS_SMALL = 3, 5

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Raced:
    """What came of one log.

    Attributes:
        verdicts: One a task.
        right: Column → whether init found a kind that is right.
        wrong: Column → what it was taken for instead.
        seconds_over_trees: Seconds of init and training over those of fitting boosted trees to
            each task, which alternate; medians.
    """

    verdicts: list[Verdict]
    right: dict[str, bool]
    wrong: dict[str, str]
    seconds_over_trees: float


def race(
    log: Log, folder: Path, *, test_rows: int, seeds: int | None, overrides: Sequence[str], say: Say
) -> Raced:
    """Trains and judges; the rivals' predictions stay in the folder for the next time."""
    folder.mkdir(parents=True, exist_ok=True)
    config_path, train_path, test_path = (
        folder / name for name in ("config.yaml", "train.parquet", "test.parquet")
    )
    pq.write_table(log.training(), train_path)
    test, true = log.test(test_rows)
    pq.write_table(test, test_path)
    config, init_seconds = inferred(train_path, list(log.rates), config_path)
    found = kinds_found(config, log.kinds)
    wrong = {name: kind for name, kind in found.items() if kind not in log.kinds[name]}
    say(f"{log.name}: init {init_seconds:.1f} s; wrong: {wrong or 'none'}")
    splits = load_splits(config)
    parts = {"train": frame_of(splits.train), "validation": frame_of(splits.validation)}
    columns = Columns.of(log.kinds, parts["train"])
    against = _rivals(log, config, folder, parts, columns, test)
    runs, of_trees = [], []
    for seed in range(1, 1 + (seeds or (_SEEDS_SMALL if log.rows < _SMALL else _SEEDS))):
        of_trees.append(seconds_of_trees(columns, parts["train"], list(log.rates)))
        runs.append(trained(config_path, test_path, seed, overrides))
    verdicts = []
    for task in log.rates:
        labels_N = test[task].to_numpy(zero_copy_only=False).astype(np.float64)
        verdict = _judge(log, task, labels_N, true[task], runs, against[task])
        say(_line(verdict))
        verdicts.append(verdict)
    trees = statistics.median(of_trees)
    mine = init_seconds + statistics.median(run.seconds for run in runs)
    say(f"  fitted in {mine:.1f} s, boosted trees in {trees:.2f} s: {mine / trees:.1f} times")
    right = {name: name not in wrong for name in found}
    return Raced(verdicts=verdicts, right=right, wrong=wrong, seconds_over_trees=mine / trees)


def _judge(
    log: Log,
    task: str,
    labels_N: np.ndarray,
    true_N: np.ndarray,
    runs: Sequence[Trained],
    against: Sequence[Rival],
) -> Verdict:
    seen_N = ~np.isnan(labels_N)
    return judged(
        labels_N[seen_N],
        [run.scores[task][seen_N] for run in runs],
        {rival.name: rival.scores_N[seen_N] for rival in against},
        log=log.name,
        family=log.family,
        task=task,
        true_N=true_N[seen_N],
    )


def _line(v: Verdict) -> str:
    return (
        f"  {v.task:12} {v.auc:.4f}  {v.better:26} {v.better_auc:.4f}  best possible "
        f"{v.oracle:.4f}  {v.difference:+.4f} [{v.low:+.4f}, {v.high:+.4f}]"
        f"{'' if v.won else '  lost'}"
    )


def _rivals(
    log: Log,
    config: RunConfig,
    folder: Path,
    parts: Mapping[str, pd.DataFrame],
    columns: Columns,
    test: pa.Table,
) -> dict[str, list[Rival]]:
    """Those of every task: fitted, or read if the rows and this code are the same."""
    key = hashlib.sha256(
        (config.data.split.model_dump_json() + str(config.split_seed) + str(test.num_rows)).encode()
    ).hexdigest()[:12]
    stored = folder / f"rivals-{key}.npz"
    if stored.exists():
        return _read(stored)
    labels = list(log.rates)
    rows = frame_of(test, without=labels)
    found = {task: rivals(columns, parts, task, rows) for task in labels}
    _write(stored, found)
    return found


def _write(path: Path, found: Mapping[str, Sequence[Rival]]) -> None:
    about: dict[str, Any] = {
        task: [[r.name, dict(r.settings)] for r in each] for task, each in found.items()
    }
    arrays = {f"{t}/{i}": r.scores_N for t, each in found.items() for i, r in enumerate(each)}
    np.savez(path, about=np.array(json.dumps(about)), **arrays)  # type: ignore[arg-type]


def _read(path: Path) -> dict[str, list[Rival]]:
    with np.load(path, allow_pickle=False) as stored:
        about = json.loads(str(stored["about"]))
        return {
            task: [
                Rival(name, stored[f"{task}/{i}"], settings)
                for i, (name, *_, settings) in enumerate(each)
            ]
            for task, each in about.items()
        }
