"""A log in which products matter, and configs of what multiplies its features."""

import numpy as np
import pandas as pd

from mmoe.config import config_from_dict

MLP = {"kind": "mlp", "count": 2, "hidden": [8]}
BEFORE = [
    {"kind": "dcn_v2"},
    {"kind": "fm"},
    {"kind": "deepfm", "hidden": [8]},
    {"kind": "masknet", "dim": 8, "mask_hidden": 12},
    {"kind": "masknet", "arrangement": "serial", "dim": 8, "mask_hidden": 12},
    {"kind": "autoint", "head_dim": 4},
]
DENSE = {"kind": "softmax"}


def make_log(rows: int = 3000) -> pd.DataFrame:
    rng = np.random.default_rng(5)
    user, item = rng.integers(0, 20, rows), rng.integers(0, 15, rows)
    a, b, taste, kind = (*rng.normal(size=(2, rows)), rng.normal(size=20), rng.normal(size=15))
    logit = 2 * a * b + 2 * taste[user] * kind[item]
    click, buy = (rng.random(rows) < 1 / (1 + np.exp(-x)) for x in (logit, 1 - logit))
    columns = {"a": a, "b": b, "click": click.astype(int), "buy": buy.astype(int)}
    named = {"user": [f"u{u}" for u in user], "item": [f"i{i}" for i in item]}
    return pd.DataFrame({**columns, **named, "wide": [f"w{i % 7}" for i in item]})


NUMBERS = [{"kind": "numeric", "name": name} for name in "ab"]
IDS = [{"kind": "categorical", "name": name} for name in ("user", "item")]
WIDE = {"kind": "categorical", "name": "wide", "dim": 8}


def make_config(experts, interaction, gate, features=(*NUMBERS, *IDS, WIDE), **training):
    model = {"embedding_dim": 4, "experts": experts, "gate": gate, "interaction": interaction}
    return config_from_dict(
        {
            "features": [*features],
            "tasks": [{"name": "click", "label": "click"}, {"name": "buy", "label": "buy"}],
            "model": {**model, "tower": {"hidden": []}},
            "training": {
                "epochs": 3,
                "batch_size": 128,
                "optimizer": {"learning_rate": 0.01},
                **training,
            },
        }
    )
