"""The bias tower: what reads which inputs, what is added when, and row by row the same bits."""

import numpy as np
import pyarrow as pa
import pytest
import torch

from mmoe.config import config_from_dict, prediction_columns, set_values
from mmoe.config.model import BiasConfig
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.rows.batch_source import BatchSource
from mmoe.models.bias_tower import BiasTower
from mmoe.models.build import build_ranker
from mmoe.models.columns import BiasColumns, Columns
from mmoe.models.inputs import NetworkInputs
from mmoe.models.interactions.add import added_names
from mmoe.predictor import Predictor
from mmoe.tasks.gate_statistics import GateStatistics
from mmoe.train.evaluate import split_curves
from mmoe.train.measure import metrics_of

ROWS = 300


@pytest.fixture(name="log")
def _log():
    rng = np.random.default_rng(0)
    position = rng.integers(1, 9, ROWS)
    return pa.table(
        {
            "user": rng.integers(0, 20, ROWS),
            "position": position,
            "place": position,
            "device": rng.choice(["phone", "desk"], ROWS),
            "price": rng.lognormal(size=ROWS),
            "tags": [["a", "b"][: n % 3] for n in range(ROWS)],
            "seen": [list(rng.normal(size=3)) for _ in range(ROWS)],
            "click": (rng.random(ROWS) < 1 / position).astype(int),
            "minutes": rng.normal(size=ROWS),
        }
    )


def raw(features=("position", "device"), **bias):
    return {
        "features": [
            {"kind": "numeric", "name": "price", "pieces": 4, "buckets": 4},
            {"kind": "categorical", "name": "position"},
            {"kind": "categorical", "name": "user"},
            {"kind": "vector", "name": "seen", "dim": 2},
            {"kind": "list", "name": "tags"},
            {"kind": "categorical", "name": "device"},
            {"kind": "numeric", "name": "place", "pieces": 3},
        ],
        "tasks": [
            {"name": "click", "label": "click"},
            {"name": "minutes", "label": "minutes", "kind": "regression"},
        ],
        "model": {
            "embedding_dim": 4,
            "num_experts": 2,
            "expert": {"hidden": [8]},
            "bias": {"features": [*features], **bias},
        },
        "training": {"embedding_backend": "plain"},
    }


def built(log, raw_config, *overrides):
    config = config_from_dict(set_values(raw_config, overrides))
    encoder = FeatureEncoder.fit(config, log, "log")
    torch.manual_seed(0)
    ranker = build_ranker(config, encoder)
    tower = ranker.network.bias_tower
    for weight in tower.parameters() if tower is not None else ():
        torch.nn.init.normal_(weight)
    data = BatchSource.of_table(log, encoder, "log", config).held
    return ranker, data, encoder, config


def run(ranker, data, rows=slice(None), **keywords):
    batch = data.batch(rows)
    return ranker(batch, **keywords)


@pytest.mark.parametrize(
    ("interaction", "own"),
    [
        ("none", ["position", "device"]),
        ("fm", ["position"]),
        ("dcn_v2", ["price", "seen"]),
        ("deepfm", ["place", "tags", "device"]),
        ("masknet", ["position", "device"]),
        ("autoint", ["price", "seen"]),
    ],
)
def test_its_features_are_read_by_the_tower_alone(log, interaction, own):
    ranker, data, encoder, _ = built(
        log, raw(own), f"model.interaction={interaction}", "model.wide=true"
    )
    ranker.wide.ids_RT.normal_()
    ranker.wide.dense_TF.normal_()
    ranker.wide.dense_TF[:, ranker.wide.unread_dense] = 0  # as they are fitted
    changed = log
    for name in own:
        at = log.column_names.index(name)
        changed = changed.set_column(at, name, log[name].combine_chunks()[::-1])
    other = BatchSource.of_table(changed, encoder, "log", encoder.config).held
    ranker.eval()
    one, two = (run(ranker, d, with_bias=True) for d in (data, other))
    assert torch.equal(one.logits_BT, two.logits_BT)
    assert not torch.equal(one.with_bias_BT, two.with_bias_BT)
    unread = BatchSource.of_table(log.drop_columns(own), encoder, "log").held
    assert torch.equal(run(ranker, unread).logits_BT, one.logits_BT)


def test_logits_are_the_networks_and_the_towers(log):
    ranker, data, _, _ = built(log, raw(hidden=[], dropout=0))
    tower = ranker.network.bias_tower
    batch = data.batch(slice(0, 50))
    x_BD = ranker.look_up(batch).x_BD
    # The tables' order: bucket of price, position, user, device, tags
    own = torch.cat([x_BD[:, 4:8], x_BD[:, 12:16]], dim=1)
    expected = own @ tower.logits.weight.T + tower.logits.bias
    ranker.train()
    together = run(ranker, data, slice(0, 50)).logits_BT
    alone = run(ranker.eval(), data, slice(0, 50), with_bias=True)
    torch.testing.assert_close(together, alone.logits_BT + expected)
    torch.testing.assert_close(alone.with_bias_BT, together)


