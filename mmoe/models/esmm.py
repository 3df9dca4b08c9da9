"""ESMM: an event and its consequence, trained over all rows."""

from collections.abc import Sequence

from mmoe.config import ModelConfig
from mmoe.models.layout import ONE_PROCESS, Layout
from mmoe.models.mmoe import build_mmoe
from mmoe.models.network import MixtureNetwork


def build_esmm(
    model: ModelConfig, input_dim: int, task_names: Sequence[str], layout: Layout = ONE_PROCESS
) -> MixtureNetwork:
    """Builds ESMM, two towers over an MMoE: `P(event) = σ(a)`, `P(consequence | event) = σ(b)`.

    The network is MMoE's; the loss makes the difference: the second task is trained as one of kind
    entire_space (`mmoe.tasks.kinds`), by which any other model can be trained too.

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
