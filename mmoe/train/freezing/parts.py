"""`Part`: each tensor of a network by the name that `training.freeze` calls it."""

from collections.abc import Iterator
from dataclasses import dataclass

from mmoe.config import ModelConfig, RunConfig, TaskConfig
from mmoe.config.freezing import StageConfig, names_part
from mmoe.config.tasks import EntireSpaceTask
from mmoe.mixture import MixedExperts
from mmoe.mixture.axes import Entry, TensorAxes, axes_of
from mmoe.mixture.gates.fixed import constants_of
from mmoe.mixture.gates.joined import JoinedGates
from mmoe.models.network import Level, MixtureNetwork
from mmoe.parallel import spread_layout

_SHORT = {"crossing": "interaction", "bias_tower": "bias"}


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
        reads_others = model.transfer.kind != "none" or isinstance(task, EntireSpaceTask)
        own = part != "towers" or of == task.name or reads_others
        return own and part != "imputation"


def parts_of(network: MixtureNetwork, config: RunConfig) -> list[Part]:
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
        short, new = _short(name, axes[name], last)
        shape = layout[name][0].shape if name in layout else tensor.shape
        size = 1
        for extent in shape:
            size *= extent
        new = new or name.startswith(new_prefixes)
        found.append(Part(name, short, new, size if name in parameters else 0))
    return found


def _short(name: str, axes: TensorAxes, last: StageConfig) -> tuple[str, bool]:
    """The part of a tensor, and whether it is of a task or feature that is new."""
    part, *rest = name.split(".")
    if part == "levels":
        return ("gates" if rest[2] == "gate" else "experts"), False
    short = _SHORT.get(part, part)
    entry = next((p for p in axes.path if isinstance(p, Entry) and p.kind != "parts"), None)
    if entry is None:
        return short, False
    known = last.tasks if entry.kind == "tasks" else last.features
    own = part in ("towers", "inputs", "sequences")
    return (f"{part}.{entry.name}" if own else short), entry.name not in known


def _new_in_levels(network: MixtureNetwork, last: StageConfig) -> Iterator[str]:
    """Prefixes of gates and experts that have come since."""
    for number, level in enumerate(network.levels):
        assert isinstance(level, Level)
        gate, experts = level.mixture.gate, level.mixture.experts
        prefix = f"levels.{number}.mixture"
        if isinstance(gate, JoinedGates):
            for i, group in enumerate(gate.groups):
                name = level.gate_names[group.places[0]]
                if name not in (*last.tasks, "shared", "all tasks"):
                    yield f"{prefix}.gate.gates.{i}."
        if isinstance(experts, MixedExperts) and experts.staged:
            for i, own in enumerate(experts.ranges):
                if level.expert_names[own.start] not in last.experts:
                    yield f"{prefix}.experts.pools.{i}."
