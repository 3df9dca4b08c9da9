"""`model.bias`: what is refused, and with which words."""

import pytest

from mmoe.datasets.rows.projection import column_uses, required_columns
from tests.small_configs import click_config

FEATURES = [
    {"kind": "categorical", "name": "item"},
    {"kind": "categorical", "name": "position", "column": "pos"},
    {"kind": "cross", "name": "place", "columns": ["pos", "device"]},
    {"kind": "list", "name": "tags"},
]


def config(features=("position",), monitor="mean.auc", extra=(), **bias):
    return click_config(
        *FEATURES,
        *extra,
        model={"bias": {"features": [*features], **bias}},
        training={"monitor": monitor},
    )


@pytest.mark.parametrize(("bias", "message"), [
    ({"features": ["postion"]}, "names 'postion', but there is no such feature"),
    ({"features": ["position", "position"]}, "features names 'position' twice"),
    ({"features": []}, "at least 1 item"),
    ({"features": ["item", "position", "place", "tags"]}, "names all features"),
    ({"tasks": ["like"]}, "model.bias.tasks names 'like', but there is no such task"),
    ({"tasks": []}, "tasks is empty"),
    ({"scoring": "fixed"}, "scoring is fixed, but at says no value"),
    ({"at": {"pos": 1}}, "at has no effect with scoring drop"),
    ({"scoring": "fixed", "at": {"position": 1}}, "at names 'position', which no feature"),
    ({"scoring": "fixed", "at": {"pos": 1}}, "feature 'place', which is not under"),
    ({"features": ["position", "place"], "scoring": "fixed", "at": {"pos": 1}},
     "fixes 'pos', but feature 'place' also reads 'device'"),
    ({"features": ["tags"], "scoring": "fixed", "at": {"tags": "a"}},
     "feature 'tags' is of kind list"),
    ({"dropout": 1.0}, "less than 1"),
    ({"hiden": [4]}, "hidden"),
])  # fmt: skip
def test_refused(bias, message):
    with pytest.raises(ValueError, match=message):
        config(**bias)


def test_sequences_and_their_targets_are_no_display():
    past = {"kind": "sequence", "name": "past", "columns": ["seen"], "target": ["item"]}
    with pytest.raises(ValueError, match="names 'past', which is of kind sequence"):
        config(features=["past"], extra=[past])
    with pytest.raises(ValueError, match="names 'item', but it is a target of feature 'past'"):
        config(features=["item"], extra=[past])
    assert config(extra=[past]).model.bias is not None


def test_metrics_with_bias_need_one():
    assert config(monitor="click.logloss_with_bias").training.monitor.endswith("bias")
    with pytest.raises(ValueError, match=r"no model\.bias; set training\.monitor: mean\.auc"):
        click_config(*FEATURES, training={"monitor": "mean.auc_with_bias"})


@pytest.mark.parametrize(("bias", "read"), [
    ({}, ["item", "pos", "device", "tags"]),  # the cross reads the position too
    ({"features": ["position", "place"]}, ["item", "tags"]),
    ({"features": ["position", "place", "tags"], "scoring": "fixed", "at": {"pos": 1,
                                                                            "device": "phone"}},
     ["item", "tags"]),
])  # fmt: skip
def test_columns_that_scoring_reads(bias, read):
    made = config(**bias)
    assert required_columns(made, labels=False) == read
    uses = column_uses(made)
    assert list(uses) == ["item", "pos", "device", "tags", "click"]
    assert (
        uses["pos"] == "feature 'position' of model.bias (to train and to evaluate, not to score)"
    )
