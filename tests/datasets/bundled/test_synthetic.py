from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from mmoe.config import RunConfig, config_from_dict
from mmoe.datasets.bundled.synthetic import (
    SHARES,
    FunnelLog,
    draw_impressions,
    draw_market,
    draw_parts,
    generate_funnel,
    load,
    part_values,
)
from mmoe.datasets.recipes import load_recipe

CODES = ["user_id", "item_id", "segment", "gender", "category", "hour", "device", "position"]
NUMBERS = ["age", "price", "discount", "rating", "days_since_visit", "session_minutes"]


@pytest.fixture(scope="module")
def recipe_log() -> FunnelLog:
    """The log that the bundled recipe generates."""
    return generate_funnel(**load_recipe("synthetic-funnel").data.options)


def logit(probability: np.ndarray) -> np.ndarray:
    return np.log(probability / (1 - probability))


def labels(log: FunnelLog) -> tuple[np.ndarray, np.ndarray]:
    return log.table["click"].to_numpy(), log.table["purchase"].to_numpy()


def small_config(**data) -> RunConfig:
    options = {"rows": 3000, "users": 500, "items": 200, "seed": 5}
    return config_from_dict(
        {
            "data": {"source": "synthetic-funnel", "options": options} | data,
            "features": [{"kind": "categorical", "name": "category"}],
            "tasks": [
                {"name": "click", "label": "click"},
                {"name": "purchase", "label": "purchase", "observed_when": "click"},
            ],
        }
    )


def test_a_seed_fixes_every_row():
    np.random.seed(0)
    first, other = (generate_funnel(rows=500, users=50, items=50, seed=seed) for seed in (3, 4))
    np.random.seed(1)  # which plays no part
    again = generate_funnel(rows=500, users=50, items=50, seed=3)
    assert first.table.equals(again.table)
    np.testing.assert_array_equal(first.click_probability, again.click_probability)
    np.testing.assert_array_equal(first.purchase_probability, again.purchase_probability)
    assert not first.table.equals(other.table)
    one = generate_funnel(rows=1, users=1, items=1)
    assert one.table.num_rows == 1 and 0 < one.click_probability[0] < 1


@pytest.mark.parametrize("part", SHARES)
def test_a_row_is_judged_by_its_own_columns(part):
    """The truth about a row is the same whatever other rows are in the log."""
    rng = np.random.default_rng(7)
    market = draw_market(rng, users=40, items=30)
    rows = draw_impressions(rng, market, 500)
    constants = draw_parts(rng, users=40, items=30)[part]
    some = np.array([3, 499, 4, 250])
    few = replace(
        rows, **{f.name: getattr(rows, f.name)[some] for f in fields(rows) if f.name != "market"}
    )
    values = part_values(part, constants, rows)
    assert values.std() > 0
    np.testing.assert_array_equal(part_values(part, constants, few), values[some])


def test_a_longer_log_of_a_seed_has_the_same_users_and_items():
    short, long = (generate_funnel(rows=n, users=30, items=10, seed=2).table for n in (4000, 9000))
    for keys in (["user_id", "segment", "age", "gender"], ["item_id", "category", "rating"]):
        known = {tuple(row.values()) for row in long.select(keys).to_pylist()}
        assert len(known) == len({row[0] for row in known})
        assert {tuple(row.values()) for row in short.select(keys).to_pylist()} <= known


