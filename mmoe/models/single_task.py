"""Single-task: an expert for each task, seen by that task alone; only embeddings are shared."""

from collections.abc import Sequence

import torch

from mmoe.config.model import ModelConfig
from mmoe.mixture import FixedGate, MultiGateMixture
from mmoe.models.network import Level, MixtureNetwork
from mmoe.models.parts import build_capacity, build_experts, build_towers


def build_single_task(
    model: ModelConfig, input_dim: int, task_names: Sequence[str]
) -> MixtureNetwork:
    """`logit_t = tower_t(expert_t(x))`: the baseline that multi-task models have to beat."""
    num_tasks = len(task_names)
    own = torch.eye(num_tasks)
    mixture = MultiGateMixture(
        input_dim,
        num_tasks,
        build_experts(model, input_dim, num_tasks),
        gate=FixedGate(own),
        visibility=own.bool(),
        capacity=build_capacity(model),
        execution=model.execution,
    )
    return MixtureNetwork(
        [Level(mixture, task_names, task_names)],
        build_towers(model, num_tasks),
        range(num_tasks),
        input_dropout=model.input_dropout,
        learned_gates=False,
    )
