"""Boosted trees as a feature: scikit-learn's own numbers, rows that are not told of themselves."""

import numpy as np
import pyarrow as pa
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score

from mmoe.config import config_from_dict
from mmoe.datasets.features.encoder import FeatureEncoder, extend_encoder
from mmoe.datasets.features.trees import Forest, _nodes
from mmoe.datasets.rows.batch_source import encode_rows
from tests.small_configs import click_config

TREES = {"kind": "trees", "name": "trees"}
FEATURES = [
    {"kind": "numeric", "name": "a", "pieces": 8, "buckets": 4},
    {"kind": "numeric", "name": "b"},
    {"kind": "categorical", "name": "shop"},
    {"kind": "list", "name": "tags"},
    {"kind": "datetime", "name": "at", "parts": ["weekday"]},
]


def deep_log(rows=4_000, seed=0):
    """A click that neither of two numbers tells, nor their sum; and a shop of its own rate."""
    rng = np.random.default_rng(seed)
    a, b, shop = rng.normal(size=rows), rng.normal(size=rows), rng.integers(0, 300, rows)
    logit = 3 * np.sign(a * b) + np.random.default_rng(9).normal(size=300)[shop]
    return pa.table({
        "a": a,
        "b": pa.array(b, mask=rng.random(rows) < 0.05),
        "shop": [f"s{n}" for n in shop],
        "tags": [["x"] * n for n in rng.integers(0, 4, rows)],
        "at": np.datetime64("2024-01-01") + rng.integers(0, 90, rows),
        "click": (rng.random(rows) < 1 / (1 + np.exp(-logit))).astype(int),
    })  # fmt: skip


def config_of(*features, **trees):
    return config_from_dict({
        "features": [*(features or FEATURES), {**TREES, **trees}],
        "tasks": [{"name": "click", "label": "click"}],
    })  # fmt: skip


def fitted(config, table, by="order"):
    encoder = FeatureEncoder.fit(config, table, "log.csv")
    rows = encode_rows(table, encoder, "log.csv", config, training=True)
    return encoder.learning(rows, by)


@pytest.fixture(name="encoder", scope="module")
def _encoder():
    return fitted(config_of(), deep_log())


@pytest.mark.parametrize("leaves", [2, 31])
def test_a_forest_says_what_scikit_learn_says(leaves):
    rng = np.random.default_rng(0)
    x_NF = rng.integers(0, 254, (3_000, 5))
    y_N = (x_NF[:, 0] * x_NF[:, 1] % 7 > 3).astype(int)
    model = HistGradientBoostingClassifier(max_iter=60, max_leaf_nodes=leaves)
    model.fit(x_NF.astype(np.float32), y_N)
    base = np.full(1, float(np.log(y_N.mean() / (1 - y_N.mean()))))
    forest = Forest({**_nodes(model), "base": base})
    new_NF = rng.integers(0, 255, (500, 5))
    said_N = forest.of(new_NF.astype(np.uint8))
    np.testing.assert_allclose(said_N, model.decision_function(new_NF.astype(np.float32)), 1e-9)
    few_N = np.concatenate([forest.of(new_NF[n : n + 1].astype(np.uint8)) for n in range(40)])
    assert few_N.tolist() == said_N[:40].tolist(), "a row's bits depend on no other row"


def test_a_label_that_no_column_tells_gives_trees_of_one_leaf():
    rng = np.random.default_rng(1)
    table = deep_log(400)
    noise = pa.array((rng.random(400) < 0.5).astype(int))
    table = table.set_column(table.column_names.index("click"), "click", noise)
    found = fitted(config_of(), table).encode(table, "new")
    assert np.isfinite(found.dense_NF).all()


@pytest.mark.parametrize(("clicks", "found"), [(1, []), (2, []), (8, ["click"])])
def test_a_class_of_one_row_gives_no_trees(clicks, found):
    """Two clicks in different parts leave one to some of the fits."""
    table = deep_log(400)
    few = pa.array((np.arange(400) < clicks).astype(int))
    table = table.set_column(table.column_names.index("click"), "click", few)
    assert [*fitted(config_of(), table).rules["trees"]["trees"].tasks] == found


def test_managed_ids_are_not_read():
    managed = {"kind": "categorical", "name": "shop", "encoding": "managed", "rows": 30}
    encoder = fitted(config_of(FEATURES[0], managed), deep_log(400))
    assert encoder.rules["trees"]["trees"].inputs == [("number", "a")]


