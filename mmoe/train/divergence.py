"""The likeliest cause of a loss that is no finite number, looked for once it has come."""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from mmoe.config import RunConfig
from mmoe.datasets import Batch
from mmoe.datasets.features.encoder import codecs_of
from mmoe.embeddings import Lookups
from mmoe.errors import WHAT_TO_CHANGE
from mmoe.models import Ranker

# A label's or a row weight's size from which its squared error moves the weights out of range
_LARGE_LABEL = 1e6
# Deviations from the mean: one such number outweighs all others of its batch
_LARGE_NUMBER = 1e4
# A weight's size; healthy networks stay below 100
_LARGE_WEIGHT = 1e6
# Times the loss of the steps before
_GROWN = 3.0
_STEPS = 20
# Batches of so many steps are looked through: a step moves the weights that the next one reads
_STEPS_LOOKED_THROUGH = 3


class Cause(NamedTuple):
    """Cause of a step that diverged; of several the lowest `order` is the likeliest.

    Attributes:
        order: The more direct the evidence, the lower.
        what: Shown after `likeliest cause:`.
        mend: What to do.
    """

    order: int
    what: str
    mend: str


@dataclass
class RecentSteps:
    """The last steps of this process: their losses, and the batches of a few.

    Attributes:
        losses: Of the tasks, a list a step.
        batches: Of this rank.
    """

    losses: deque[Sequence[float]] = field(default_factory=lambda: deque(maxlen=_STEPS))
    batches: deque[Sequence[Batch]] = field(
        default_factory=lambda: deque(maxlen=_STEPS_LOOKED_THROUGH)
    )


def likeliest_cause(
    ranker: Ranker,
    batches: Sequence[tuple[Batch, Lookups | None]],
    read: Sequence[Tensor],
    config: RunConfig,
    recent: RecentSteps,
    *,
    alone: bool,
) -> Cause | None:
    """Looks for what made a step's loss NaN or infinite; None: nothing found here.

    Args:
        ranker: The model, as it was before the step.
        batches: Those of the step that diverged, each with what its ids were looked up to be.
        read: Everything that was looked up for the step.
        config: Of the run.
        recent: The steps before it, and this one's batches.
        alone: No other ranks: the step may be tried in fp32.
    """
    causes = [
        _labels(config, recent.batches),
        _numbers(config, recent.batches),
        _weights(ranker, read, config, first=not recent.losses),
        _precision(ranker, batches, config) if alone else None,
        _growth(config, recent.losses),
    ]
    return min((cause for cause in causes if cause is not None), default=None)


def _labels(config: RunConfig, steps: Sequence[Sequence[Batch]]) -> Cause | None:
    """Labels or weights of rows that are out of any range."""
    for t, task in enumerate(config.tasks):
        for what, key, mend in (
            (f"a label of task {task.name} is", "labels_BT", "clip the label or take its log1p"),
            (f"a row weight of task {task.name} is", "weights_BT", "clip the weights"),
        ):
            worst = _worst(_column(batch, key, t) for batches in steps for batch in batches)
            if not abs(worst) <= _LARGE_LABEL:
                return Cause(0, f"{what} {worst:.3g} in this step or the two before", mend)
    return None


def _column(batch: Batch, key: str, t: int) -> Tensor:
    """The observed entries of a column of labels or weights."""
    values_BT, observed_BT = getattr(batch, key), batch.observed_BT
    if values_BT is None or observed_BT is None:
        return torch.zeros(0)
    return values_BT[:, t][observed_BT[:, t]]


def _numbers(config: RunConfig, steps: Sequence[Sequence[Batch]]) -> Cause | None:
    """A feature with values far from all others."""
    columns: dict[str, list[Tensor]] = {}
    for batch in (batch for batches in steps for batch in batches):
        for names, matrix in _dense(config, batch):
            if matrix.shape[1] != len(names):
                return None
            for name, column in zip(names, matrix.T, strict=True):
                columns.setdefault(name, []).append(column)
    for name, found in columns.items():
        worst = _worst(found)
        if not abs(worst) <= _LARGE_NUMBER:
            return Cause(
                1,
                f"feature {name} is {worst:.3g} after scaling in this step or the two before, far "
                "from all others",
                f"clip the column, or set log: true on {name} (and no standardise: false)",
            )
    return None


