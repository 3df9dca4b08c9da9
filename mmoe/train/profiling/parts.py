"""The parts of a step, by the names that a profile shows; training marks those it can see."""

from torch.profiler import record_function

INPUT, EMBEDDINGS, EXPERTS, GATES = "input", "embeddings", "experts", "gates"
TOWERS, LOSS, BACKWARD, OPTIMIZER = "towers", "loss", "backward", "optimizer"
STEP, OTHER = "step", "other"
# Validation and checkpoints: no part of any step
PAUSE = "between epochs"
PREFIX = "mmoe: "


def part(name: str) -> record_function:
    """Makes a context that a running profiler records under a name; cheap without one."""
    return record_function(PREFIX + name)
