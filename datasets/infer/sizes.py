"""Widths, epochs and regularisation by what is known of a log.

Measured on the generated logs of `benchmarks.first_try`: test AUC of the first and second task on
200,000 rows.

Few rows get no buckets (each is an embedding row that learns from its own rows alone) and the epoch
of the lowest loss: an AUC of some hundred validation rows, or of few positives, chooses by luck.

Where ids are many, or rows, six epochs at three times the usual rate are as good as ten or fifteen
(songs 0.714, 0.657 instead of 0.712, 0.655; households 0.809, 0.741 instead of 0.810, 0.741).
Where all ids are few, numbers decide together: fifteen epochs, with a strong decay and little
dropout (sensors 0.814, 0.782; six fast ones 0.807, 0.771; dropout of 0.3 and a decay of 0.05 0.811,
0.780). The same decay does small logs good (wells, three seeds: 0.793, 0.805 instead of 0.791,
0.801 with half of it and dropout of 0.3).

There, batches of a fiftieth of the rows and experts of 128 and 64 units take a third to a half of
the seconds of batches of a hundredth and 256 and 128 units, at twice the rate, and tell as much
(60,000 test rows, one seed):

| log | wide, a hundredth | narrow, a fiftieth | narrow, a 25th, three times the rate |
|---|---|---|---|
| insurance | 0.8709, 0.8738 in 34 s | 0.8715, 0.8744 in 22 s | 0.8703, 0.8734 in 16 s |
| meters | 0.6764, R² 0.823 in 31 s | 0.6757, 0.823 in 15 s | 0.6754, 0.828 in 13 s |
| tickets | 0.7442, 0.6454 in 27 s | 0.7465, 0.6443 in 14 s | 0.7492, 0.6461 in 10 s |
| rides | R² 0.787 in 20 s | 0.785 in 11 s | 0.785 in 8 s |
| rents | 0.7200, R² 0.675 in 5 s | 0.7200, 0.672 in 4 s | 0.7200, 0.665 in 3 s |

Below 15,000 rows a 25th at three times the rate does (three seeds): wells 0.8025, 0.8024 in 2.6 s
(0.8026, 0.8016 in 5.3 s), mail 0.7603, 0.7399 in 2.5 s (0.7603, 0.7395 in 7.6 s). Where six epochs
are enough, they have to be of as many steps: `price` of auctions fell from 0.807 to 0.797.

Eight experts of 256 and 128 units instead of four of 128 and 64 had 0.728, 0.685 on the log shop
instead of 0.734, 0.690, both with rows of ids at a rate of 0.05. An average of the weights over
some 100 steps added up to 0.0015 above 15,000 rows (funnel, fraud, insurance), and took nothing.

A factorization machine needs fast rows, which decay: at a rate of 0.05 the log songs stayed at
0.697, 0.648, and at 0.5 it came to 0.717, 0.658; another log (30,000 rows, 400 × 250 ids, tastes of
three numbers) came to 0.720 from 0.544, and stays at 0.543 with four times the decay. With two
fifths of it the log shop has 0.729, 0.665 instead of 0.736, 0.687. Six epochs are too few for rare
products: that log of tastes ended at 0.615 with six, at 0.670 and 0.736 (two seeds) with twelve;
jobs (three seeds) has 0.765, 0.721 and 0.766, 0.722. With more rows twelve are too many: the log
shop has 0.736, 0.694 then, instead of 0.745, 0.700.

Beside a regression that rate is too fast: a squared error grows with the product's own square. And
it is for few features: a step moves each row by about the rate, and F features have F (F − 1) / 2
products, so the logit moves by the square of F. On the hotel bookings (12,000 rows to train on, 26
tables, `is_canceled` and `adr`, eight epochs, one seed) the losses of the first epoch were 4.28 and
138, and the test RMSE of `adr` ended at 63.7; with 0.1 they were 0.145 and 0.39, and the RMSE 32.8.
The one pair that is sought is then lost among 325: with rates of 0.1 (best epoch by log-loss), of
0.05 and without the machine (both by the tasks' gains; split seed 0, four tasks) the test R² of
`adr` was 0.888, 0.881 and 0.893, the AUC of `is_canceled` 0.978, 0.981 and 0.980, of special
requests 0.876, 0.882 and 0.889. So beyond twelve tables there is none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mmoe.config import ExpertConfig, ModelConfig, TaskConfig, TowerConfig, TrainingConfig
from mmoe.config.training import AdamWConfig, RowwiseAdagradConfig
from mmoe.metrics import first_of, kind_of

FEW_ROWS = 15_000  # below, no buckets and more regularisation
USUAL_BUCKETS = 20  # a number that needs more has values that differ from their neighbours
# Where kinds of rows differ, large pools lost more than dense models of 100,000 rows, and less of
# 1,000,000 (generated logs of `benchmarks.sparse`, one seed)
POOL_ROWS = 500_000
_MANY_ROWS = 100_000
_MANY_IDS = 100  # of one column; with fewer, what numbers do together is what is left to learn
_RARE = 1_500  # rows of an outcome, of which validation has about a tenth
MOST_MULTIPLIED = 12  # tables whose products a factorization machine takes
_PAIR_ROWS = 10.0  # rows a pair; rarer pairs of ids are left to a factorization machine
_DECAY = 2.5  # of a row of ids beside a factorization machine, in rows' losses


@dataclass(frozen=True, kw_only=True)
class Log:
    """Facts about a log that sizes depend on."""

    rows: int  # how many
    ids: int = 0  # different values of the column of ids that has most; lists do not count
    rarest: int | None = None  # rows of the rarest outcome of any task; None: no task has outcomes
    products: bool = False  # hidden numbers of two columns of ids multiply

    @property
    def is_small(self) -> bool:
        """Whether there are too few rows for buckets, or to tell epochs apart by their AUC."""
        return self.rows < FEW_ROWS

    @property
    def learns_fast(self) -> bool:
        """Whether few and large steps do."""
        many_rows = self.rows >= _MANY_ROWS
        return not self.is_small and (many_rows or self.ids > _MANY_IDS or self.products)


def encodings_for(rows: int) -> dict[str, int]:
    """Returns how a number is cut: buckets have a row each, pieces share what they learn."""
    if rows < FEW_ROWS:
        return {"buckets": 0, "pieces": 16}
    return {"buckets": USUAL_BUCKETS, "pieces": 48}


def model_for(log: Log) -> ModelConfig:
    """Returns fewer and narrower layers where there are few rows to learn them from."""
    about: dict[str, Any] = {"wide": True, "interaction": "fm" if log.products else "none"}
    if log.rows >= _MANY_ROWS:
        return ModelConfig(
            num_experts=4, expert=ExpertConfig(hidden=[128, 64], dropout=0.2), **about
        )
    tiny = log.rows < 5_000
    hidden = [32] if tiny else [256, 128] if log.learns_fast else [128, 64]
    return ModelConfig(
        embedding_dim=4 if tiny else 8,
        num_experts=4,
        expert=ExpertConfig(hidden=hidden, dropout=0.3 if log.learns_fast else 0.1),
        tower=TowerConfig(hidden=[16] if tiny else [32]),
        **about,
    )


def is_rare(pairs: int, rows: int) -> bool:
    """Returns whether pairs of ids come too seldom to learn each one's own rate."""
    return pairs * _PAIR_ROWS > rows