def test_trees_find_what_holds_in_two_columns(encoder):
    new = deep_log(2_000, seed=1)
    place = encoder.dense_names.index("trees[click]")
    said_N = encoder.encode(new, "new").dense_NF[:, place]
    assert roc_auc_score(new["click"].to_numpy(), said_N) > 0.93


@pytest.mark.parametrize("by", ["order", "values"])
def test_no_row_is_told_of_itself(by):
    """Of noise, trees that have seen a row tell its label, and others nothing."""
    rng = np.random.default_rng(3)
    table = pa.table({"a": rng.normal(size=3000), "b": rng.normal(size=3000),
                      "click": (rng.random(3000) < 0.5).astype(int)})  # fmt: skip
    config = config_of({"kind": "numeric", "name": "a"}, {"kind": "numeric", "name": "b"})
    encoder = fitted(config, table, by)
    labels_N, place = table["click"].to_numpy(), encoder.dense_names.index("trees[click]")
    encode = {
        training: FeatureEncoder(config=config, rules=encoder.rules, training=training).encode
        for training in (by, None)
    }
    aucs = {
        training: roc_auc_score(labels_N, of(table, "log").dense_NF[:, place])
        for training, of in encode.items()
    }
    assert abs(aucs[by] - 0.5) < 0.04 < aucs[None] - 0.5


def test_a_stored_encoder_says_the_same_and_so_does_a_row_alone(encoder, tmp_path):
    new = deep_log(50, seed=2)
    found = encoder.encode(new, "new")
    encoder.save(tmp_path)
    loaded = FeatureEncoder.load(tmp_path)
    assert (loaded.encode(new, "new").dense_NF == found.dense_NF).all()
    for row in (0, 17):
        alone = loaded.encode(new.slice(row, 1), "row", to_score=True)
        assert alone.dense_NF.tolist() == found.dense_NF[row : row + 1].tolist()


@pytest.mark.parametrize("kept", [0, 50, -100])
def test_a_damaged_file_is_refused(encoder, tmp_path, kept):
    encoder.save(tmp_path)
    [file] = tmp_path.glob("*.trees.safetensors")
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(ValueError, match=rf"holds no complete encoder \({file.name}: "):
        FeatureEncoder.load(tmp_path)


def test_ids_that_came_later_are_unseen(encoder):
    new = deep_log(4, seed=2)
    strange = new.set_column(2, "shop", pa.array(["new", "s1", None, "s2"]))
    assert np.isfinite(encoder.encode(strange, "new").dense_NF).all()


def test_trees_outlive_a_table_that_grows_beyond_few_codes():
    table = deep_log(3_000)
    few = pa.array([f"s{n % 40}" for n in range(3_000)])
    monday = fitted(config_of(), table.set_column(2, "shop", few))
    tuesday = FeatureEncoder.fit(config_of(), table, "log.csv")
    extended = extend_encoder(tuesday, monday, "log.csv")
    assert extended.ids["shop"].num_rows > 254 > monday.ids["shop"].num_rows
    old = table.set_column(2, "shop", few).slice(0, 100)
    place = monday.dense_names.index("trees[click]")
    said = [one.encode(old, "new").dense_NF[:, place].tolist() for one in (monday, extended)]
    assert said[0] == said[1]
    assert np.isfinite(extended.encode(table, "new").dense_NF).all()


def test_trees_whose_columns_are_gone_are_refused(encoder):
    config = config_of(*FEATURES[:2], *FEATURES[3:])
    other = FeatureEncoder(config=config, rules=encoder.rules)
    with pytest.raises(ValueError, match="'trees': its trees were fitted to column 'shop', which"):
        other.encode(deep_log(5), "new")


@pytest.mark.parametrize(("features", "said"), [
    ([TREES], "'trees' reads the others, but there are none"),
    ([FEATURES[0], {**TREES, "leaves": 33}], "less than or equal to 32"),
    ([FEATURES[0], {**TREES, "folds": 1}], "greater than or equal to 2"),
])  # fmt: skip
def test_what_cannot_be_meant_is_refused(features, said):
    with pytest.raises(ValueError, match=said):
        click_config(*features)


def test_requests_are_refused():
    raw = {
        "features": [FEATURES[1], TREES],
        "tasks": [{"name": "click", "label": "click"}],
        "data": {"requests": {"column": "request"}},
    }
    with pytest.raises(ValueError, match=r"'trees': trees read single rows, not data\.requests"):
        config_from_dict(raw)
