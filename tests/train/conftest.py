"""Runs on the funnel, and what tests of interrupted and repeated ones share."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from mmoe.checkpoint.folder import CheckpointFolder
from mmoe.config import config_from_dict, set_values
from mmoe.datasets.rows.splits import Splits
from mmoe.train import train_run
from tests.runs import Dies


@pytest.fixture
def splits(funnel_table):
    """3,000, 500 and 500 rows of the funnel."""
    return Splits(
        train=funnel_table[:3000],
        validation=funnel_table[3000:3500],
        test=funnel_table[3500:],
        origin="log",
    )


@pytest.fixture
def train(funnel_config, splits, tmp_path):
    """Trains on `splits`, in the folder of a name, with changes to the funnel's config."""

    def run(name: str, *overrides: str, **keywords):
        config = config_from_dict(set_values(funnel_config, overrides))
        return train_run(config, tmp_path / name, splits=splits, **keywords)

    return run


@pytest.fixture
def log_folder(funnel_table, tmp_path):
    """The funnel as four files of four row groups."""
    (tmp_path / "log").mkdir()
    for n in range(4):
        part = funnel_table.slice(n * 1000, 1000)
        pq.write_table(part, tmp_path / "log" / f"part-{n}.parquet", row_group_size=250)
    return tmp_path / "log"


@pytest.fixture
def weights():
    """The weights of a run's last checkpoint."""

    def read(folder: Path) -> dict[str, torch.Tensor]:
        return CheckpointFolder(folder / "checkpoint").model("latest")

    return read


@pytest.fixture
def assert_same(weights):
    """Two runs ended with the same bits."""

    def check(one: Path, two: Path) -> None:
        mine, theirs = weights(one), weights(two)
        assert mine.keys() == theirs.keys()
        for name in mine:
            assert torch.equal(mine[name], theirs[name]), name

    return check


@pytest.fixture
def dies_after():
    """A reporter that ends a run after so many training steps."""
    return Dies
