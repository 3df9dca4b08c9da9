"""`benchmarks.predict` on a small model: what it counts."""

import itertools

import pytest

from benchmarks.predict import latencies, wrong_calls
from mmoe.config import config_from_dict
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.models.build import build_ranker
from mmoe.score import Predictor


@pytest.fixture(name="model")
def _model(funnel_config, funnel_table):
    config = config_from_dict(funnel_config)
    encoder = FeatureEncoder.fit(config, funnel_table, "log")
    return Predictor(build_ranker(config, encoder), config), encoder


def test_calls_that_give_other_bits_are_counted(model, funnel_table, monkeypatch):
    predictor, encoder = model
    assert wrong_calls(predictor, encoder, funnel_table[:400], 40) == 0
    calls, right = itertools.count(), predictor.predict
    monkeypatch.setattr(predictor, "predict", lambda data: right(data) + 1e-7 * (next(calls) >= 1))
    assert wrong_calls(predictor, encoder, funnel_table[:400], 40) == 41  # and the model changed


def test_every_number_of_rows_is_timed_and_heights_are_left_as_they_were(model, funnel_table):
    predictor, encoder = model
    before = predictor.any_height
    table, one_row = latencies(predictor, encoder, funnel_table[:100], 1)
    assert table.row_count == 3  # 1, 64 and 65: there are no more rows
    assert one_row > 0 and predictor.any_height == before
