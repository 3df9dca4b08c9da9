"""`Layout`: how a network lies over ranks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from mmoe.config.model import ModelConfig
from mmoe.config.parallel import ParallelConfig
from mmoe.mixture.rank_sums import ONE_RANK, RankSums
from mmoe.mixture.requests.columns import RequestColumns
from mmoe.parallel import AllReduceSums, Hosts, Mode, rank, world_size
from mmoe.parallel.experts.mode import ROWS_TRAVEL


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a network lies over ranks: who holds which experts; towers and gates are on all.

    Attributes:
        world_size: W.
        rank: Of this process.
        spread: Each expert is on one rank, of every level's pool as evenly as can be
            (`ExpertPlacement.even`); else every rank has all experts.
        wire_dtype: What rows travel in to spread experts; None: their own type.
        mode: How rows and spread experts meet; `auto`: chosen while training goes on.
        hosts: How the ranks lie on hosts; None: as the launcher says.
        sums: By which gates' losses, and batch norms, see the rows of all ranks.
        stage_columns: For each of `model.stages`, the columns of x that its gates and experts read;
            None: all of them.
        requests: Which columns of x are of requests; None: rows have none.
    """

    world_size: int = 1
    rank: int = 0
    spread: bool = False
    wire_dtype: torch.dtype | None = None
    mode: Mode | Literal["auto"] = ROWS_TRAVEL
    hosts: Hosts | None = None
    sums: RankSums = ONE_RANK
    stage_columns: tuple[Sequence[int] | None, ...] = ()
    requests: RequestColumns | None = None


ONE_PROCESS = Layout()


def choose_layout(model: ModelConfig, parallel: ParallelConfig | None) -> Layout:
    """Returns the layout over the ranks of the process group, or of one process.

    Args:
        model: Its gates decide what `experts: auto` means.
        parallel: None: this process is on its own, whatever ranks there are.

    Example:
        >>> from mmoe.config import ModelConfig
        >>> from mmoe.config.parallel import ParallelConfig
        >>> from mmoe.models.layout import choose_layout
        >>> choose_layout(ModelConfig(), ParallelConfig()).world_size
        1
    """
    if parallel is None or world_size() == 1:
        return ONE_PROCESS
    spread = experts_are_spread(model, parallel)
    return Layout(
        world_size=world_size(),
        rank=rank(),
        spread=spread,
        wire_dtype=torch.bfloat16 if parallel.wire_precision == "bf16" else None,
        mode=_mode(parallel),
        hosts=Hosts.of_group(host_size=parallel.host_size) if spread else None,
        sums=AllReduceSums(),
    )


def _mode(parallel: ParallelConfig) -> Mode | Literal["auto"]:
    if parallel.exchange == "auto":
        return "auto"
    return Mode(
        hierarchical=parallel.exchange == "hierarchical",
        chunks=parallel.chunks,
        shadowed="all" if parallel.exchange == "gathered" else (),
    )


def experts_are_spread(model: ModelConfig, parallel: ParallelConfig) -> bool:
    """Returns whether each rank of several holds some of the experts.

    With `experts: auto` they are where the gates pick. Where every gate reads every expert, each
    row would travel to every rank; adding up gradients sends less, but for very large experts.

    Example:
        >>> from mmoe.config import ModelConfig
        >>> from mmoe.config.parallel import ParallelConfig
        >>> sparse = ModelConfig(gate={"kind": "top_k", "k": 2})
        >>> [experts_are_spread(m, ParallelConfig()) for m in (ModelConfig(), sparse)]
        [False, True]
    """
    if parallel.experts != "auto":
        return parallel.experts == "spread"
    picks = model.has_gates and model.gate.picks is not None
    return picks and model.execution in ("auto", "grouped")
