"""Worth of experts: predictions without each, what that changes for each task, and their cost."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from mmoe.config import RunConfig, prediction_columns
from mmoe.datasets import BatchSource, EncodedData, EncodedLabels, join_labels
from mmoe.datasets.rows.prefetch import in_order
from mmoe.explain.measures import Changes, TaskJudge, Verdict, worst
from mmoe.mixture import GateTraits, Inputs, MixtureOutput, MultiGateMixture, Unmixed, traits_of
from mmoe.mixture.leave_out import LeftOutBlock, can_refill, mixes_without
from mmoe.mixture.pytrees import cast_for_autocast
from mmoe.models import GateRecord, MixtureNetwork, Ranker
from mmoe.predictor import Predictor
from mmoe.run import Reporter, Tracker
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
            for every_VNP, records in _batches(predictor, chunk, left_out, refill=refill):
                found.append(every_VNP)
                gates.update(records, every_VNP.shape[1])
                tracker.advance(every_VNP.shape[1])
    columns = len(prediction_columns(predictor.tasks))
    found = found or [np.zeros((1 + len(left_out), 0, columns), np.float32)]
    every_VNP = found[0] if len(found) == 1 else np.concatenate(found, axis=1)
    return Predicted(
        base_NP=every_VNP[0],
        without_VNP=every_VNP[1:],
        labels=labels[0] if len(labels) == 1 else join_labels(labels),
        gates=gates,
    )


def _batches(
    predictor: Predictor, chunk: EncodedData, left_out: Sequence[ExpertPlace], *, refill: bool
) -> Iterator[tuple[np.ndarray, Sequence[GateRecord]]]:
    """Predictions of a chunk's batches in order, with all experts first, then without each.

    Each core works on a batch, as mixes are small beside experts. Where one thread works on all of
    them (on a GPU, without the operators) it keeps all cores.
    """

    def predicted(rows: slice) -> tuple[np.ndarray, Sequence[GateRecord]]:
        mixer = _MixWithout(left_out, refill=refill)
        output = predictor.output(chunk, rows, return_gates=True, mixer=mixer)
        every = [output.logits_BT]
        every += [] if output.variants_VBT is None else output.variants_VBT.unbind(0)
        parts = [predictor.predictions(logits_BT, chunk, rows) for logits_BT in every]
        return np.stack(parts), output.gates

    alone = predictor.any_height and predictor.ranks == 1
    threads = scoring_threads(alone=alone)
    yield from in_order(predicted, predictor.batches(len(chunk)), threads, one_core_each=alone)


class ExpertStudy:
    """Leaves every expert of a model out in turn, on labelled rows.

    Args:
        ranker: In evaluation mode, with a network that `check_explainable` let pass.
        config: Of its run.
        rows: With labels.
        tolerance: As in `ExplainSettings`.
        reporter: Told of progress.
    """

    def __init__(
        self,
        ranker: Ranker,
        config: RunConfig,
        rows: BatchSource,
        tolerance: float,
        reporter: Reporter,
    ) -> None:
        self.ranker, self.network = ranker, ranker.network
        self.config, self.rows, self.tolerance = config, rows, tolerance
        self.reporter = reporter
        self.places = places_of(self.network)
        self.names = [task.name for task in config.tasks]

    def result(self) -> dict[str, Any]:
        """Computes what explain.json holds of tasks and experts."""
        found = self._predict("leaving each expert out", self.places)
        judges = [
            TaskJudge(self.config, found.labels, t, found.base_NP, self.tolerance)
            for t in range(len(self.names))
        ]
        changes = [
            [judge.changes(without_NP) for judge in judges] for without_NP in found.without_VNP
        ]
        refilled = self._refilled(judges, changes)
        gates = found.gates.summary()
        costs, rows_per_request = _costs_of(self.ranker, self.config, self.rows, self.places)
        experts = []
        for v, (place, cost) in enumerate(zip(self.places, costs, strict=True)):
            shares = self._shares(place, gates)
            of_tasks = self._tasks(place, shares, judges, changes[v], refilled.get(v, {}))
            experts.append(
                {
                    "number": place.number,
                    "level": place.level + 1,
                    "name": place.name,
                    **cost,
                    "shares": shares,
                    "tasks": of_tasks,
                    "needed_by": _saying(of_tasks, "needed", "alone"),
                    "unsure_of": _saying(of_tasks, "unsure"),
                }
            )
        return {
            "rows": len(found.labels),
            "rows_per_request": rows_per_request,
            "tolerance": self.tolerance,
            "levels": len(self.network.levels),
            "tasks": [judge.summary() for judge in judges],
            "experts": experts,
            "gates": gates,
            "unneeded": [
                one["number"] for one in experts if not one["needed_by"] + one["unsure_of"]
            ],
        }

    def _predict(
        self, what: str, places: Sequence[ExpertPlace], *, refill: bool = False
    ) -> Predicted:
        with self.reporter.track(what, len(self.rows), "rows") as tracker:
            return predict_without(
                self.ranker, self.config, self.rows, places, tracker, refill=refill
            )

    def _refilled(
        self, judges: Sequence[TaskJudge], changes: Sequence[Sequence[Changes]]
    ) -> dict[int, dict[int, Changes]]:
        """Computes a task's changes where the next pick takes over from an expert."""
        touched: dict[int, list[int]] = {}
        for v, (place, of_tasks) in enumerate(zip(self.places, changes, strict=True)):
            if can_refill(self.network.levels[place.level].mixture, place.expert):
                said = (judge.verdicts(c) for judge, c in zip(judges, of_tasks, strict=True))
                tasks = [t for t, own in enumerate(said) if worst(own.values()) != "needed"]
                touched |= {v: tasks} if tasks else {}
        if not touched:
            return {}
        found = self._predict(
            "the next picks in their place", [self.places[v] for v in touched], refill=True
        )
        return {
            v: {t: judges[t].changes(without_NP) for t in tasks}
            for (v, tasks), without_NP in zip(touched.items(), found.without_VNP, strict=True)
        }

    def _tasks(
        self,
        place: ExpertPlace,
        shares: Mapping[str, float],
        judges: Sequence[TaskJudge],
        changes: Sequence[Changes],
        refilled: Mapping[int, Changes],
    ) -> dict[str, dict[str, Any]]:
        found = {}
        for t, judge in enumerate(judges):
            gate = gate_of_task(self.network, place.level, self.names, t)
            said = judge.verdicts(refilled.get(t, changes[t]))
            found[judge.task.name] = {
                "share": shares.get(gate),
                "renormalised": changes[t],
                "refilled": refilled.get(t),
                "verdicts": said,
                "verdict": "alone" if gate in place.alone else worst(said.values()),
            }
        return found

    def _shares(self, place: ExpertPlace, gates: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Returns its mean share of the weights of each gate that sees it."""
        level = gates[place.level]
        weights = zip(level["gates"], level["mean_weight"], strict=True)
        return {
            gate: mean_E[place.expert] / (sum(mean_E) or 1.0)
            for gate, mean_E in weights
            if gate in place.gates
        }


def _saying(of_tasks: Mapping[str, Mapping[str, Any]], *verdicts: Verdict) -> list[str]:
    return [name for name, one in of_tasks.items() if one["verdict"] in verdicts]


# Rows that an expert is timed on, and how often; of requests as many as are scored at once, as the
# last tile of requests, which is not full, weighs less there
_ROWS, _TIMES = 1024, 7

Run = Callable[[], Any]


def _costs_of(
    ranker: Ranker, config: RunConfig, rows: BatchSource, places: Sequence[ExpertPlace]
) -> tuple[list[dict[str, Any]], float | None]:
    """Weighs and times every expert alone, on rows as it reads them.

    Returns:
        Of each expert the bytes of its weights, as they are trained; a median of milliseconds for a
        thousand rows (of an expert of the request what their requests take, each computed once, and
        handing it to the rows); what it is computed once for. And the rows of a request.
    """
    network = ranker.network
    read = _read_by_levels(ranker, config, rows)
    found = []
    for place in places:
        mixture = network.levels[place.level].mixture
        part = mixture.experts.part([place.expert])
        source = read[place.level][mixture.expert_source[place.expert]]
        with torch.no_grad():
            once_per, run = work_of(mixture, place.expert, source)
            milliseconds = _milliseconds(run, source)
        size = sum(tensor.numel() * tensor.element_size() for tensor in part.state_dict().values())
        found.append({"bytes": size, "milliseconds": milliseconds, "once_per": once_per})
    first = network.levels[0].mixture.expert_source[0]
    return found, read[0][first].rows_a_request


def work_of(
    mixture: MultiGateMixture, expert: int, rows: Inputs
) -> tuple[Literal["request", "row"], Run]:
    """Returns what an expert does for rows, and what it does it once for.

    Of rows of requests it is what scoring does: an expert of the request runs on the requests, and
    the first layer of one of the row has its part of the request computed once, where all experts
    run on all rows. Where gates pick, those of the row run on whole rows.

    Args:
        mixture: That has it.
        expert: Its place.
        rows: As it reads them.
    """
    pool, one = mixture.experts, mixture.experts.part([expert])
    if not rows.shares:
        return "row", partial(one.dense, [rows.whole])
    if expert < pool.shared_work(rows).experts:
        return "request", partial(one.shared_outputs, rows)
    if traits_of(mixture.gate, GateTraits).k is None:
        return "row", partial(one.of_requests, rows)
    return "row", partial(one.dense, [cast_for_autocast(rows.whole)])


def _milliseconds(run: Run, rows: Inputs) -> float:
    seconds, is_cuda = [], rows.x_BR.is_cuda
    for _ in range(1 + _TIMES):
        start = time.perf_counter()
        run()
        if is_cuda:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return median(seconds[1:]) * 1000 / max(len(rows), 1) * 1000  # ms a thousand rows


def _read_by_levels(ranker: Ranker, config: RunConfig, rows: BatchSource) -> list[list[Inputs]]:
    """The sources of each level, of the first rows."""
    network = ranker.network
    seen: list[list[Inputs]] = []

    def see(level: nn.Module, args: tuple[Any, ...]) -> None:
        seen.append([Inputs.of(x) for x in args[0]])

    hooks = [level.mixture.register_forward_pre_hook(see) for level in network.levels]
    try:
        predictor = Predictor(ranker, config)
        most = _ROWS if config.data.requests is None else max(predictor.height, _ROWS)
        with closing(rows.chunks(0, min(len(rows), most))) as chunks:
            chunk = next(iter(chunks))
            predictor.output(chunk, slice(0, min(len(chunk), predictor.height)))
    finally:
        for hook in hooks:
            hook.remove()
    return seen
