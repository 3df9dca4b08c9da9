"""A metric: how many predictions are as near as one asks."""

from typing import Literal

import numpy as np
from pydantic import Field

import mmoe.register
from mmoe.config import MetricConfig
from mmoe.metrics import Column, NamedMetric, ObservedRows


class WithinConfig(MetricConfig):
    """Share of predictions near their label."""

    kind: Literal["within"] = "within"
    distance: float = Field(default=0.5, gt=0, description="at most so far from the label")


@mmoe.register.metric("within", WithinConfig)
class Within(NamedMetric):
    """`Σ w [|p − y| ≤ distance] / Σ w`."""

    higher_is_better = True
    column = Column(
        key="within", heading="within", meaning="share of predictions near", title="within"
    )

    def value(self, rows: ObservedRows) -> float:
        near = np.abs(rows.predictions - rows.labels) <= self.config.distance
        return float(np.average(near, weights=rows.weights))
