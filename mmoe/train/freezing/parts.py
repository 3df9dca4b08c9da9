"""`Part`: each tensor of a network by the name that `training.freeze` calls it."""

from collections.abc import Iterator
from dataclasses import dataclass

from mmoe.config import ModelConfig, RunConfig, TaskConfig
from mmoe.config.freezing import StageConfig, names_part
from mmoe.config.tasks import EntireSpaceTask
from mmoe.mixture import FixedGate
from mmoe.mixture.experts.staged import StagedExperts
from mmoe.mixture.gates.joined import JoinedGates
from mmoe.models.input_layers import projected_feature
from mmoe.models.network import Level, MixtureNetwork
from mmoe.models.sequences.inputs import sequence_of_tensor
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
    new_prefixes = tuple(_new_in_levels(network, last))
    found = []
    for name, tensor in network.state_dict().items():
        short, new = _short(name, config, last)
        shape = layout[name][0].shape if name in layout else tensor.shape
        size = 1
        for extent in shape:
            size *= extent
        new = new or name.startswith(new_prefixes)
        found.append(Part(name, short, new, size if name in parameters else 0))
    constant = tuple(_constants(network))
    return [part for part in found if not part.tensor.startswith(constant)] if constant else found


def _short(name: str, config: RunConfig, last: StageConfig) -> tuple[str, bool]:
    """The part of a tensor outside the levels, and whether it is new."""
    part, *rest = name.split(".")
    if part == "levels":
        return ("gates" if rest[2] == "gate" else "experts"), False
    if part in ("towers", "imputation") or rest[:1] == ["tasks"]:
        number = rest[0] if part != "transfer" else rest[1]
        task = config.tasks[int(number)].name
        short = f"towers.{task}" if part == "towers" else part
        return short, task not in last.tasks
    feature = projected_feature(name) if part == "inputs" else sequence_of_tensor(name)
    if feature is not None:
        return f"{part}.{feature}", feature not in last.features
    return _SHORT.get(part, part), False


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
        if isinstance(experts, StagedExperts):
            for i, own in enumerate(experts.ranges):
                if level.expert_names[own.start] not in last.experts:
                    yield f"{prefix}.experts.pools.{i}."


def _constants(network: MixtureNetwork) -> Iterator[str]:
    for name, module in network.named_modules():
        if isinstance(module, FixedGate):
            yield f"{name}."
