"""The experts of a run: which there are, and which of its gates see them."""

from collections.abc import Sequence
from dataclasses import dataclass

from mmoe.models.network import Level, MixtureNetwork


@dataclass(frozen=True, kw_only=True)
class ExpertPlace:
    """One expert of a network.

    Attributes:
        number: From 1 on, level by level; what `mmoe prune --experts` names it by.
        level: From 0 on.
        expert: Its place in the level's pool, from 0 on.
        name: As reports call it.
        gates: Names of the gates of its level that see it.
        alone: Of those, the ones that see no other.
    """

    number: int
    level: int
    expert: int
    name: str
    gates: tuple[str, ...]
    alone: tuple[str, ...]

    def title(self, levels: int) -> str:
        """Returns its name, with that of its level where there are several."""
        return self.name if levels == 1 else f"level {self.level + 1}, {self.name}"


def levels_of(network: MixtureNetwork) -> list[Level]:
    """Returns the levels of a network, from the input on."""
    return [level for level in network.levels if isinstance(level, Level)]


def places_of(network: MixtureNetwork) -> list[ExpertPlace]:
    """Lists the experts of a network, level by level.

    Example:
        >>> from mmoe.config import ModelConfig
        >>> from mmoe.models import build_network
        >>> places = places_of(build_network(ModelConfig(kind="ple"), 20, ["click", "buy"]))
        >>> places[8].number, places[8].title(2), places[8].gates
        (9, 'level 2, click expert 1', ('click',))
    """
    found: list[ExpertPlace] = []
    for number, level in enumerate(levels_of(network)):
        seen_GE = level.mixture.visibility_GE.tolist()
        for expert, name in enumerate(level.expert_names):
            seeing = [g for g, row in enumerate(seen_GE) if row[expert]]
            place = ExpertPlace(
                number=len(found) + 1,
                level=number,
                expert=expert,
                name=name,
                gates=tuple(level.gate_names[g] for g in seeing),
                alone=tuple(level.gate_names[g] for g in seeing if sum(seen_GE[g]) == 1),
            )
            found.append(place)
    return found


def check_explainable(network: object, run: str) -> MixtureNetwork:
    """Returns the network, where tasks weigh several experts.

    Raises:
        ValueError: There is nothing that a gate decides.
    """
    several = isinstance(network, MixtureNetwork) and len(places_of(network)) > len(network.levels)
    if isinstance(network, MixtureNetwork) and network.learned_gates and several:
        return network
    raise ValueError(
        f"{run}: no gate of this run chooses between experts (shared bottom, single task, or one "
        "expert), so there is none to leave out; name a run of model.kind mmoe, omoe, cgc, ple or "
        "esmm with two experts or more"
    )


def gate_of_task(network: MixtureNetwork, level: int, tasks: Sequence[str], task: int) -> str:
    """Returns the name of the gate of a level by which a task mixes."""
    names = levels_of(network)[level].gate_names
    if level == len(network.levels) - 1:
        return names[network.task_gates[task]]
    return tasks[task] if tasks[task] in names else names[0]