def test_it_begins_at_zero_and_tasks_that_are_not_named_have_none(log):
    ranker, data, encoder, config = built(log, raw(tasks=["minutes"]))
    output = run(ranker.eval(), data, with_bias=True)
    moved_T = (output.logits_BT != output.with_bias_BT).any(0)
    assert moved_T.tolist() == [False, True]
    fresh = run(build_ranker(config, encoder).eval(), data, with_bias=True)
    assert torch.equal(fresh.logits_BT, fresh.with_bias_BT)


def test_dropout_leaves_whole_rows_out(log):
    ranker, data, _, _ = built(log, raw(dropout=0.4))
    main = run(ranker.eval(), data).logits_BT
    ranker.train()
    torch.manual_seed(1)
    out = torch.isclose(run(ranker, data).logits_BT, main, atol=1e-6)
    assert torch.equal(out[:, 0], out[:, 1])
    assert 0.3 < out.float().mean() < 0.5


def test_fixed_scores_are_those_of_rows_with_that_display(log):
    features = ["position", "place", "device"]
    at = {"position": 2, "place": 2, "device": "desk"}
    ranker, data, encoder, config = built(log, raw(features, scoring="fixed", at=at))
    ranker.eval()
    fixed = log.drop_columns(list(at))
    for column, value in at.items():
        fixed = fixed.append_column(column, pa.array([value] * ROWS))
    there = BatchSource.of_table(fixed, encoder, "log", config).held
    expected = run(ranker, there, with_bias=True)
    found = run(ranker, data, with_bias=True)
    assert torch.equal(expected.logits_BT, expected.with_bias_BT)
    assert torch.equal(found.logits_BT, expected.logits_BT)
    assert not torch.equal(found.with_bias_BT, found.logits_BT)
    unread = BatchSource.of_table(log.drop_columns(list(at)), encoder, "log").held
    assert torch.equal(run(ranker, unread).logits_BT, found.logits_BT)


def test_what_is_not_fixed_is_read_when_scoring(log):
    ranker, data, encoder, _ = built(log, raw(scoring="fixed", at={"position": 2}))
    ranker.eval()
    scores = run(ranker, data).logits_BT
    flipped = ["desk" if d == "phone" else "phone" for d in log["device"].to_pylist()]
    without = log.drop_columns(["position", "device"])
    with pytest.raises(ValueError, match="no column 'device', which feature 'device' needs"):
        BatchSource.of_table(without, encoder, "log")
    turned = without.append_column("device", pa.array(flipped))
    turned = BatchSource.of_table(turned, encoder, "log").held
    assert not torch.equal(run(ranker, turned).logits_BT, scores)


def test_a_row_has_its_bits_wherever_it_stands(log):
    ranker, data, _, _ = built(log, raw(hidden=[5]))
    ranker.eval()
    whole = run(ranker, data, with_bias=True).with_bias_BT
    order = np.random.default_rng(1).permutation(ROWS)[:77]
    assert torch.equal(run(ranker, data, order, with_bias=True).with_bias_BT, whole[order])


def test_gradients_in_float64():
    columns = BiasColumns(dense=[1], ids=[0, 1], num_dense=2, num_ids=4)
    config = BiasConfig(features=["position"], hidden=[3], dropout=0)
    tower = BiasTower(columns, config, ["click", "like"]).double().train()
    for weight in tower.parameters():
        torch.nn.init.normal_(weight)
    dense, x = torch.randn(4, 2).double().requires_grad_(), torch.randn(4, 4).double()
    x.requires_grad_()
    torch.autograd.gradcheck(lambda d, e: tower(NetworkInputs(d, e)), (dense, x))
    tower(NetworkInputs(dense, x)).sum().backward()
    assert not dense.grad[:, 0].any() and not x.grad[:, 2:].any()
    assert dense.grad[:, 1].any() and x.grad[:, :2].any()


def test_bf16_leaves_it_in_fp32(log):
    ranker, data, _, _ = built(log, raw(dropout=0))
    ranker.eval()
    wide = run(ranker, data, with_bias=True)
    with torch.autocast("cpu", torch.bfloat16):
        narrow = run(ranker, data, with_bias=True)
    bias = wide.with_bias_BT - wide.logits_BT
    torch.testing.assert_close(narrow.with_bias_BT - narrow.logits_BT, bias, atol=1e-5, rtol=1e-5)


