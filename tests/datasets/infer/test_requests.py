"""`mmoe init --request`: levels of features by what is the same inside requests."""

import numpy as np
import pyarrow as pa
import pytest

from mmoe.config import config_from_dict
from mmoe.datasets.infer.commented_yaml import commented_yaml
from mmoe.datasets.infer.config import infer_config, with_requests
from mmoe.datasets.infer.told import Told
from tests.datasets.request_log import log_of_requests


@pytest.fixture(name="log", scope="module")
def _log():
    return log_of_requests(300)


def inferred(log, column="request"):
    told = Told().without(column, log, "log")
    config, reasons = infer_config(log, ["click"], told=told)
    return with_requests(config, reasons, log, column, "log"), reasons


def test_what_is_the_same_inside_requests_is_of_them(log):
    config, reasons = inferred(log)
    levels = {feature.name: feature.asked_level for feature in config.features}
    assert {levels[name] for name in ("user", "age", "history", "seen")} == {"request"}
    assert {levels[name] for name in ("item", "price", "tags")} == {None}
    assert config.data.requests.column == "request" and "request" not in levels
    assert reasons.features["user"].endswith("the same inside each request")


def test_a_time_that_keeps_requests_whole_still_makes_the_split(log):
    config, _ = inferred(log)
    assert config.data.split.column == "at"
    config, _ = inferred(log.drop_columns(["at"]))
    assert (config.data.split.by, config.data.split.column) == ("random", None)


def test_the_config_is_written_with_its_requests(log):
    import yaml

    config, reasons = inferred(log)
    assert config_from_dict(yaml.safe_load(commented_yaml(config, reasons))) == config


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("rquest", r"--request.*did you mean 'request'"),
        ("own", "--request own: never repeats among"),
        ("item", "no feature is the same for all rows of a request"),
    ],
)
def test_a_column_that_names_no_requests_is_refused(log, column, message):
    rows = log.append_column("own", pa.array(np.arange(len(log))))
    if column == "item":  # by which no other column is told
        rows = log.select(["item", "price", "tags", "click"])
    with pytest.raises(ValueError, match=message):
        inferred(rows, column)
