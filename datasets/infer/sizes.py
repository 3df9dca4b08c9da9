"""Widths, epochs and regularisation by the number of rows.

Measured on the generated logs of `benchmarks.first_try`: test AUC of the first and second task,
means of two or three seeds; the rest of the config is as inferred.

| rows | log | as for more rows | AdamW, cosine | 5 buckets | all |
|---|---|---|---|---|---|
| 1,500 | wells | 0.780, 0.781 | 0.782, 0.784 | 0.795, 0.796 | 0.797, 0.798 |
| 3,000 | subscribers | 0.776, 0.756 | 0.776, 0.754 | 0.778, 0.760 | 0.781, 0.761 |
| 10,000 | mail | 0.753, 0.727 | 0.757, 0.727 | | 0.759, 0.730 |
| 20,000 | loans | 0.731, 0.677 | 0.731, 0.677 | | 0.732, 0.670 |

So few rows get coarse buckets (each is an embedding row that learns from its own rows alone),
a decoupled weight decay of 0.5 under a cosine schedule, and the epoch of the lowest loss: an AUC of
some hundred validation rows chooses by luck. Dropout, an average of the weights and lower rates of
the tables changed less than the seeds do.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from mmoe.config import (
    ExpertConfig,
    ModelConfig,
    TaskConfig,
    TowerConfig,
    TrainingConfig,
)
from mmoe.config.optimizers import AdamWConfig
from mmoe.metrics.task_kinds import first_of

FEW_ROWS = 15_000  # below, few buckets and more regularisation


def buckets_for(rows: int) -> int:
    """Returns the usual number of buckets of a number."""
    return 20 if rows >= FEW_ROWS else 5


def model_for(rows: int) -> ModelConfig:
    """Returns fewer and narrower layers where there are few rows to learn them from."""
    if rows >= 100_000:
        return ModelConfig()
    if rows >= 5_000:
        return ModelConfig(
            embedding_dim=8,
            num_experts=4,
            expert=ExpertConfig(hidden=[128, 64]),
            tower=TowerConfig(hidden=[32]),
        )
    return ModelConfig(
        embedding_dim=4,
        num_experts=4,
        expert=ExpertConfig(hidden=[32]),
        tower=TowerConfig(hidden=[16]),
    )


def training_for(rows: int, tasks: Sequence[TaskConfig]) -> TrainingConfig:
    """Returns epochs and regularisation; batches of about a hundredth of the rows."""
    batch_size = int(2 ** np.clip(np.round(np.log2(max(rows, 1) / 100)), 4, 12))
    headline = first_of(task.kind for task in tasks).headline
    about: dict[str, Any] = {
        "epochs": 10 if rows >= 10_000 else 20,
        "batch_size": batch_size,
        "eval_batch_size": max(256, batch_size),
    }
    if rows >= FEW_ROWS:
        return TrainingConfig(**about, monitor=f"mean.{headline}")
    return TrainingConfig(
        **about,
        monitor=f"mean.{'logloss' if headline == 'auc' else headline}",
        optimizer=AdamWConfig(weight_decay=0.5, schedule="cosine"),
    )
