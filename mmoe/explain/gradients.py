"""Agreement of tasks' gradients on the layers that they share."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from mmoe.config import RunConfig, TaskConfig
from mmoe.datasets import Batch, BatchSource, EncodedData
from mmoe.mixture.axes import TensorAxes, axes_of
from mmoe.models import Level, MixtureNetwork, Ranker
from mmoe.run import Reporter
from mmoe.tasks import loss_sums

# Batches that are looked at, and how many the rows are cut into where they are fewer
_MOST, _FEWEST = 32, 8

FORMULA = (
    "cosine: mean over batches of ⟨g_i, g_j⟩ / (‖g_i‖ ‖g_j‖), with g_i = ∂L_i/∂θ on the shared "
    "layers θ"
)


class _Shared(NamedTuple):
    """A tensor of the shared layers, and which of it is shared; None: all."""

    weight: nn.Parameter
    mask: Tensor | None


def gradient_cosines(
    ranker: Ranker, config: RunConfig, rows: BatchSource, reporter: Reporter
) -> dict[str, Any]:
    """Measures how the tasks' gradients agree on the shared layers.

    `cosine_ij = mean_b ⟨g_i, g_j⟩ / (‖g_i‖ ‖g_j‖)`

    with `g_i = ∂L_i / ∂θ` on batch b, θ the weights of the layers that more than one task reads:
    experts that several see, and what stands before them. Embeddings, gates and towers are left
    out.

    Args:
        ranker: In evaluation mode; it is not changed.
        config: Of its run.
        rows: With labels.
        reporter: Told of progress.

    Returns:
        `tasks`, `cosine` as lists of rows (None where a pair never met), `batches`, `formula`.

    Raises:
        ValueError: There is one task, or no layer that two of them share.

    Source: Yu et al., "Gradient surgery for multi-task learning" (NeurIPS 2020).
    """
    names = [task.name for task in config.tasks]
    model = copy.copy(ranker)
    model._modules = dict(ranker._modules)  # the tables stay one, the network becomes a copy
    model.network = copy.deepcopy(ranker.network).requires_grad_(True)
    shared = _shared_layers(model.network)
    if len(names) < 2 or not shared:
        raise ValueError(
            "--gradients: expected two tasks or more that share a layer, got "
            f"{len(names)} task{'s' * (len(names) != 1)} and {len(shared)} shared tensors; leave "
            "it out"
        )
    cosines: list[np.ndarray] = []
    total = min(len(rows), _MOST * _size(rows, config))
    with reporter.track("tasks' gradients", total, "rows") as tracker:
        for batch in _batches(rows, config):
            cosines.append(_cosines(_gradients(model, config, batch, shared)))
            tracker.advance(len(batch))
        if not cosines:
            raise ValueError(
                f"--gradients: no chunk of rows has a batch of {_size(rows, config)}; read them "
                "in larger files, or lower training.batch_size"
            )
    return {"tasks": names, "cosine": _means(cosines), "batches": len(cosines), "formula": FORMULA}


def _means(values_bTT: Sequence[np.ndarray]) -> list[list[float | None]]:
    """Means over batches, NaN left out; None where there is nothing else."""
    known = np.isfinite(values_bTT)
    counts_TT = known.sum(0)
    means_TT = np.where(known, values_bTT, 0).sum(0) / np.maximum(counts_TT, 1)
    return [
        [mean if count else None for mean, count in zip(means, counts, strict=True)]
        for means, counts in zip(means_TT.tolist(), counts_TT.tolist(), strict=True)
    ]


def _size(rows: BatchSource, config: RunConfig) -> int:
    return max(min(config.training.batch_size, len(rows) // _FEWEST), 1)


def _batches(rows: BatchSource, config: RunConfig) -> Iterator[Batch]:
    """Yields batches of rows in their order, at most so many."""
    size, count = _size(rows, config), 0
    with closing(rows.chunks()) as chunks:
        for chunk in chunks:
            for start in range(0, len(chunk) - size + 1, size):
                yield _batch(chunk, start, start + size)
                count += 1
                if count == _MOST:
                    return


def _batch(chunk: EncodedData, start: int, stop: int) -> Batch:
    assert chunk.labels is not None, "these rows carry labels"
    groups_B, compared_N = None, chunk.labels.compared_N
    if compared_N is not None:
        groups_B = np.unique(compared_N[start:stop], return_inverse=True)[1].astype(np.int64)
    return chunk.batch(slice(start, stop), groups_B=groups_B)


def _losses(model: Ranker, config: RunConfig, batch: Batch) -> list[Tensor | None]:
    """Computes each task's mean loss, to be differentiated; None where no row has its label."""
    batch = batch.to(model.device)
    with torch.no_grad():
        lookups = model.look_up(batch)
    output = model(batch, lookups, with_bias=True)
    logits_BT = output.logits_BT if output.with_bias_BT is None else output.with_bias_BT
    assert batch.labels_BT is not None and batch.observed_BT is not None
    assert batch.weights_BT is not None, "these rows carry labels"
    found = loss_sums(
        logits_BT,
        batch.labels_BT,
        batch.observed_BT,
        batch.weights_BT,
        _trained(config),
        groups_B=batch.groups_B,
    )
    pairs = zip(found.losses_T.unbind(0), found.weights_T.unbind(0), strict=True)
    return [loss / weight if float(weight) > 0 else None for loss, weight in pairs]


