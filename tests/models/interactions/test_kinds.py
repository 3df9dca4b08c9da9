"""Every kind of expert and of interaction from its config: trained, scored, resumed, continued."""

import json

import numpy as np
import pandas as pd
import pytest

import mmoe
from mmoe.config import config_from_dict
from mmoe.mixture.batch_invariant import HAS_KERNELS
from mmoe.train.fit import train_run
from mmoe.train.warm_start import WarmStart
from tests.models.interactions import frozen_modules

MLP = {"kind": "mlp", "count": 2, "hidden": [8]}
EXPERTS = [
    {"kind": "dcn_v2", "rank": 3},
    {"kind": "fm", "factors": 4},
    {"kind": "deepfm", "factors": 4, "hidden": [8]},
    {"kind": "masknet", "dim": 8, "mask_hidden": 12},
    {"kind": "masknet", "arrangement": "serial", "dim": 8, "mask_hidden": 12},
    {"kind": "autoint", "fields": 4, "field_dim": 4, "head_dim": 4},
    {"kind": "frozen", "module": f"{frozen_modules.__name__}:make_eight"},
]
BEFORE = [
    {"kind": "dcn_v2"},
    {"kind": "fm"},
    {"kind": "deepfm", "hidden": [8]},
    {"kind": "masknet", "dim": 8, "mask_hidden": 12},
    {"kind": "masknet", "arrangement": "serial", "dim": 8, "mask_hidden": 12},
    {"kind": "autoint", "head_dim": 4},
]
DENSE, SPARSE = {"kind": "softmax"}, {"kind": "top_k", "k": 2}


def _name(section):
    return " ".join(str(section[key]) for key in ("kind", "arrangement", "k") if key in section)


def _cases():
    for gate in (DENSE, SPARSE):
        for kind in EXPERTS:
            expert = {**kind, "count": 2, "output": 8}
            yield pytest.param([MLP, expert], "none", gate, id=f"{_name(kind)}, {_name(gate)}")
    for kind in BEFORE:
        yield pytest.param([MLP], kind, DENSE, id=f"{_name(kind)} before")


cases = pytest.mark.parametrize(("experts", "interaction", "gate"), [*_cases()])


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


def _losses(run):
    epochs = json.loads((run / "history.json").read_text())["epochs"]
    return [sum(epoch["loss"].values()) for epoch in epochs]


def _scores(run, log):
    scores = mmoe.load(run).predict(log)
    return np.stack([scores["pred_click"], scores["pred_buy"]], 1)


@cases
def test_it_is_trained_scored_resumed_and_continued(tmp_path, experts, interaction, gate):
    log, config = make_log(), make_config(experts, interaction, gate)
    found = []

    def keep(predictions_NT, labels):
        found.append(predictions_NT)

    first = train_run(config, tmp_path / "run", data=log, on_test=keep)
    losses = _losses(tmp_path / "run")
    assert max(losses) < 2 * 0.75 and losses[-1] < losses[0] - 0.01

    # The same seed gives the same bits, and a run cut off after an epoch goes on to the same
    again, stopped = tmp_path / "again", tmp_path / "stopped"

    def stop(number, entry):
        if number == 1:
            raise KeyboardInterrupt

    second = train_run(config, again, data=log, on_test=keep)
    assert second.metrics["tasks"] == first.metrics["tasks"]
    assert np.array_equal(found[0], found[1])
    with pytest.raises(KeyboardInterrupt):
        train_run(config, stopped, data=log, on_epoch=stop)
    third = train_run(config, stopped, data=log, resume=True, on_test=keep)
    assert third.metrics["tasks"] == first.metrics["tasks"]
    assert np.array_equal(found[0], found[2])

    # Evaluation's predictions are those of scoring, whatever stands beside a row
    whole = _scores(tmp_path / "run", log)
    parts = [_scores(tmp_path / "run", part) for part in (log[:7], log[7:300], log[300:])]
    turned = _scores(tmp_path / "run", log[::-1])[::-1]
    if HAS_KERNELS:
        assert np.array_equal(whole, np.concatenate(parts)) and np.array_equal(whole, turned)
        rows = {row.tobytes() for row in whole}
        assert all(row.tobytes() in rows for row in found[0].astype(whole.dtype))

    # With nothing changed a warm start says what the run said
    still = make_config(experts, interaction, gate, optimizer={"learning_rate": 1e-12},
                    embedding_optimizer={"learning_rate": 1e-12}, epochs=1)  # fmt: skip
    train_run(still, tmp_path / "warm", data=log, warm_start=WarmStart(tmp_path / "run"))
    np.testing.assert_allclose(_scores(tmp_path / "warm", log), whole, atol=1e-5)
