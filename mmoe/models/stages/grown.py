"""Which gates and experts of a level came when, and the modules that keep them apart."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from mmoe.config import ModelConfig
from mmoe.config.freezing import stage_of
from mmoe.mixture import MultiGateMixture
from mmoe.mixture.execution import make_policy
from mmoe.mixture.experts.pool import Pool
from mmoe.mixture.gates.joined import GateGroup, JoinedGates
from mmoe.mixture.traits import GateTraits, traits_of
from mmoe.models.layout import Layout

_NO_TASKS = ("shared", "all tasks")  # gates of these names have been there from the first


@dataclass(frozen=True)
class Grown:
    """Gates and experts of a level by the stage in which they came.

    Experts stand stage by stage, so that those that a stage knew are the first ones.

    Attributes:
        gate_names: Of the level's gates.
        expert_names: Of its experts, in that order.
        order: Number of each before they were put into it.
        gates: For each stage, and at last for what is new, the numbers of its gates.
        experts: How many experts each had come with.
        columns: Of x, those that each reads; None: all.
    """

    gate_names: tuple[str, ...]
    expert_names: tuple[str, ...]
    order: tuple[int, ...]
    gates: tuple[tuple[int, ...], ...]
    experts: tuple[int, ...]
    columns: tuple[Sequence[int] | None, ...]

    @classmethod
    def of(
        cls,
        model: ModelConfig,
        layout: Layout,
        gate_names: Sequence[str],
        expert_names: Sequence[str],
        *,
        reads_x: bool,
    ) -> "Grown":
        """Sorts the gates and experts of a level.

        Args:
            model: Its stages; where there are none all is new.
            layout: Knows their columns.
            gate_names: Those of a task have its name; others have been there from the first.
            expert_names: In any order.
            reads_x: Whether the level reads the network's input.

        Raises:
            ValueError: A stage has an expert that is not there.
        """
        numbers = [number for number, stage in enumerate(model.stages) if stage.experts]
        stages = [model.stages[number] for number in numbers]
        for name in (name for stage in stages for name in stage.experts):
            if name not in expert_names:
                raise ValueError(
                    f"model.stages: {name!r} is no expert of this model; `mmoe train` writes the "
                    "stages: remove them, or keep the model's experts"
                )
        came = [stage_of(name, [stage.experts for stage in stages]) for name in expert_names]
        order = sorted(range(len(expert_names)), key=came.__getitem__)
        tasks = [[*stage.tasks, *_NO_TASKS] for stage in stages]
        of_gate = [stage_of(name, tasks) for name in gate_names]
        every = range(len(stages) + 1)
        columns = [layout.stage_columns[n] if layout.stage_columns else None for n in numbers]
        return cls(
            tuple(gate_names),
            tuple(expert_names[e] for e in order),
            tuple(order),
            tuple(tuple(g for g, own in enumerate(of_gate) if own == stage) for stage in every),
            tuple(came.count(stage) for stage in every),
            (*(columns if reads_x else [None] * len(stages)), None),
        )

    @property
    def is_one(self) -> bool:
        """Whether nothing has come to what there was, so that one module does for all."""
        return len(self.gates) == 1

    def visibility(self, visibility_GE: Tensor | None) -> Tensor:
        """Returns which gate sees which expert, in their order: none that came after it."""
        gates, experts = len(self.gate_names), len(self.expert_names)
        seen_GE = torch.ones(gates, experts, dtype=torch.bool)
        if visibility_GE is not None:
            seen_GE = visibility_GE[:, list(self.order)].clone()
        for own, known in zip(self.gates, self._known, strict=True):
            seen_GE[list(own), known:] = False
        return seen_GE

    @property
    def groups(self) -> list[GateGroup]:
        """Gates that came together."""
        parts = zip(self.gates, self._known, self.columns, strict=True)
        return [
            GateGroup(places=own, num_experts=known, columns=columns)
            for own, known, columns in parts
            if own
        ]

    @property
    def pools(self) -> list[tuple[int, Sequence[int] | None]]:
        """Number and columns of experts that came together."""
        return [pair for pair in zip(self.experts, self.columns, strict=True) if pair[0]]

    @property
    def _known(self) -> list[int]:
        """How many experts there are when each stage is over."""
        return [sum(self.experts[: stage + 1]) for stage in range(len(self.experts))]


def score_as_before(mixture: MultiGateMixture, grown: Grown, first: Pool, width: int) -> None:
    """Lets a mixture run in evaluation as the one that it grew from did, dense or grouped.

    The two round differently, and which is cheaper depends on how many gates and experts there are.

    Args:
        mixture: Changed in place.
        grown: Of its level.
        first: The pool that there was at first.
        width: That it reads.
    """
    gates, experts = grown.gates[0], grown.experts[0]
    policy = mixture.policy
    if not policy.local or not gates or not experts:
        return
    before = make_policy(
        policy.execution,
        first,
        traits_of(_first_gates(mixture.gate), GateTraits),
        mixture.visibility_GE[list(gates), :experts].tolist(),
        input_dim=width,
        dispatcher=None,
        limited=mixture.capacity is not None,
    )
    mixture.policy = replace(policy, scores_as=before)


def _first_gates(gate: nn.Module) -> nn.Module:
    """The module of the gates that there were at first."""
    return gate.gates[0] if isinstance(gate, JoinedGates) else gate
