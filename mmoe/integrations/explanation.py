"""`Explanation`: what `MultiTaskRanker.explain` returns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from mmoe.config import RunConfig
from mmoe.datasets import BatchSource
from mmoe.explain import ExplainSettings, explain_ranker
from mmoe.explain.experts import check_explainable
from mmoe.explain.run import check_new_place, write_explanation
from mmoe.run import SilentReporter
from mmoe.score import LoadedRun


@dataclass(frozen=True)
class Explanation:
    """Worth of each expert of a model to each task, as tables.

    Attributes:
        result: What `mmoe explain` writes as explain.json.
    """

    result: Mapping[str, Any]

    @property
    def experts(self) -> pd.DataFrame:
        """A row for each expert and task: share of the weights, changes without it, verdict.

        Changes are called as metrics, `auc`, with `auc_low` and `auc_high`, the ends of their 95 %
        intervals; `auc_refilled` is the change where the next pick takes the place.
        """
        rows = []
        for expert in self.result["experts"]:
            for task, found in expert["tasks"].items():
                row = {key: expert[key] for key in ("number", "level", "name")}
                row |= {"task": task, "share": found["share"]}
                row |= _columns(found["renormalised"])
                again = found["refilled"] or {}
                row |= {f"{key}_refilled": change["value"] for key, change in again.items()}
                rows.append({**row, "verdict": found["verdict"]})
        return pd.DataFrame(rows)

    @property
    def unneeded(self) -> list[int]:
        """Numbers of experts that surely nobody misses, each alone."""
        return list(self.result["unneeded"])

    @property
    def features(self) -> pd.DataFrame:
        """A row for each feature and task: changes where it is shuffled, and the verdict."""
        return pd.DataFrame(
            {"feature": one["name"], "task": task, **_columns(found["changes"]),
             "verdict": found["verdict"]}
            for one in self._asked("features")
            for task, found in one["tasks"].items()
        )  # fmt: skip

    @property
    def cosines(self) -> pd.DataFrame:
        """Cosines of the tasks' gradients on the layers that they share: a hint."""
        found: Any = self._asked("gradients")
        return pd.DataFrame(found["cosine"], index=found["tasks"], columns=found["tasks"])

    def save(self, folder: str | Path) -> Path:
        """Writes explain.json and a page of it, explain.html, whose path it returns.

        Raises:
            ValueError: The folder holds them already.
        """
        check_new_place(Path(folder))
        return write_explanation(self.result, Path(folder))

    def _asked(self, what: str) -> Sequence[Mapping[str, Any]]:
        if what not in self.result:
            raise ValueError(f"{what}: was not asked for; explain(X, y, {what}=True)")
        return self.result[what]


def explanation_of(
    loaded: LoadedRun, config: RunConfig, rows: BatchSource, settings: ExplainSettings
) -> Explanation:
    """Explains a loaded model on rows with labels.

    Raises:
        ValueError: Its gates choose between no experts, or no row has a label.
    """
    ranker = loaded.predictor.ranker
    check_explainable(ranker.network, "this estimator")
    found = explain_ranker(ranker, config, loaded.encoder, rows, settings, SilentReporter())
    return Explanation({"name": config.name, "origin": "X", **found})


def _columns(changes: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {
        key if end == "value" else f"{key}_{end}": change[end]
        for key, change in changes.items()
        for end in ("value", "low", "high")
    }
