"""An epoch whose loss is many times that of the mean is said, and is not trained on from."""

import json

import numpy as np
import pyarrow as pa
import pytest

from mmoe.alarms import exploded_losses
from mmoe.config import config_from_dict
from mmoe.datasets.rows.splits import Splits
from mmoe.train import train_run

ROWS = 2000


def _splits(unit: float = 1.0) -> Splits:
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 20, (8, ROWS))
    price = 100 + 10 * rng.normal(size=20)[ids[0]] + rng.normal(size=ROWS)
    log = pa.table({f"id{n}": ids[n] for n in range(8)} | {"price": price * unit})
    return Splits(train=log[:1400], validation=log[1400:1700], test=log[1700:], origin="log")


def _raw(rate: float) -> dict:
    return {
        "features": [{"kind": "categorical", "name": f"id{n}"} for n in range(8)],
        "tasks": [{"name": "price", "label": "price", "kind": "regression"}],
        "model": {
            "interaction": "fm", "wide": True, "num_experts": 2, "expert": {"hidden": [8]},
            "tower": {"hidden": [4]},
        },
        "training": {
            "epochs": 4, "batch_size": 64, "embedding_backend": "plain", "loggers": [],
            "monitor": "price.gain", "embedding_optimizer": {"learning_rate": rate},
        },
    }  # fmt: skip


def test_an_epoch_that_explodes_ends_training_with_the_weights_before_it(tmp_path):
    found = train_run(config_from_dict(_raw(2.0)), tmp_path / "fast", splits=_splits())
    alarms = {alarm["kind"]: alarm for alarm in found.metrics["alarms"]}
    assert "before the first epoch" in alarms["exploded"]["finding"]
    assert "learning_rate" in alarms["exploded"]["mend"]
    history = json.loads((tmp_path / "fast" / "history.json").read_text())
    assert [entry["epoch"] for entry in history["epochs"]] == [1]
    assert history["start"]["best"] and not history["epochs"][0]["best"]
    assert found.metrics["tasks"]["price"]["r2"] > 0.9  # the wide part's


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_an_epoch_that_does_not_explode_is_trained_on_from_in_any_unit(tmp_path, unit):
    found = train_run(config_from_dict(_raw(0.02)), tmp_path / "slow", splits=_splits(unit))
    assert found.metrics["tasks"]["price"]["r2"] > 0.95
    assert found.metrics["train"]["epochs"] == 4
    assert "exploded" not in {alarm["kind"] for alarm in found.metrics.get("alarms", [])}


def test_a_loss_is_held_against_that_of_the_mean():
    losses = {"click": 6.0, "price": 9.9, "none": 99.0, "unseen": None}
    assert exploded_losses(losses, {"click": 0.5, "price": 1.0, "unseen": 1.0}) == {"click": 12.0}
