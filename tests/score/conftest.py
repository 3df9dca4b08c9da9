"""A run that is trained once for all files of a worker, and a night to score with it."""

import pyarrow.parquet as pq
import pytest


@pytest.fixture(scope="session")
def run(funnel_config, funnel_table, tmp_path_factory):
    """One epoch of `funnel_config`; whoever changes its files copies them first."""
    from mmoe.config import config_from_dict
    from mmoe.datasets.rows.splits import Splits
    from mmoe.train import train_run

    raw = {**funnel_config, "training": {**funnel_config["training"], "epochs": 1}}
    log = funnel_table
    splits = Splits(train=log[:3000], validation=log[3000:3300], test=log[3300:], origin="log")
    folder = tmp_path_factory.mktemp("scored") / "run"
    return train_run(config_from_dict(raw), folder, splits=splits).directory


@pytest.fixture(scope="module")
def night(funnel_table, tmp_path_factory):
    """Rows that the run was not trained on, but are like those."""
    path = tmp_path_factory.mktemp("night") / "night.parquet"
    pq.write_table(funnel_table[3000:], path, row_group_size=300)
    return path
