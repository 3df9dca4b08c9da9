"""`MoE`: the ordinary mixture-of-experts layer with one gate, in place of a feed-forward layer."""

from collections.abc import Iterable
from typing import NamedTuple

from torch import Tensor, nn

from mmoe.mixture.capacity import Capacity
from mmoe.mixture.checks import as_pool
from mmoe.mixture.execution import Execution
from mmoe.mixture.experts import Pool
from mmoe.mixture.gates import TopKGate
from mmoe.mixture.multi_gate import MultiGateMixture
from mmoe.mixture.statistics import MixtureStatistics


class MoEOutput(NamedTuple):
    """What a `MoE` returns where more than its output was asked for.

    Attributes:
        out: `[..., O]`.
        auxiliary_losses: Scalars of the gate to add to the loss, by name.
        dropped: Picks dropped by the capacity, one int64; None where nothing can be dropped.
        statistics: Where they were asked for.
    """

    out: Tensor
    auxiliary_losses: dict[str, Tensor]
    dropped: Tensor | None
    statistics: MixtureStatistics | None


class MoE(nn.Module):
    """One gate over a pool of experts: `y = Σ_e w_e(x) · expert_e(x)`, for `[..., D]` tensors.

    A `MultiGateMixture` with one gate. Losses and statistics are returned, not kept in the module:
    a gate with losses (`balance_loss`, …) trains by them only if you call the layer with
    `return_auxiliary=True` and add them to your loss. Otherwise they are dropped.

    Args:
        input_dim: D.
        experts: A pool, or modules that map `[rows, D]` to `[rows, O]`.
        k: Experts for each row, where no gate is given; default: 2 (1 of a single expert).
        gate: Any gate module of one gate; default: `TopKGate` with k picks, without losses.
        capacity: How many rows an expert may compute in a training step; default: any number.
        execution: `auto`, `dense`, `grouped` or `padded`, as in `MultiGateMixture`.

    Raises:
        ValueError: A setting that does not fit, with its name; both k and gate.

    Example:
        >>> import torch
        >>> from mmoe.mixture import MoE, mlp_experts
        >>> moe = MoE(16, mlp_experts(8, 16, [64, 16]), k=2)
        >>> tokens = torch.zeros(4, 10, 16)
        >>> moe(tokens).shape
        torch.Size([4, 10, 16])
        >>> out, losses, dropped, statistics = moe(tokens, return_auxiliary=True)
        >>> out.shape, losses
        (torch.Size([4, 10, 16]), {})

    Source: Shazeer et al., "Outrageously large neural networks" (ICLR 2017), equation 1.
    """

    def __init__(
        self,
        input_dim: int,
        experts: Pool | Iterable[nn.Module],
        *,
        k: int | None = None,
        gate: nn.Module | None = None,
        capacity: Capacity | None = None,
        execution: Execution = "auto",
    ) -> None:
        super().__init__()
        pool = as_pool(experts, input_dim)
        if k is not None and gate is not None:
            raise ValueError(f"k: expected None beside a gate, which picks itself, got {k}")
        if gate is None:
            gate = TopKGate(input_dim, 1, len(pool), k=min(2, len(pool)) if k is None else k)
        self.mixture = MultiGateMixture(
            input_dim, 1, pool, gate=gate, capacity=capacity, execution=execution
        )

    def forward(
        self, x: Tensor, return_auxiliary: bool = False, return_statistics: bool = False
    ) -> Tensor | MoEOutput:
        """Mixes the experts for every row of the last dimension.

        Args:
            x: `[..., D]`.
            return_auxiliary: Return a `MoEOutput` with the gate's losses and the drops.
            return_statistics: Return a `MoEOutput` with the statistics as well.

        Returns:
            `[..., O]`, or a `MoEOutput`.
        """
        if not x.dim() or x.shape[-1] != self.mixture.input_dim:
            raise ValueError(
                f"x: expected shape [..., {self.mixture.input_dim}], got {list(x.shape)}"
            )
        rows = x if x.dim() == 2 else x.reshape(x.shape[:-1].numel(), x.shape[-1])
        result = self.mixture(rows, return_statistics=return_statistics)
        out = result.out_BGO.squeeze(1)
        out = out.view(*x.shape[:-1], *out.shape[1:])
        if return_auxiliary or return_statistics:
            return MoEOutput(out, result.auxiliary_losses, result.dropped, result.statistics)
        return out
