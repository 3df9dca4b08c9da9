"""PLE: levels of own and shared experts, and CGC, its case of one level."""

from collections.abc import Sequence

import torch
from torch import Tensor

from mmoe.config.model import ModelConfig
from mmoe.models.layout import ONE_PROCESS, Layout
from mmoe.models.network import Level, MixtureNetwork
from mmoe.models.sections import build_level, build_towers, owned_names


def build_ple(
    model: ModelConfig,
    input_dim: int,
    task_names: Sequence[str],
    layout: Layout = ONE_PROCESS,
    levels: int | None = None,
) -> MixtureNetwork:
    """Builds progressive layered extraction: `levels` (default `model.levels`) of mixtures.

    On every level task t has `task_experts` of its own, and `shared_experts` belong to all. Gate t
    mixes its own and the shared ones; every level but the last has a shared gate that mixes all of
    them. From the second level on, task t's experts and gate read what gate t gave one level below,
    and the shared experts and the shared gate what the shared gate gave:

    `g_t^j = Σ_{e ∈ own_t ∪ shared} softmax(W_t^j g_t^{j−1})_e · expert_e^j(g_{owner(e)}^{j−1})`

    Source: Tang et al., "Progressive layered extraction (PLE)" (RecSys 2020), equations 4 to 7.
    """
    levels = model.levels if levels is None else levels
    stack: list[Level] = []
    for number in range(1, levels + 1):
        width = stack[-1].mixture.output_dim if stack else input_dim
        assert width is not None, "build_experts asks for it"
        ends = {"first": number == 1, "last": number == levels}
        stack.append(_level(model, layout, width, task_names, **ends))
    return MixtureNetwork(
        stack,
        build_towers(model, len(task_names), stack[-1].mixture.output_dim),
        range(len(task_names)),
        input_dropout=model.input_dropout,
    )


def _level(
    model: ModelConfig,
    layout: Layout,
    width: int,
    task_names: Sequence[str],
    *,
    first: bool,
    last: bool,
) -> Level:
    num_tasks = len(task_names)
    # Owner num_tasks stands for "shared", as an expert's and as a gate's.
    owners = [t for t in range(num_tasks) for _ in range(model.task_experts)]
    owners += [num_tasks] * model.shared_experts
    gates = list(range(num_tasks)) if last else list(range(num_tasks + 1))
    return build_level(
        model,
        layout,
        width,
        [*task_names, "shared"][: len(gates)],
        owned_names(model, task_names),
        visibility=_visibility(owners, gates, num_tasks),
        expert_source=None if first else owners,
        gate_source=None if first else gates,
    )


def _visibility(owners: Sequence[int], gates: Sequence[int], num_tasks: int) -> Tensor:
    """Gate t sees its own and the shared experts, the shared gate sees all."""
    return torch.tensor(
        [[gate == num_tasks or owner in (gate, num_tasks) for owner in owners] for gate in gates]
    )
