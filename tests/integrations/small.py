"""A ranker that trains in a tenth of a second, and rows for it."""

import numpy as np
import pandas as pd

SETTINGS = {
    "model.embedding_dim": 4,
    "model.expert.hidden": [8],
    "model.tower.hidden": [],
    "training.embedding_backend": "plain",
    "training.optimizer.learning_rate": 0.02,
}
SMALL = {"epochs": 1, "batch_size": 128, "num_experts": 2, "seed": 1, "settings": SETTINGS}


def rows(count: int = 400, seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows with an index of their own; labels: buy or skip, true or false, milliseconds."""
    rng = np.random.default_rng(seed)
    X = pd.DataFrame(
        {
            "user": rng.integers(0, 20, count),
            "item": [f"i{k}" for k in rng.integers(0, 8, count)],
            "price": rng.random(count).round(2),
        },
        index=np.arange(count) + 1000,
    )
    likes = X.item.isin(["i1", "i2", "i3"]) ^ (rng.random(count) < 0.2)
    labels = pd.DataFrame(
        {
            "bought": np.where(likes, "buy", "skip"),
            "liked": rng.random(count) < 0.3,
            "watched": np.exp(rng.normal(size=count) * 3) * 100,
        },
        index=X.index,
    )
    return X, labels
