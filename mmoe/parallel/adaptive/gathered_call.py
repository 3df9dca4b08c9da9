"""Numbers of a call gathered from all ranks before they choose how it runs."""

from collections.abc import Sequence
from typing import Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor

from mmoe.mixture import DispatchPlan
from mmoe.mixture.experts.contract import pool_of
from mmoe.mixture.pytrees import Tree
from mmoe.mixture.routing.dispatcher import Compute
from mmoe.parallel.adaptive.call_costs import Call
from mmoe.parallel.experts.moves.balance import pairs_of_experts
from mmoe.parallel.experts.placement import ExpertPlacement
from mmoe.parallel.experts.wire import Wire
from mmoe.parallel.hosts import Hosts


class Asking(Protocol):
    """Part of a dispatcher that a gathered call reads."""

    wire: Wire
    wire_dtype: torch.dtype | None

    @property
    def placement(self) -> ExpertPlacement:
        """Placement of the experts."""
        ...

    @property
    def hosts(self) -> Hosts:
        """Hosts of the ranks."""
        ...

    @property
    def num_experts(self) -> int:
        """E, over all ranks."""
        ...


def gathered_call(
    dispatcher: Asking, sources: Sequence[Tree], plan: DispatchPlan, compute: Compute
) -> Call:
    """Returns what the cost model wants to know of a call of all ranks; all have to ask.

    Args:
        dispatcher: Whose call it is.
        sources: S tensors `x_BD`.
        plan: The picks.
        compute: Runs the experts of this rank.
    """
    picks_BGK, pool = plan.experts_BGK, pool_of(compute)
    weights = [] if pool is None else list(pool.parameters())
    own = [len(picks_BGK), sum(w.numel() for w in weights), sum(w.nbytes for w in weights)]
    # All in one message: float64 holds counts and sizes exactly
    told = torch.cat([pairs_of_experts(plan).double().cpu(), torch.tensor(own).double()])
    *pairs, rows, numbers, size = reduced(told, dispatcher.wire.group).tolist()
    x_BD = cast(Tensor, sources[plan.expert_source[0]])
    wire = dispatcher.wire_dtype or x_BD.dtype
    return Call(
        rows=max(rows / dispatcher.wire.world_size, 1.0),
        picks=(picks_BGK.shape[1], picks_BGK.shape[2]),
        pairs_per_row=sum(pairs) / max(rows, 1.0),
        widths=(x_BD.shape[1], plan.output_dim or x_BD.shape[1]),
        parameters=numbers / plan.num_experts,
        number_bytes=min(wire.itemsize, x_BD.dtype.itemsize),
        parameter_bytes=round(size / max(numbers, 1.0)),
        loads=tuple(count / max(sum(pairs), 1.0) for count in pairs),
        placement=dispatcher.placement,
        hosts=dispatcher.hosts,
        device_type=x_BD.device.type,
    )


def reduced(
    values: Tensor,
    group: dist.ProcessGroup | None,
    op: "dist.ReduceOp.RedOpType" = dist.ReduceOp.SUM,
) -> Tensor:
    """Over all ranks; small numbers of the host, where the group's backend takes them."""
    if dist.get_backend(group) == "nccl":
        values = values.cuda()
    dist.all_reduce(values, op, group=group)
    return values.cpu()
