"""Shared-Bottom: one expert that every task sees."""

from collections.abc import Sequence

import torch

from mmoe.config.model import ModelConfig
from mmoe.mixture import FixedGate
from mmoe.models.layout import ONE_PROCESS, Layout
from mmoe.models.network import Level, MixtureNetwork
from mmoe.models.parts import build_mixture, build_towers


def build_shared_bottom(
    model: ModelConfig, input_dim: int, task_names: Sequence[str], layout: Layout = ONE_PROCESS
) -> MixtureNetwork:
    """Builds Shared-Bottom: `logit_t = tower_t(expert(x))`.

    Source: Caruana, "Multitask learning" (Machine Learning 28, 1997).
    """
    mixture = build_mixture(model, layout, input_dim, 1, 1, gate=FixedGate(torch.ones(1, 1)))
    return MixtureNetwork(
        [Level(mixture, ["all tasks"], ["bottom"])],
        build_towers(model, len(task_names), mixture.output_dim),
        [0] * len(task_names),
        input_dropout=model.input_dropout,
        learned_gates=False,
    )
