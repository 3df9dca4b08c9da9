"""`MultiTaskRanker` keeps scikit-learn's promises and the command line's numbers."""

import pickle

import numpy as np
import pandas as pd
import pytest

from mmoe import MultiTaskRanker

SMALL = {
    "model.expert.hidden": [8],
    "model.tower.hidden": [],
    "training.embedding_backend": "plain",
    "training.optimizer.learning_rate": 0.01,
}


@pytest.fixture(scope="module", name="frames")
def _frames(funnel_table):
    frame = funnel_table.to_pandas()
    labels = frame[["click", "buy"]].astype(float)
    labels.loc[labels.click == 0, "buy"] = np.nan  # a purchase is known after a click only
    return frame[["user", "item", "price", "tags"]], labels


@pytest.fixture(scope="module", name="ranker")
def _ranker(frames):
    X, y = frames
    return MultiTaskRanker(epochs=2, batch_size=128, num_experts=2, settings=SMALL).fit(
        X[:3500], y[:3500]
    )


def test_fit_predict_score(ranker, frames):
    X, y = frames
    predictions = ranker.predict_proba(X[3500:])
    assert list(predictions.columns) == ["pred_click", "pred_buy"]
    assert predictions.index.equals(X.index[3500:])
    assert predictions.to_numpy().min() >= 0
    assert predictions.to_numpy().max() <= 1
    assert ranker.score(X[3500:], y[3500:]) > 0.6
    rows = {name: task["rows"] for name, task in ranker.metrics_["tasks"].items()}
    assert rows["buy"] < rows["click"] == 350, "missing labels are unobserved"
    labels = ranker.predict(X[3500:])
    assert list(labels.columns) == ["click", "buy"]
    assert ((predictions.pred_click >= 0.5) == labels.click.astype(bool)).all()


def test_save_load_and_pickle(ranker, frames, tmp_path):
    X, _ = frames
    expected = ranker.predict_proba(X)
    folder = ranker.save(tmp_path / "saved")
    pd.testing.assert_frame_equal(MultiTaskRanker.load(folder).predict_proba(X), expected)
    revived = pickle.loads(pickle.dumps(ranker))
    assert revived.run_directory_ != ranker.run_directory_
    pd.testing.assert_frame_equal(revived.predict_proba(X), expected)
    with pytest.raises(ValueError, match="exists already"):
        ranker.save(tmp_path / "saved")


def test_command_line_understands_the_folder(ranker, frames, tmp_path):
    from mmoe.run import RunDirectory
    from mmoe.score import score_files

    X, _ = frames
    X.to_parquet(tmp_path / "x.parquet")
    score_files(RunDirectory.open(ranker.run_directory_), tmp_path / "x.parquet", tmp_path / "s.pq")
    scored = pd.read_parquet(tmp_path / "s.pq")
    expected = ranker.predict_proba(X)
    assert np.array_equal(scored.pred_buy.to_numpy(), expected.pred_buy.to_numpy())


def test_config_of_ones_own(funnel_config, funnel_table):
    frame = funnel_table.to_pandas()
    ranker = MultiTaskRanker(config=funnel_config, epochs=1, model="ple").fit(frame)
    assert ranker.config_.model.kind == "ple"
    assert ranker.config_.name == "funnel"
    assert ranker.predict_proba(frame.drop(columns=["click", "buy"])).shape == (4000, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda X, y: (X, None), "y: expected a DataFrame"),
        (lambda X, y: (X, y[:10]), "y: expected 4000 rows, as many as X, got 10"),
        (lambda X, y: (X.assign(click=1), y), "X: holds the label column 'click'"),
        (lambda X, y: (X[:0], y[:0]), "rows"),
    ],
)
def test_errors(frames, change, message):
    with pytest.raises(ValueError, match=message):
        MultiTaskRanker(epochs=1, settings=SMALL).fit(*change(*frames))


def test_errors_name_the_row_and_the_column(frames, funnel_config, funnel_table):
    frame = funnel_table.to_pandas()
    frame.loc[17, "click"] = 2
    with pytest.raises(ValueError, match=r"row 18: .*'click'.* 2"):
        MultiTaskRanker(config=funnel_config, epochs=1).fit(frame)
    X, y = frames
    twice = pd.concat([X, X[["user"]]], axis=1)
    with pytest.raises(ValueError, match="X: two columns are called 'user'"):
        MultiTaskRanker(epochs=1, settings=SMALL).fit(twice, y)
    odd = X.assign(price=pd.cut(X.price, 3))
    with pytest.raises(
        ValueError, match=r"column 'price' .dtype category. cannot be read, it holds"
    ):
        MultiTaskRanker(epochs=1, settings=SMALL).fit(odd, y)


def test_numpy_parameters_and_repeated_fits(frames, tmp_path):
    X, y = frames
    ranker = MultiTaskRanker(
        epochs=np.int64(1), learning_rate=np.float32(0.01), settings=SMALL, run_dir=tmp_path / "run"
    )
    first = ranker.fit(X[:500], y[:500]).run_directory_
    second = ranker.fit(X[:500], y[:500]).run_directory_
    assert (first, second) == (tmp_path / "run", tmp_path / "run-2")


def test_left_out_columns_are_named(frames):
    X, y = frames
    odd = X.assign(price=X.price.where(X.index > 0, np.inf), constant=1, nothing=None)[:400]
    with pytest.warns(UserWarning, match="left out .*'price': it holds infinity") as said:
        MultiTaskRanker(epochs=1, settings=SMALL).fit(odd, y[["click"]][:400])
    (text,) = {str(warning.message) for warning in said}
    assert "'constant'" in text and "'nothing': empty in every row" in text
