"""MMoE: every task has its own gate over one pool of experts."""

from collections.abc import Sequence

from mmoe.config.model import ModelConfig
from mmoe.models.layout import ONE_PROCESS, Layout
from mmoe.models.network import Level, MixtureNetwork
from mmoe.models.sections import build_mixture, build_towers, pool_names


def build_mmoe(
    model: ModelConfig, input_dim: int, task_names: Sequence[str], layout: Layout = ONE_PROCESS
) -> MixtureNetwork:
    """Builds MMoE: `logit_t = tower_t(Σ_e softmax(W_t x)_e · expert_e(x))`.

    Source: Ma et al., "Modeling task relationships in multi-task learning with multi-gate
        mixture-of-experts" (KDD 2018), equations 5 to 7.
    """
    num_tasks, num_experts = len(task_names), model.num_experts
    mixture = build_mixture(model, layout, input_dim, num_tasks, num_experts, gate_tasks=task_names)
    return MixtureNetwork(
        [Level(mixture, task_names, pool_names(model))],
        build_towers(model, num_tasks, mixture.output_dim),
        range(num_tasks),
        input_dropout=model.input_dropout,
    )
