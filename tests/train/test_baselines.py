"""Baselines: what they see of each feature, on which rows they learn, and that they learn."""

import sys
from importlib.util import find_spec

import numpy as np
import pyarrow as pa
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from mmoe.compare import baselines
from mmoe.compare.baselines import boosted_trees, logistic_regression
from mmoe.config import RunConfig, config_from_dict

FEATURES = [
    {"kind": "categorical", "name": "item"},
    {"kind": "numeric", "name": "price", "buckets": 5},
    {"kind": "categorical", "name": "price_value", "column": "price"},
    {"kind": "list", "name": "tags"},
]


def make_config(tasks: list[dict[str, str]], features: list[dict] = FEATURES) -> RunConfig:
    monitor = "mean.rmse" if tasks[0].get("kind") == "regression" else "mean.auc"
    return config_from_dict(
        {"features": features, "tasks": tasks, "training": {"monitor": monitor}}
    )


@pytest.fixture(scope="module")
def log() -> pa.Table:
    """2,000 rows; a click depends on the item, the price and the tags, with noise."""
    generator = np.random.default_rng(0)
    item = generator.integers(0, 6, 2000)
    price = np.exp(generator.normal(size=2000))
    num_tags = generator.integers(0, 4, 2000)
    utility = np.linspace(-2, 2, 6)[item] - np.log1p(price) + 0.8 * num_tags
    click = generator.random(2000) < 1 / (1 + np.exp(-utility))
    buy = click & (generator.random(2000) < 1 / (1 + np.exp(-utility)))
    return pa.table(
        {
            "item": pa.array([None if i == 5 else f"item {i}" for i in item]),
            "price": price,
            "tags": pa.array([["t"] * n for n in num_tags]),
            "click": click,
            "buy": buy,
            "spent": np.where(buy, price, 0.0),
        }
    )


@pytest.mark.parametrize("fit", [logistic_regression, boosted_trees])
def test_learns_every_task_on_its_observed_rows(fit, log: pa.Table) -> None:
    config = make_config(
        [
            {"name": "click", "label": "click"},
            {"name": "buy", "label": "buy", "observed_when": "click"},
        ]
    )
    train, test = log.slice(0, 1500), log.slice(1500)
    results = fit(config, train, test)
    assert list(results) == ["click", "buy"]
    for task, result in results.items():
        assert result.predictions_N.shape == (500,)
        assert ((result.predictions_N > 0) & (result.predictions_N < 1)).all()
        rows = result.observed_N
        np.testing.assert_array_equal(
            rows, np.ones(500, bool) if task == "click" else test["click"].to_numpy()
        )
        assert roc_auc_score(result.labels_N[rows], result.predictions_N[rows]) > 0.65


def test_logistic_regression_equals_scikit_learn_by_hand(log: pa.Table) -> None:
    features = [FEATURES[0], FEATURES[1]]
    config = make_config([{"name": "click", "label": "click"}], features)
    result = logistic_regression(config, log, log)["click"]
    item = log["item"].to_pylist()
    one_hot = np.array([[value == known for known in sorted(set(item), key=str)] for value in item])
    price = np.log1p(log["price"].to_numpy())
    x = np.column_stack([one_hot, (price - price.mean()) / price.std()])
    reference = LogisticRegression(max_iter=1000, tol=1e-6).fit(x, log["click"].to_numpy())
    np.testing.assert_allclose(result.predictions_N, reference.predict_proba(x)[:, 1], atol=2e-3)


@pytest.mark.parametrize("fit", [logistic_regression, boosted_trees])
def test_a_number_embedded_too_is_used_once(fit, log: pa.Table) -> None:
    tasks = [{"name": "click", "label": "click"}]
    with_twin = fit(make_config(tasks), log, log)["click"].predictions_N
    without = fit(make_config(tasks, [FEATURES[0], FEATURES[1], FEATURES[3]]), log, log)["click"]
    np.testing.assert_array_equal(with_twin, without.predictions_N)


