"""Shifts of logits for tasks whose log keeps another share of negatives than it did."""

import math
from collections.abc import Mapping

from torch import Tensor

from mmoe.config import RunConfig
from mmoe.train.warm_start.compatibility import named_pairs


def rate_shifts(before: RunConfig, now: RunConfig) -> dict[str, float]:
    """Returns by task what to add to its logit so that probabilities stay what they were.

    A logit learnt under the rate r predicts `σ(logit + ln r)`; under the rate r′ it has to be
    `logit + ln(r / r′)`. Tasks whose rate stayed are left out,
    and all where a wide part is fitted to the new rows: its bias has the shift.

    Source: as `mmoe.tasks.predictions_from_logits`.
    """
    if now.model.wide:
        return {}
    pairs = named_pairs(before, now, lambda config: config.tasks)
    return {
        here.name: math.log(there.negative_sampling_rate / here.negative_sampling_rate)
        for there, here in pairs
        if there.negative_sampling_rate != here.negative_sampling_rate
    }


def shift_logits(
    values: Mapping[str, Tensor], tasks: list[str], shifts: Mapping[str, float]
) -> None:
    """Moves the last biases of the towers, in place.

    Args:
        values: Tensors of the network by name.
        tasks: In the order of the towers.
        shifts: By task.

    Example:
        >>> import torch
        >>> values = {"towers.0.logit.bias": torch.zeros(1)}
        >>> shift_logits(values, ["click"], {"click": 0.5})
        >>> values["towers.0.logit.bias"]
        tensor([0.5000])
    """
    for task, shift in shifts.items():
        values[f"towers.{tasks.index(task)}.logit.bias"].add_(shift)
