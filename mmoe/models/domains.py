"""Gives a network gates, and maybe towers, for each domain."""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from mmoe.config import RunConfig
from mmoe.config.freezing import domains_known_to
from mmoe.datasets.features.domains import Domains, asked_tasks
from mmoe.mixture.asking import RowAsks
from mmoe.mixture.domains import RowDomains
from mmoe.mixture.gates.joined import JoinedGates
from mmoe.mixture.traits import GateTraits, traits_of
from mmoe.models.network import Level, MixtureNetwork
from mmoe.tasks import TaskTowers, Tower
from mmoe.tasks.domain_tower import DomainTower


class NetworkDomains(nn.Module):
    """Which domains a network knows, and which tasks there are in each.

    Args:
        names: Of the M domains.
        tasks: Names, in the order of the towers.
        asked: Bool [M + 1, T], the tasks that exist; last in other domains. None: all do.
        own_gates: Whether each domain has gates of its own.
    """

    asked_NT: Tensor | None

    def __init__(
        self,
        names: Sequence[str],
        tasks: Sequence[str],
        asked: Tensor | None = None,
        *,
        own_gates: bool = True,
    ) -> None:
        super().__init__()
        self.names, self.tasks, self.own_gates = tuple(names), tuple(tasks), own_gates
        # A setting, not state: it comes back with the config and the encoder
        self.register_buffer("asked_NT", asked, persistent=False)

    def of(self, codes_B: Tensor) -> RowDomains:
        """Sorts the rows of a batch by their domain."""
        return RowDomains.of(codes_B, len(self.names))

    def asks(self, domains: RowDomains, gate_names: Sequence[str]) -> RowAsks:
        """Returns what the rows ask of the gates of a level: of tasks that exist, and shared ones.

        Args:
            domains: Of the rows.
            gate_names: A task's, or another one for a gate that is asked everywhere.
        """
        of_gates = domains if self.own_gates else None
        if self.asked_NT is None:
            return RowAsks(domains=of_gates)
        asked_BT = self.asked_NT[domains.codes_B.long()]
        everywhere_B = torch.ones_like(asked_BT[:, 0])
        columns = [
            # Of two gates called alike the first one is the task's
            asked_BT[:, self.tasks.index(name)]
            if name in self.tasks and name not in gate_names[:g]
            else everywhere_B
            for g, name in enumerate(gate_names)
        ]
        return RowAsks(torch.stack(columns, dim=1), of_gates)


def add_domains(network: MixtureNetwork, config: RunConfig, domains: Domains | None) -> None:
    """Gives each domain gates of its own, and a tower for each task where the config says so.

    Nothing is drawn: at first every domain has the gates and towers of a network without domains.

    Args:
        network: Of `config.model`; changed in place, after its towers were widened.
        config: Of the run.
        domains: That its encoder learnt; None: there are none.

    Raises:
        ValueError: Gates are of a kind of somebody's that knows no domains.
    """
    section = config.model.domains
    if section is None or domains is None:
        return
    asked = asked_tasks(config.tasks, domains)
    tasks = [task.name for task in config.tasks]
    network.domains = NetworkDomains(
        domains.names,
        tasks,
        None if asked is None else torch.from_numpy(asked),
        own_gates=network.learned_gates,
    )
    for level in network.levels if network.learned_gates else ():
        assert isinstance(level, Level)
        _add_gates(level, config, domains)
    if section.towers == "own":
        stages = config.model.stages
        known = [len(domains_known_to(task, stages, domains.names)) for task in tasks]
        network.towers = TaskTowers.of(
            DomainTower(cast(Tower, tower), count) if count else tower
            for tower, count in zip(network.towers, known, strict=True)
        )


def _add_gates(level: Level, config: RunConfig, domains: Domains) -> None:
    """Gives each domain gates of its own, and gates of a stage those of its domains."""
    gate = level.mixture.gate
    modules = list(gate.gates) if isinstance(gate, JoinedGates) else [gate]
    for module in modules:
        if not (traits_of(module, GateTraits).takes_domains and hasattr(module, "add_domains")):
            raise ValueError(
                f"model.domains does not go with gates of kind {config.model.gate.kind}, whose "
                f"{type(module).__name__} has none of each domain (takes_domains, and a method "
                "add_domains); set model.gate.kind to another one, or remove model.domains"
            )
    if isinstance(gate, JoinedGates):
        firsts = [level.gate_names[group.places[0]] for group in gate.groups]
        gate.add_domains([_known_to(name, config, domains) for name in firsts])
    else:
        cast(Any, gate).add_domains(len(domains.names))


def _known_to(gate_name: str, config: RunConfig, domains: Domains) -> int:
    """How many domains the gates know that came with one of these."""
    stages = [stage for stage in config.model.stages if stage.experts]
    # A gate of no task has been there from the first
    tasks = [task.name for task in config.tasks]
    task = gate_name if gate_name in tasks else stages[0].tasks[0]
    return len(domains_known_to(task, stages, domains.names))