@pytest.mark.parametrize("fit", [logistic_regression, boosted_trees])
def test_regression_and_values_that_are_unseen_or_missing(fit, log: pa.Table) -> None:
    config = make_config([{"name": "spent", "label": "spent", "kind": "regression"}])
    result = fit(config, log, log)["spent"]
    residual = np.mean((result.predictions_N - result.labels_N) ** 2)
    assert residual < 0.9 * np.var(result.labels_N)
    new = pa.table(
        {
            "item": ["never seen", None],
            "price": pa.array([None, 1e12], pa.float64()),
            "tags": pa.array([None, ["new"]], pa.list_(pa.string())),
            "spent": [0.0, 1.0],
        }
    )
    assert np.isfinite(fit(config, log, new)["spent"].predictions_N).all()


@pytest.mark.parametrize("fit", [logistic_regression, boosted_trees])
def test_one_class_is_refused(fit, log: pa.Table) -> None:
    config = make_config([{"name": "click", "label": "price < 0"}])
    with pytest.raises(ValueError, match=r"task 'click'.*(one class|both classes|all|only)"):
        fit(config, log, log)


def test_trees_rank_ids_by_key_not_by_frequency() -> None:
    """Codes such as a year keep their order, so one split of a tree can part them."""
    year = np.repeat([90, 91, 92, 93, 94, 95], [40, 10, 30, 20, 60, 50])
    log = pa.table({"year": year, "click": (year > 92).astype(int)})
    features = [{"kind": "categorical", "name": "year"}]
    config = make_config([{"name": "click", "label": "click"}], features)
    result = boosted_trees(config, log, log, iterations=1)["click"]
    assert len(np.unique(result.predictions_N)) <= 7
    assert roc_auc_score(result.labels_N, result.predictions_N) == 1.0


@pytest.mark.parametrize("fit", [logistic_regression, boosted_trees])
def test_a_vector_is_so_many_numbers(fit) -> None:
    generator = np.random.default_rng(3)
    vectors = generator.normal(size=(600, 4))
    click = (vectors[:, 1] + generator.normal(size=600) > 0).astype(int)
    table = pa.table({"title": pa.array(list(vectors), mask=np.arange(600) % 9 == 0)})
    table = table.append_column("click", pa.array(click))
    config = make_config(
        [{"name": "click", "label": "click"}], [{"kind": "vector", "name": "title", "dim": 2}]
    )
    found = fit(config, table[:400], table[400:])["click"]
    assert roc_auc_score(found.labels_N, found.predictions_N) > 0.75
    empty = pa.table({"title": pa.nulls(3), "click": [0, 1, 0]})
    same = fit(config, table[:400], empty)["click"].predictions_N
    assert np.isfinite(same).all() and np.ptp(same) == 0


@pytest.mark.parametrize("library", ["lightgbm", "scikit-learn"])
def test_trees_learn_ids_of_many_values_and_stop_by_the_validation_rows(
    library, monkeypatch
) -> None:
    """400 ids whose order says nothing: by their rank alone, trees hardly tell them apart."""
    if library == "scikit-learn":
        monkeypatch.setitem(sys.modules, "lightgbm", None)
    else:
        assert find_spec("lightgbm") is not None, "among what the tests need: pip install lightgbm"
    generator = np.random.default_rng(0)
    appeal = generator.normal(size=400) * 2
    item = generator.integers(0, 400, 9000)
    noise = generator.normal(size=9000)
    click = generator.random(9000) < 1 / (1 + np.exp(-appeal[item]))
    log = pa.table({"item": pa.array([f"{i:03}" for i in item]), "noise": noise, "click": click})
    features = [{"kind": "categorical", "name": "item"}, {"kind": "numeric", "name": "noise"}]
    config = make_config([{"name": "click", "label": "click"}], features)
    train, held, test = log[:6000], log[6000:7500], log[7500:]
    truth = roc_auc_score(click[7500:], appeal[item[7500:]])

    def auc(**more) -> float:
        found = boosted_trees(config, train, test, **more)["click"]
        return roc_auc_score(found.labels_N, found.predictions_N)

    stopped = auc(validation=held)
    assert stopped > truth - 0.03
    assert stopped > auc(iterations=600) + 0.005
    monkeypatch.setattr(baselines, "_FEW_IDS", 1000)
    assert stopped > auc(validation=held) + 0.005
