"""Experts whose output does not depend on their input: found by running them on some rows."""

from collections.abc import Sequence
from typing import Any

import torch

from mmoe.datasets.rows.encoded import EncodedData
from mmoe.mixture import MultiGateMixture
from mmoe.mixture.requests.rows import RequestRows
from mmoe.models.network import Level, MixtureNetwork
from mmoe.predictor import ROWS_PER_TILE, Predictor

# Rows they are run on: a unit that is 0 for all of them is as good as dead
ROWS = 8 * ROWS_PER_TILE
_FEWEST_ROWS = ROWS_PER_TILE
# Of the largest output in size; less is rounding
_CONSTANT = 1e-6


@torch.no_grad()
def constant_experts(predictor: Predictor, rows: EncodedData) -> list[tuple[int, str]]:
    """Returns level and name of each expert with one output for all rows; [] where it has none.

    On one process alone: spread experts are elsewhere.

    Args:
        predictor: The model.
        rows: Some rows, which may differ in all features.
    """
    network = predictor.ranker.network
    if not isinstance(network, MixtureNetwork) or not network.learned_gates:
        return []
    if predictor.ranks > 1 or len(rows) < _FEWEST_ROWS:
        return []
    read: list[Any] = []
    levels = [level for level in network.levels if isinstance(level, Level)]
    hooks = [
        level.mixture.register_forward_pre_hook(lambda _, args: read.append(args[0]))
        for level in levels
    ]
    try:
        predictor.predict(rows.rows(0, min(len(rows), ROWS)))
    finally:
        for hook in hooks:
            hook.remove()
    found = []
    for number, (level, sources) in enumerate(zip(levels, read, strict=False), start=1):
        names = level.expert_names
        found += [(number, names[e]) for e in _constant(level.mixture, sources)]
    return found


def _constant(
    mixture: MultiGateMixture, sources: Sequence[torch.Tensor] | RequestRows
) -> list[int]:
    """Experts of one level; outputs that are no tensors are not looked at."""
    if isinstance(sources, RequestRows):
        sources = [sources.whole]
    read = mixture.expert_source
    read = read[:1] if len({*read}) == 1 else read  # one input serves all experts
    pool: Any = mixture.experts
    outputs = pool.dense([sources[s].float() for s in read])
    flat = [y.flatten(1) if isinstance(y, torch.Tensor) else None for y in outputs]
    return [
        e
        for e, y_BO in enumerate(flat)
        if y_BO is not None
        and bool((y_BO.amax(0) - y_BO.amin(0)).max() <= _CONSTANT * y_BO.abs().max())
    ]
