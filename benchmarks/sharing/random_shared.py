"""The control: gates whose shared picks are drawn at random for every row."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor

from mmoe.config import GATES
from mmoe.config.gates import SelectingGateConfig
from mmoe.mixture import GateOutput, TopKGate
from mmoe.mixture.gates.select import Votes
from mmoe.mixture.inputs import Inputs
from mmoe.mixture.traits import GateTraits
from mmoe.ops import joint_select, topk_gate


class RandomSharedGate(TopKGate):
    """Shares `shared_k` experts that nobody chose, and picks the rest as each gate likes.

    Args:
        input_dim: Width of what the gates read.
        num_gates: G.
        num_experts: E.
        shared_k: Experts that a row's gates share, by chance.
        k: All picks of a gate.
        **options: Of a `TopKGate`.
    """

    def __init__(
        self,
        input_dim: int,
        num_gates: int,
        num_experts: int,
        *,
        shared_k: int,
        k: int,
        **options: Any,
    ) -> None:
        super().__init__(input_dim, num_gates, num_experts, k=k, **options)
        self.shared_k = shared_k
        most = shared_k + num_gates * (k - shared_k)
        self.traits = GateTraits(k=k, shared_k=shared_k, most_pairs=most)

    def forward(
        self,
        inputs: Sequence[Tensor],
        visibility_GE: Tensor,
        rows: Inputs | None = None,
        votes: Votes | None = None,
    ) -> GateOutput:
        """Draws the shared ones anew for each row of each call."""
        assert self.k is not None, "it picks"
        logits_BGE = self.logits(inputs, rows)
        luck_BGE = torch.rand_like(logits_BGE[:, :1].detach()).expand_as(logits_BGE)
        shared_BGE = joint_select(luck_BGE, visibility_GE, shared_k=self.shared_k, private_k=0)
        others_BGE = logits_BGE.detach().softmax(-1).masked_fill(shared_BGE, 0)
        private_k = self.k - self.shared_k
        own_BGE = joint_select(others_BGE, visibility_GE, private_k=private_k)
        left_BGE = logits_BGE.masked_fill(~(shared_BGE | own_BGE), -torch.inf)
        weights_BGK, experts_BGK = topk_gate(left_BGE, visibility_GE, self.k)
        return GateOutput(weights_BGK, experts_BGK, {})


class RandomSharedConfig(SelectingGateConfig):
    """What it takes: `shared_k` and `private_k` of `select: joint`."""

    kind: Literal["random_shared"] = "random_shared"

    def keywords(self) -> dict[str, Any]:
        """As `RandomSharedGate` is called."""
        return {"shared_k": self.shares, "k": self.picks}

    def selection(self) -> None:
        """It has its own."""


@contextmanager
def known() -> Generator[None]:
    """Makes the kind known to configs, for a while."""
    GATES.add("random_shared", RandomSharedConfig, RandomSharedGate)
    try:
        yield
    finally:
        GATES.remove("random_shared")
