"""What ways to learn a purchase after a click are worth: the conversion rate of all rows."""

from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from typing import Any

import numpy as np
import yaml

from benchmarks.inputs.section import Measured, Section
from benchmarks.inputs.training import log_loss, predictions, split_rows
from mmoe.datasets.bundled.synthetic import FunnelLog, generate_funnel

# A tenth is clicked, a fifth of that bought: about 800 purchases to learn from
_LOG = {"users": 2_000, "items": 500, "click_rate": 0.1, "purchase_rate": 0.2}
_ROWS, _TEST_ROWS = 40_000, 20_000
_ENTIRE = {"kind": "entire_space", "after": "click"}
# Keys of the second task, and of the model. Where the purchase is learnt on all rows as it is, its
# rate is that of purchases over that of clicks
_WAYS: Mapping[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "naive": ({"observed_when": "click"}, {}),
    "esmm": (_ENTIRE, {}),
    "ips": ({**_ENTIRE, "counterfactual": "ips"}, {}),
    "dr": ({**_ENTIRE, "counterfactual": "dr"}, {}),
    "ratio": ({}, {}),
    "aitm": ({"after": "click"}, {"transfer": "aitm"}),
    "dbmtl": ({"after": "click"}, {"transfer": "dbmtl"}),
}
_JOINT = ("ratio", "aitm", "dbmtl")


def _config(way: str) -> dict[str, Any]:
    """The recipe's features, model and training, with the tasks and towers of one way."""
    recipe = yaml.safe_load(
        (files("mmoe.datasets") / "recipes" / "synthetic-funnel.yaml").read_text("utf-8")
    )
    task, model = _WAYS[way]
    return {
        "features": recipe["features"],
        "tasks": [
            {"name": "click", "label": "click"},
            {"name": "purchase", "label": "purchase", **task},
        ],
        "model": {**recipe["model"], **model},
        "training": recipe["training"],
    }


def _gaps(way: str, found: Mapping[str, np.ndarray], log: FunnelLog) -> dict[str, float]:
    """Log-loss above the oracle's on all test rows: of a purchase given a click, and of both."""
    given, click = (truth[_ROWS:] for truth in (log.purchase_probability, log.click_probability))
    rate, p_click = found["purchase"], found["click"]
    both = rate if way in _JOINT else rate * p_click
    if way in _JOINT:
        rate = np.minimum(rate / np.maximum(p_click, 1e-7), 1.0)
    return {
        "rate": log_loss(given, rate) - log_loss(given, given),
        "both": log_loss(given * click, both) - log_loss(given * click, given * click),
        "click": log_loss(click, p_click) - log_loss(click, click),
        "mean_rate": float(rate.mean()),
    }


def _measure(seeds: Sequence[int], say: Callable[[str], None]) -> Measured:
    details: dict[str, Any] = {way: [] for way in _WAYS} | {"oracle": []}
    for seed in seeds:
        log = generate_funnel(rows=_ROWS + _TEST_ROWS, seed=seed, **_LOG)
        splits = split_rows(log.table.slice(0, _ROWS), log.table.slice(_ROWS))
        truth = log.purchase_probability[_ROWS:]
        oracle = {"log_loss": log_loss(truth, truth), "mean_rate": float(truth.mean())}
        details["oracle"].append(oracle)
        for way in _WAYS:
            details[way].append(_gaps(way, predictions(_config(way), splits, seed), log))
        rates = ", ".join(f"{way} {details[way][-1]['rate']:.4f}" for way in _WAYS)
        say(f"seed {seed}: above the oracle's {oracle['log_loss']:.4f}: {rates}")
    values = {
        f"after_gap_{way}": float(np.mean([one["rate"] for one in details[way]])) for way in _WAYS
    }
    return Measured(values, details)


SECTION = Section("after", {f"after_gap_{way}": None for way in _WAYS}, _measure)
