"""Layers whose experts are spread over ranks, as contestants."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.mixture.layers import GivenLogits, contestant, leaf, our_experts
from benchmarks.mixture.race import Contestant
from benchmarks.mixture.workloads import Values, Workload, correlated_logits, draw
from mmoe.mixture import MLPExperts, MultiGateMixture
from mmoe.parallel import AllToAllDispatcher, ExpertPlacement


@dataclass(frozen=True)
class SpreadWork:
    """A layer whose experts are spread evenly over ranks, and the rows that each of them brings.

    Attributes:
        work: Its sizes, B for each rank.
        ranks: W.
        rank: This one.
        shared: Of the logits of gates, see `correlated_logits`.
    """

    work: Workload
    ranks: int
    rank: int
    shared: float = 0.0

    @property
    def placement(self) -> ExpertPlacement:
        """Who holds which expert."""
        return ExpertPlacement.even(self.work.E, self.ranks)

    def values(self) -> Values:
        """This rank's rows of those that are drawn for all ranks; the experts are everybody's."""
        whole = draw(replace(self.work, B=self.work.B * self.ranks))
        return replace(whole, x_BD=self.mine(whole.x_BD), grad_BGO=self.mine(whole.grad_BGO))

    def all_logits(self) -> Tensor:
        """Of the rows of all ranks."""
        return correlated_logits(replace(self.work, B=self.work.B * self.ranks), self.shared)

    def mine(self, rows: Tensor) -> Tensor:
        """The rows of this rank."""
        return rows[self.rank * self.work.B : (self.rank + 1) * self.work.B]

    def experts(self, values: Values) -> MLPExperts:
        """Those that are held here."""
        part = our_experts(self.work, values).part(self.placement.on(self.rank))
        assert isinstance(part, MLPExperts), "there are at least as many experts as ranks"
        return part

    def layer(self, gate: nn.Module, experts: MLPExperts, **settings: Any) -> MultiGateMixture:
        """A layer over the experts here and those of the other ranks."""
        dispatcher = AllToAllDispatcher(self.placement, **settings)
        gates = self.work.G if not isinstance(gate, GivenLogits) else gate.logits_BGE.shape[1]
        return MultiGateMixture(
            self.work.D, gates, experts, gate=gate, dispatcher=dispatcher
        ).train()

    def all_gates_at_once(self) -> Contestant:
        """One dispatch for all gates."""
        values = self.values()
        return self._contestant([self.mine(self.all_logits())], values)

    def one_dispatch_per_gate(self) -> Contestant:
        """As many dispatches as gates, each of a layer with one gate, over the same experts."""
        values = self.values()
        return self._contestant(self.mine(self.all_logits()).split(1, dim=1), values)

    def _contestant(self, logits: Sequence[Tensor], values: Values) -> Contestant:
        assert self.work.k is not None
        experts = self.experts(values)
        layers = [self.layer(GivenLogits(given, self.work.k), experts) for given in logits]
        grads = values.grad_BGO.split([given.shape[1] for given in logits], dim=1)
        x_BD = leaf(values.x_BD)
        return contestant(lambda: [layer(x_BD).out_BGO for layer in layers], grads, x_BD, layers)


def wire_dtype(name: str) -> torch.dtype:
    """fp32 or bf16."""
    return {"fp32": torch.float32, "bf16": torch.bfloat16}[name]
