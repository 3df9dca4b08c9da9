"""Trains four tasks, the fifth on what is frozen then, and all five together."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.new_task.log import NEW, TASKS
from mmoe.config import RunConfig, config_from_dict, set_values
from mmoe.datasets.recipes import load_recipe
from mmoe.datasets.rows.splits import Splits
from mmoe.predictor import load_predictor
from mmoe.run import RunDirectory
from mmoe.train import WarmStart, train_run

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
    """What one seed found of the new task, AUC on the test split.

    Attributes:
        together: Of the model of all five.
        frozen: On the frozen one.
        with_experts: Where new experts came with it.
        equal: Whether the scores of the old tasks have the bits that they had, in both.
    """

    together: float
    frozen: float
    with_experts: float
    equal: bool


def splits_by_time(table: pa.Table) -> Splits:
    """The last tenth tests, the tenth before validates: ids come that training has not seen."""
    first, second = int(0.8 * len(table)), int(0.9 * len(table))
    return Splits(
        train=table[:first], validation=table[first:second], test=table[second:], origin="log"
    )


def config_of(tasks: Sequence[str], values: Sequence[str], seed: int) -> RunConfig:
    """The recipe `synthetic-funnel`, for other tasks."""
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
    """Trains the four runs of one seed."""
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
    """Scores of the old tasks."""
    predictor, _, config = load_predictor(run)
    names = [task.name for task in config.tasks]
    return predictor.predict(table)[:, [names.index(name) for name in OLD]]
