"""Numbers as counts that add up."""

import json

import numpy as np
import pytest

from mmoe.alarms import Distribution, PredictedFile, predicted_file
from mmoe.alarms.distribution import PERCENTILES
from mmoe.config import TaskConfig
from mmoe.config.json_files import check_stored


@pytest.mark.parametrize(
    "draw",
    [
        lambda r: r.random(20_000),
        lambda r: r.normal(3, 10, 20_000),
        lambda r: -r.lognormal(0, 4, 20_000),
        lambda r: np.where(r.random(20_000) < 0.4, 0.0, r.normal(0, 1e-30, 20_000)),
        lambda r: np.full(100, 1e300),
    ],
)
def test_quantiles_are_within_a_percent(draw):
    numbers = draw(np.random.default_rng(5))
    parts = [Distribution.of(part) for part in np.array_split(numbers, 7)]
    total = Distribution()
    for part in parts:
        total += part
    assert total.rows == total.finite == len(numbers)
    assert total.mean == pytest.approx(np.clip(numbers, -1e290, 1e290).mean(), rel=1e-9)
    assert (total.lowest, total.highest) == (numbers.min(), numbers.max())
    for percent in PERCENTILES:
        true = np.quantile(numbers, percent / 100, method="inverted_cdf")
        assert total.quantile(percent / 100) == pytest.approx(true, rel=0.0101)


def test_parts_add_up_in_any_order():
    draw = np.random.default_rng(1)
    one, two = (Distribution.of(draw.integers(-9, 9, 500) / 4, nulls=n) for n in (2, 3))
    assert one + two == two + one == Distribution.of(np.array([])) + two + one
    assert (one + two).rows == 1005


def test_what_is_no_number_is_counted():
    found = Distribution.of(np.array([np.nan, np.inf, -np.inf, 2.0], np.float32), nulls=4)
    assert found.figures()["nan"] == 3 / 8
    assert found.figures()["null"] == 4 / 8
    assert found.figures()["mean"] == found.figures()["p50"] == 2.0
    assert set(Distribution.of(np.array([])).figures().values()) == {None}


def test_a_file_that_does_not_add_up_is_damaged():
    content = Distribution.of(np.array([0.5, 2.0])).model_dump(mode="json")
    for key, value in (("rows", 0), ("above", {}), ("lowest", None), ("zeros", 1)):
        with pytest.raises(ValueError, match="numbers are in bins"):
            Distribution.model_validate({**content, key: value})


def test_a_file_holds_it():
    found = Distribution.of(np.array([0.0, 0.5, -3.0]), nulls=1)
    assert Distribution.model_validate_json(found.model_dump_json()) == found
    tasks = [
        TaskConfig(name="click", label="click"),
        TaskConfig(name="rare", label="rare", negative_sampling_rate=0.5),
    ]
    content = json.loads(json.dumps(predicted_file(tasks, np.array([[0.25, 0.5]], np.float32))))
    check_stored(content, PredictedFile, "predictions.json", "")
    assert list(PredictedFile.model_validate(content).columns) == ["pred_click"]
