"""OMoE: one gate over the pool of experts, for all tasks."""

from collections.abc import Sequence

from mmoe.config.model import ModelConfig
from mmoe.mixture import MultiGateMixture
from mmoe.models.gates import build_gate
from mmoe.models.network import Level, MixtureNetwork
from mmoe.models.parts import build_capacity, build_experts, build_towers, numbered


def build_omoe(model: ModelConfig, input_dim: int, task_names: Sequence[str]) -> MixtureNetwork:
    """`logit_t = tower_t(Σ_e softmax(W x)_e · expert_e(x))`: MMoE whose tasks share one gate.

    Source: Ma et al., "Modeling task relationships in multi-task learning with multi-gate
        mixture-of-experts" (KDD 2018), section 4.1.
    """
    mixture = MultiGateMixture(
        input_dim,
        1,
        build_experts(model, input_dim, model.num_experts),
        gate=build_gate(model, input_dim, 1, model.num_experts),
        capacity=build_capacity(model),
        execution=model.execution,
    )
    return MixtureNetwork(
        [Level(mixture, ["all tasks"], numbered("expert", model.num_experts))],
        build_towers(model, len(task_names)),
        [0] * len(task_names),
        input_dropout=model.input_dropout,
    )
