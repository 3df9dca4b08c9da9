"""The section after of benchmarks.inputs: what it takes for a gap."""

import numpy as np
import pytest

from benchmarks.inputs import after
from mmoe.config import config_from_dict
from mmoe.datasets.bundled.synthetic import generate_funnel


@pytest.mark.parametrize("way", after._WAYS)
def test_the_truth_has_no_gap_whatever_a_way_predicts(way, monkeypatch):
    monkeypatch.setattr(after, "_ROWS", 600)
    log = generate_funnel(rows=1000, seed=1, **after._LOG)
    click, given = (p[600:] for p in (log.click_probability, log.purchase_probability))
    purchase = click * given if way in after._JOINT else given
    gaps = after._gaps(way, {"click": click, "purchase": purchase}, log)
    assert gaps == {
        "rate": pytest.approx(0),
        "both": pytest.approx(0),
        "click": pytest.approx(0),
        "mean_rate": pytest.approx(given.mean()),
    }
    wrong = after._gaps(way, {"click": click, "purchase": np.sqrt(purchase)}, log)
    assert wrong["rate"] > 0.01 and wrong["click"] == pytest.approx(0)


@pytest.mark.parametrize("way", after._WAYS)
def test_each_way_is_a_config(way):
    config = config_from_dict(after._config(way))
    assert config.model.transfer.kind in (way, "none")
    assert getattr(config.tasks[1], "counterfactual", None) in (way, None)
