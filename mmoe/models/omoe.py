"""OMoE: one gate over the pool of experts, for all tasks."""

from collections.abc import Sequence

from mmoe.config import ModelConfig
from mmoe.models.layout import ONE_PROCESS, Layout
from mmoe.models.network import MixtureNetwork
from mmoe.models.sections import build_level, build_towers


def build_omoe(
    model: ModelConfig, input_dim: int, task_names: Sequence[str], layout: Layout = ONE_PROCESS
) -> MixtureNetwork:
    """Builds OMoE, MMoE with one gate for all tasks: `logit_t = tower_t(Σ_e g(x)_e · expert_e(x))`.

    Source: Ma et al., "Modeling task relationships in multi-task learning with multi-gate
        mixture-of-experts" (KDD 2018), section 4.1.
    """
    level = build_level(
        model, layout, input_dim, ["all tasks"], model.expert_names(task_names), gate_tasks=[None]
    )
    return MixtureNetwork(
        [level],
        build_towers(model, len(task_names), level.mixture.output_dim),
        [0] * len(task_names),
        input_dropout=model.input_dropout,
    )
