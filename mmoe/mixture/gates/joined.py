"""`JoinedGates`: gates that came one after another, each as it was when it came."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmoe.mixture.axes import Names, Part, picked
from mmoe.mixture.gates.contract import GateOutput
from mmoe.mixture.gates.select import Selection, Votes
from mmoe.mixture.inputs import ColumnChoice, Inputs
from mmoe.mixture.traits import GateTraits, traits_of


@dataclass(frozen=True, kw_only=True)
class GateGroup:
    """Gates that one module computes.

    Attributes:
        places: Their numbers among all gates of the mixture.
        num_experts: How many of the mixture's experts, from the first on, there were for them.
        columns: Of x, those that they read; None: all.
    """

    places: Sequence[int]
    num_experts: int
    columns: Sequence[int] | None = None


class JoinedGates(nn.Module):
    """Several gate modules as one: each decides for its own gates, among the experts it knows.

    A module is called as if the mixture had no other gates and no later experts: in the same
    shapes, so that its weights have the bits they had before these came. So are domains that came
    later: to its gates they are none of those that they know. Where gates decide together, those of
    the first module have the votes; the others mix what these chose and picks of their own.

    Args:
        gates: The modules, of one kind; the selections of those after the first begin with its
            votes, and have none for their own gates.
        groups: Which gates each computes; together all of the mixture's.

    Example:
        >>> import torch
        >>> from mmoe.mixture import SoftmaxGate
        >>> groups = [GateGroup(places=[0, 1], num_experts=3), GateGroup(places=[2], num_experts=4)]
        >>> gate = JoinedGates([SoftmaxGate(8, 2, 3), SoftmaxGate(8, 1, 4)], groups)
        >>> visibility_GE = torch.tensor([[True] * 3 + [False]] * 2 + [[True] * 4])
        >>> weights = gate([torch.zeros(5, 8)] * 3, visibility_GE).weights
        >>> weights.shape, weights[:, :2, 3].any().item()
        (torch.Size([5, 3, 4]), False)
    """

    order_G: Tensor
    reads_requests: ClassVar = True

    def __init__(self, gates: Sequence[nn.Module], groups: Sequence[GateGroup]) -> None:
        super().__init__()
        self.gates = nn.ModuleList(gates)
        self.groups = tuple(groups)
        choices = [ColumnChoice(group.columns) for group in groups]
        self.choices = nn.ModuleList(choices)
        places = [place for group in groups for place in group.places]
        if sorted(places) != list(range(len(places))):
            raise ValueError(f"groups: expected each gate once, got the places {places}")
        # Settings, not state; tensors, so that a GPU is not waited for
        for number, group in enumerate(groups):
            own_g = torch.tensor(group.places, dtype=torch.int64)
            self.register_buffer(f"places_{number}", own_g, persistent=False)
        self.num_domains = (0,) * len(self.groups)
        self._in_order = places == sorted(places)
        # Where each gate stands in what the groups give, one after another
        order_G = torch.tensor(places).argsort()
        self.register_buffer("order_G", order_G, persistent=False)

    @property
    def traits(self) -> GateTraits:
        """Traits of the first module, whose kind all share; pairs are summed over all."""
        said = traits_of(self.gates[0], GateTraits)
        if said.most_pairs is None:
            return said
        last = cast(Any, self.gates[-1])
        selection, always = cast(Selection, last.selection), last.options.always
        return replace(said, most_pairs=selection.most_pairs(len(self.order_G)) + always)

    def named_parts(self, names: Names) -> list[Part]:
        """Names the gates, experts and inputs of each module, which are matched by gates' names."""
        found = []
        for i, group in enumerate(self.groups):
            own = picked(picked(names, "gates", group.places), "inputs", group.columns)
            own = picked(own, "experts", range(group.num_experts))
            found.append(Part(f"gates.{i}", (), own, "gates"))
        return found

    def add_domains(self, known: Sequence[int]) -> None:
        """Gives each domain that a group of gates knows gates of its own.

        Args:
            known: For each group, how many domains, from the first on; 0: its gates have none.
        """
        self.num_domains = tuple(known)
        for gate, count in zip(self.gates, known, strict=True):
            if count:
                cast(Any, gate).add_domains(count)

    def forward(
        self, inputs: Sequence[Tensor], visibility_GE: Tensor, rows: Inputs | None = None
    ) -> GateOutput:
        """Decides for all gates; losses of one name add up."""
        together = self.traits.most_pairs is not None
        votes: dict[str, Any] = {"votes": Votes()} if together else {}
        found = [
            gate(*self._own(number, inputs, visibility_GE), **self._said(number, rows), **votes)
            for number, gate in enumerate(self.gates)
        ]
        losses: dict[str, Tensor] = {}
        for one in found:
            for name, loss in (one.auxiliary_losses or {}).items():
                losses[name] = losses[name] + loss if name in losses else loss
        if all(one.experts is None for one in found):
            width = visibility_GE.shape[1]
            return GateOutput(self._joined([one.weights for one in found], width, 0), None, losses)
        # Modules may pick different numbers of experts: the rest is filled with unused picks
        width = max(one.weights.shape[2] for one in found)
        return GateOutput(
            self._joined([one.weights for one in found], width, 0),
            self._joined([one.experts for one in found], width, -1),
            losses,
        )

    def wanted(
        self, inputs: Sequence[Tensor], visibility_GE: Tensor, rows: Inputs | None = None
    ) -> Tensor:
        """Computes how much each gate alone would weigh every expert, 0 where it came later."""
        parts = [
            cast(Any, gate).wanted(
                *self._own(number, inputs, visibility_GE), **self._said(number, rows)
            )
            for number, gate in enumerate(self.gates)
        ]
        return self._joined(parts, visibility_GE.shape[1], 0)

    def _own(
        self, number: int, inputs: Sequence[Tensor], visibility_GE: Tensor
    ) -> tuple[list[Tensor], Tensor]:
        """Returns a module's arguments: its gates' inputs, and the experts that these see."""
        group, choice = self.groups[number], cast(ColumnChoice, self.choices[number])
        # Without the experts that came later: the softmax goes over as many as it did, to the bit
        seen_GE = visibility_GE[self.get_buffer(f"places_{number}"), : group.num_experts]
        return _read(self.gates[number], choice, [inputs[g] for g in group.places]), seen_GE

    def _said(self, number: int, rows: Inputs | None) -> dict[str, Any]:
        """Returns the part of the inputs that concerns a module's gates."""
        if rows is None:
            return {}
        known, asked_BG = rows.first_domains(self.num_domains[number]), rows.asked_BG
        if asked_BG is not None:
            asked_BG = asked_BG[:, self.get_buffer(f"places_{number}")]
        return {"rows": replace(known, asked_BG=asked_BG)}

    def _joined(self, parts: Sequence[Tensor], width: int, fill: int) -> Tensor:
        """The groups' [B, g, …] as [B, G, width], in the order of the mixture's gates."""
        wide = [F.pad(part, (0, width - part.shape[2]), value=fill) for part in parts]
        joined = torch.cat(wide, dim=1)
        return joined if self._in_order else joined.index_select(1, self.order_G)


def modules_of(gate: nn.Module) -> list[nn.Module]:
    """Returns the modules of gates that came one after another; of others the gate itself."""
    return list(gate.gates) if isinstance(gate, JoinedGates) else [gate]


def groups_of(gate: nn.Module) -> Sequence[GateGroup]:
    """Returns the gates that came one after another; none where all came at once."""
    return gate.groups if isinstance(gate, JoinedGates) else ()


def _read(gate: nn.Module, choice: ColumnChoice, inputs: Sequence[Any]) -> list[Any]:
    """Returns a module's inputs; rows of requests in two parts where it takes them so by itself."""
    knows = gate if choice.columns_C is None else None
    read: list[Any] = [Inputs.of(x).for_gate(knows) for x in inputs]
    return choice.of(read)