def _dense(config: RunConfig, batch: Batch) -> list[tuple[list[str], Tensor]]:
    """Dense columns of the batch's rows, and of its requests, with their names."""
    codecs = [(codec.feature.asked_level, codec.dense_names) for codec in codecs_of(config)]
    if batch.request_dense_QF is None:
        return [([name for _, names in codecs for name in names], batch.dense_BF)]
    of_requests = [name for level, names in codecs if level == "request" for name in names]
    of_rows = [name for level, names in codecs if level != "request" for name in names]
    return [(of_requests, batch.request_dense_QF), (of_rows, batch.dense_BF)]


def _weights(
    ranker: Ranker, read: Sequence[Tensor], config: RunConfig, *, first: bool
) -> Cause | None:
    """Weights of the network or rows of tables that were no numbers, or huge, before the step."""
    worst = {name: _worst([weight]) for name, weight in ranker.network.named_parameters()}
    if read:
        worst["the embedding tables"] = _worst(read)
    wrong = [name for name, value in worst.items() if not math.isfinite(value)]
    rate = config.training.optimizer.learning_rate
    if wrong and first:
        return Cause(
            2,
            f"weights were NaN or infinite before this step, the first of this process "
            f"({wrong[0]}{f' and {len(wrong) - 1} more' if len(wrong) > 1 else ''})",
            "the run that was resumed or continued had diverged: start anew, or from an earlier "
            f"checkpoint; and {WHAT_TO_CHANGE}",
        )
    name = max(worst, key=lambda name: abs(worst[name]), default="")
    if wrong:
        what = f"the update before made weights NaN or infinite ({wrong[0]})"
    elif worst and abs(worst[name]) > _LARGE_WEIGHT:
        what = f"weights have grown to {abs(worst[name]):.3g} ({name})"
    else:
        return None
    return Cause(5, f"a learning rate ({rate:g}) that is too high: {what}", WHAT_TO_CHANGE)


def _precision(
    ranker: Ranker, batches: Sequence[tuple[Batch, Lookups | None]], config: RunConfig
) -> Cause | None:
    """The same step in fp32 is finite: bf16 is the cause."""
    if config.training.precision != "bf16":
        return None
    with torch.no_grad():
        for batch, lookups in batches:
            try:
                logits_BT = ranker(batch, lookups).logits_BT
            except ValueError:
                return None
            if not bool(logits_BT.isfinite().all()):
                return None
    return Cause(
        3,
        "training.precision: bf16, in which numbers overflow or are rounded away that fp32 holds",
        "set training.precision: fp32, or lower the learning rate",
    )


def _growth(config: RunConfig, losses: Sequence[Sequence[float]]) -> Cause | None:
    """A loss that had been growing."""
    for t, task in enumerate(config.tasks):
        of_task = [step[t] for step in losses if step[t] > 0]
        if len(of_task) < 2:
            continue
        last, before = of_task[-1], sorted(of_task[:-1])[(len(of_task) - 1) // 2]
        if last > _GROWN * before:
            rate = config.training.optimizer.learning_rate
            return Cause(
                4,
                f"a learning rate ({rate:g}) that is too high: the loss of {task.name} went from "
                f"{before:.3g} to {last:.3g} within {len(of_task)} steps",
                WHAT_TO_CHANGE,
            )
    return None


def _worst(tensors: Iterable[Tensor]) -> float:
    """The value of the largest size; NaN or infinity where there is one, 0 of nothing."""
    worst = 0.0
    for tensor in tensors:
        if not tensor.numel():
            continue
        low, high = (float(value) for value in torch.aminmax(tensor.detach().float()))
        value = low if abs(low) > abs(high) or math.isnan(low) else high
        if not abs(value) <= abs(worst) and not math.isnan(worst):
            worst = value
    return worst
