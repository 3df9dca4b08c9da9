"""`Frozen`: the parts of a model that stay as they score, and what holds them still."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from mmoe.config import ModelConfig, RunConfig, TableSpec, TaskConfig
from mmoe.config.training import ENCODER, TABLES, StageConfig, names_part, unmatched
from mmoe.mixture.axes import TensorAxes, axes_of
from mmoe.mixture.gates.fixed import constants_of
from mmoe.mixture.gates.joined import groups_of
from mmoe.models import MixtureNetwork, Ranker
from mmoe.parallel import from_all, is_spread, spread_layout
from mmoe.run import Reporter


@dataclass(frozen=True)
class Part:
    """A tensor of a network.

    Attributes:
        tensor: Its name in the network's `state_dict`.
        short: The part it belongs to: experts, gates, towers.TASK, sequences.NAME, …
        new: Whether it has come since the last stage.
        size: How many numbers it has, on all ranks; 0: nothing would train it anyway.
    """

    tensor: str
    short: str
    new: bool
    size: int

    def is_named(self, pattern: str) -> bool:
        """Whether a pattern of `training.freeze` means it, by its name or its part's."""
        rest = self.tensor.split(".", 2)[-1]
        return names_part(pattern, self.tensor) or names_part(pattern, f"{self.short}.{rest}")

    def serves(self, task: TaskConfig, model: ModelConfig) -> bool:
        """Whether a task's score may depend on it.

        Imputation towers are there for training alone, and so is the tower for the display where it
        is dropped. The towers of other tasks matter where the task reads them, or its probability
        is a product with theirs.
        """
        part, _, of = self.short.partition(".")
        if part == "bias":
            return model.bias is not None and model.bias.scoring == "fixed"
        reads_others = model.transfer.kind != "none" or task.event is not None
        own = part != "towers" or of == task.name or reads_others
        return own and part != "imputation"


def _parts_of(network: MixtureNetwork, config: RunConfig) -> list[Part]:
    """Lists the tensors of a network, buffers included; constants are left out."""
    last, layout = config.model.stages[-1], spread_layout(network)
    parameters = {name for name, weight in network.named_parameters() if weight.requires_grad}
    axes = axes_of(network, {"tasks": [task.name for task in config.tasks]})
    constants = constants_of(network)
    new_prefixes = tuple(_new_in_levels(network, last))
    found = []
    for name, tensor in network.state_dict().items():
        if name in constants:
            continue
        short, new = _short(axes[name], last)
        shape = layout[name][0].shape if name in layout else tensor.shape
        new = new or name.startswith(new_prefixes)
        found.append(Part(name, short, new, math.prod(shape) if name in parameters else 0))
    return found


def _short(axes: TensorAxes, last: StageConfig) -> tuple[str, bool]:
    """The part of a tensor, and whether it is of a task or feature that is new."""
    if axes.owner("levels") is not None:
        return ("gates" if axes.of_gate else "experts"), False
    part, *inside = (p if isinstance(p, str) else str(p.name) for p in axes.path)
    entry = axes.entry
    if entry is None or entry.kind == "parts":
        return part, False
    known = last.tasks if entry.kind == "tasks" else last.features
    return (f"{part}.{inside[0]}" if entry == axes.path[1] else part), entry.name not in known


def _new_in_levels(network: MixtureNetwork, last: StageConfig) -> Iterator[str]:
    """Prefixes of gates and experts that have come since."""
    for number, level in enumerate(network.levels):
        gate, experts = level.mixture.gate, level.mixture.experts
        prefix = f"levels.{number}.mixture"
        for i, group in enumerate(groups_of(gate)):
            name = level.gate_names[group.places[0]]
            if name not in (*last.tasks, "shared", "all tasks"):
                yield f"{prefix}.gate.gates.{i}."
        for i, own in enumerate(experts.expert_stages):
            if level.expert_names[own.start] not in last.experts:
                yield f"{prefix}.experts.pools.{i}."


