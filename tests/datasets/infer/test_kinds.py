"""Which columns are ids and which are numbers, whatever they are called."""

import datetime

import numpy as np
import pyarrow as pa
import pytest
import yaml

from mmoe.config import config_from_dict
from mmoe.datasets import infer_config
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.infer.config import commented_yaml

ROWS = 8000


def clicks(logit, rng):
    logit = logit - np.quantile(logit, 0.7)
    return (rng.random(len(logit)) < 1 / (1 + np.exp(-logit))).astype(int)


def infer(columns, effect, *, seed=0, **options):
    rng = np.random.default_rng(seed + 1)
    table = pa.table({**columns, "y": clicks(effect, rng)})
    config, reasons = infer_config(table, ["y"], **options)
    assert config_from_dict(yaml.safe_load(commented_yaml(config, reasons))) == config
    FeatureEncoder.fit(config, table, "log").encode(table, "log")
    return config, reasons


def kinds(config):
    return {feature.source_columns[0]: feature.kind for feature in reversed(config.features)}


def ids(rng, size, zipf=0.7, rows=ROWS):
    """Ids in no order, and what each adds to the logit."""
    share = 1 / np.arange(1, size + 1) ** zipf
    drawn = rng.permutation(size)[rng.choice(size, rows, p=share / share.sum())]
    return drawn, rng.normal(size=size)[drawn]


@pytest.mark.parametrize(
    ("name", "code"), [("userid", "dense"), ("asin", "sparse"), ("C14", "dense"), ("x", "sparse")]
)
def test_whole_numbers_whose_values_predict_each_by_itself_are_ids(name, code):
    rng = np.random.default_rng(0)
    values, effect = ids(rng, 200)
    if code == "sparse":
        values = np.sort(rng.choice(10**7, 200, replace=False))[values]
    config, reasons = infer({name: values}, effect)
    assert kinds(config) == {name: "categorical"}
    if config.data.group_column is None:  # that one is ids always
        assert reasons.features[name].startswith("ids: AUC 0.6")
        assert "as a number (z 1" in reasons.features[name]
    assert not reasons.unsure


@pytest.mark.parametrize(
    ("name", "shape"),
    [("item_price", "cents"), ("user_score", "even"), ("site_visits", "counts"), ("c0", "cents")],
)
def test_whole_numbers_whose_neighbours_predict_alike_are_numbers(name, shape):
    rng = np.random.default_rng(0)
    values = {
        "cents": np.round(100 * rng.lognormal(3, 1, ROWS)),
        "counts": rng.poisson(rng.gamma(2, 20, ROWS)),
        "even": rng.integers(0, 1000, ROWS),
    }[shape]
    config, reasons = infer({name: values}, 1.5 * np.log1p(values))
    assert kinds(config) == {name: "numeric"}
    assert reasons.features[name].startswith("number: AUC 0.")
    assert not reasons.unsure


def test_without_a_word_from_the_labels_the_values_decide():
    rng = np.random.default_rng(0)
    nothing = np.zeros(ROWS)
    columns = {
        "a": ids(rng, 300)[0],
        "b": np.round(100 * rng.lognormal(3, 1, ROWS)),
        "c": np.sort(rng.choice(10**8, 2000, replace=False))[ids(rng, 2000, 0.2)[0]],
        "d": rng.normal(0, 50, ROWS).round(),
        "e": rng.poisson(rng.gamma(1, 6, ROWS)),
        "item_price": ids(rng, 300)[0],  # what it is called counts for more
        "price_id": rng.poisson(60, ROWS),
    }
    config, _ = infer(columns, nothing)
    assert kinds(config) == {
        "a": "categorical", "b": "numeric", "c": "categorical", "d": "numeric", "e": "numeric",
        "item_price": "numeric", "price_id": "categorical",
    }  # fmt: skip


def test_what_neither_labels_nor_values_nor_name_tell_is_said_to_be_unsure():
    rng = np.random.default_rng(0)
    config, reasons = infer({"q": rng.integers(0, 300, 900)}, np.zeros(900))
    assert reasons.unsure == ["q"]
    assert "unsure" in reasons.features["q"]
    assert len(config.features) == 1


