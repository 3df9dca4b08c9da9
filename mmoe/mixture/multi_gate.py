"""`MultiGateMixture`: several gates over one pool of experts.

Letters in tensor names: B samples, G gates, E experts, K picks of a gate, D input width, O output
width, S input sources, R routed pairs (distinct sample and expert).
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mmoe import ops
from mmoe.mixture.checks import check_decision, check_source, check_visibility
from mmoe.mixture.dispatcher import Dispatcher, DispatchPlan, LocalDispatcher
from mmoe.mixture.execution import Execution, resolve_execution
from mmoe.mixture.experts import ExpertPool
from mmoe.mixture.gates import GateOutput, SoftmaxGate
from mmoe.mixture.picks import as_picks, as_weights, visible_experts


class MixtureOutput(NamedTuple):
    """What a mixture returns.

    Attributes:
        out_BGO: One mix of expert outputs per gate.
        auxiliary_losses: Scalars of the gate to add to the loss, by name.
        gate_weights_BGE: The weights, where they were asked for.
    """

    out_BGO: Tensor
    auxiliary_losses: dict[str, Tensor]
    gate_weights_BGE: Tensor | None


class MultiGateMixture(nn.Module):
    """G gates mix one pool of E experts: `out[b, g] = Σ_e w[b, g, e] · expert_e(x[b])`.

    The forward pass:

    1. the gate turns what each gate reads into weights for all experts, or for K picks;
    2. dense: every expert runs on all rows, and one pass over their outputs serves all gates;
       grouped: the dispatcher gathers each distinct (sample, expert) pair once, every expert runs
       on its own rows, and the dispatcher combines.

    Both give the same numbers. Routing is dropless. The gate's arithmetic is in fp32 under autocast
    too; experts follow autocast. In evaluation mode a row's output does not depend on the other
    rows of a batch of the same height.

    Args:
        input_dim: D, width of what the experts read.
        num_gates: G.
        experts: A pool, or modules that map `[rows, D]` to `[rows, O]`.
        gate: Any gate module (see `mmoe.mixture.gates`); default: a linear `SoftmaxGate`.
        visibility: Which gate may see which expert, bool `[G, E]`; default: all.
        expert_source: For each expert, which of S input sources it reads; default: source 0.
        gate_source: The same for each gate.
        execution: `dense`, `grouped`, or `auto`: the cheaper one by `choose_execution`.
        dispatcher: Moves rows to experts; default: they are all here. Another one always gets
            grouped execution; then `experts` are this rank's, and `visibility` says how many
            there are in all.

    Raises:
        ValueError: A setting or a shape that does not fit, with its name.

    Example:
        >>> import torch
        >>> from mmoe.mixture import MultiGateMixture, mlp_experts
        >>> layer = MultiGateMixture(16, num_gates=2, experts=mlp_experts(8, 16, [32, 8]))
        >>> layer(torch.zeros(4, 16)).out_BGO.shape
        torch.Size([4, 2, 8])

    Source: Ma et al., "Modeling task relationships in multi-task learning with multi-gate
        mixture-of-experts" (KDD 2018), equation 6; the visibility matrix adds CGC and PLE (Tang et
        al., RecSys 2020).
    """

    visibility_GE: Tensor
    visible_GV: Tensor

    def __init__(
        self,
        input_dim: int,
        num_gates: int,
        experts: ExpertPool | Iterable[nn.Module],
        *,
        gate: nn.Module | None = None,
        visibility: Tensor | Sequence[Sequence[bool]] | None = None,
        expert_source: Sequence[int] | None = None,
        gate_source: Sequence[int] | None = None,
        execution: Execution = "auto",
        dispatcher: Dispatcher | None = None,
    ) -> None:
        super().__init__()
        self.experts = experts if isinstance(experts, ExpertPool) else ExpertPool(experts)
        visibility_GE = check_visibility(visibility, num_gates, len(self.experts))
        num_experts = visibility_GE.shape[1]
        if dispatcher is None and num_experts != len(self.experts):
            raise ValueError(
                f"visibility: expected {len(self.experts)} columns, one per expert, "
                f"got {num_experts}"
            )
        self.input_dim, self.num_gates, self.num_experts = input_dim, num_gates, num_experts
        self.output_dim = self.experts.output_dim
        self.expert_source = check_source("expert_source", expert_source, num_experts, "expert")
        self.gate_source = check_source("gate_source", gate_source, num_gates, "gate")
        self.num_sources = max(*self.expert_source, *self.gate_source) + 1
        if gate is None:
            gate = SoftmaxGate(input_dim, num_gates, num_experts)
        self.gate = gate
        # Settings, not state: they come back with the constructor's arguments.
        self.register_buffer("visibility_GE", visibility_GE, persistent=False)
        self.register_buffer("visible_GV", visible_experts(visibility_GE), persistent=False)
        self.dispatcher = LocalDispatcher() if dispatcher is None else dispatcher
        self.execution = resolve_execution(
            execution, gate, visibility_GE.tolist(), local=dispatcher is None
        )

    def forward(self, x: Tensor | Sequence[Tensor], return_gates: bool = False) -> MixtureOutput:
        """Mixes the experts for every gate.

        Args:
            x: `x_BD` where there is one source, else `x_BSD` or S tensors `x_BD`.
            return_gates: Also return the gates' weights, as `gate_weights_BGE`.

        Returns:
            `out_BGO` and what goes with it.
        """
        sources = self._sources(x)
        decision = self.gate([sources[s] for s in self.gate_source], self.visibility_GE)
        check_decision(decision, (len(sources[0]), self.num_gates, self.num_experts))
        sources = _autocast(sources)
        if self.execution == "dense":
            weights_BGE = as_weights(decision, self.num_experts)
            y = self.experts([sources[s] for s in self.expert_source])
            out_BGO = ops.dense_combine(y, weights_BGE)
        else:
            out_BGO = self._grouped(sources, decision)
        weights = as_weights(decision, self.num_experts) if return_gates else None
        return MixtureOutput(out_BGO, decision.auxiliary_losses, weights)

    def extra_repr(self) -> str:
        """Shown by `print`."""
        return (
            f"gates={self.num_gates}, experts={self.num_experts}, sources={self.num_sources}, "
            f"execution={self.execution}"
        )

    def _grouped(self, sources: Sequence[Tensor], decision: GateOutput) -> Tensor:
        experts_BGK, weights_BGK = as_picks(decision, self.visible_GV)
        plan = DispatchPlan(
            experts_BGK=experts_BGK,
            weights_BGK=weights_BGK,
            num_experts=self.num_experts,
            expert_source=self.expert_source,
        )
        rows_RD, offsets_E1, handle = self.dispatcher.dispatch(sources, plan)
        return self.dispatcher.combine(self.experts.grouped(rows_RD, offsets_E1), handle)

    def _sources(self, x: Tensor | Sequence[Tensor]) -> Sequence[Tensor]:
        """The S input tensors, checked."""
        if isinstance(x, Tensor):
            x = x.unbind(1) if x.dim() == 3 else (x,)
        sources = tuple(x)
        if len(sources) != self.num_sources:
            raise ValueError(
                f"x: expected {self.num_sources} input source(s), got {len(sources)}; several go "
                "in as [rows, sources, width] or as a list of [rows, width]"
            )
        for s, source in enumerate(sources):
            width = self.input_dim if s in self.expert_source else source.shape[-1]
            if source.dim() != 2 or source.shape != (len(sources[0]), width):
                raise ValueError(
                    f"x: expected shape [rows, {width}] of source {s}, with the rows of source 0 "
                    f"({len(sources[0])}), got {list(source.shape)}"
                )
        return sources


def _autocast(sources: Sequence[Tensor]) -> Sequence[Tensor]:
    """Casts every source once; left to autocast, each expert would cast it again."""
    device = sources[0].device.type
    if not torch.is_autocast_enabled(device):
        return sources
    dtype = torch.get_autocast_dtype(device)
    return [x.to(dtype) if x.dtype == torch.float32 else x for x in sources]
