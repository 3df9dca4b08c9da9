"""What is expected of scores, as it is written."""

import pytest

from mmoe.config.scoring import OF_COLUMNS, expectation_of, expectations_of
from tests.small_configs import click_config


@pytest.mark.parametrize(("text", "right", "wrong"), [
    ("rows > 1e6", 1_000_001, 1_000_000),
    ("rows >= 1_000", 1_000, 999),
    ("psi(*) < 0.25", 0.2499, 0.25),
    ("psi(price) <= .25", 0.25, 0.26),
    ("unseen( user_id ) < 20%", 0.19, 0.2),
    ("nan(*)==0", 0, 0.001),
    ("p99(pred_v2) in [-1, 2.5e0]", 2.5, -1.01),
    ("missing(a 3 (b) < 5) < 0.5", 0.4, 0.6),
])  # fmt: skip
def test_numbers_that_hold_and_that_do_not(text, right, wrong):
    expected = expectation_of(text)
    assert expected.holds(right)
    assert not expected.holds(wrong)


@pytest.mark.parametrize(("text", "training", "right", "wrong"), [
    ("mean(pred_click) in [0.5, 2] of training", 0.1, 0.2, 0.21),
    ("mean(pred_click) in [0.5, 2] of training", -4.0, -8.0, -1.9),
    ("mean(pred_click) > 0.5 of training", 0.1, 3.0, 0.05),
    ("mean(pred_click) in [0.5, 2] of training", 0.0, 0.0, 0.1),
    ("missing(*) < 0.1 above training", 0.3, 0.39, 0.41),
    ("missing(*) < 10% above training", 0.3, 0.0, 0.41),
])  # fmt: skip
def test_against_training(text, training, right, wrong):
    expected = expectation_of(text)
    assert expected.holds(right, training)
    assert not expected.holds(wrong, training)


@pytest.mark.parametrize(("text", "message"), [
    ("", "expected MEASURE"),
    ("psi(x) ~ 3", "expected MEASURE"),
    ("psi(x) < 1 of tra", "expected MEASURE"),
    ("share(x) < 1", "no measure 'share'; there are rows, repeated"),
    ("psi < 1", r"psi of what\? Name a column"),
    ("rows(x) > 1", r"rows is of all rows; leave \(x\) out"),
    ("rows > 1 of training", "rows is not compared with training"),
    ("psi(x) < 1 above training", "psi is not compared with training"),
    ("mean(x) in [3, 1]", r"\[3, 1\] is empty"),
    ("rows > 20%", "no share of rows"),
    ("mean(x) < 1e999", "finite numbers"),
])  # fmt: skip
def test_what_cannot_be_read(text, message):
    with pytest.raises(ValueError, match=message):
        expectation_of(text)
    with pytest.raises(ValueError, match=r"score\.expect"):
        click_config({"kind": "numeric", "name": "x"}, score={"expect": [text]})


def test_names_and_what_usual_stands_for():
    assert expectation_of("missing(a 3 (b) < 5) < 0.5").names == "a 3 (b) < 5"
    assert expectation_of("rows > 5").names is None
    found = expectations_of(["usual", "rows > 5"])
    assert all(one.is_usual for one in found[:-1])
    assert (found[-1].text, found[-1].is_usual) == ("rows > 5", False)
    assert {one.measure for one in found} == {*OF_COLUMNS, "rows", "nan", "mean"}
