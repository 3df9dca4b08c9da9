"""What attention to the events that matter is worth, and what it costs where none does."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.inputs.section import Measured, Section
from benchmarks.inputs.sequence_log import sequence_log
from benchmarks.inputs.training import log_loss, predictions, split_rows
from benchmarks.racing.results import Target
from mmoe.metrics.auc import auc

_ROWS, _TEST_ROWS = 120_000, 20_000
_HARM_ROWS = 180_000  # of the logs on which there is nothing to find
ENCODERS = ("mean", "din", "transformer")


def config(encoder: str) -> Mapping[str, Any]:
    """The same model whatever the encoder: of the sizes that `mmoe init` gives so many rows.

    Beside these the tables decay, without which events are learnt by heart, the mean's as well.
    """
    return {
        "features": [
            {"kind": "categorical", "name": "item"},
            {"kind": "categorical", "name": "category"},
            {"kind": "categorical", "name": "hour"},
            {
                "kind": "sequence",
                "name": "seen",
                "columns": ["seen_items", "seen_categories"],
                "target": ["item", "category"],
                "times": "seen_times",
                "now": "now",
                "max_length": 50,
                "encoder": encoder,
            },
        ],
        "tasks": [{"name": "click", "label": "click"}],
        "model": {
            "embedding_dim": 8,
            "num_experts": 4,
            "expert": {"hidden": [256, 128], "dropout": 0.3},
            "tower": {"hidden": [32]},
        },
        "training": {
            "epochs": 4,
            "batch_size": 512,
            "patience": 4,
            "monitor": "mean.logloss",
            "ema_decay": 0.99,
            "optimizer": {
                "kind": "adamw",
                "learning_rate": 0.003,
                "weight_decay": 0.5,
                "schedule": "cosine",
            },
            "embedding_optimizer": {
                "kind": "rowwise_adagrad",
                "learning_rate": 0.1,
                "weight_decay": 4e-4,
            },
        },
    }


def _measure(seeds: Sequence[int], say: Callable[[str], None]) -> Measured:
    gaps: dict[str, list[float]] = {name: [] for name in ENCODERS}
    harms: list[float] = []
    for seed in seeds:
        log = sequence_log(_ROWS + _TEST_ROWS, seed, interest=True)
        splits = split_rows(log.table.slice(0, _ROWS), log.table.slice(_ROWS))
        truth = log.probability_N[_ROWS:]
        oracle = log_loss(truth, truth)
        for name in ENCODERS:
            found = predictions(config(name), splits, seed)["click"]
            gaps[name].append(log_loss(truth, found) - oracle)
        harms.append(_harm(seed))
        shown = ", ".join(f"{name} +{gaps[name][-1]:.4f}" for name in ENCODERS)
        say(f"seed {seed}: log-loss {oracle:.4f} at best, {shown}; harm {harms[-1]:+.5f} AUC")
    mean = np.mean(gaps["mean"])
    return Measured(
        {
            "din_gap_ratio": float(np.mean(gaps["din"]) / mean),
            "transformer_gap_ratio": float(np.mean(gaps["transformer"]) / mean),
            "din_harm": float(np.mean(harms)),
        },
        {"log_loss_above_oracle": gaps, "din_harm": harms},
    )


def _harm(seed: int) -> float:
    """AUC of DIN less that of the mean where events say nothing of the click."""
    log = sequence_log(_HARM_ROWS + _TEST_ROWS, 1000 + seed, interest=False)
    splits = split_rows(log.table.slice(0, _HARM_ROWS), log.table.slice(_HARM_ROWS))
    labels = np.asarray(log.table["click"])[_HARM_ROWS:]
    din, mean = (predictions(config(name), splits, seed)["click"] for name in ("din", "mean"))
    return float(auc(labels, din)) - float(auc(labels, mean))


SECTION = Section(
    "sequences",
    {
        "din_gap_ratio": Target(0.5, at_most=True),
        "transformer_gap_ratio": Target(0.5, at_most=True),
        "din_harm": Target(-0.0005),
    },
    _measure,
)
