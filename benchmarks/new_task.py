"""A new task on a live model: `python -m benchmarks.new_task`; the last line is JSON.

Four tasks of an invented log are trained, and frozen; a fifth one is trained on what they have. It
is compared with the same task in a model that is trained for all five, seed by seed.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.racing.harness import Result, Spread, Target, last_line, print_table, processor
from mmoe.config import RunConfig, config_from_dict, set_values
from mmoe.datasets.bundled.synthetic import (
    CLICK_SPREAD,
    REFERENCE_ROWS,
    SHARES,
    Impressions,
    draw_impressions,
    draw_market,
    draw_parts,
    generate_funnel,
    part_values,
)
from mmoe.datasets.recipes import load_recipe
from mmoe.datasets.rows.splits import Splits
from mmoe.embeddings import torchrec_problem
from mmoe.predictor import load_predictor
from mmoe.run import RunDirectory
from mmoe.train import WarmStart, train_run

# Rows of `synthetic-funnel` with five labels of correlated logits, which are known

TASKS = {"click": 0.3, "like": 0.2, "share": 0.1, "follow": 0.15, "save": 0.2}  # and their rates
NEW = "save"


def task_log(rows: int, *, correlation: float, seed: int, users: int, items: int) -> pa.Table:
    """Draws a log with a label for each of `TASKS`.

    With s₀ a signal that all share and s_t one of each task's own, both as in `synthetic-funnel`:
    `logit_t = a_t + b · (√ρ · s₀ + √(1 − ρ) · s_t)`, so that two logits have the correlation ρ.

    Returns the columns of `synthetic-funnel` without its labels, and one 0/1 column a task.
    """
    log = generate_funnel(rows, users=users, items=items, seed=seed).table
    # The rows of that log: it draws them from these streams
    market_rng, _, reference_rng, rows_rng, _ = np.random.default_rng(seed).spawn(5)
    market = draw_market(market_rng, users, items)
    reference = draw_impressions(reference_rng, market, REFERENCE_ROWS)
    seen = draw_impressions(rows_rng, market, rows)
    truth_rng, label_rng = np.random.default_rng((seed, 5)).spawn(2)
    shared_N = _signal(truth_rng, reference, seen)
    table = log.drop_columns(["click", "purchase"])
    for name, rate in TASKS.items():
        own_N = _signal(truth_rng, reference, seen)
        signal_N = np.sqrt(correlation) * shared_N + np.sqrt(1 - correlation) * own_N
        p_N = _probability(CLICK_SPREAD * signal_N, rate)
        label_N = label_rng.random(rows) < p_N
        table = table.append_column(name, pa.array(label_N.astype(np.int8)))
    return table


def _signal(rng: np.random.Generator, reference: Impressions, seen: Impressions) -> np.ndarray:
    """A new signal, of mean 0 and variance 1 on the reference rows."""
    market = reference.market
    parts = draw_parts(rng, len(market.user_id), len(market.item_id))
    total, total_seen = np.zeros(len(reference.user)), np.zeros(len(seen.user))
    for name, share in SHARES.items():
        values = part_values(name, parts[name], reference)
        scale = np.sqrt(share) / max(float(values.std()), 1e-12)
        total += scale * (values - values.mean())
        total_seen += scale * (part_values(name, parts[name], seen) - values.mean())
    return total_seen / total.std()


def _probability(logit_N: np.ndarray, rate: float) -> np.ndarray:
    """Moves logits so that the mean probability is the rate, by bisection."""
    low, high = -40.0, 40.0
    for _ in range(60):
        middle = (low + high) / 2
        mean = float(np.mean(1 / (1 + np.exp(-(middle + logit_N)))))
        low, high = (middle, high) if mean < rate else (low, middle)
    return 1 / (1 + np.exp(-((low + high) / 2 + logit_N)))


# Trains four tasks, the fifth on what is frozen then, and all five together

FREEZE = ["experts", "gates", "towers", "tables", "encoder"]
OLD = [name for name in TASKS if name != NEW]
# A gate and a tower alone have little to overfit with: the rate and epochs of the recipe, which are
# those of a whole model, leave them half trained (AUC 0.802 instead of 0.816)
ALONE = [
    "training.optimizer.learning_rate=0.01",
    "training.optimizer.weight_decay=0.01",
    "training.epochs=12",
]


@dataclass(frozen=True)
class Found:
    """What one seed found of the new task, AUC on the test split."""

    together: float  # Of the model of all five
    frozen: float  # On the frozen one
    with_experts: float  # Where new experts came with it
    equal: bool  # Whether the scores of the old tasks have the bits that they had, in both


def splits_by_time(table: pa.Table) -> Splits:
    """The last tenth tests, the tenth before validates: ids come that training has not seen."""
    first, second = int(0.8 * len(table)), int(0.9 * len(table))
    return Splits(
        train=table[:first], validation=table[first:second], test=table[second:], origin="log"
    )


def config_of(tasks: Sequence[str], values: Sequence[str], seed: int) -> RunConfig:
    raw: dict[str, Any] = load_recipe("synthetic-funnel", []).model_dump(
        mode="json", exclude_none=True
    )
    raw["tasks"] = [{"name": name, "label": name} for name in tasks]
    raw["data"] = {"group_column": "user_id"}
    given = [f"seed={seed}", "training.loggers=[]", *values]
    return config_from_dict(set_values(raw, given))


def compare(
    table: pa.Table,
    folder: Path,
    *,
    seed: int,
    new_experts: int,
    values: Sequence[str],
    say: Callable[[str], None],
) -> Found:
    splits = splits_by_time(table)
    together = config_of([*OLD, NEW], values, seed)
    more = together.model.num_experts + new_experts
    alone = config_of([*OLD, NEW], [*ALONE, *values], seed)
    keep = alone.model_dump(mode="json", exclude_none=True)
    keep["training"]["freeze"] = FREEZE
    frozen = config_from_dict(keep)
    wider = config_from_dict(set_values(keep, [f"model.num_experts={more}"]))
    runs: dict[str, RunDirectory] = {}
    auc: dict[str, float] = {}
    for name, config in (
        ("four", config_of(OLD, values, seed)),
        ("together", together),
        ("frozen", frozen),
        ("with experts", wider),
    ):
        start = WarmStart(runs["four"].path) if config.training.freeze else None
        out = folder / f"{name.replace(' ', '-')}-{seed}"
        run = train_run(config, out, splits=splits, warm_start=start)
        runs[name] = run.directory
        if NEW in run.metrics["tasks"]:
            auc[name] = run.metrics["tasks"][NEW]["auc"]
            say(f"  seed {seed}, {name}: AUC of {NEW} {auc[name]:.4f}")
    before = scores(runs["four"], splits.test)
    equal = all(
        scores(runs[name], splits.test).tobytes() == before.tobytes()
        for name in ("frozen", "with experts")
    )
    return Found(auc["together"], auc["frozen"], auc["with experts"], equal)


def scores(run: RunDirectory, table: pa.Table) -> np.ndarray:
    predictor, _, config = load_predictor(run)
    names = [task.name for task in config.tasks]
    return predictor.predict(table)[:, [names.index(name) for name in OLD]]


# Are old tasks' scores the same bits, whatever the model is made of?

SMALL = (
    "model.expert.hidden=[16, 8]", "model.tower.hidden=[8]", "model.num_experts=4",
    "training.epochs=1", "training.ema_decay=0.9",
)  # fmt: skip
GATES = {
    "softmax": ("model.gate.kind=softmax",),
    "top_k": ("model.gate.kind=top_k", "model.gate.k=2"),
    "noisy_top_k": ("model.gate.kind=noisy_top_k", "model.gate.k=2"),
    "cosine": ("model.gate.kind=cosine", "model.gate.k=2"),
    "sigmoid": ("model.gate.kind=sigmoid", "model.gate.k=2"),
}
BATCH_NORM = ("model.expert.norm=batch", "model.expert.activation=silu")
MANAGED = ("features.0.encoding=managed", "features.0.rows=300")


def unequal(table: pa.Table, folder: Path, say: Callable[[str], None]) -> list[str]:
    """Names the cases whose old tasks score otherwise after the new task has come.

    Each with an average of weights, batch norm, managed ids (where TorchRec is installed), a new
    feature and new experts, on rows with ids that training has not seen.
    """
    splits = splits_by_time(table)
    wrong = []
    managed = () if torchrec_problem() else MANAGED
    for name, gate in GATES.items():
        values = [*SMALL, *gate, *BATCH_NORM, *managed]
        before = config_of(OLD, values, 0).model_dump(mode="json", exclude_none=True)
        *features, new = before["features"]
        first = config_from_dict({**before, "features": features})
        one = train_run(first, folder / f"{name}-before", splits=splits)
        raw = config_of([*OLD, NEW], values, 0).model_dump(mode="json", exclude_none=True)
        raw = set_values({**raw, "features": [new, *features]}, ["model.num_experts=6"])
        raw["training"]["freeze"] = FREEZE
        two = train_run(
            config_from_dict(raw),
            folder / f"{name}-after",
            splits=splits,
            warm_start=WarmStart(one.directory.path),
        )
        pair = [scores(run.directory, table).tobytes() for run in (one, two)]
        say(f"  {name}: {'equal' if pair[0] == pair[1] else 'other'} bits")
        if pair[0] != pair[1]:
            wrong.append(name)
    return wrong


# A new task on a live model: `python -m benchmarks.new_task`; the last line is JSON

TARGETS = {"frozen_equal": Target(1), "new_task_gap": Target(0.004, at_most=True)}
USERS, ITEMS = 30_000, 10_000


def main() -> None:
    given = _arguments()
    started, say = time.perf_counter(), partial(print, flush=True)
    folder = Path(given.folder or tempfile.mkdtemp(prefix="new-task-"))
    say("old tasks' scores before and after:")
    small = task_log(given.equal_rows, correlation=0.7, seed=9, users=2_000, items=500)
    wrong = unequal(small, folder / "equal", say)
    found: dict[float, list[Found]] = {}
    for correlation in given.correlations:
        say(f"logits of correlation {correlation:g}:")
        found[correlation] = [
            compare(
                task_log(given.rows, correlation=correlation, seed=seed, users=USERS, items=ITEMS),
                folder / f"{correlation:g}",
                seed=seed,
                new_experts=given.new_experts,
                values=given.set,
                say=say,
            )
            for seed in range(given.seeds)
        ]
    every = [one for of_one in found.values() for one in of_one]
    equal = float(not wrong and all(one.equal for one in every))
    first = given.correlations[0]
    results = [Result("frozen_equal", _spread([equal]))]
    for correlation, of_one in found.items():
        more = "" if correlation == first else f"_c{100 * correlation:.0f}"
        gaps = [one.together - one.frozen for one in of_one]
        wins = [one.with_experts - one.frozen for one in of_one]
        note = f"{NEW}, correlation {correlation:g}"
        results.append(Result(f"new_task_gap{more}", _spread(gaps), note=note, digits=4))
        note = f"{given.new_experts} new experts"
        results.append(Result(f"new_experts_win{more}", _spread(wins), note=note, digits=4))
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
    last_line(line, given.out)


def _spread(values: list[float]) -> Spread:
    return Spread(statistics.fmean(values), min(values), max(values), len(values))


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