def test_the_log_is_a_funnel_in_order_of_time(recipe_log):
    click, purchase = labels(recipe_log)
    assert set(np.unique(click)) == set(np.unique(purchase)) == {0, 1}
    assert not purchase[click == 0].any()
    seconds = recipe_log.table["timestamp"].to_numpy().astype("datetime64[s]").astype(np.int64)
    assert (np.diff(seconds) >= 0).all()
    np.testing.assert_array_equal(seconds // 3600 % 24, recipe_log.table["hour"].to_numpy())
    options = load_recipe("synthetic-funnel").data.options
    assert click.mean() == pytest.approx(options["click_rate"], abs=0.02)
    assert purchase[click == 1].mean() == pytest.approx(options["purchase_rate"], abs=0.02)


def test_more_than_100_000_ids_whose_popularity_follows_zipf(recipe_log):
    distinct = 0
    for column, exponent in (("user_id", 0.75), ("item_id", 1.0)):
        _, counts = np.unique(recipe_log.table[column].to_numpy(), return_counts=True)
        head = np.sort(counts)[::-1][:200]
        slope, _ = np.polyfit(np.log(np.arange(1, 201)), np.log(head), 1)
        assert slope == pytest.approx(-exponent, abs=0.08)
        distinct += len(counts)
    assert distinct > 100_000


def test_truth_is_calibrated_in_every_decile(recipe_log):
    click, purchase = labels(recipe_log)
    clicked = click == 1

    def worst(label, truth):
        """Of the deciles' rates, in standard deviations."""
        for rows in np.array_split(np.argsort(truth), 10):
            p = truth[rows]
            yield abs(label[rows].mean() - p.mean()) * len(rows) / np.sqrt((p * (1 - p)).sum())

    for label, truth in (
        (click, recipe_log.click_probability),
        (purchase[clicked], recipe_log.purchase_probability[clicked]),
    ):
        assert max(worst(label, truth)) < 4.5
        assert 0.70 < roc_auc_score(label, truth) < 0.85
    # It has teeth: a truth 5 % off in logit is found out
    truth = recipe_log.click_probability
    assert max(worst(click, 1 / (1 + np.exp(-1.05 * logit(truth))))) > 4.5


def test_correlation_moves_the_correlation_of_the_logits():
    measured = []
    for correlation in (-1.0, -0.4, 0.5, 1.0):
        log = generate_funnel(rows=30_000, users=3000, items=1000, correlation=correlation)
        logits = logit(log.click_probability), logit(log.purchase_probability)
        measured.append(np.corrcoef(*logits)[0, 1])
        assert measured[-1] == pytest.approx(correlation, abs=0.03)
    assert (np.diff(measured) > 0).all()


def test_logistic_regression_trails_the_oracle():
    log = generate_funnel(rows=40_000, users=1000, items=500, seed=0)
    frame = log.table.to_pandas()
    for rows, label, truth in (
        (np.arange(len(frame)), "click", log.click_probability),
        (np.flatnonzero(frame["click"]), "purchase", log.purchase_probability),
    ):
        train, test = rows[: len(rows) * 3 // 4], rows[len(rows) * 3 // 4 :]
        model = make_pipeline(
            make_column_transformer(
                (OneHotEncoder(handle_unknown="ignore"), CODES),
                (make_pipeline(StandardScaler(), SimpleImputer(add_indicator=True)), NUMBERS),
            ),
            LogisticRegression(C=0.1, max_iter=60, tol=1e-3),
        )
        model.fit(frame.iloc[train], frame[label].iloc[train])
        scores = model.decision_function(frame.iloc[test])
        linear = roc_auc_score(frame[label].iloc[test], scores)
        best = roc_auc_score(frame[label].iloc[test], truth[test])
        assert linear > 0.65  # it does learn something
        assert linear < best - 0.03


def test_load_gives_the_truth_of_the_test_rows():
    splits = load(small_config(split={"by": "time", "column": "timestamp"}), None)
    log = generate_funnel(rows=3000, users=500, items=200, seed=5)
    assert splits.oracle is not None
    held_out = splits.test.num_rows
    assert splits.train.num_rows + splits.validation.num_rows + held_out == 3000
    assert splits.test.equals(log.table.slice(3000 - held_out).combine_chunks())
    np.testing.assert_array_equal(splits.oracle["click"], log.click_probability[-held_out:])
    np.testing.assert_array_equal(splits.oracle["purchase"], log.purchase_probability[-held_out:])


@pytest.mark.parametrize(("options", "message"), [
    ({"rows": 0}, "rows is 0; expected a whole number of at least 1"),
    ({"users": 2.5}, "users is 2.5; expected a whole number"),
    ({"items": True}, "items is True; expected a whole number"),
    ({"seed": -1}, "seed is -1; expected a whole number of at least 0"),
    ({"correlation": 1.1}, "correlation is 1.1; expected a number from -1 to 1"),
    ({"correlation": "high"}, "correlation is 'high'; expected a number from -1 to 1"),
    ({"click_rate": 0}, "click_rate is 0; expected a number between 0 and 1"),
    ({"purchase_rate": 1.0}, "purchase_rate is 1.0; expected a number between 0 and 1"),
    ({"correlaton": 0.5}, r"no option 'correlaton'; did you mean 'correlation'\?"),
    ({"zzz": 1}, "no option 'zzz'; known: rows, users, items"),
])  # fmt: skip
def test_options_that_cannot_be_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        load(small_config(options=options), None)


def test_data_has_no_place():
    with pytest.raises(ValueError, match="synthetic-funnel makes its own rows; leave --data out"):
        load(small_config(), Path("log.csv"))


def test_a_purchase_on_all_impressions_has_the_product_as_its_truth():
    config = small_config()
    everywhere = config.model_copy(
        update={
            "tasks": [config.tasks[0], config.tasks[1].model_copy(update={"observed_when": None})]
        }
    )
    given_click, overall = load(config, None).oracle, load(everywhere, None).oracle
    assert given_click is not None
    assert overall is not None
    np.testing.assert_allclose(overall["purchase"], given_click["purchase"] * given_click["click"])
