"""Worth of experts: each task's change without an expert, and each expert's cost."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from statistics import median
from typing import Any, Literal

import torch
from torch import nn

from mmoe.config import RunConfig
from mmoe.datasets import BatchSource
from mmoe.explain.measures import Changes, TaskJudge, Verdict, worst
from mmoe.explain.passes import ExpertPlace, Predicted, gate_of_task, places_of, predict_without
from mmoe.mixture import GateTraits, Inputs, MultiGateMixture, traits_of
from mmoe.mixture.leave_out import can_refill
from mmoe.mixture.pytrees import cast_for_autocast
from mmoe.models import Ranker
from mmoe.predictor import Predictor
from mmoe.run import Reporter


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
_PER = 1000

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
    return median(seconds[1:]) * 1000 / max(len(rows), 1) * _PER


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
