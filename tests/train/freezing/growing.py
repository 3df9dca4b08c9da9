"""A log and configs by which a model grows: two tasks and some ids first, then what is new."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from mmoe.config import RunConfig, config_from_dict, set_values
from mmoe.datasets.rows.splits import Splits
from mmoe.predictor import load_predictor
from mmoe.run.directory import RunDirectory

FREEZE = ("experts", "gates", "towers", "tables", "encoder")
SMALL = (
    "model.expert.hidden=[8, 4]",
    "model.tower.hidden=[4]",
    "training.epochs=1",
    "training.loggers=[]",
    "training.batch_size=150",
)
AGE = {"kind": "numeric", "name": "age"}
PLACE = {"kind": "categorical", "name": "place"}
OLD = ("click", "buy")
# Settings of models
BATCH_NORM = ("model.expert.norm=batch", "training.ema_decay=0.8")
TOP_K = ("model.num_experts=4", "model.gate.kind=top_k", "model.gate.k=2")
TOGETHER = ("model.num_experts=4", "model.gate.kind=top_k", "model.gate.select_voters=[click,buy]")
JOINT = (*TOGETHER, "model.gate.select=joint", "model.gate.shared_k=1", "model.gate.private_k=1")
BUDGET = (*TOGETHER, "model.gate.select=budget", "model.gate.budget=2", "model.gate.k=2")


def grown_log(funnel: pa.Table) -> pa.Table:
    """The funnel with a third label, two further columns, and one for domains."""
    rng = np.random.default_rng(11)
    rows = funnel.num_rows
    user, price = funnel["user"].to_numpy(), funnel["price"].to_numpy()
    like = rng.random(rows) < np.where(user % 3 == 0, 0.7, 0.2) + 0.1 * (price > 1)
    return (
        funnel.append_column("like", pa.array(like.astype(int)))
        .append_column("age", pa.array(rng.normal(size=rows)))
        .append_column("place", pa.array([f"p{n}" for n in rng.integers(0, 6, rows)]))
        .append_column("scene", pa.array(rng.choice(["feed", "live", "shop", "radio"], rows)))
    )


def splits_of(log: pa.Table, *, users: int = 40) -> Splits:
    """Some hundred rows, those of users below a number; the others are new ids to what is fitted.

    Args:
        log: As `grown_log` made it.
        users: Of 40.
    """
    known = log.filter(pa.array(log["user"].to_numpy() < users))
    return Splits(
        train=known[:900], validation=known[900:1050], test=known[1050:1200], origin="log"
    )


def config_of(
    raw: dict[str, Any], *values: str, new: bool = False, features: tuple[dict, ...] = ()
) -> RunConfig:
    """The funnel's config, small; `new` adds the task `like` and what is frozen then."""
    raw = set_values(raw, [*SMALL, *values])
    # In between, so that columns of old features move
    first, *rest = raw["features"]
    raw = {**raw, "features": [first, *features, *rest]}
    if new:
        training = {"freeze": list(FREEZE), **raw["training"]}
        tasks = [*raw["tasks"], {"name": "like", "label": "like"}]
        raw = {**raw, "training": training, "tasks": tasks}
    return config_from_dict(raw)


def scores(run: RunDirectory, rows: pa.Table, tasks: Sequence[str] = OLD) -> np.ndarray:
    """What a run predicts of some tasks."""
    predictor, _, config = load_predictor(run)
    names = [task.name for task in config.tasks]
    return predictor.predict(rows)[:, [names.index(task) for task in tasks]]


def assert_unchanged(run: RunDirectory, tasks: Sequence[str] = OLD) -> None:
    """That a run says of these tasks that they score as before."""
    summary = run.metrics()["train"]["frozen"]
    assert set(summary["unchanged_tasks"]) == set(tasks) and not summary["changed_tasks"]
