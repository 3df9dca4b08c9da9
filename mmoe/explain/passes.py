"""The experts of a run, and passes over labelled rows with all of them and without each."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mmoe.config import RunConfig, prediction_columns
from mmoe.datasets import BatchSource, EncodedData, EncodedLabels
from mmoe.datasets.rows.encoded import join_labels
from mmoe.datasets.rows.prefetch import in_order
from mmoe.mixture import Inputs, MixtureOutput, Unmixed
from mmoe.mixture.leave_out import LeftOutBlock, mixes_without
from mmoe.models import GateRecord, MixtureNetwork, Ranker
from mmoe.predictor import Predictor
from mmoe.run import Tracker
from mmoe.score.file_scorer import scoring_threads
from mmoe.tasks import GateStatistics
from mmoe.tasks.towers import logits_of_unmixed


@dataclass(frozen=True, kw_only=True)
class ExpertPlace:
    """One expert of a network.

    Attributes:
        number: From 1 on, level by level; what `mmoe prune --experts` names it by.
        level: From 0 on.
        expert: Its place in the level's pool, from 0 on.
        name: As reports call it.
        gates: Names of the gates of its level that see it.
        alone: Of those, the ones that see no other.
    """

    number: int
    level: int
    expert: int
    name: str
    gates: tuple[str, ...]
    alone: tuple[str, ...]

    def title(self, levels: int) -> str:
        """Returns its name, with that of its level where there are several."""
        return self.name if levels == 1 else f"level {self.level + 1}, {self.name}"


def places_of(network: MixtureNetwork) -> list[ExpertPlace]:
    """Lists the experts of a network, level by level.

    Example:
        >>> from mmoe.config import ModelConfig
        >>> from mmoe.models import build_network
        >>> places = places_of(build_network(ModelConfig(kind="ple"), 20, ["click", "buy"]))
        >>> places[8].number, places[8].title(2), places[8].gates
        (9, 'level 2, click expert 1', ('click',))
    """
    found: list[ExpertPlace] = []
    for number, level in enumerate(network.levels):
        seen_GE = level.mixture.visibility_GE.tolist()
        for expert, name in enumerate(level.expert_names):
            seeing = [g for g, row in enumerate(seen_GE) if row[expert]]
            place = ExpertPlace(
                number=len(found) + 1,
                level=number,
                expert=expert,
                name=name,
                gates=tuple(level.gate_names[g] for g in seeing),
                alone=tuple(level.gate_names[g] for g in seeing if sum(seen_GE[g]) == 1),
            )
            found.append(place)
    return found


def check_explainable(network: MixtureNetwork, run: str) -> MixtureNetwork:
    """Returns the network, where tasks weigh several experts.

    Raises:
        ValueError: There is nothing that a gate decides, or the experts are untrained.
    """
    if network.is_silent:
        raise ValueError(
            f"{run}: its best weights are those before the first epoch, so no expert was trained "
            "and scores are those of the wide part alone; read its report, and train a run in "
            "which an epoch is better than the start"
        )
    if network.learned_gates and len(places_of(network)) > len(network.levels):
        return network
    raise ValueError(
        f"{run}: no gate of this run chooses between experts (shared bottom, single task, or one "
        "expert), so there is none to leave out; name a run of model.kind mmoe, omoe, cgc, ple or "
        "esmm with two experts or more"
    )


def gate_of_task(network: MixtureNetwork, level: int, tasks: Sequence[str], task: int) -> str:
    """Returns the name of the gate of a level by which a task mixes."""
    names = network.levels[level].gate_names
    if level == len(network.levels) - 1:
        return names[network.task_gates[task]]
    return tasks[task] if tasks[task] in names else names[0]


class _MixWithout:
    """Runs a network's levels once, and finds the logits without each of some experts meanwhile.

    Experts run once on every row. Of the last level all that is left to do without one are mixes
    and towers; without an expert of a lower level, the levels above it run again. Made for one
    batch. With `refill` gates that pick decide again (`mixes_without`).
    """

    def __init__(self, left_out: Sequence[ExpertPlace], *, refill: bool = False) -> None:
        self.left_out, self.refill = tuple(left_out), refill
        self._found: dict[int, Tensor] = {}

    def __call__(
        self,
        network: MixtureNetwork,
        number: int,
        sources: Sequence[Tensor | Inputs],
        rows: Inputs | None,
    ) -> MixtureOutput:
        """Runs a level, and all above it without each expert of it that is left out."""
        level = network.levels[number]
        mine = [v for v, place in enumerate(self.left_out) if place.level == number]
        experts = [self.left_out[v].expert for v in mine]
        mixed = mixes_without(level.mixture, sources, experts, refill=self.refill)
        parts: dict[int, list[Tensor]] = {v: [] for v in mine}
        for block in mixed.without:
            without = _above(network, number, block, rows)
            for v, logits_BT in zip(mine[block.experts], without, strict=True):
                parts[v].append(logits_BT)
        self._found |= {v: torch.cat(blocks) for v, blocks in parts.items()}
        return MixtureOutput(mixed.out_BGO, {}, mixed.weights_BGE)

    @property
    def variants_VBT(self) -> Tensor | None:
        """Logits without each expert; None where none is left out."""
        found = [self._found[v] for v in range(len(self.left_out))]
        return torch.stack(found) if found else None


def _above(
    network: MixtureNetwork, number: int, block: LeftOutBlock, rows: Inputs | None
) -> Iterable[Tensor]:
    """Logits of what a level mixed without each of L experts: L times `logits_BT`."""
    levels = network.levels
    if number + 1 == len(levels) and network.towers_mix(levels[number]):
        # Gates without an expert are more gates, with the same towers
        count = block.weights_BLGE.shape[1]
        unmixed = Unmixed(block.y, block.weights_BLGE.flatten(1, 2))
        logits_BX = logits_of_unmixed([*network.towers] * count, unmixed)
        if logits_BX is not None:
            return logits_BX.unflatten(1, (count, -1)).unbind(1)
    found = [_above_mixes(network, number, part, rows) for part in block.parts()]
    return torch.cat(found).unbind(1)


def _above_mixes(
    network: MixtureNetwork, number: int, block: LeftOutBlock, rows: Inputs | None
) -> Tensor:
    """The same by mixes that are made: `logits_BLT`."""
    count, domains_B = block.weights_BLGE.shape[1], None
    # Row after row, all variants of each: what comes back is cut the same way
    sources = [mixes_BLO.flatten(0, 1) for mixes_BLO in block.mixes()]
    if rows is not None and rows.domains_B is not None:
        domains_B = rows.domains_B[block.rows].repeat_interleave(count)
    variants = network.with_domains(sources[0], domains_B)
    for level in network.levels[number + 1 :]:
        sources = list(level.mixture(network.read(level, sources, variants)).out_BGO.unbind(1))
    return network.logits_of(sources, variants).unflatten(0, (-1, count))


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """Predictions of one pass.

    Attributes:
        base_NP: With all experts, float32; a column for each of `prediction_columns`.
        without_VNP: Without each of the experts that were left out.
        labels: Of the rows.
        gates: What the gates did.
    """

    base_NP: np.ndarray
    without_VNP: np.ndarray
    labels: EncodedLabels
    gates: GateStatistics


def predict_without(
    ranker: Ranker,
    config: RunConfig,
    rows: BatchSource,
    left_out: Sequence[ExpertPlace],
    tracker: Tracker,
    *,
    refill: bool = False,
) -> Predicted:
    """Predicts every row with all experts, and without each of some, in one pass.

    Args:
        ranker: The model; it is put into evaluation mode.
        config: Of its run.
        rows: With labels.
        left_out: Experts.
        tracker: Told of every batch.
        refill: Gates that pick decide again.
    """
    predictor = Predictor(ranker, config)
    gates, found = GateStatistics(), list[np.ndarray]()
    labels: list[EncodedLabels] = []
    with closing(rows.chunks()) as chunks:
        for chunk in chunks:
            assert chunk.labels is not None, "these rows carry labels"
            labels.append(chunk.labels)
            for batch in _batches(predictor, chunk, left_out, refill=refill):
                found.append(batch.every_VNP)
                gates.update(batch.gates, len(batch))
                tracker.advance(len(batch))
    columns = len(prediction_columns(predictor.tasks))
    found = found or [np.zeros((1 + len(left_out), 0, columns), np.float32)]
    every_VNP = found[0] if len(found) == 1 else np.concatenate(found, axis=1)
    return Predicted(
        base_NP=every_VNP[0],
        without_VNP=every_VNP[1:],
        labels=labels[0] if len(labels) == 1 else join_labels(labels),
        gates=gates,
    )


class _Batch(NamedTuple):
    """Predictions of some rows, with all experts first, then without each."""

    every_VNP: np.ndarray
    gates: Sequence[GateRecord]

    def __len__(self) -> int:
        """Number of rows."""
        return self.every_VNP.shape[1]


def _batches(
    predictor: Predictor, chunk: EncodedData, left_out: Sequence[ExpertPlace], *, refill: bool
) -> Iterator[_Batch]:
    """Batches of a chunk in order; each core works on one, as mixes are small beside experts.

    Where one thread works on all of them (on a GPU, without the operators) it keeps all cores.
    """

    def predicted(rows: slice) -> _Batch:
        mixer = _MixWithout(left_out, refill=refill)
        output = predictor.output(chunk, rows, return_gates=True, mixer=mixer)
        every = [output.logits_BT]
        every += [] if output.variants_VBT is None else output.variants_VBT.unbind(0)
        parts = [predictor.predictions(logits_BT, chunk, rows) for logits_BT in every]
        return _Batch(np.stack(parts), output.gates)

    alone = predictor.any_height and predictor.ranks == 1
    threads = scoring_threads(alone=alone)
    yield from in_order(predicted, predictor.batches(len(chunk)), threads, one_core_each=alone)
