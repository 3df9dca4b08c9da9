"""Shared-Bottom: one expert that everybody sees."""

from collections.abc import Sequence

import torch

from mmoe.config.model import ModelConfig
from mmoe.mixture import FixedGate, MultiGateMixture
from mmoe.models.network import Level, MixtureNetwork
from mmoe.models.parts import build_capacity, build_experts, build_towers


def build_shared_bottom(
    model: ModelConfig, input_dim: int, task_names: Sequence[str]
) -> MixtureNetwork:
    """`logit_t = tower_t(expert(x))`.

    Source: Caruana, "Multitask learning" (Machine Learning 28, 1997).
    """
    mixture = MultiGateMixture(
        input_dim,
        1,
        build_experts(model, input_dim, 1),
        gate=FixedGate(torch.ones(1, 1)),
        capacity=build_capacity(model),
        execution=model.execution,
    )
    return MixtureNetwork(
        [Level(mixture, ["all tasks"], ["bottom"])],
        build_towers(model, len(task_names)),
        [0] * len(task_names),
        input_dropout=model.input_dropout,
        learned_gates=False,
    )
