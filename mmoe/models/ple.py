"""PLE: levels of own and shared experts, and CGC, its case of one level."""

from collections.abc import Sequence

import torch
from torch import Tensor

from mmoe.config import ModelConfig
from mmoe.config.model import CGCConfig
from mmoe.models.layout import ONE_PROCESS, Layout
from mmoe.models.network import Level, MixtureNetwork
from mmoe.models.sections import build_level, build_towers


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
    depth: int = model.levels if levels is None else levels
    stack: list[Level] = []
    for number in range(1, depth + 1):
        width = stack[-1].mixture.output_dim if stack else input_dim
        assert width is not None, "build_experts asks for it"
        stack.append(_level(model, layout, width, task_names, number, last=number == depth))
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
    number: int,
    *,
    last: bool,
) -> Level:
    num_tasks, first = len(task_names), number == 1
    # Owner num_tasks stands for "shared", as an expert's and as a gate's.
    owners = [t for t in range(num_tasks) for _ in range(model.task_experts)]
    owners += [num_tasks] * model.shared_experts
    expert_names = model.expert_names(task_names)
    if isinstance(model, CGCConfig):
        left = model.left_experts(number, expert_names)
        owners, expert_names = [owners[e] for e in left], [expert_names[e] for e in left]
    gates = list(range(num_tasks)) if last else list(range(num_tasks + 1))
    gate_names = [*task_names, "shared"][: len(gates)]
    visibility = _visibility(owners, gates, num_tasks) if owners else torch.zeros(len(gates), 0)
    _check_pruned(model, visibility, gate_names, number)
    return build_level(
        model,
        layout,
        width,
        gate_names,
        expert_names,
        visibility=visibility,
        expert_source=None if first else owners,
        gate_source=None if first else gates,
        gate_tasks=[*task_names, None][: len(gates)],
    )


def _visibility(owners: Sequence[int], gates: Sequence[int], num_tasks: int) -> Tensor:
    """Gate t sees its own and the shared experts, the shared gate sees all."""
    return torch.tensor(
        [[gate == num_tasks or owner in (gate, num_tasks) for owner in owners] for gate in gates]
    )


def _check_pruned(model: ModelConfig, seen_GE: Tensor, names: Sequence[str], number: int) -> None:
    """Refuses to leave a gate too few experts, or a level above the first none that is shared."""
    if not model.pruned:
        return
    least, mend = model.gate.picks or 1, "keep one more of them out of model.pruned"
    for name, sees in zip(names, seen_GE.sum(1).tolist(), strict=True):
        if sees < least:
            picks = f", fewer than gate.k ({least})" if least > 1 else ""
            raise ValueError(
                f"model.pruned: gate {name} of level {number} would see {sees} "
                f"expert{'s' * (sees != 1)}{picks}; {mend}"
            )
    if number > 1 and not bool(seen_GE.all(0).any()):
        raise ValueError(
            f"model.pruned: level {number} would have no shared expert, by which alone it reads "
            f"what the shared gate below it gave; {mend}"
        )


def build_cgc(
    model: ModelConfig, input_dim: int, task_names: Sequence[str], layout: Layout = ONE_PROCESS
) -> MixtureNetwork:
    """Builds CGC: `logit_t = tower_t(Σ_{e ∈ own_t ∪ shared} g_t(x)_e · expert_e(x))`.

    Source: Tang et al., "Progressive layered extraction (PLE)" (RecSys 2020), equations 1 to 3.
    """
    return build_ple(model, input_dim, task_names, layout, levels=1)
