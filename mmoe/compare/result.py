"""What a comparison found: the content of compare.json."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mmoe.compare.difference import MEANING, paired_difference
from mmoe.compare.entries import Entry
from mmoe.compare.measures import Judged, Measure, judge, measures_of
from mmoe.compare.rows import ComparedRows


@dataclass(frozen=True, kw_only=True)
class Trained:
    """One model with its entries: one for each seed, or one alone.

    Attributes:
        name: A kind of model, or of a simple one.
        title: For tables.
        folders: Of the entries.
        seeds: None: it has none.
        entries: In the order of the seeds.
    """

    name: str
    title: str
    folders: Sequence[str]
    seeds: Sequence[int] | None
    entries: Sequence[Entry]


def comparison(rows: ComparedRows, models: Sequence[Trained]) -> dict[str, Any]:
    """Judges all models against the first, on the test rows.

    Args:
        rows: Of the comparison.
        models: The first is what the others are compared with.

    Returns:
        What compare.json holds.
    """
    measures = measures_of(rows.config)
    judged = [judge(rows, measures, [e.predictions_NP for e in one.entries]) for one in models]
    observed_T = rows.test_labels.observed_NT.sum(axis=0)
    prepared = rows.prepared
    return {
        "name": rows.config.name,
        "origin": prepared.origin,
        "rows": {
            "train": len(prepared.train),
            "validation": len(prepared.validation),
            "test": len(prepared.test),
        },
        "test_rows": {task.name: int(observed_T[t]) for t, task in enumerate(rows.config.tasks)},
        "first": models[0].name,
        "measures": [measure.as_dict() for measure in measures],
        "models": [
            _of_model(one, mine, judged[0], measures, is_first=number == 0)
            for number, (one, mine) in enumerate(zip(models, judged, strict=True))
        ],
        "interval": MEANING,
    }


def _of_model(
    model: Trained, mine: Judged, first: Judged, measures: Sequence[Measure], *, is_first: bool
) -> dict[str, Any]:
    results = {
        measure.key: _result(measure, mine, None if is_first else first) for measure in measures
    }
    headlines = [measure for measure in measures if measure.headline]
    rates = [e.rows_per_second for e in model.entries if e.rows_per_second is not None]
    return {
        "name": model.name,
        "title": model.title,
        "seeds": None if model.seeds is None else list(model.seeds),
        "folders": list(model.folders),
        "parameters": model.entries[0].parameters,
        "rows_per_second": float(np.mean(rates)) if rates else None,
        "seconds": float(np.mean([entry.seconds for entry in model.entries])),
        "results": results,
        "gains": _tasks_that(headlines, results, "gains"),
        "pays": _tasks_that(headlines, results, "pays"),
    }


def _tasks_that(
    headlines: Sequence[Measure], results: dict[str, dict[str, Any]], verdict: str
) -> list[str]:
    return [m.task for m in headlines if results[m.key].get("verdict") == verdict]


def _result(measure: Measure, mine: Judged, first: Judged | None) -> dict[str, Any]:
    """Of one measure; without `first` there is nothing to compare with."""
    own_S = mine.values[measure.key]
    if own_S is None:
        return {"values": None, "mean": None, "sd": None, "difference": None, "verdict": None}
    found: dict[str, Any] = {
        "values": own_S.tolist(),
        "mean": float(own_S.mean()),
        "sd": float(own_S.std(ddof=1)) if len(own_S) > 1 else None,
        "difference": None,
        "verdict": None,
    }
    first_S = None if first is None else first.values[measure.key]
    if first is not None and first_S is not None:
        terms_N, first_terms_N = mine.terms[measure.key], first.terms[measure.key]
        difference = paired_difference(own_S, first_S, terms_N, first_terms_N)
        found["difference"] = difference.as_dict()
        found["verdict"] = difference.verdict(higher_is_better=measure.higher_is_better)
    return found
