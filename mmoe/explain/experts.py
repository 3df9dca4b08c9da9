"""What would change for each task if an expert were gone: the core of an explanation."""

from collections.abc import Mapping, Sequence
from typing import Any

from mmoe.config import RunConfig
from mmoe.datasets.rows.batch_source import BatchSource
from mmoe.explain.cost import costs_of
from mmoe.explain.measures import Judged, TaskJudge, Verdict, verdicts_of, worst
from mmoe.explain.passes import Predicted, predict_without
from mmoe.explain.places import ExpertPlace, gate_of_task, levels_of, places_of
from mmoe.mixture.leave_out import can_refill
from mmoe.models.network import MixtureNetwork
from mmoe.models.ranker import Ranker
from mmoe.run.console import Reporter

Changes = dict[str, dict[str, float | None]]


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
        assert isinstance(ranker.network, MixtureNetwork)
        self.ranker, self.network = ranker, ranker.network
        self.config, self.rows, self.tolerance = config, rows, tolerance
        self.reporter = reporter
        self.places = places_of(self.network)
        self.names = [task.name for task in config.tasks]

    def result(self) -> dict[str, Any]:
        """Computes what explain.json holds of tasks and experts."""
        found = self._predict("leaving each expert out", self.places)
        judges = [TaskJudge(self.config, found.labels, t) for t in range(len(self.names))]
        bases = [judge.judge(found.base_NP) for judge in judges]
        changes = [
            [judge.changes(base, judge.judge(without_NP)) for judge, base in _pairs(judges, bases)]
            for without_NP in found.without_VNP
        ]
        refilled = self._refilled(judges, bases, changes)
        gates = found.gates.summary()
        costs = costs_of(self.ranker, self.config, self.rows, self.places)
        experts = []
        for v, (place, cost) in enumerate(zip(self.places, costs, strict=True)):
            shares = self._shares(place, gates)
            of_tasks = self._tasks(place, shares, judges, bases, changes[v], refilled.get(v, {}))
            experts.append(
                {
                    "number": place.number,
                    "level": place.level + 1,
                    "name": place.name,
                    "bytes": cost.bytes,
                    "milliseconds": cost.milliseconds,
                    "once_per": cost.once_per,
                    "shares": shares,
                    "tasks": of_tasks,
                    "needed_by": _saying(of_tasks, "needed", "alone"),
                    "unsure_of": _saying(of_tasks, "unsure"),
                }
            )
        return {
            "rows": len(found.labels),
            "rows_per_request": costs[0].rows_per_request,
            "tolerance": self.tolerance,
            "levels": len(self.network.levels),
            "tasks": [_task(judge, base) for judge, base in _pairs(judges, bases)],
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
        self,
        judges: Sequence[TaskJudge],
        bases: Sequence[Judged],
        changes: Sequence[Sequence[Changes]],
    ) -> dict[int, dict[int, Changes]]:
        """For experts that a task may do without: the changes where the next pick takes over."""
        touched: dict[int, list[int]] = {}
        for v, (place, of_tasks) in enumerate(zip(self.places, changes, strict=True)):
            if not can_refill(levels_of(self.network)[place.level].mixture, place.expert):
                continue
            tasks = [
                t
                for t, (judge, base) in enumerate(_pairs(judges, bases))
                if worst(self._verdicts(judge, base, of_tasks[t]).values()) != "needed"
            ]
            if tasks:
                touched[v] = tasks
        if not touched:
            return {}
        found = self._predict(
            "the next picks in their place", [self.places[v] for v in touched], refill=True
        )
        return {
            v: {t: judges[t].changes(bases[t], judges[t].judge(without_NP)) for t in tasks}
            for (v, tasks), without_NP in zip(touched.items(), found.without_VNP, strict=True)
        }

    def _tasks(
        self,
        place: ExpertPlace,
        shares: Mapping[str, float],
        judges: Sequence[TaskJudge],
        bases: Sequence[Judged],
        changes: Sequence[Changes],
        refilled: Mapping[int, Changes],
    ) -> dict[str, dict[str, Any]]:
        found = {}
        for t, (judge, base) in enumerate(_pairs(judges, bases)):
            gate = gate_of_task(self.network, place.level, self.names, t)
            final = refilled.get(t, changes[t])
            said = self._verdicts(judge, base, final)
            found[judge.task.name] = {
                "share": shares.get(gate),
                "renormalised": changes[t],
                "refilled": refilled.get(t),
                "verdicts": said,
                "verdict": "alone" if gate in place.alone else worst(said.values()),
            }
        return found

    def _verdicts(self, judge: TaskJudge, base: Judged, changes: Changes) -> dict[str, Verdict]:
        return verdicts_of(judge.metrics, changes, base.values, self.tolerance)

    def _shares(self, place: ExpertPlace, gates: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Of each gate that sees it: its mean share of the weights."""
        level = gates[place.level]
        weights = zip(level["gates"], level["mean_weight"], strict=True)
        return {
            gate: mean_E[place.expert] / (sum(mean_E) or 1.0)
            for gate, mean_E in weights
            if gate in place.gates
        }


def _saying(of_tasks: Mapping[str, Mapping[str, Any]], *verdicts: Verdict) -> list[str]:
    return [name for name, one in of_tasks.items() if one["verdict"] in verdicts]


def _pairs(judges: Sequence[TaskJudge], bases: Sequence[Judged]) -> list[tuple[TaskJudge, Judged]]:
    return list(zip(judges, bases, strict=True))


def _task(judge: TaskJudge, base: Judged) -> dict[str, Any]:
    return {
        "name": judge.task.name,
        "kind": judge.task.kind,
        "rows": judge.rows,
        "metrics": [metric.as_dict() for metric in judge.metrics],
        "values": dict(base.values),
    }
