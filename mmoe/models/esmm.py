"""ESMM: an event and its consequence, trained over all rows."""

from collections.abc import Sequence

from mmoe.config.model import ModelConfig
from mmoe.models.layout import ONE_PROCESS, Layout
from mmoe.models.mmoe import build_mmoe
from mmoe.models.network import MixtureNetwork


def build_esmm(
    model: ModelConfig, input_dim: int, task_names: Sequence[str], layout: Layout = ONE_PROCESS
) -> MixtureNetwork:
    """Two towers over an MMoE: `P(event) = σ(a)`, `P(consequence | event) = σ(b)`.

    The network is MMoE's; the loss makes the difference (`mmoe.tasks.entire_space_sums`): it looks
    at the event and at `P(event) · P(consequence | event)` over all rows, so that the second tower
    is not fitted to the selected rows alone.

    Raises:
        ValueError: Other than two tasks.

    Source: Ma et al., "Entire space multi-task model" (SIGIR 2018); its shared-embedding towers
        stand here over a mixture.
    """
    if len(task_names) != 2:
        raise ValueError(
            "tasks: esmm needs two tasks, an event and its consequence (such as click, purchase), "
            f"got {len(task_names)}: {', '.join(task_names)}"
        )
    return build_mmoe(model, input_dim, task_names, layout)
