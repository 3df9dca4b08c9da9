"""Comparisons of the funnel, small enough for a second or two."""

import pyarrow.parquet as pq
import pytest

from mmoe.compare import ComparisonSettings, baselines, compare_models
from mmoe.config import config_from_dict, set_values


@pytest.fixture(autouse=True)
def _few_trees(monkeypatch):
    monkeypatch.setattr(baselines, "_MOST_TREES", 5)
    monkeypatch.setattr(baselines, "_TRIALS", baselines._TRIALS[:1])


@pytest.fixture
def small(funnel_table, funnel_config, tmp_path):
    """The raw config of the funnel in a file: fewer rows and features, one epoch."""
    path = tmp_path / "log.parquet"
    pq.write_table(funnel_table[:1500], path)
    changes = [f"data.path={path}", "training.epochs=1", "model.expert.hidden=[4]"]
    return set_values(funnel_config, changes)


@pytest.fixture
def compare(small, tmp_path):
    """Compares models in the folder `out`, with changes to the config."""

    def run(models, seeds, *overrides, reference=None, **keywords):
        config = config_from_dict(set_values(small, overrides))
        settings = ComparisonSettings(models=models, seeds=seeds, reference=reference)
        return compare_models(config, tmp_path / "out", settings, **keywords)

    return run
