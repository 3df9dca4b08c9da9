"""MMoE: every task has its own gate over one pool of experts."""

from collections.abc import Sequence

from mmoe.config import ModelConfig
from mmoe.models.layout import ONE_PROCESS, Layout
from mmoe.models.network import MixtureNetwork
from mmoe.models.sections import build_level, build_towers


def build_mmoe(
    model: ModelConfig, input_dim: int, task_names: Sequence[str], layout: Layout = ONE_PROCESS
) -> MixtureNetwork:
    """Builds MMoE: `logit_t = tower_t(Σ_e softmax(W_t x)_e · expert_e(x))`.

    Source: Ma et al., "Modeling task relationships in multi-task learning with multi-gate
        mixture-of-experts" (KDD 2018), equations 5 to 7.
    """
    level = build_level(
        model, layout, input_dim, task_names, model.expert_names(task_names), gate_tasks=task_names
    )
    return MixtureNetwork(
        [level],
        build_towers(model, len(task_names), level.mixture.output_dim),
        range(len(task_names)),
        input_dropout=model.input_dropout,
    )
