"""A trained run to score with."""

import pytest

from mmoe.config import config_from_dict
from mmoe.datasets.rows.splits import Splits
from mmoe.train import train_run


@pytest.fixture(scope="module")
def train_funnel(funnel_table, tmp_path_factory):
    """Trains a config on most of the log; returns the run."""

    def train(raw):
        splits = Splits(
            train=funnel_table[:3000],
            validation=funnel_table[3000:3300],
            test=funnel_table[3300:],
            origin="log",
        )
        folder = tmp_path_factory.mktemp("run") / "run"
        return train_run(config_from_dict(raw), folder, splits=splits).directory

    return train
