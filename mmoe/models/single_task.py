"""Single-task: an expert for each task, seen by that task alone; only embeddings are shared."""

from collections.abc import Sequence

import torch

from mmoe.config import ModelConfig
from mmoe.models.layout import ONE_PROCESS, Layout
from mmoe.models.network import MixtureNetwork
from mmoe.models.sections import build_level, build_towers


def build_single_task(
    model: ModelConfig, input_dim: int, task_names: Sequence[str], layout: Layout = ONE_PROCESS
) -> MixtureNetwork:
    """Builds a network for each task: `logit_t = tower_t(expert_t(x))`."""
    own = torch.eye(len(task_names))
    names = task_names, task_names
    level = build_level(model, layout, input_dim, *names, fixed=own, visibility=own.bool())
    return MixtureNetwork(
        [level],
        build_towers(model, len(task_names), level.mixture.output_dim),
        range(len(task_names)),
        input_dropout=model.input_dropout,
        learned_gates=False,
    )
