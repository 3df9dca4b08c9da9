"""Factorization machines: against all pairs one by one, and as part of a model."""

import itertools

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

import mmoe
from mmoe.config import InteractionConfig, config_from_dict
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.models.build import build_ranker
from mmoe.models.interactions.factorization_machine import FactorizationMachine
from mmoe.train.fit import train_run


def test_it_is_the_sum_over_all_pairs():
    torch.manual_seed(0)
    machine = FactorizationMachine([1, 4, 10], 3, num_tasks=2)
    x_BX = torch.randn(5, 14)
    parts = [x_BX[:, start : start + 3] for start in (1, 4, 10)]
    pairs_BD = torch.stack([a * b for a, b in itertools.combinations(parts, 2)]).sum(0)
    torch.testing.assert_close(machine(x_BX), pairs_BD @ machine.weight_TD.T)


def test_gradients():
    machine = FactorizationMachine([0, 2, 5], 2, num_tasks=2).double()
    x_BX = torch.randn(3, 7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(machine, (x_BX,))


def test_it_stays_in_fp32_under_autocast():
    machine, x_BX = FactorizationMachine([0, 2], 2, num_tasks=1), torch.randn(4, 4)
    with torch.autocast("cpu", torch.bfloat16):
        narrow = machine(x_BX)
    assert narrow.dtype == torch.float32 and torch.equal(narrow, machine(x_BX))


FEATURES = [
    {"kind": "categorical", "name": "user"},
    {"kind": "numeric", "name": "price", "buckets": 4},
    {"kind": "list", "name": "tags"},
    {"kind": "categorical", "name": "wide", "column": "user", "dim": 16},
]


def _config(features, **model):
    return config_from_dict(
        {
            "features": features,
            "tasks": [{"name": "click", "label": "click"}, {"name": "buy", "label": "buy"}],
            "model": {"embedding_dim": 8, "expert": {"hidden": [16]}, **model},
            "training": {
                "epochs": 12,
                "batch_size": 256,
                "optimizer": {"learning_rate": 0.003},
                "embedding_optimizer": {"weight_decay": 2e-4},
            },
        }
    )


def _log(rows: int = 6000) -> pd.DataFrame:
    """A user likes or dislikes an item by the product of two hidden numbers, and buys the rest."""
    rng = np.random.default_rng(3)
    user, item = rng.integers(0, 40, rows), rng.integers(0, 30, rows)
    a, b = rng.normal(0, 1.5, 40), rng.normal(0, 1.5, 30)
    p = 1 / (1 + np.exp(-a[user] * b[item]))
    click, buy = rng.random(rows) < p, rng.random(rows) < 1 - p
    return pd.DataFrame(
        {
            "user": [f"u{u}" for u in user],
            "item": [f"i{i}" for i in item],
            "price": rng.random(rows),
            "tags": [["a", "b"][: i % 3] for i in item],
            "click": click.astype(int),
            "buy": buy.astype(int),
        }
    )


def _encoder(config):
    return FeatureEncoder.fit(config, pa.Table.from_pandas(_log(200)), "log")


def test_features_of_ids_and_of_the_common_width_take_part():
    config = _config(FEATURES, interaction="fm")
    encoder = _encoder(config)
    machine = build_ranker(config, encoder).network.interaction
    assert isinstance(machine, FactorizationMachine)
    starts = machine.columns_C[::8].tolist()
    widths = {table.name: table.dim for table in encoder.tables}
    tables = [spec.table for spec in (*encoder.categorical, *encoder.lists)]
    firsts = [0, *itertools.accumulate(widths[table] for table in tables)]
    assert starts == [firsts[tables.index(table)] for table in ("user", "tags")]


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (FEATURES[:2], r"there is user alone; set interaction: none, or add such features"),
        (FEATURES[1:2], r"width model.embedding_dim \(8\); there is none; set interaction: none"),
        ([FEATURES[0], FEATURES[3]], r"there is user alone \(of another dim: wide\); set"),
    ],
)
def test_a_single_feature_of_ids_has_no_pair(features, message):
    with pytest.raises(ValueError, match="model.interaction is fm, which .*" + message):
        _config(features, interaction="fm")
    config = _config(features)
    update = {"interaction": InteractionConfig(kind="fm")}  # unchecked, as of other kinds
    model = config.model.model_copy(update=update)
    with pytest.raises(ValueError, match=r"model.interaction is fm, but [01] feature\(s\) of ids"):
        build_ranker(config.model_copy(update={"model": model}), _encoder(config))


def test_a_model_with_it_finds_what_pairs_say(tmp_path):
    features = [{"kind": "categorical", "name": name} for name in ("user", "item")]
    log, run = _log(), tmp_path / "run"
    config = _config(features, kind="single_task", interaction="fm")
    tasks = train_run(config, run, data=log).metrics["tasks"]
    assert min(tasks["click"]["auc"], tasks["buy"]["auc"]) > 0.7
    loaded = mmoe.load(run)
    whole = loaded.predict(log.head(100))
    parts = [loaded.predict(log.iloc[start : start + 10]) for start in range(0, 100, 10)]
    assert np.array_equal(
        whole["pred_click"], np.concatenate([part["pred_click"] for part in parts])
    )
