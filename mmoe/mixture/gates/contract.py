"""Contract between gates and the mixture: a gate's inputs and outputs.

A gate is a file here; what a config may say of it is a class and a line in `mmoe.config.gates`.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn

from mmoe.errors import NotFinite
from mmoe.mixture.inputs import Inputs, first_leaf
from mmoe.mixture.pytrees import Tree, leaves_of
from mmoe.mixture.traits import GateTraits, traits_of
from mmoe.ops import host_is_near


class GateOutput(NamedTuple):
    """Decision of a gate: weights of all experts, or picks with their weights.

    Attributes:
        weights: `weights_BGE`, a weight for every expert, where `experts` is None; else
            `weights_BGK`, one for each pick.
        experts: `experts_BGK`, the picked experts, int32 (int64 is cast); −1 = unused, whatever its
            weight. Each at most once per gate; an expert that a gate picks twice for a row is
            computed once, and its weights add up. None: all experts.
        auxiliary_losses: Scalars to add to the loss, already scaled, by name; None: there are none.
    """

    weights: Tensor
    experts: Tensor | None = None
    auxiliary_losses: dict[str, Tensor] | None = None

    def as_weights(self, num_experts: int) -> Tensor:
        """Returns `weights_BGE` of either form; 0 exactly for experts not picked."""
        if self.experts is None:
            return self.weights
        weights_BGK = self.weights.masked_fill(self.experts < 0, 0)
        weights_BGE = weights_BGK.new_zeros(*weights_BGK.shape[:2], num_experts)
        # Added: an expert that a gate picks twice for a row has both weights; −1 is no index, and
        # weighs 0
        return weights_BGE.scatter_add(-1, self.experts.clamp(min=0).long(), weights_BGK)

    def as_picks(self, visible_GV: Tensor) -> tuple[Tensor, Tensor]:
        """Returns `experts_BGK` and `weights_BGK`; dense weights pick all that is visible.

        Args:
            visible_GV: From `visible_experts`.
        """
        if self.experts is not None:
            return self.experts, self.weights
        experts_BGV = visible_GV.expand(self.weights.shape[0], -1, -1)
        return experts_BGV, self.weights.gather(-1, experts_BGV.clamp(min=0).long())

    def only_asked(self, asked_BG: Tensor) -> "GateOutput":
        """Returns the same without picks and weights of gates that a row does not ask."""
        unasked_BG1 = ~asked_BG.unsqueeze(-1)
        experts = None if self.experts is None else self.experts.masked_fill(unasked_BG1, -1)
        return self._replace(weights=self.weights.masked_fill(unasked_BG1, 0), experts=experts)

    def picked(self, visibility_GE: Tensor) -> Tensor:
        """Returns bool `[B, G, E]`: which experts each gate asks for; dense asks for all seen."""
        if self.experts is None:
            return visibility_GE.expand(self.weights.shape[0], -1, -1)
        # By picks, not by weights: one of weight 0 is asked for all the same
        used_BGK = (self.experts >= 0).float()
        return self._replace(weights=used_BGK).as_weights(visibility_GE.shape[1]) > 0


def visible_experts(visibility_GE: Tensor) -> Tensor:
    """Lists the experts that each gate sees, as picks: `[G, V]` int32, −1 fills the rest.

    Example:
        >>> import torch
        >>> visible_experts(torch.tensor([[True, False, True], [False, False, True]])).tolist()
        [[0, 2], [2, -1]]
    """
    num_experts = visibility_GE.shape[1]
    numbers_GE = torch.where(visibility_GE, torch.arange(num_experts), num_experts)
    widest = int(visibility_GE.sum(1).max())
    # What a gate does not see is number E, and sorts behind all it sees
    numbers_GV = numbers_GE.sort(dim=1).values[:, :widest]
    return numbers_GV.masked_fill(numbers_GV == num_experts, -1).to(torch.int32)


def without_first(decision: GateOutput, count: int) -> GateOutput:
    """Returns picks without those of the first experts; dense weights stay as they are.

    Example:
        >>> import torch
        >>> picks = torch.tensor([[[0, 2]]], dtype=torch.int32)
        >>> without_first(GateOutput(torch.ones(1, 1, 2), picks), 1).experts.tolist()
        [[[-1, 2]]]
    """
    if decision.experts is None or not count:
        return decision
    return decision._replace(experts=torch.where(decision.experts < count, -1, decision.experts))


class Gate(Protocol):
    """Interface of a gate: one module for all G gates of a mixture, called like a function.

    Any `nn.Module` whose `forward` has this signature is a gate; there is nothing to inherit.
    What else it may say of itself are `GateTraits`, as `traits` or as attributes of their names:
    `k`, how many experts each gate picks; `capacity`, the capacity that goes with it; `takes_rows`,
    that it is called with `rows` too.

    Example:
        A gate of one's own, which gives each task its own expert with probability `share`:

        >>> import torch
        >>> from mmoe.mixture import GateOutput, MultiGateMixture
        >>> class OwnExpertGate(torch.nn.Module):
        ...     def __init__(self, share):
        ...         super().__init__()
        ...         self.share = share
        ...
        ...     def forward(self, inputs, visibility_GE):
        ...         num_gates, num_experts = visibility_GE.shape
        ...         own_GE = torch.eye(num_gates, num_experts)
        ...         weights_GE = self.share * own_GE + (1 - self.share) / num_experts
        ...         return GateOutput(weights_GE.expand(inputs[0].shape[0], -1, -1))
        >>> experts = [torch.nn.Linear(8, 16) for _ in range(4)]
        >>> layer = MultiGateMixture(8, num_gates=2, experts=experts, gate=OwnExpertGate(0.5))
        >>> layer(torch.zeros(3, 8)).out_BGO.shape
        torch.Size([3, 2, 16])
    """

    def __call__(self, inputs: Sequence[Tensor], visibility_GE: Tensor) -> GateOutput:
        """Decides.

        Args:
            inputs: G tensors `x_BD`, what each gate reads; often the same tensor G times. Where a
                mixture takes tuples or dicts, they are these.
            visibility_GE: Bool; which gate may see which expert.

        Returns:
            Weights for all experts, or picks with weights, in fp32 (fp64 for fp64 inputs), and the
            auxiliary losses. In evaluation mode a row's decision does not depend on its batch
            mates, and there are no losses.
        """
        ...


def decide(
    gate: nn.Module,
    inputs: Sequence[Tree | Inputs],
    visibility_GE: Tensor,
    rows: Inputs | None = None,
    traits: GateTraits | None = None,
    sees_all: bool = False,
) -> GateOutput:
    """Calls a gate and checks what it returns; gates that rows do not ask weigh nothing.

    Args:
        gate: Of a mixture.
        inputs: What each gate reads.
        visibility_GE: Which gate sees which expert.
        rows: Which gates they ask, and their domains; None: all gates, and none has a domain.
        traits: Of the gate, where they are known.
        sees_all: Whether every gate sees every expert, where that is known.

    Example:
        >>> import torch
        >>> from mmoe.mixture import SoftmaxGate
        >>> from mmoe.mixture.inputs import Inputs
        >>> gate, x_BD = SoftmaxGate(8, num_gates=2, num_experts=4), torch.zeros(1, 8)
        >>> rows = Inputs(x_BR=x_BD, asked_BG=torch.tensor([[True, False]]))
        >>> weights_BGE = decide(gate, [x_BD] * 2, torch.ones(2, 4, dtype=torch.bool), rows).weights
        >>> weights_BGE.sum(2).tolist()
        [[1.0, 0.0]]
    """
    said = {} if rows is None else _said(rows, traits or traits_of(gate, GateTraits))
    height = (inputs[0] if isinstance(inputs[0], Tensor) else first_leaf(inputs[0])).shape[0]
    decision = _checked(gate(inputs, visibility_GE, **said), height, visibility_GE, sees_all)
    if rows is None or rows.asked_BG is None:
        return decision
    return decision.only_asked(rows.asked_BG)


@torch.no_grad()
def wanted(
    gate: nn.Module,
    inputs: Sequence[Tree | Inputs],
    visibility_GE: Tensor,
    rows: Inputs | None = None,
) -> Tensor:
    """Returns what gates that decide together would have weighed alone, `[B, G, E]`."""
    said = {} if rows is None else _said(rows, traits_of(gate, GateTraits))
    return cast(Any, gate).wanted(inputs, visibility_GE, **said)


def _said(rows: Inputs, gate: GateTraits) -> dict[str, Any]:
    """The keywords that a gate is called with."""
    if gate.takes_rows:
        return {"rows": rows}
    if rows.domains_B is not None:
        raise ValueError(
            "gate: expected one that domains can have of their own (GateTraits.takes_rows), "
            "as rows have domains, got another one"
        )
    return {}


def _checked(decision: object, rows: int, visibility_GE: Tensor, sees_all: bool) -> GateOutput:
    """Refuses what no gate of this mixture may return; picks in int32 and a dict of losses."""
    if not isinstance(decision, GateOutput) or not isinstance(decision.weights, Tensor):
        got = f"a {type(decision).__name__}"
        if isinstance(decision, GateOutput):
            got = f"one with a {type(decision.weights).__name__} for weights"
        raise ValueError(
            f"gate: expected a GateOutput(weights, experts, auxiliary_losses) of tensors, got {got}"
        )
    weights, experts = decision.weights, decision.experts
    num_gates, num_experts = visibility_GE.shape
    if weights.dim() != 3 or tuple(weights.shape[:2]) != (rows, num_gates):
        raise ValueError(
            f"gate: expected weights of shape [{rows}, {num_gates}, …] (rows, gates), "
            f"got {list(weights.shape)}"
        )
    if not weights.is_floating_point():
        raise ValueError(f"gate: expected floating point weights, got {weights.dtype}")
    if experts is None and weights.shape[2] != num_experts:
        raise ValueError(
            f"gate: expected a weight for each of {num_experts} experts, got {weights.shape[2]}; "
            "a gate that picks experts must return the picks as well"
        )
    if weights.device != visibility_GE.device:
        raise ValueError(
            f"gate: expected weights on device {visibility_GE.device} as the mixture, got "
            f"{weights.device}"
        )
    if experts is not None:
        _check_picks(weights, experts, visibility_GE.device)
    # Elsewhere a look at values would make the host wait for the GPU
    if host_is_near(weights) and weights.numel():
        _check_values(weights.detach(), experts, visibility_GE, sees_all)
    return GateOutput(
        weights,
        None if experts is None else experts.to(torch.int32),
        dict(decision.auxiliary_losses or {}),
    )


def _check_picks(weights: Tensor, experts: Tensor, device: torch.device) -> None:
    if experts.shape != weights.shape:
        raise ValueError(
            "gate: expected as many picks as weights, got shapes "
            f"{list(experts.shape)} and {list(weights.shape)}"
        )
    if experts.dtype not in (torch.int32, torch.int64):
        raise ValueError(
            f"gate: expected picks in torch.int32 or torch.int64, got {experts.dtype}; use "
            ".to(torch.int32)"
        )
    if experts.device != device:
        raise ValueError(
            f"gate: expected picks on device {device} as the mixture, got {experts.device}"
        )


def _check_values(
    weights: Tensor, experts: Tensor | None, visibility_GE: Tensor, sees_all: bool
) -> None:
    if experts is not None:
        low, high = map(int, experts.aminmax())
        if low < -1 or high >= visibility_GE.shape[1]:
            raise ValueError(
                f"gate: expected picks from -1 (unused) to {visibility_GE.shape[1] - 1}, got "
                f"{low if low < -1 else high}"
            )
    # One sum tells of any NaN or infinity; only then it pays to look for them.
    if not math.isfinite(weights.sum()):
        _check_finite(weights, experts)
    if not sees_all:
        _check_seen(weights, experts, visibility_GE)


def _check_finite(weights: Tensor, experts: Tensor | None) -> None:
    wrong = ~weights.isfinite()
    if experts is not None:
        wrong = wrong & (experts >= 0)
    for g, count in enumerate(wrong.any(2).sum(0).tolist()):
        if count:
            raise NotFinite(
                f"gate: expected finite weights, got NaN or infinity in {count} of {len(weights)} "
                f"rows of gate {g}; look for them in the gate's input and parameters"
            )


def _check_seen(weights: Tensor, experts: Tensor | None, visibility_GE: Tensor) -> None:
    if experts is None:
        unseen = weights.masked_fill(visibility_GE, 0) != 0
    else:
        visible_BGE = visibility_GE.expand(len(weights), -1, -1)
        unseen = ~visible_BGE.gather(2, experts.clamp(min=0).long()) & (experts >= 0)
    if unseen.any():
        b, g, k = (int(index) for index in unseen.nonzero()[0])
        expert = k if experts is None else int(experts[b, g, k])
        raise ValueError(
            f"gate: expected no weight of gate {g} on expert {expert}, which it does not see, got "
            f"{float(weights[b, g, k]):g} in row {b}"
        )


def check_sizes(sizes: Sequence[int], inputs: Sequence[Any], visibility_GE: Tensor) -> None:
    """Refuses a mixture of other sizes than the gate's, which would broadcast in silence.

    Args:
        sizes: G and E that the gate was built for.
        inputs: One per gate.
        visibility_GE: Of the mixture that calls.

    Raises:
        ValueError: Says which of the two sizes differs.
    """
    if visibility_GE.dim() != 2 or visibility_GE.dtype != torch.bool:
        raise ValueError(
            f"visibility_GE: expected bool [gates, experts], got {visibility_GE.dtype} "
            f"{list(visibility_GE.shape)}"
        )
    names = ("num_gates", "num_experts")
    for name, built, given in zip(names, sizes, visibility_GE.shape, strict=True):
        if built != given:
            raise ValueError(
                f"{name}: expected a gate built for {given}, as visibility_GE has (gates, experts) "
                f"{list(visibility_GE.shape)}, got one built for {built}"
            )
    if len(inputs) != sizes[0]:
        raise ValueError(f"inputs: expected {sizes[0]} tensors, one per gate, got {len(inputs)}")


def check_domains(own: Tensor | None, rows: Inputs | None) -> None:
    """Refuses domains of rows for gates that have none, and the other way.

    Args:
        own: What the gates have for each domain.
        rows: With their domains, or without.
    """
    domains = rows is not None and rows.domains_B is not None
    if (own is not None) != domains:
        have, came = ("no", "those of the rows") if domains else ("some", "None")
        raise ValueError(f"domains: expected {have} domains, as the gates have, got {came}")


def rows_and_dtype(inputs: Sequence[Any]) -> tuple[int, torch.dtype]:
    """Returns the batch's height and dtype, all that a gate that ignores its input needs.

    Args:
        inputs: One input per gate, each a tensor, or tuples and dicts of them.

    Returns:
        The rows, and the type to compute in: fp32, or fp64 for fp64 inputs.
    """
    first = leaves_of("inputs[0]", inputs[0])[0]
    return first.shape[0], torch.promote_types(first.dtype, torch.float32)


def check_numbers(result: Tensor, logits_BGN: Tensor, visibility_GE: Tensor) -> None:
    """Refuses NaN and infinite logits, and gates that see no expert, where looking is free.

    That is on the CPU in eager mode: on a GPU the host would have to wait, and a traced tensor has
    no values. One sum over what a gate computed shows whether anything is wrong; only then it is
    worth finding out what.

    Args:
        result: What was computed from the logits; NaN where they hold NaN.
        logits_BGN: The gates' logits, of experts or of whatever else a gate decides by.
        visibility_GE: Bool.

    Raises:
        ValueError: Names the gate, and how many rows are wrong.
    """
    # Subclasses are traced or fake tensors.
    if torch.compiler.is_compiling() or type(result) is not Tensor or result.device.type != "cpu":
        return
    if bool(result.detach().sum().isfinite()):
        return
    for g, sees in enumerate(visibility_GE.any(dim=1).tolist()):
        if not sees:
            raise ValueError(
                f"visibility_GE: gate {g} sees no expert; every gate needs one or more"
            )
    for kind, wrong_BGN in (("NaN", logits_BGN.isnan()), ("infinite", logits_BGN.isinf())):
        for g, rows in enumerate(wrong_BGN.any(dim=-1).sum(dim=0).tolist()):
            if rows:
                raise NotFinite(
                    f"logits_BGE: expected finite numbers, got gate {g}: {rows} rows have {kind} "
                    "logits; look for NaN and overflow in the gate's input and parameters"
                )
