"""What experts cost: bytes of their weights, and milliseconds a thousand rows, measured."""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from mmoe.config import RunConfig
from mmoe.datasets.rows.batch_source import BatchSource
from mmoe.explain.places import ExpertPlace, levels_of
from mmoe.mixture import MixedExperts, MultiGateMixture
from mmoe.mixture.experts.pool import Pool
from mmoe.mixture.requests.rows import RequestRows, read_by_experts
from mmoe.mixture.traits import GateTraits, traits_of
from mmoe.models.network import Level, MixtureNetwork
from mmoe.models.ranker import Ranker
from mmoe.predictor import Predictor

# Rows that an expert is timed on, and how often; of requests as many as are scored at once, as the
# last tile of requests, which is not full, weighs less there
_ROWS, _TIMES = 1024, 7
_PER = 1000

Source = Tensor | RequestRows
Run = Callable[[], Any]


@dataclass(frozen=True, kw_only=True)
class ExpertCost:
    """What one expert costs.

    Attributes:
        bytes: Of its weights, as they are trained.
        milliseconds: For a thousand rows; the median of some times. Of an expert of the request it
            is what their requests take, each computed once, and handing it to the rows.
        once_per: What it is computed once for.
        rows_per_request: Of the rows that it was timed on; None: they are of no requests.
    """

    bytes: int
    milliseconds: float
    once_per: Literal["request", "row"] = "row"
    rows_per_request: float | None = None


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
        source = read[place.level][mixture.expert_source[place.expert]]
        with torch.no_grad():
            once_per, run = work_of(mixture, place.expert, source)
            milliseconds = _milliseconds(run, source)
        each = None
        if isinstance(source, RequestRows):
            each = len(source) / max(source.owners.count, 1)
        found.append(
            ExpertCost(
                bytes=_bytes(part),
                milliseconds=milliseconds,
                once_per=once_per,
                rows_per_request=each,
            )
        )
    return found


def work_of(
    mixture: MultiGateMixture, expert: int, source: Source
) -> tuple[Literal["request", "row"], Run]:
    """Returns what an expert does for rows, and what it does it once for.

    Of rows of requests it is what scoring does: an expert of the request runs on the requests, and
    the first layer of one of the row has its part of the request computed once, where all experts
    run on all rows. Where gates pick, those of the row run on whole rows.

    Args:
        mixture: That has it.
        expert: Its place.
        source: What it reads.
    """
    pool = cast(Any, mixture.experts)
    if not isinstance(source, RequestRows):
        return "row", partial(pool.part([expert]).dense, [source])
    if isinstance(pool, MixedExperts) and pool.requests is not None:
        of_request, of_row = cast(Sequence[Any], pool.pools)
        if expert < len(of_request):
            one = of_request.part([expert])
            return "request", partial(_once_a_request, one, source)
        pool, expert = of_row, expert - len(of_request)
    one: Any = pool.part([expert])
    picks = traits_of(mixture.gate, GateTraits).k is not None
    read = read_by_experts(None if picks else one, source)
    if isinstance(read, RequestRows):
        return "row", partial(one.of_requests, read)
    return "row", partial(one.dense, [read])


def _once_a_request(one: Pool, rows: RequestRows) -> list[Tensor]:
    def run(x_QP: Tensor) -> Any:
        return one.dense([read_by_experts(None, x_QP)])

    return rows.repeat_all(rows.once(run))


def _bytes(part: nn.Module) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in part.state_dict().values())


def _milliseconds(run: Run, source: Source) -> float:
    seconds = []
    is_cuda = (source.x_BR if isinstance(source, RequestRows) else source).is_cuda
    for _ in range(1 + _TIMES):
        start = time.perf_counter()
        run()
        if is_cuda:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return median(seconds[1:]) * 1000 / max(len(source), 1) * _PER


def _read_by_levels(ranker: Ranker, config: RunConfig, rows: BatchSource) -> list[Sequence[Source]]:
    """The sources of each level, of the first rows."""
    network = ranker.network
    assert isinstance(network, MixtureNetwork)
    seen: list[Sequence[Source]] = []

    def see(level: nn.Module, args: tuple[Any, ...]) -> None:
        x = args[0]
        seen.append((x,) if isinstance(x, RequestRows) else tuple(x))

    levels: list[Level] = levels_of(network)
    hooks = [level.mixture.register_forward_pre_hook(see) for level in levels]
    try:
        predictor = Predictor(ranker, config)
        most = _ROWS if config.data.requests is None else max(predictor.height, _ROWS)
        with closing(rows.chunks(0, min(len(rows), most))) as chunks:
            chunk = next(iter(chunks))
            predictor.output(chunk, slice(0, min(len(chunk), predictor.height)))
    finally:
        for hook in hooks:
            hook.remove()
    return seen