def test_wrong_columns_and_values(log):
    columns = BiasColumns(dense=[], ids=[], num_dense=2, num_ids=4)
    with pytest.raises(ValueError, match="columns: expected one or more"):
        BiasTower(columns, BiasConfig(features=["position"]), ["click"])
    never = raw(scoring="fixed", at={"position": 99})
    with pytest.raises(ValueError, match="no training row has position: 99"):
        built(log, never)
    with pytest.raises(ValueError, match="no training row has position: ''"):
        built(log, raw(scoring="fixed", at={"position": ""}))
    number = raw(scoring="fixed", at={"position": 1000})
    [place] = [n for n, one in enumerate(number["features"]) if one["name"] == "position"]
    number["features"][place] = {"kind": "numeric", "name": "position"}
    with pytest.raises(ValueError, match="no training row has position: 1000, or a number near it"):
        built(log, number)
    with pytest.raises(ValueError, match="at"):
        BiasConfig(features=["position"], scoring="fixed", at={"position": True})


SEVERAL = [
    {"name": "click", "label": "click"},
    {"name": "stars", "label": "stars", "kind": "ordinal", "lowest": 1, "highest": 4},
    {"name": "sort", "label": "stars", "kind": "multiclass", "classes": [1, 2, 3, 4]},
    {"name": "spend", "label": "price", "kind": "ziln"},
    {"name": "minutes", "label": "minutes", "kind": "regression"},
]


def beside_sequences(log, *overrides):
    """Ranker, rows, encoder and config with a sequence, and with tasks of several logits."""
    rng = np.random.default_rng(1)
    seen = [[*rng.integers(0, 20, n % 4)] for n in range(ROWS)]
    log = log.append_column("history", pa.array(seen, pa.list_(pa.int64())))
    log = log.append_column("stars", pa.array(rng.integers(1, 5, ROWS)))
    there = raw()
    there["tasks"] = SEVERAL
    sequence = {"kind": "sequence", "name": "past", "columns": ["history"], "target": ["user"]}
    there["features"].insert(2, {**sequence, "encoder": "din", "unpooled": 1})
    return log, built(log, there, *overrides)


@pytest.mark.parametrize("interaction", ["none", "autoint"])
def test_beside_sequences_and_several_logits(log, interaction):
    overrides = [
        f"model.interaction={interaction}",
        "model.wide=true",
        "training.monitor=click.auc",
    ]
    log, (ranker, data, encoder, config) = beside_sequences(log, *overrides)
    columns = Columns.of(encoder, config.model.bias)
    width = ranker.network.levels[0].mixture.experts.input_dim
    assert width == len(columns.names) + len(added_names(config, columns))
    assert not [n for n in columns.names if n.startswith(("position", "device"))]
    towers, tower = ranker.network.towers, ranker.network.bias_tower
    assert towers.columns.width == 1 + 1 + 3 + 4 + 3 + 1  # the levels' thresholds among them
    assert tower.logits.out_features == 1 + 1 + 4 + 3 + 1
    ranker.train()
    torch.manual_seed(0)
    with torch.no_grad():
        tower.config.__dict__["dropout"] = 0.0
        together = run(ranker, data).logits_BT
        alone = run(ranker.eval(), data, with_bias=True)
    torch.testing.assert_close(alone.with_bias_BT, together)
    moved = (alone.with_bias_BT != alone.logits_BT).any(0)
    assert moved.tolist() == [True, True, *[False] * 3, *[True] * 8]
    other = log.set_column(
        log.column_names.index("position"), "position", log["position"].combine_chunks()[::-1]
    )
    other = BatchSource.of_table(other, encoder, "log", config).held
    assert torch.equal(run(ranker, other).logits_BT, alone.logits_BT)


def test_predictions_with_bias_stand_behind_all_columns(log):
    log, (ranker, data, _, config) = beside_sequences(log, "training.monitor=click.auc")
    predictor = Predictor(ranker, config)
    source = BatchSource.of(data)
    ((_, both_NT),) = predictor.predict_chunks(source, with_bias=True)
    ((_, scores_NT),) = predictor.predict_chunks(source)
    width = len(prediction_columns(config.tasks))
    assert both_NT.shape == (ROWS, 2 * width)
    assert np.array_equal(both_NT[:, :width], scores_NT)
    metrics, _ = metrics_of(config, both_NT, data.labels)
    assert {"auc_with_bias", "logloss_with_bias"} <= metrics["click"].keys()
    assert "rmse_with_bias" in metrics["minutes"] and "rmse_with_bias" in metrics["stars"]
    assert metrics["click"]["auc"] != metrics["click"]["auc_with_bias"]
    curves = split_curves(config, both_NT, data.labels, GateStatistics())
    assert curves["tasks"].keys() == metrics.keys()
