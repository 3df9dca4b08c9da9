"""Widths, epochs and regularisation by the number of rows.

Measured on the generated logs of `benchmarks.first_try`: test AUC of the first and second task on
200,000 rows, one seed. Before: 20 buckets (5 below 15,000 rows), no wide part, a constant rate, no
dropout. All: what this module returns.

| rows | log | before | and a wide part | all |
|---|---|---|---|---|
| 1,500 | wells | 0.788, 0.788 | 0.789, 0.785 | 0.793, 0.803 |
| 3,000 | subscribers | 0.782, 0.770 | 0.783, 0.774 | 0.785, 0.776 |
| 10,000 | mail | 0.754, 0.729 | 0.756, 0.729 | 0.757, 0.731 |
| 20,000 | loans | 0.725, 0.681 | 0.735, 0.681 | 0.736, 0.681 |
| 40,000 | jobs | 0.724, 0.671 | 0.718, 0.673 | 0.745, 0.706 with a factorization machine |
| 50,000 | sensors | 0.807, 0.769 | 0.806, 0.769 | 0.812, 0.780 |
| 60,000 | news | 0.786, 0.706 | 0.792, 0.744 | 0.792, 0.747 |
| 100,000 | ads | 0.772, 0.784 | 0.789, 0.792 | 0.789, 0.791 |
| 120,000 | videos | 0.703, 0.690 | 0.702, 0.686 | 0.701, 0.686 |
| 200,000 | shop | 0.681, 0.663 | 0.699, 0.647 | 0.734, 0.690 with a factorization machine |
| 400,000 | queries | 0.766, 0.663 | 0.764, 0.650 | 0.771, 0.664 with a factorization machine |

Few rows get no buckets (each is an embedding row that learns from its own rows alone), a strong
decay, and the epoch of the lowest loss: an AUC of some hundred validation rows chooses by luck.
Eight experts of 256 and 128 units instead of four of 128 and 64 took four times as long on 200,000
rows, and had 0.728, 0.685. An average of the weights over some 100 steps added up to 0.002 above
15,000 rows (funnel, fraud, insurance), and took nothing.

A factorization machine needs fast rows, which decay: at a rate of 0.05 the log songs stayed at
0.697, 0.648, and at 0.5 it came to 0.717, 0.658; another log (30,000 rows, 400 × 250 ids, tastes of
three numbers) came to 0.720 from 0.544. Ten times the decay leaves it there; a fifth of it takes
0.007 off the log shop.

Tasks that share their truth lose a little by the wide part (videos), which is fitted for each
alone.
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
from mmoe.config.optimizers import AdamWConfig, RowwiseAdagradConfig
from mmoe.metrics.task_kinds import first_of

FEW_ROWS = 15_000  # below, no buckets and more regularisation
_MANY_ROWS = 100_000
_PAIR_ROWS = 10.0  # rows a pair; rarer pairs of ids are left to a factorization machine
_DECAY = 2.5  # of a row of ids beside a factorization machine, in rows' losses


def encodings_for(rows: int) -> dict[str, int]:
    """Returns how a number is cut: buckets have a row each, pieces share what they learn."""
    return {"buckets": 20, "pieces": 48} if rows >= FEW_ROWS else {"buckets": 0, "pieces": 16}


def model_for(rows: int, *, products: bool = False) -> ModelConfig:
    """Returns fewer and narrower layers where there are few rows to learn them from.

    Args:
        rows: Of the log.
        products: Hidden numbers of two columns of ids multiply.
    """
    about: dict[str, Any] = {"wide": True, "interaction": "fm" if products else "none"}
    if rows >= _MANY_ROWS:
        return ModelConfig(
            num_experts=4, expert=ExpertConfig(hidden=[128, 64], dropout=0.2), **about
        )
    if rows >= FEW_ROWS:
        return ModelConfig(
            embedding_dim=8,
            num_experts=4,
            expert=ExpertConfig(hidden=[256, 128], dropout=0.3),
            tower=TowerConfig(hidden=[32]),
            **about,
        )
    wide = rows >= 5_000
    return ModelConfig(
        embedding_dim=8 if wide else 4,
        num_experts=4,
        expert=ExpertConfig(hidden=[128, 64] if wide else [32], dropout=0.3),
        tower=TowerConfig(hidden=[32] if wide else [16]),
        **about,
    )


def is_rare(pairs: int, rows: int) -> bool:
    """Returns whether pairs of ids come too seldom to learn each one's own rate."""
    return pairs * _PAIR_ROWS > rows


def training_for(
    rows: int, tasks: Sequence[TaskConfig], *, products: bool = False
) -> TrainingConfig:
    """Returns epochs and regularisation; batches of about a hundredth of the rows.

    Args:
        rows: Of the log.
        tasks: Their kinds say what is monitored.
        products: Hidden numbers of two columns of ids multiply; rare ids are then held near zero.
    """
    batch_size = int(2 ** np.clip(np.round(np.log2(max(rows, 1) / 100)), 4, 12))
    headline = first_of(task.kind for task in tasks).headline
    few = rows < FEW_ROWS
    about: dict[str, Any] = {
        "epochs": 10 if rows >= _MANY_ROWS else 15 if rows >= FEW_ROWS else 20,
        "batch_size": batch_size,
        "eval_batch_size": max(256, batch_size),
        "optimizer": AdamWConfig(weight_decay=0.5 if few else 0.05, schedule="cosine"),
    }
    if not few:
        about["ema_decay"] = 0.99  # of some 100 steps
    if products:
        decay = float(f"{_DECAY / rows:.2g}")
        about["embedding_optimizer"] = RowwiseAdagradConfig(learning_rate=0.5, weight_decay=decay)
        about["patience"] = 6  # products of rows that are near zero begin slowly
    loss = "logloss" if headline == "auc" else headline
    return TrainingConfig(**about, monitor=f"mean.{loss if few else headline}")
