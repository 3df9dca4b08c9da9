"""What a tower for the position is worth on a log whose clicks depend on where items stood.

A previous ranker ordered the 20 items of every request by its estimate of relevance: the true logit
and an error that it has of each item. Users look at position k with the probability `k^−η`, sooner
tired on a phone, and click on what they look at and find relevant. Relevance depends on the item,
and on the user's segment and the item's category. Judged are the orders of later requests, by
labels drawn from relevance itself, without any position.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.inputs.section import Measured, Section
from benchmarks.inputs.training import predictions, split_rows
from benchmarks.racing.results import Target
from mmoe.metrics.ranking import grouped_ndcg

REQUESTS, TEST_REQUESTS = 12_000, 3_000
SHOWN, JUDGED = 20, 10
ITEMS, SEGMENTS, CATEGORIES = 200, 12, 20
BASE, ITEM_SD, TASTE_SD = -1.5, 0.8, 0.8  # of relevance, in logits: 22 % of items are relevant
ERROR_SD, NOISE_SD = 1.0, 0.5  # of the previous ranker, by item and by impression
FALL = {"desk": 0.8, "phone": 1.2}  # η

_PLAIN = [{"kind": "categorical", "name": name} for name in ("segment", "item", "category")]
_DISPLAY = [{"kind": "categorical", "name": name} for name in ("position", "device")]
_COMMON: dict[str, Any] = {
    "name": "position",
    "tasks": [{"name": "click", "label": "click"}],
    "model": {"num_experts": 4, "expert": {"hidden": [64, 32]}},
    "training": {"epochs": 3, "batch_size": 256},
}
MODELS: dict[str, dict[str, Any]] = {
    "tower": {
        **_COMMON,
        "features": [*_PLAIN, *_DISPLAY],
        "model": {**_COMMON["model"], "bias": {"features": ["position", "device"]}},
        "training": {**_COMMON["training"], "monitor": "mean.auc_with_bias"},
    },
    "not read": {**_COMMON, "features": _PLAIN},
    "ordinary feature, scored at 1": {**_COMMON, "features": [*_PLAIN, *_DISPLAY]},
}


class World:
    """One truth and its logs.

    Args:
        seed: Of all that is drawn.
    """

    def __init__(self, seed: int) -> None:
        self.draw = np.random.default_rng([seed, 7])
        self.category_I = self.draw.integers(0, CATEGORIES, ITEMS)
        self.quality_I = self.draw.normal(0, ITEM_SD, ITEMS)
        self.taste_SC = self.draw.normal(0, TASTE_SD, (SEGMENTS, CATEGORIES))
        self.error_I = self.draw.normal(0, ERROR_SD, ITEMS)

    def requests(self, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Draws segments of users [R], items [R, 20] and the logits of their relevance."""
        segments_R = self.draw.integers(0, SEGMENTS, count)
        items_RK = self.draw.random((count, ITEMS)).argpartition(SHOWN)[:, :SHOWN]
        taste_RK = self.taste_SC[segments_R[:, None], self.category_I[items_RK]]
        return segments_R, items_RK, BASE + self.quality_I[items_RK] + taste_RK

    def log(self, count: int) -> pa.Table:
        """Returns what the previous ranker showed, and who clicked."""
        segments_R, items_RK, logits_RK = self.requests(count)
        estimate_RK = logits_RK + self.error_I[items_RK]
        estimate_RK = estimate_RK + self.draw.normal(0, NOISE_SD, estimate_RK.shape)
        order_RK = (-estimate_RK).argsort(axis=1)
        devices_R = self.draw.choice(list(FALL), count)
        fall_R = np.vectorize(FALL.get)(devices_R)
        seen_RK = np.arange(1, SHOWN + 1.0) ** -fall_R[:, None]
        relevant_RK = _sigmoid(np.take_along_axis(logits_RK, order_RK, axis=1))
        clicks_RK = self.draw.random(seen_RK.shape) < seen_RK * relevant_RK
        items_RK = np.take_along_axis(items_RK, order_RK, axis=1)
        positions_RK = np.tile(np.arange(1, SHOWN + 1), (count, 1))
        return self._table(segments_R, items_RK, positions_RK, devices_R, clicks_RK)

    def judged(self, count: int) -> tuple[pa.Table, np.ndarray, np.ndarray]:
        """Returns items as if all were shown first, their relevance, and labels drawn from it."""
        segments_R, items_RK, logits_RK = self.requests(count)
        first_RK = np.ones(items_RK.shape, np.int64)
        relevance_RK = _sigmoid(logits_RK)
        labels_RK = self.draw.random(relevance_RK.shape) < relevance_RK
        devices_R = self.draw.choice(list(FALL), count)
        table = self._table(segments_R, items_RK, first_RK, devices_R, labels_RK)
        return table, relevance_RK.ravel(), labels_RK.ravel().astype(float)

    def _table(
        self,
        segments_R: np.ndarray,
        items_RK: np.ndarray,
        positions_RK: np.ndarray,
        devices_R: np.ndarray,
        clicks_RK: np.ndarray,
    ) -> pa.Table:
        each = items_RK.shape[1]
        return pa.table(
            {
                "request": np.repeat(np.arange(len(segments_R)), each),
                "segment": np.repeat(segments_R, each),
                "item": items_RK.ravel(),
                "category": self.category_I[items_RK.ravel()],
                "position": positions_RK.ravel(),
                "device": np.repeat(devices_R, each),
                "click": clicks_RK.ravel().astype(int),
            }
        )


def measure(seeds: Sequence[int], say: Callable[[str], None]) -> Measured:
    """Trains all models on the log of each seed."""
    found: dict[str, list[float]] = {name: [] for name in ("oracle", *MODELS)}
    for seed in seeds:
        world = World(seed)
        log = world.log(REQUESTS)
        test, relevance_N, labels_N = world.judged(TEST_REQUESTS)
        groups_N, splits = test["request"].to_numpy(), split_rows(log, test)
        scores = {
            name: predictions(config, splits, seed)["click"] for name, config in MODELS.items()
        }
        for name, scores_N in {"oracle": relevance_N, **scores}.items():
            value = grouped_ndcg(labels_N, scores_N, groups_N, JUDGED).value
            assert value is not None, "each request has a row that is relevant"
            found[name].append(value)
        say(f"seed {seed}: " + ", ".join(f"{name} {v[-1]:.4f}" for name, v in found.items()))
    means = {name: float(np.mean(values)) for name, values in found.items()}
    tower, *others = MODELS
    best = max(others, key=means.__getitem__)
    return Measured(
        {"position_bias_gain": means[tower] - means[best]},
        {"ndcg@10": found, "mean": means, "stronger alternative": best},
    )


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


SECTION = Section("position", {"position_bias_gain": Target(0.01)}, measure)
