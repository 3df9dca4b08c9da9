"""A DataFrame is as good as a file: trained on, evaluated, scored."""

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from mmoe.config import config_from_dict, set_values
from mmoe.run import RunDirectory
from mmoe.score import load_predictor
from mmoe.train import evaluate_run, train_run


@pytest.fixture(name="config", scope="module")
def _config(funnel_config):
    return config_from_dict(set_values(funnel_config, ["training.epochs=1"]))


@pytest.fixture(name="frame", scope="module")
def _frame(funnel_table) -> pd.DataFrame:
    return funnel_table.to_pandas()


@pytest.fixture(name="run", scope="module")
def _run(config, frame, tmp_path_factory):
    """Trained on a DataFrame, where the config names a file."""
    data = config.data.model_copy(update={"path": "nowhere.parquet"})
    elsewhere = config.model_copy(update={"data": data})
    return train_run(elsewhere, tmp_path_factory.mktemp("frame") / "run", data=frame).directory


def test_the_run_is_that_of_a_file(run, config, funnel_table, tmp_path):
    pq.write_table(funnel_table, tmp_path / "log.parquet")
    of_file = train_run(config, tmp_path / "run", data=tmp_path / "log.parquet")
    assert run.metrics()["tasks"] == of_file.metrics["tasks"]
    assert run.config().data.path is None
    assert (
        evaluate_run(run, tmp_path / "log.parquet")["tasks"]
        == evaluate_run(run, funnel_table.to_pandas())["tasks"]
    )


def test_predictions_are_those_of_encoded_rows(run, frame):
    predictor, *_ = load_predictor(RunDirectory.open(run.path))
    predictions_NT = predictor.predict(frame[:50].drop(columns=["click", "buy"]))
    assert predictions_NT.shape == (50, 2)
    rows = {name: frame[name][3:4].tolist() for name in ("user", "item", "price", "tags")}
    np.testing.assert_array_equal(predictor.predict(rows), predictions_NT[3:4])


def test_a_wrong_value_is_named(run, config, frame, tmp_path):
    wrong = frame.copy()
    wrong.loc[16, "price"] = np.inf
    with pytest.raises(ValueError, match=r"DataFrame: row 17: column 'price'"):
        train_run(config, tmp_path / "run", data=wrong)
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match="the data has changed since the run began"):
        train_run(config, run.path, data=frame[:-1], resume=True)
    with pytest.raises(ValueError, match=r"DataFrame: row 17: column 'price'"):
        evaluate_run(run, wrong)
    with pytest.raises(ValueError, match=r"DataFrame: row 17: column 'price'"):
        load_predictor(run)[0].predict(wrong)