def _trained(config: RunConfig) -> list[TaskConfig]:
    """The tasks as they train; imputation towers, which only training has, are done without."""
    return [
        task.model_copy(update={"counterfactual": None}) if task.imputes else task
        for task in config.trained_tasks
    ]


def _gradients(
    model: Ranker, config: RunConfig, batch: Batch, shared: Sequence[_Shared]
) -> list[list[Tensor] | None]:
    """Computes each task's gradient by each shared tensor, 0 where that is not shared."""
    weights = [one.weight for one in shared]
    result: list[list[Tensor] | None] = []
    with torch.enable_grad():
        for loss in _losses(model, config, batch):
            if loss is None:
                result.append(None)
                continue
            found = torch.autograd.grad(loss, weights, retain_graph=True, allow_unused=True)
            result.append([_masked(g, one) for g, one in zip(found, shared, strict=True)])
    return result


def _masked(gradient: Tensor | None, one: _Shared) -> Tensor:
    if gradient is None:
        return torch.zeros_like(one.weight)
    return gradient if one.mask is None else gradient * one.mask


def _cosines(gradients: Sequence[list[Tensor] | None]) -> np.ndarray:
    flat = [None if g is None else torch.cat([x.flatten() for x in g]).double() for g in gradients]
    tasks = len(flat)
    values_TT = np.full((tasks, tasks), np.nan)
    for i, one in enumerate(flat):
        for j, two in enumerate(flat):
            if one is not None and two is not None:
                lengths = float(one.norm() * two.norm())
                values_TT[i, j] = float(one @ two) / lengths if lengths > 0 else np.nan
    return values_TT


def _shared_layers(network: MixtureNetwork) -> list[_Shared]:
    """Weights that the losses of two tasks or more depend on, before gates and towers."""
    levels = network.levels
    found: list[_Shared] = []
    for name in ("inputs", "sequences", "crossing"):
        module = getattr(network, name)
        found += [] if module is None else [_Shared(w, None) for w in module.parameters()]
    for number, level in enumerate(levels):
        last = number == len(levels) - 1
        shared_E = _read_by_several(level, network.task_gates if last else None)
        if not bool(shared_E.any()):
            continue
        axes = axes_of(level.mixture, {"experts": range(len(shared_E))})
        for name, weight in level.mixture.experts.named_parameters("experts"):
            found.append(_Shared(weight, _mask(weight, axes[name], shared_E)))
    return found


def _read_by_several(level: Level, task_gates: Sequence[int] | None) -> Tensor:
    """Marks experts that two tasks or more read, bool [E]; what a shared gate mixes, all do."""
    seen_GE = level.mixture.visibility_GE
    if task_gates is None:
        every_E = torch.zeros_like(seen_GE[0])
        if "shared" in level.gate_names:
            every_E = seen_GE[level.gate_names.index("shared")]
        return every_E | (seen_GE.sum(0) > 1)
    return seen_GE[list(task_gates)].sum(0) > 1


def _mask(weight: Tensor, axes: TensorAxes, shared_E: Tensor) -> Tensor | None:
    """1 where a tensor is of experts that are shared; None where that is all of it."""
    experts = axes.entries("experts") or range(len(shared_E))
    own_E = shared_E[[cast(int, e) for e in experts]]
    if bool(own_E.all()):
        return None
    shape = [1] * weight.dim()
    shape[axes.dim("experts") or 0] = len(own_E)
    return own_E.to(weight).view(shape)
