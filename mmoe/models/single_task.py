"""Single-task: an expert for each task, seen by that task alone; only embeddings are shared."""

from collections.abc import Sequence

import torch

from mmoe.config.model import ModelConfig
from mmoe.mixture import FixedGate
from mmoe.models.layout import ONE_PROCESS, Layout
from mmoe.models.network import Level, MixtureNetwork
from mmoe.models.parts import build_mixture, build_towers


def build_single_task(
    model: ModelConfig, input_dim: int, task_names: Sequence[str], layout: Layout = ONE_PROCESS
) -> MixtureNetwork:
    """Builds a network for each task: `logit_t = tower_t(expert_t(x))`."""
    num_tasks = len(task_names)
    own = torch.eye(num_tasks)
    mixture = build_mixture(
        model,
        layout,
        input_dim,
        num_tasks,
        num_tasks,
        gate=FixedGate(own),
        visibility=own.bool(),
    )
    return MixtureNetwork(
        [Level(mixture, task_names, task_names)],
        build_towers(model, num_tasks, mixture.output_dim),
        range(num_tasks),
        input_dropout=model.input_dropout,
        learned_gates=False,
    )