def test_a_property_of_an_item_is_no_id_for_telling_the_items_apart():
    rng = np.random.default_rng(0)
    item, effect = ids(rng, 400, 0.3)
    price = rng.permutation(np.round(rng.lognormal(6, 1, 400)))[item]
    config, _ = infer({"a": item, "b": price}, effect + 0.5 * np.log(price))
    assert kinds(config) == {"a": "categorical", "b": "numeric"}


def test_a_family_of_columns_is_judged_together():
    rng = np.random.default_rng(0)
    drawn = {f"C{i}": ids(rng, 150, 0.9) for i in range(4)}
    columns = {name: values for name, (values, _) in drawn.items()}
    columns["C9"] = rng.integers(0, 40, ROWS) + 7
    config, reasons = infer(columns, sum(effect for _, effect in drawn.values()))
    assert set(kinds(config).values()) == {"categorical"}
    assert not reasons.unsure


def test_categories_of_pandas_are_ids_and_so_is_the_group():
    rng = np.random.default_rng(0)
    count = rng.poisson(rng.gamma(2, 20, ROWS))
    columns = {"n": pa.array(count).dictionary_encode(), "user": rng.poisson(80, ROWS)}
    config, _ = infer(columns, np.log1p(count))
    assert kinds(config) == {"n": "categorical", "user": "categorical"}


def test_a_number_with_values_of_its_own_gets_buckets_for_them():
    rng = np.random.default_rng(0)
    hours = rng.permutation(np.arange(ROWS) % 97)
    config, _ = infer({"hours": hours}, 3.0 * (hours % 8 == 0))
    [feature] = config.features
    assert (feature.kind, feature.buckets) == ("numeric", 97)