def training_for(log: Log, tasks: Sequence[TaskConfig]) -> TrainingConfig:
    """Returns epochs and regularisation, and batches that share the rows into 25 to 100 steps.

    Args:
        log: What is known of the rows.
        tasks: Their kinds say what is monitored.
    """
    steps = 25 if log.is_small else 100 if log.learns_fast else 50  # of an epoch
    batch_size = int(2 ** np.clip(np.round(np.log2(max(log.rows, 1) / steps)), 4, 12))
    about: dict[str, Any] = {
        "epochs": 6 if log.learns_fast else 20 if log.is_small else 15,
        "batch_size": batch_size,
        "eval_batch_size": max(256, batch_size),
        "monitor": f"mean.{_monitored(log, tasks)}",
    }
    optimizer: dict[str, Any] = {
        "learning_rate": 0.003 if log.is_small or log.learns_fast else 0.002,
        "weight_decay": 0.5 if log.learns_fast else 1.0,
    }
    if log.learns_fast:
        about["patience"] = 1
    if not log.is_small:
        about["ema_decay"] = 0.99  # of some 100 steps
    if log.products:
        # Products of rows that are near zero begin slowly; in many rows twelve epochs are too many
        about["patience"] = 6
        if log.rows < _MANY_ROWS:
            about["epochs"] = max(about["epochs"], 12)
        decay = float(f"{_DECAY / log.rows:.2g}")
        rate = 0.5 if all(kind_of(task.kind).is_event for task in tasks) else 0.1
        about["embedding_optimizer"] = RowwiseAdagradConfig(learning_rate=rate, weight_decay=decay)
    return TrainingConfig(optimizer=AdamWConfig(**optimizer, schedule="cosine"), **about)


def _monitored(log: Log, tasks: Sequence[TaskConfig]) -> str:
    """An AUC of a hundred validation rows chooses by luck, so the loss is looked at there.

    Numbers have other units than events, and than one another: each counts by what it gains.
    """
    if len(tasks) > 1 and not all(kind_of(task.kind).is_event for task in tasks):
        return "gain"
    headline = first_of(task.kind for task in tasks).headline
    rare = log.rarest is not None and log.rarest < _RARE
    return "logloss" if headline == "auc" and (log.is_small or rare) else headline
