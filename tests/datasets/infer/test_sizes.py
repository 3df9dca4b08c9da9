"""Sizes, rates and epochs by what is known of a log."""

import numpy as np
import pyarrow as pa
import pytest

from mmoe.config import TaskConfig
from mmoe.datasets.infer.config import infer_config
from mmoe.datasets.infer.sizes import Log, model_for, training_for


@pytest.mark.parametrize("rows", [900, 14_000, 20_000])
def test_few_rows_get_no_buckets_and_the_loss_as_monitor(rows):
    rng = np.random.default_rng(3)
    table = pa.table({"x": rng.normal(size=rows), "y": rng.integers(0, 2, rows)})
    config, _ = infer_config(table, ["y"])
    few = rows < 15_000
    number = config.features[0]
    assert (number.buckets, number.pieces) == ((0, 16) if few else (20, 48))
    assert config.training.monitor == ("mean.logloss" if few else "mean.auc")
    assert config.training.optimizer.weight_decay == 1.0
    assert config.model.expert.dropout == 0.1
    assert config.training.epochs == (20 if few else 15)
    assert config.model.wide and config.model.interaction.kind == "none"


@pytest.mark.parametrize(("values", "fast"), [(50, False), (400, True)])
def test_many_ids_get_few_and_large_steps(values, fast):
    rng = np.random.default_rng(3)
    table = pa.table(
        {
            "item": [f"i{n}" for n in rng.integers(0, values, 20_000)],
            "x": rng.normal(size=20_000),
            "y": rng.integers(0, 2, 20_000),
        }
    )
    training = infer_config(table, ["y"])[0].training
    assert training.epochs == (6 if fast else 15)
    assert training.patience == (1 if fast else 3)
    assert training.optimizer.learning_rate == (0.003 if fast else 0.001)


@pytest.mark.parametrize(("positives", "monitor"), [(800, "logloss"), (2_000, "auc")])
def test_epochs_are_not_told_apart_by_the_auc_of_few_positives(positives, monitor):
    rng = np.random.default_rng(3)
    rare = np.zeros(20_000, int)
    rare[rng.choice(20_000, positives, replace=False)] = 1
    table = pa.table(
        {"x": rng.normal(size=20_000), "rare": rare, "often": rng.integers(0, 2, 20_000)}
    )
    assert infer_config(table, ["often", "rare"])[0].training.monitor == f"mean.{monitor}"


def test_the_rarest_outcome_of_a_sample_is_that_of_all_rows():
    rng = np.random.default_rng(3)
    table = pa.table({"x": rng.normal(size=5_000), "y": (rng.random(5_000) < 0.1).astype(int)})
    assert infer_config(table, ["y"], rows=50_000)[0].training.monitor == "mean.auc"


def test_products_beside_a_regression_get_slower_rows():
    """A squared error of fast products grows beyond all bounds in the first epoch."""
    jobs = Log(rows=50_000, ids=90, products=True)
    pay = TaskConfig(name="pay", label="pay", kind="regression")
    training = training_for(jobs, [TaskConfig(name="y", label="y"), pay])
    assert training.embedding_optimizer.learning_rate == 0.1


def test_products_get_more_epochs_and_patience():
    jobs = Log(rows=50_000, ids=90, products=True)
    training = training_for(jobs, [TaskConfig(name="y", label="y")])
    assert (training.epochs, training.patience) == (12, 6)
    assert training.embedding_optimizer.learning_rate == 0.5
    assert model_for(jobs).interaction.kind == "fm"
