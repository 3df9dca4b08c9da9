"""What experts cost: bytes of their weights, and milliseconds a thousand rows, measured."""

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from statistics import median
from typing import Any, cast

import torch
from torch import Tensor, nn

from mmoe.config import RunConfig
from mmoe.datasets.rows.batch_source import BatchSource
from mmoe.explain.places import ExpertPlace, levels_of
from mmoe.mixture.experts.pool import Pool
from mmoe.mixture.requests.rows import RequestRows
from mmoe.models.network import Level, MixtureNetwork
from mmoe.models.ranker import Ranker
from mmoe.predictor import Predictor

# Rows that an expert is timed on, and how often
_ROWS, _TIMES = 1024, 7
_PER = 1000


@dataclass(frozen=True, kw_only=True)
class ExpertCost:
    """What one expert costs.

    Attributes:
        bytes: Of its weights, as they are trained.
        milliseconds: For a thousand rows that it computes; the median of some times.
    """

    bytes: int
    milliseconds: float


def costs_of(
    ranker: Ranker, config: RunConfig, rows: BatchSource, places: Sequence[ExpertPlace]
) -> list[ExpertCost]:
    """Weighs and times every expert alone, on rows as it reads them.

    Args:
        ranker: Whose network has them.
        config: Of its run.
        rows: Some of which are read.
        places: The experts.
    """
    network = ranker.network
    assert isinstance(network, MixtureNetwork)
    read = _read_by_levels(ranker, config, rows)
    found = []
    for place in places:
        mixture = levels_of(network)[place.level].mixture
        part = cast(Any, mixture.experts).part([place.expert])
        x_BD = read[place.level][mixture.expert_source[place.expert]]
        found.append(ExpertCost(bytes=_bytes(part), milliseconds=_milliseconds(part, x_BD)))
    return found


def _bytes(part: nn.Module) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in part.state_dict().values())


def _milliseconds(part: Pool, x_BD: Tensor) -> float:
    seconds = []
    with torch.no_grad():
        for _ in range(1 + _TIMES):
            start = time.perf_counter()
            part.dense([x_BD])
            if x_BD.is_cuda:
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
    return median(seconds[1:]) * 1000 / max(len(x_BD), 1) * _PER


def _read_by_levels(ranker: Ranker, config: RunConfig, rows: BatchSource) -> list[Sequence[Tensor]]:
    """The sources of each level, of the first rows."""
    network = ranker.network
    assert isinstance(network, MixtureNetwork)
    seen: list[Sequence[Tensor]] = []

    def see(level: nn.Module, args: tuple[Any, ...]) -> None:
        x = args[0]
        seen.append((x.whole,) if isinstance(x, RequestRows) else tuple(x))

    levels: list[Level] = levels_of(network)
    hooks = [level.mixture.register_forward_pre_hook(see) for level in levels]
    try:
        with closing(rows.chunks(0, min(len(rows), _ROWS))) as chunks:
            chunk = next(iter(chunks))
            predictor = Predictor(ranker, config)
            for _ in predictor.outputs(chunk.rows(0, min(len(chunk), predictor.height))):
                break
    finally:
        for hook in hooks:
            hook.remove()
    return seen
