"""From a `ModelConfig` to its network; which kind has which is in `mmoe.config.model.MODELS`.

A model is a file here with a function that builds it (`omoe.py` is the shortest), and a class of
config with its line in `MODELS`.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from mmoe.config import MODELS, ModelConfig
from mmoe.config.parallel import ParallelConfig
from mmoe.mixture.requests.columns import RequestColumns
from mmoe.models.layout import choose_layout
from mmoe.models.network import Level, MixtureNetwork
from mmoe.parallel import AllToAllDispatcher


def build_network(
    model: ModelConfig,
    input_dim: int,
    task_names: Sequence[str],
    parallel: ParallelConfig | None = None,
    stage_columns: Sequence[Sequence[int] | None] = (),
    requests: RequestColumns | None = None,
) -> MixtureNetwork:
    """Builds the network that `model.kind` names; weights come from torch's random generator.

    Over several ranks that seed it alike they are those of one process: each rank builds the
    network with all gates and towers, and all experts or its part of them. Gates' losses, and
    batch norms, are then those of all ranks' rows; capacities, and the noise of gates and dropout,
    are each rank's own.

    Args:
        model: The `model` section of a config.
        input_dim: Width of x, dense features and embeddings together.
        task_names: The tasks, in the order of the logits' columns.
        parallel: The `parallel` section, where the ranks of the process group share each batch;
            None: this process is on its own, whatever ranks there are.
        stage_columns: For each of `model.stages`, the columns of x that there were; None: all.
        requests: Which columns of x are of requests; None: rows have none.

    Returns:
        `network(x_BD, return_gates=False)` → `NetworkOutput`.

    Raises:
        ValueError: No tasks, no input, or a setting that does not fit, with its name.

    Example:
        >>> import torch
        >>> from mmoe.config import ModelConfig
        >>> from mmoe.models import build_network
        >>> network = build_network(ModelConfig(kind="ple"), 20, ["click", "purchase"])
        >>> output = network(torch.zeros(4, 20), return_gates=True)
        >>> output.logits_BT.shape, [record.gate_names for record in output.gates]
        (torch.Size([4, 2]), [('click', 'purchase', 'shared'), ('click', 'purchase')])
    """
    if not task_names:
        raise ValueError("task_names: expected at least one task, got none")
    if input_dim < 1:
        raise ValueError(
            f"input_dim: expected 1 or more, got {input_dim}; a model needs at least one feature"
        )
    layout = choose_layout(model, parallel)
    layout = replace(layout, stage_columns=tuple(stage_columns), requests=requests)
    network: MixtureNetwork = MODELS.implementation(model)(model, input_dim, task_names, layout)
    if parallel is not None and parallel.shadowed:
        _shadow(network, parallel.shadowed)
    return network


def _shadow(network: MixtureNetwork, numbers: Sequence[int]) -> None:
    """Shadows experts by their numbers, from 1 on, level by level, where they are spread."""
    mixtures = [cast(Level, level).mixture for level in network.levels]
    count = sum(mixture.num_experts for mixture in mixtures)
    if unknown := [number for number in numbers if number > count]:
        raise ValueError(
            f"parallel.shadowed: there is no expert {unknown[0]}; the model has 1 to {count}, as "
            "`mmoe explain` numbers them"
        )
    first = 1
    for mixture in mixtures:
        mine = range(first, first + mixture.num_experts)
        first = mine.stop
        dispatcher = mixture.dispatcher
        if isinstance(dispatcher, AllToAllDispatcher):
            chosen = tuple(number - mine.start for number in numbers if number in mine)
            dispatcher.mode = replace(dispatcher.mode, shadowed=chosen)
