"""The section after of benchmarks.inputs: what it takes for a gap."""

import numpy as np
import pytest

from benchmarks.inputs import sections
from benchmarks.inputs.sections import _JOINT, _LOG, _WAYS, _gaps
from mmoe.datasets.bundled.synthetic import generate_funnel


@pytest.mark.parametrize("way", _WAYS)
def test_the_truth_has_no_gap_whatever_a_way_predicts(way, monkeypatch):
    monkeypatch.setattr(sections, "_AFTER_ROWS", 600)
    log = generate_funnel(rows=1000, seed=1, **_LOG)
    click, given = (p[600:] for p in (log.click_probability, log.purchase_probability))
    purchase = click * given if way in _JOINT else given
    gaps = _gaps(way, {"click": click, "purchase": purchase}, log)
    assert gaps == {
        "rate": pytest.approx(0),
        "both": pytest.approx(0),
        "click": pytest.approx(0),
        "mean_rate": pytest.approx(given.mean()),
    }
    wrong = _gaps(way, {"click": click, "purchase": np.sqrt(purchase)}, log)
    assert wrong["rate"] > 0.01 and wrong["click"] == pytest.approx(0)
