"""Names of the experts that a model of a config has."""

from collections.abc import Sequence

from mmoe.config.model import (
    CGCConfig,
    ModelConfig,
    SharedBottomConfig,
    SingleTaskConfig,
)
from mmoe.models.sections import owned_names, pool_names


def expert_names(model: ModelConfig, task_names: Sequence[str]) -> list[str]:
    """Returns the names of a level's experts, without building it; all levels have the same.

    Example:
        >>> from mmoe.config import ModelConfig
        >>> from mmoe.models.stages.names import expert_names
        >>> expert_names(ModelConfig(kind="cgc", task_experts=1, shared_experts=1), ["click"])
        ['click expert 1', 'shared expert 1']
    """
    if isinstance(model, CGCConfig):
        return owned_names(model, task_names)
    if isinstance(model, SingleTaskConfig):
        return list(task_names)
    return ["bottom"] if isinstance(model, SharedBottomConfig) else pool_names(model)