@dataclass
class Frozen:
    """Part of a model that `training.freeze` holds still.

    No optimizer has its parameters, so that neither a gradient nor a decay moves them; modules that
    are frozen whole stay in evaluation mode: without dropout, without noise, batch norms with the
    statistics that score.

    Attributes:
        names: Tensors of the network, parameters and buffers, and the part each belongs to.
        modules: Largest modules that are frozen whole.
        tables: Frozen embedding tables.
        summary: What is said of it, and stored in metrics.json.
    """

    names: dict[str, str] = field(default_factory=dict)
    modules: list[nn.Module] = field(default_factory=list)
    tables: set[str] = field(default_factory=set)
    summary: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, ranker: Ranker, config: RunConfig, tables: Sequence[TableSpec]) -> "Frozen":
        """Finds what the config freezes, and takes its gradients away; the same on all ranks.

        Args:
            ranker: Of the config; changed in place, before an optimizer is made.
            config: Of the run, with `model.stages`.
            tables: All that there are.

        Raises:
            ValueError: A name matches nothing that was there before, or nothing is left to train.
        """
        freeze, network = config.training.freeze, ranker.network
        if not freeze:
            return cls()
        # A rank may hold none of some experts
        here = {part.tensor: part for part in _parts_of(network, config)}
        parts = list(
            {name: part for found in from_all(here) for name, part in found.items()}.values()
        )
        for pattern in freeze:
            _check_pattern(pattern, parts, config, [table.name for table in tables])
        own = {
            part.tensor: part.short
            for part in parts
            if not part.new and any(part.is_named(pattern) for pattern in freeze)
        }
        for name, weight in network.named_parameters():
            if name in own:
                weight.requires_grad_(False)
        modules = list(_whole(network, set(own)))
        frozen = cls(own, modules, config.frozen_tables)
        frozen.summary = _summary(config, tables, parts, frozen)
        if not frozen.summary["trained_parameters"]:
            raise ValueError(
                f"training.freeze: {', '.join(freeze)} freezes everything, so that nothing is left "
                "to train; add a task, experts or features, or freeze less"
            )
        # Ranks of which one holds frozen experts alone have to go through the same exchanges
        network.traces_inputs = is_spread(network)
        frozen.settle()
        return frozen

    def settle(self) -> None:
        """Puts frozen modules back into evaluation mode, after a model was told to train."""
        for module in self.modules:
            module.eval()

    def say(self, reporter: Reporter) -> None:
        """Says what is frozen, and whose scores stay."""
        found = self.summary
        if not found:
            return
        reporter.say(
            f"frozen: {', '.join(found['parts'])}: {found['frozen_parameters']:,} parameters; "
            f"trained: {found['trained_parameters']:,}"
        )
        if found["unchanged_tasks"]:
            reporter.say(f"scores of {', '.join(found['unchanged_tasks'])} stay as they are")
        for task, moved in found["changed_tasks"].items():
            reporter.say(f"scores of {task} may change: not frozen: {', '.join(moved)}")


def _check_pattern(
    pattern: str, parts: Sequence[Part], config: RunConfig, tables: Sequence[str]
) -> None:
    old = config.model.stages[-1].tables
    if pattern == ENCODER or any(names_part(pattern, f"{TABLES}.{table}") for table in old):
        return
    named = [part for part in parts if part.is_named(pattern)]
    if any(not part.new for part in named):
        return
    new_table = any(names_part(pattern, f"{TABLES}.{table}") for table in tables)
    if named or new_table:
        raise ValueError(
            f"training.freeze: {pattern!r} is new in this run, and would stay as it was drawn; "
            "what is new is trained: remove it from training.freeze"
        )
    kept = dict.fromkeys(part.short for part in parts if not part.new)
    names = [name for short in kept for name in (short, short.split(".")[0])]
    names += [TABLES, *(f"{TABLES}.{table}" for table in old), ENCODER]
    raise unmatched(pattern, list(dict.fromkeys(names)))


def _whole(module: nn.Module, own: set[str], prefix: str = "") -> Iterator[nn.Module]:
    """The largest modules that have parameters, all of them frozen."""
    names = [f"{prefix}{name}" for name, _ in module.named_parameters()]
    if names and own.issuperset(names):
        yield module
        return
    for name, child in module.named_children():
        yield from _whole(child, own, f"{prefix}{name}.")


def _summary(
    config: RunConfig, tables: Sequence[TableSpec], parts: Sequence[Part], frozen: Frozen
) -> dict[str, Any]:
    """Summarizes what is frozen, its parameters, and whose scores stay."""
    held = sum(part.size for part in parts if part.tensor in frozen.names)
    held += sum(table.num_rows * table.dim for table in tables if table.frozen)
    trained = sum(part.size for part in parts if part.tensor not in frozen.names)
    trained += sum(table.num_rows * table.dim for table in tables if not table.frozen)
    count = len(frozen.tables)
    shown = [*dict.fromkeys(frozen.names.values())]
    shown += [f"{count} table{'s' * (count != 1)}"] if count else []
    shown += [ENCODER] if config.keeps_encoder else []
    unchanged, changed = [], {}
    for task in config.trained_tasks:
        if task.name not in config.model.stages[-1].tasks:
            continue
        moved = _moved(task, config, parts, frozen)
        if moved:
            changed[task.name] = moved
        else:
            unchanged.append(task.name)
    return {
        "parts": shown,
        "frozen_parameters": held,
        "trained_parameters": trained,
        "unchanged_tasks": unchanged,
        "changed_tasks": changed,
    }


def _moved(task: TaskConfig, config: RunConfig, parts: Sequence[Part], frozen: Frozen) -> list[str]:
    """Names what is trained of a task's scores' parts."""
    moved = dict.fromkeys(
        part.short
        for part in parts
        if part.tensor not in frozen.names and not part.new and part.serves(task, config.model)
    )
    last = config.model.stages[-1]
    if set(last.tables) - frozen.tables:
        moved[TABLES] = None
    if not config.keeps_encoder:
        moved[ENCODER] = None
    return list(moved)
