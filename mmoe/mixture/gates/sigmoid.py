"""Sigmoid gates, kept even by a bias instead of a loss."""

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Unpack

import torch
from torch import Tensor, nn

from mmoe.mixture.axes import Names, Part
from mmoe.mixture.batch_invariant import stable_sigmoid
from mmoe.mixture.gates.contract import check_numbers
from mmoe.mixture.gates.learned import (
    SHARE_AXES,
    GateOptions,
    LearnedGate,
    Scored,
    check_coefficient,
)
from mmoe.mixture.gates.losses import asked_picks, count_picks, count_rows
from mmoe.mixture.gates.select import Selection
from mmoe.mixture.inputs import Inputs
from mmoe.ops import topk_gate

# Where gates decide together, what is left of a score that its bias has pushed below
_LEAST_SCORE = 1e-6


class SigmoidGate(LearnedGate):
    """Top-k gates by independent scores `s = σ(W_g x / temperature)`, balanced without a loss.

    The k experts with the largest `s + b` are picked; their weights come from s alone,
    `s_e / Σ_picked s` or `s_e`. After each optimizer step the bias of an expert with too many picks
    goes down by `bias_speed`, that of one with too few goes up. Where the gates decide together, it
    is rows that an expert computes which count, not picks.

    Training forwards only count picks, in `load_GE`. The bias moves when `update_bias` is called,
    which `update_biases(model)` does for all gates of a model: once after each optimizer step, so
    that all micro-batches of an accumulated gradient, and a forward that activation checkpointing
    repeats, see the same bias. Several ranks add up their `load_GE` (`gate_loads`) before the call.
    The bias is saved with the model; counts are not.

    Args:
        input_dim: Width of what the gates read.
        num_gates: G.
        num_experts: E.
        k: Experts that one gate picks for one sample.
        normalize: Weights of one row add up to 1.
        bias_speed: Change of a bias in one update; 0 = the bias stays.
        selection: How the gates of a row decide together, by `s + b`, as in `TopKGate`.
        **options: See `GateOptions`; `balance_scope` also says whose load the bias evens out.

    Raises:
        ValueError: A setting out of range; in forward, more picks than a gate sees experts, or NaN
            logits (on the CPU).

    Example:
        >>> import torch
        >>> from mmoe.mixture import SigmoidGate
        >>> gate, x_BD = SigmoidGate(8, num_gates=1, num_experts=2, k=1), torch.ones(3, 8)
        >>> picked = int(gate([x_BD], torch.ones(1, 2, dtype=torch.bool)).experts[0, 0, 0])
        >>> gate.update_bias()
        >>> gate.bias_GE[0, picked], gate.bias_GE[0, 1 - picked]
        (tensor(-0.0010), tensor(0.0010))

    Source: Wang et al., "Auxiliary-loss-free load balancing strategy for mixture-of-experts" (2024,
        arXiv 2408.15664), algorithm 1; DeepSeek-V3 (2024, arXiv 2412.19437), equations 12 to 16.
    """

    bias_GE: Tensor
    load_GE: Tensor
    seen_GE: Tensor

    reads_requests: ClassVar = True
    heeds_selection: ClassVar = True

    def __init__(
        self,
        input_dim: int,
        num_gates: int,
        num_experts: int,
        *,
        k: int,
        normalize: bool = True,
        bias_speed: float = 0.001,
        selection: Selection | None = None,
        **options: Unpack[GateOptions],
    ) -> None:
        super().__init__(input_dim, num_gates, num_experts, options, k=k, selection=selection)
        check_coefficient("bias_speed", bias_speed)
        self.normalize = normalize
        self.bias_speed = bias_speed
        counts_GE = torch.zeros(num_gates, num_experts, dtype=torch.int64)
        self.register_buffer("bias_GE", torch.zeros(num_gates, num_experts, dtype=torch.float32))
        self.register_buffer("load_GE", counts_GE, persistent=False)
        self.register_buffer("seen_GE", counts_GE.bool(), persistent=False)

    def axes(self) -> Mapping[str, Mapping[int, str]]:
        """Returns what the dimensions of its own tensors are."""
        return {**SHARE_AXES, "bias_GE": {0: "gates", 1: "experts"}}

    def named_parts(self, names: Names) -> list[Part]:
        """Leaves the logits to themselves."""
        return [Part("logits", ("logits",), names)]

    def values(self, logits_BGE: Tensor, inputs: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
        """The bias decides who is picked, and is no part of a weight or of its gradient."""
        scores_BGE = stable_sigmoid(logits_BGE)
        # Detached: the bias is moved by `update_bias`, never by a gradient
        return scores_BGE.detach() + self.bias_GE, scores_BGE

    def pick(self, scored: Scored) -> tuple[Tensor, Tensor | None]:
        """Picks the k visible experts with the largest score plus bias, best first."""
        logits_BGE, biased_BGE, scores_BGE, visibility_GE, asked_BG, votes = scored
        assert scores_BGE is not None and self.picks is not None
        if self.selection is not None:
            check_numbers(scores_BGE, logits_BGE, visibility_GE)
            # joint_select never picks a score of 0 or below, which a bias may make of any; −inf
            # stays out
            votes_BGE = biased_BGE.clamp(min=_LEAST_SCORE).masked_fill(biased_BGE == -torch.inf, 0)
            biased_BGE = self.select.among(biased_BGE, votes_BGE, visibility_GE, asked_BG, votes)
        _, experts = topk_gate(biased_BGE, visibility_GE, self.picks)
        experts = asked_picks(experts, asked_BG)
        weights = scores_BGE.gather(-1, experts.clamp(min=0).long()).masked_fill(experts < 0, 0)
        return _over_sum(weights) if self.normalize else weights, experts

    def losses(
        self,
        scored: Scored,
        weights: Tensor,
        experts_BGK: Tensor | None,
        probabilities_BGE: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Counts the load, by which `update_bias` goes; losses are those of the scores."""
        seen_GE, scores_BGE = scored.visibility_GE, scored.own_BGE
        assert experts_BGK is not None and scores_BGE is not None
        count = count_picks if self.selection is None else count_rows
        self.load_GE.add_(count(experts_BGK, seen_GE.shape[1]) * seen_GE)
        self.seen_GE.copy_(seen_GE)
        return super().losses(scored, weights, experts_BGK, _over_sum(scores_BGE * seen_GE))

    def wanted(
        self, inputs: Sequence[Tensor], visibility_GE: Tensor, rows: Inputs | None = None
    ) -> Tensor:
        """Computes how much each gate alone would weigh every expert, of all that it sees."""
        seen_GE = self._routed(visibility_GE) if self.options.always else visibility_GE
        return _over_sum(stable_sigmoid(self.scores(inputs, rows)) * seen_GE)

    @torch.no_grad()
    def update_bias(self) -> None:
        """Moves the biases against the load since the last update; forgets that load."""
        seen_G1 = self.seen_GE.sum(1, keepdim=True)
        # In whole numbers, so that a load that is even counts as even.
        excess_GE = (self.load_GE * seen_G1 - self.load_GE.sum(1, keepdim=True)) * self.seen_GE
        if self.options.balance_scope == "all":
            excess_GE = (excess_GE / seen_G1.clamp(min=1)).sum(0, keepdim=True)
        # Algorithm 1: by the sign alone, however large the excess
        self.bias_GE.sub_(self.bias_speed * excess_GE.sign() * self.seen_GE)
        self.load_GE.zero_()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "SigmoidGate":
        """Casts as modules do, but keeps the bias fp32: a narrow type swallows its updates."""
        bias_GE = self.bias_GE
        super()._apply(fn, recurse)
        if self.bias_GE.dtype.itemsize < bias_GE.dtype.itemsize:
            self.bias_GE = bias_GE.to(self.bias_GE.device)
        return self


def biased_gates(model: nn.Module) -> "list[SigmoidGate]":
    """Returns all `SigmoidGate`s of a model."""
    return [module for module in model.modules() if isinstance(module, SigmoidGate)]


def gate_loads(model: nn.Module) -> list[Tensor]:
    """Returns the counts `load_GE` of all `SigmoidGate`s in a model (not copies)."""
    return [gate.load_GE for gate in biased_gates(model)]


def update_biases(model: nn.Module) -> None:
    """Moves the biases of all `SigmoidGate`s in a model; call it after each optimizer step.

    Example:
        >>> import torch
        >>> from mmoe.mixture import SigmoidGate, update_biases
        >>> model = torch.nn.ModuleList([SigmoidGate(8, num_gates=2, num_experts=4, k=2)])
        >>> update_biases(model)
    """
    for gate in biased_gates(model):
        gate.update_bias()


def _over_sum(x: Tensor) -> Tensor:
    """`x / Σ x` along the last dimension; 0 stays 0."""
    total = x.sum(-1, keepdim=True)
    return x / torch.where(total > 0, total, 1)