def test_rounded_sums_are_numbers_with_ids_beside():
    rng = np.random.default_rng(0)
    rows = 30_000
    whole = rng.random(rows) < 0.7
    sums = np.where(whole, 500 * rng.integers(1, 600, rows), rng.integers(500, 300_000, rows))
    effect = np.where(whole, rng.normal(size=600)[sums // 500 % 600], 0) * 2
    config, _ = infer({"a": sums}, effect)
    assert [feature.kind for feature in config.features] == ["numeric", "categorical"]
    assert config.features[1].table_encoding.min_count == 20  # a sum that is not round says nothing
    assert [feature.name for feature in config.features] == ["a", "a_as_id"]


def test_a_logarithm_only_where_the_numbers_themselves_do_not_predict_better():
    rng = np.random.default_rng(0)
    columns = {name: 1000 * rng.gamma(0.5, 1, ROWS) for name in ("a", "b")}
    config, _ = infer(columns, columns["a"] / 700 + 0.7 * np.log1p(columns["b"]))
    assert [feature.log for feature in config.features] == [False, True]


def test_a_column_that_is_one_to_one_with_another_is_left_out():
    rng = np.random.default_rng(0)
    item, effect = ids(rng, 50)
    price = rng.lognormal(3, 1, ROWS)
    columns = {
        "item": item,
        "title": [f"title {i * 7 % 50}" for i in item],
        "price": price,
        "cents": 100 * price,
        "discount": -price,
        "other": rng.lognormal(3, 1, ROWS),
    }
    config, reasons = infer(columns, effect)
    assert list(kinds(config)) == ["other", "price", "item"]
    assert dict(reasons.left_out) == {
        "title": "a copy of 'item': one to one with it in every row",
        "cents": "a copy of 'price': one to one with it in every row",
        "discount": "a copy of 'price': one to one with it in every row",
    }


def test_two_id_columns_that_say_something_together_are_crossed():
    rng = np.random.default_rng(0)
    a, b, c = (rng.integers(0, size, 20_000) for size in (40, 30, 50))
    both = rng.normal(size=(40, 30))[a, b]
    columns = {"a_id": a, "b_id": b, "c_id": c}
    config, reasons = infer(columns, both + rng.normal(size=40)[a])
    assert [f.columns for f in config.features if f.kind == "cross"] == [["a_id", "b_id"]]
    assert "together they predict 'y'" in reasons.features["a_id_x_b_id"]
    config, _ = infer(columns, rng.normal(size=40)[a] + rng.normal(size=30)[b])
    assert "cross" not in [feature.kind for feature in config.features]


def test_incomes_that_never_come_again_are_no_row_numbers():
    rng = np.random.default_rng(0)
    income = np.unique(rng.lognormal(12, 1, 700).round())[:600]
    columns = {
        "w": rng.permutation(income),
        "row": rng.permutation(600),
        "key": rng.choice(10**9, 600, replace=False),
    }
    config, reasons = infer(columns, np.zeros(600))
    assert kinds(config) == {"w": "numeric"}
    assert set(dict(reasons.left_out).values()) == {"its value is different in every row"}


def hours(start, rows=ROWS):
    return [start + datetime.timedelta(minutes=37 * row) for row in range(rows)]


def test_without_a_split_a_datetime_stays_an_input():
    moments = hours(datetime.datetime(2024, 1, 1))
    steps = np.arange(ROWS)
    columns = {"at": moments, "day": steps // 100, "ts": 1_700_000_000 + steps * 977}
    config, reasons = infer(columns, np.zeros(ROWS), split=False)
    assert config.data.split.by == "random"
    assert not reasons.left_out
    features = {feature.name: feature for feature in config.features}
    assert features["at"].parts == ["hour", "weekday", "month"]
    assert (features["ts"].kind, features["ts"].unit) == ("datetime", "s")


def test_the_hour_of_the_splits_time_is_an_input_where_it_predicts():
    moments = hours(datetime.datetime(2024, 1, 1))
    night = np.array([moment.hour < 6 for moment in moments])
    config, reasons = infer({"at": moments, "x": np.arange(ROWS) % 7}, 2.0 * night)
    assert (config.data.split.by, config.data.split.column) == ("time", "at")
    [at] = [feature for feature in config.features if feature.kind == "datetime"]
    assert (at.name, at.parts) == ("at", ["hour"])
    assert reasons.features["at"].startswith("hour: 0.6")


@pytest.mark.parametrize("moves", [True, False])
def test_what_a_random_split_would_flatter_is_said(moves):
    rng = np.random.default_rng(0)
    rows = 30_000
    item = rng.integers(0, 300, rows) + moves * np.arange(rows) // 60
    columns = {"ts": 1_700_000_000 + 60 * np.arange(rows), "item_id": item}
    _, reasons = infer(columns, 1.5 * rng.normal(size=2000)[item])
    assert ("a random split would overstate: an additive" in reasons.split) == moves


def test_ids_seen_too_seldom_share_a_row_by_what_their_rows_are_worth():
    rng = np.random.default_rng(0)
    rows = 20_000
    strong, effect = ids(rng, 4000, 0.0, rows)
    weak, _ = ids(rng, 4000, 0.4, rows)
    config, _ = infer({"a_id": strong, "b_id": weak}, 4 * effect)
    assert [feature.table_encoding.min_count for feature in config.features] == [1, 20]


@pytest.mark.parametrize(("name", "worth"), [("fnlwgt", 0.0), ("cell_id", 0.0), ("fnlwgt", 3.0)])
@pytest.mark.parametrize("rows", [6000, 20_000])
def test_rare_ids_that_tell_nothing_beyond_other_columns_have_no_rows(name, worth, rows):
    """Survey weights: each comes from a pool of its cell, of which age and region tell all."""
    rng = np.random.default_rng(0)
    age, region, member = (rng.integers(0, most, rows) for most in (8, 30, rows // 1000))
    pool = np.exp(rng.normal(12, 0.6, size=(8, 30, rows // 1000))).astype(int)
    own, weight = rng.normal(size=pool.shape), pool[age, region, member]
    alone = rng.random(rows) < 0.5
    weight = np.where(alone, np.exp(rng.normal(12, 0.6, rows)).astype(int), weight)
    effect = np.where(alone, 0, own[age, region, member])
    columns = {"age": [f"a{a}" for a in age], "region": [f"r{r}" for r in region], name: weight}
    config, reasons = infer(columns, 0.6 * age + rng.normal(size=30)[region] + worth * effect)
    if worth:
        assert kinds(config)[name] == "categorical"
        assert "beyond the other columns" not in reasons.features[name]
    elif name == "fnlwgt":
        assert kinds(config)[name] == "numeric"
        assert "rare ones tell nothing beyond the other columns" in reasons.features[name]
    else:
        assert "none comes 20 times" in dict(reasons.left_out)[name]
        [*_, feature] = infer(columns, 0.6 * age, rows=10 * rows)[0].features
        assert (feature.name, feature.table_encoding.min_count) == (name, "auto")


PRODUCT_ROWS = 20_000


def _infer(left, right, logits):
    rng = np.random.default_rng(5)
    click = (rng.random(PRODUCT_ROWS) < 1 / (1 + np.exp(-logits))).astype(int)
    table = pa.table(
        {"user": [f"u{u}" for u in left], "item": [f"i{i}" for i in right], "click": click}
    )
    return infer_config(table, ["click"])


@pytest.fixture
def product_ids():
    rng = np.random.default_rng(4)
    return rng.integers(0, 400, PRODUCT_ROWS), rng.integers(0, 200, PRODUCT_ROWS)


def test_tastes_get_a_factorization_machine_and_rows_that_decay(product_ids):
    rng = np.random.default_rng(0)
    tastes, kinds = rng.normal(size=(400, 2)), rng.normal(size=(200, 2))
    config, reasons = _infer(
        *product_ids, np.einsum("nk,nk->n", tastes[product_ids[0]], kinds[product_ids[1]])
    )
    assert config.model.interaction.kind == "fm"
    optimizer = config.training.embedding_optimizer
    assert (optimizer.learning_rate, optimizer.weight_decay) == (0.5, 1.3e-4)
    assert "the combination of user with item predicts 'click' (z " in reasons.sizes
    # 20,000 rows hold most of the 80,000 pairs once: none has a rate of its own to learn
    assert [feature.kind for feature in config.features] == ["categorical", "categorical"]


@pytest.mark.parametrize("multiplied", [True, False])
def test_items_numbered_by_how_often_they_come_are_ids_where_tastes_multiply(multiplied):
    """Their numbers look like a quantity, and tell nothing of an item alone."""
    rng = np.random.default_rng(6)
    rows = 20_000
    users, items = rng.integers(0, 300, rows), rng.exponential(35, rows).astype(int) % 150
    tastes, sorts = rng.normal(size=(300, 2)), rng.normal(size=(150, 2))
    effect = np.einsum("nk,nk->n", tastes[users], sorts[items]) * multiplied
    columns = {"user": [f"u{u}" for u in users], "item": 10 + 7 * items}
    config, reasons = infer(columns, effect + rng.normal(size=300)[users])
    assert kinds(config)["item"] == ("categorical" if multiplied else "numeric")
    assert (reasons.unsure == []) == multiplied
    assert ("products with 'user'" in reasons.features["item"]) == multiplied
    assert (config.model.interaction.kind == "fm") == multiplied


def test_sums_get_none(product_ids):
    rng = np.random.default_rng(1)
    config, _ = _infer(
        *product_ids, rng.normal(size=400)[product_ids[0]] + rng.normal(size=200)[product_ids[1]]
    )
    assert config.model.interaction.kind == "none"
    assert config.training.embedding_optimizer.weight_decay == 0


def test_counts_that_predict_as_ids_are_numbers_with_a_bucket_each():
    rng = np.random.default_rng(0)
    nights = np.minimum(rng.geometric(0.35, ROWS) - 1, 15)
    effect = np.random.default_rng(1).normal(size=16)[nights]
    config, reasons = infer({"nights": nights, "x": rng.normal(size=ROWS)}, effect)
    nights = {feature.name: feature for feature in config.features}["nights"]
    assert (nights.kind, nights.pieces, nights.buckets) == ("numeric", 16, 20)
    assert reasons.features["nights"].startswith("ids: AUC")
    assert "it counts: " in reasons.features["nights"]


@pytest.mark.parametrize(("name", "order"), [("store", True), ("s", False)])
def test_ids_from_0_are_no_counts(name, order):
    values, effect = ids(np.random.default_rng(0), 16, zipf=1.5)
    if order:  # numbered by how often they come, but called a store
        ranks = np.argsort(np.argsort(-np.bincount(values)))
        values = ranks[values]
    config, _ = infer({name: values}, effect)
    assert [feature.kind for feature in config.features] == ["categorical"]


def test_a_number_that_bends_has_buckets_in_a_small_log():
    """A wide part without them sees a line, and of a sine nothing."""
    draw = np.random.default_rng(0)
    bent, straight = draw.uniform(-3, 3, (2, 4000))
    click = draw.random(4000) < 1 / (1 + np.exp(-2.2 * np.sin(2 * bent) - straight))
    log = pa.table({"bent": bent, "straight": straight, "click": click.astype(int)})
    features = {one.name: one for one in infer_config(log, ["click"])[0].features}
    assert features["bent"].buckets == 20
    assert not features["straight"].buckets
