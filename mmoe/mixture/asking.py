"""What rows say to gates beside what these read, and how gates are called with it."""

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from mmoe.mixture.checks import check_decision
from mmoe.mixture.domains import RowDomains
from mmoe.mixture.gates.contract import GateOutput
from mmoe.mixture.pytrees import Tree
from mmoe.mixture.requests.rows import first_leaf
from mmoe.mixture.traits import GateTraits, traits_of


class RowAsks(NamedTuple):
    """What rows say to the gates beside what these read.

    Attributes:
        asked_BG: Bool, the gates that each row asks; others pick and weigh nothing, and have no
            vote. None: every row asks all.
        domains: Of the rows, for gates that domains have of their own; None: they have none.
    """

    asked_BG: Tensor | None = None
    domains: RowDomains | None = None


def decide(
    gate: nn.Module,
    inputs: Sequence[Tree],
    visibility_GE: Tensor,
    asks: RowAsks | None = None,
    *,
    traits: GateTraits | None = None,
    sees_all: bool = False,
) -> GateOutput:
    """Calls a gate and checks what it returns; gates that rows do not ask weigh nothing.

    Args:
        gate: Of a mixture.
        inputs: What each gate reads.
        visibility_GE: Which gate sees which expert.
        asks: Of the rows; None: every row asks all gates, and none has a domain.
        traits: Of the gate, where they are known.
        sees_all: Whether every gate sees every expert, where that is known.

    Example:
        >>> import torch
        >>> from mmoe.mixture import SoftmaxGate
        >>> from mmoe.mixture.asking import RowAsks, decide
        >>> gate, x_BD = SoftmaxGate(8, num_gates=2, num_experts=4), torch.zeros(1, 8)
        >>> asks = RowAsks(asked_BG=torch.tensor([[True, False]]))
        >>> weights_BGE = decide(gate, [x_BD] * 2, torch.ones(2, 4, dtype=torch.bool), asks).weights
        >>> weights_BGE.sum(2).tolist()
        [[1.0, 0.0]]
    """
    said = {} if asks is None else _said(asks, traits or traits_of(gate, GateTraits))
    rows = first_leaf(inputs[0]).shape[0]
    decision = check_decision(gate(inputs, visibility_GE, **said), rows, visibility_GE, sees_all)
    return decision.only_asked(None if asks is None else asks.asked_BG)


@torch.no_grad()
def wanted(
    gate: nn.Module, inputs: Sequence[Tree], visibility_GE: Tensor, asks: RowAsks | None = None
) -> Tensor:
    """Returns what gates that decide together would have weighed alone, `[B, G, E]`."""
    said = {} if asks is None else _said(asks, traits_of(gate, GateTraits))
    said.pop("asked_BG", None)
    return cast(Any, gate).wanted(inputs, visibility_GE, **said)


def _said(asks: RowAsks, gate: GateTraits) -> dict[str, Any]:
    """The keywords that a gate is called with."""
    said: dict[str, Any] = {}
    if asks.asked_BG is not None and gate.takes_asked:
        said["asked_BG"] = asks.asked_BG
    if asks.domains is not None:
        if not gate.takes_domains:
            raise ValueError(
                "gate: expected one that domains can have of their own (GateTraits.takes_domains), "
                "as rows have domains, got another one"
            )
        said["domains"] = asks.domains
    return said
