"""Shared-Bottom: one expert that every task sees."""

from collections.abc import Sequence

import torch

from mmoe.config import ModelConfig
from mmoe.models.layout import ONE_PROCESS, Layout
from mmoe.models.network import MixtureNetwork
from mmoe.models.sections import build_level, build_towers


def build_shared_bottom(
    model: ModelConfig, input_dim: int, task_names: Sequence[str], layout: Layout = ONE_PROCESS
) -> MixtureNetwork:
    """Builds Shared-Bottom: `logit_t = tower_t(expert(x))`.

    Source: Caruana, "Multitask learning" (Machine Learning 28, 1997).
    """
    names = ["all tasks"], ["bottom"]
    level = build_level(model, layout, input_dim, *names, fixed=torch.ones(1, 1))
    return MixtureNetwork(
        [level],
        build_towers(model, len(task_names), level.mixture.output_dim),
        [0] * len(task_names),
        input_dropout=model.input_dropout,
        learned_gates=False,
    )
