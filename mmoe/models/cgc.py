"""CGC: own experts of each task beside shared ones, one level."""

from collections.abc import Sequence

from mmoe.config import ModelConfig
from mmoe.models.layout import ONE_PROCESS, Layout
from mmoe.models.network import MixtureNetwork
from mmoe.models.ple import build_ple


def build_cgc(
    model: ModelConfig, input_dim: int, task_names: Sequence[str], layout: Layout = ONE_PROCESS
) -> MixtureNetwork:
    """Builds CGC: `logit_t = tower_t(Σ_{e ∈ own_t ∪ shared} g_t(x)_e · expert_e(x))`.

    Source: Tang et al., "Progressive layered extraction (PLE)" (RecSys 2020), equations 1 to 3.
    """
    return build_ple(model, input_dim, task_names, layout, levels=1)
