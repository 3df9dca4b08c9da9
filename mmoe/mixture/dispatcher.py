"""How rows reach the experts and come back: the seam between the mixture and the ranks.

A dispatcher holds no parameters, so it is no module. The mixture hands it the rows and the picks of
all gates; whether the experts are here or on other ranks is the dispatcher's business alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from mmoe import ops


@dataclass(frozen=True, kw_only=True, slots=True)
class DispatchPlan:
    """What the gates decided about one batch.

    Attributes:
        experts_BGK: The experts that gate g picked for sample b, int32; −1 = an unused pick.
        weights_BGK: How much of each.
        num_experts: E, over all ranks.
        expert_source: For each expert, which of the S input sources it reads.
    """

    experts_BGK: Tensor
    weights_BGK: Tensor
    num_experts: int
    expert_source: tuple[int, ...]


class Dispatcher(Protocol):
    """Moves rows to the experts of this rank, and what they return back to the gates."""

    def dispatch(self, sources: Sequence[Tensor], plan: DispatchPlan) -> tuple[Tensor, Tensor, Any]:
        """Sends rows out.

        Args:
            sources: S tensors `x_BD`.
            plan: The picks.

        Returns:
            `rows_RD`, the rows that this rank's e experts compute, expert-major; `offsets_e1`,
            where each expert's rows start, int32; a handle for `combine`.
        """
        ...

    def combine(self, y_RO: Tensor, handle: Any) -> Tensor:
        """Brings the experts' outputs back: `out_BGO[b, g] = Σ_k weights[b, g, k] · y[pick]`."""
        ...


@dataclass(frozen=True, slots=True)
class _LocalHandle:
    slots_BGK: Tensor
    weights_BGK: Tensor


class LocalDispatcher:
    """All experts are here: gather the rows, combine the results.

    Example:
        >>> import torch
        >>> from mmoe.mixture import DispatchPlan, LocalDispatcher
        >>> x_BD = torch.tensor([[1.0], [2.0]])
        >>> plan = DispatchPlan(
        ...     experts_BGK=torch.tensor([[[0, 1]], [[1, -1]]], dtype=torch.int32),
        ...     weights_BGK=torch.tensor([[[0.25, 0.75]], [[1.0, 0.0]]]),
        ...     num_experts=2,
        ...     expert_source=(0, 0),
        ... )
        >>> rows_RD, offsets, handle = LocalDispatcher().dispatch([x_BD], plan)
        >>> rows_RD.flatten().tolist(), offsets.tolist()
        ([1.0, 1.0, 2.0], [0, 1, 3])
        >>> LocalDispatcher().combine(10 * rows_RD, handle).flatten().tolist()
        [10.0, 20.0]
    """

    def dispatch(
        self, sources: Sequence[Tensor], plan: DispatchPlan
    ) -> tuple[Tensor, Tensor, _LocalHandle]:
        """Gathers every distinct (sample, expert) pair once, however many gates picked it."""
        rows_P, offsets_E1, slots_BGK = ops.route_plan(plan.experts_BGK, plan.num_experts)
        rows_RD = _gather(sources, rows_P, offsets_E1.tolist(), plan.expert_source)
        return rows_RD, offsets_E1, _LocalHandle(slots_BGK, plan.weights_BGK)

    def combine(self, y_RO: Tensor, handle: _LocalHandle) -> Tensor:
        """Adds up what each gate asked for."""
        return ops.gated_combine(y_RO, handle.slots_BGK, handle.weights_BGK)


def _gather(
    sources: Sequence[Tensor], rows_P: Tensor, offsets: list[int], expert_source: tuple[int, ...]
) -> Tensor:
    """The rows of all pairs; experts in a row that read the same source are gathered together."""
    parts, first = [], 0
    for source, run in groupby(expert_source):
        last = first + len(list(run))
        # embedding, not indexing: its gradient adds up per sample in a fixed order, in parallel.
        parts.append(F.embedding(rows_P[offsets[first] : offsets[last]], sources[source]))
        first = last
    return parts[0] if len(parts) == 1 else torch.cat(parts)
