"""DeepFM, MaskNet and AutoInt before the mixture: formulas, columns, other features, bad input."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
import torch.nn.functional as F

import mmoe
from mmoe.config import ModelConfig, config_from_dict
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.models.build import build_ranker
from mmoe.models.columns import Columns
from mmoe.models.interactions.add import added_names, fields_of
from mmoe.models.interactions.autoint import AutoInt
from mmoe.models.interactions.factorization_machine import DeepFM
from mmoe.models.interactions.layers import Beside
from mmoe.models.interactions.masknet import MaskNet
from mmoe.report.tables import model_line
from mmoe.train.fit import train_run
from mmoe.train.warm_start import WarmStart

MLP = {"kind": "mlp", "count": 2, "hidden": [8]}
BEFORE = [
    {"kind": "dcn_v2"},
    {"kind": "fm"},
    {"kind": "deepfm", "hidden": [8]},
    {"kind": "masknet", "dim": 8, "mask_hidden": 12},
    {"kind": "masknet", "arrangement": "serial", "dim": 8, "mask_hidden": 12},
    {"kind": "autoint", "head_dim": 4},
]
DENSE = {"kind": "softmax"}


def make_log(rows=3000):
    rng = np.random.default_rng(5)
    user, item = rng.integers(0, 20, rows), rng.integers(0, 15, rows)
    a, b, taste, kind = (*rng.normal(size=(2, rows)), rng.normal(size=20), rng.normal(size=15))
    logit = 2 * a * b + 2 * taste[user] * kind[item]
    click, buy = (rng.random(rows) < 1 / (1 + np.exp(-x)) for x in (logit, 1 - logit))
    columns = {"a": a, "b": b, "click": click.astype(int), "buy": buy.astype(int)}
    named = {"user": [f"u{u}" for u in user], "item": [f"i{i}" for i in item]}
    return pd.DataFrame({**columns, **named, "wide": [f"w{i % 7}" for i in item]})


NUMBERS = [{"kind": "numeric", "name": name} for name in "ab"]
IDS = [{"kind": "categorical", "name": name} for name in ("user", "item")]
WIDE = {"kind": "categorical", "name": "wide", "dim": 8}


def make_config(experts, interaction, gate, features=(*NUMBERS, *IDS, WIDE), **training):
    model = {"embedding_dim": 4, "experts": experts, "gate": gate, "interaction": interaction}
    return config_from_dict(
        {
            "features": [*features],
            "tasks": [{"name": "click", "label": "click"}, {"name": "buy", "label": "buy"}],
            "model": {**model, "tower": {"hidden": []}},
            "training": {
                "epochs": 3,
                "batch_size": 128,
                "optimizer": {"learning_rate": 0.01},
                **training,
            },
        }
    )


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def test_deepfm_is_pairs_and_an_mlp_of_all_embeddings():
    deepfm, x_BX = DeepFM([1, 4], 3, 9, 2, hidden=[6], activation="gelu"), torch.randn(5, 9)
    torch.testing.assert_close(deepfm(x_BX), deepfm.machine(x_BX), rtol=0, atol=0)  # at first
    torch.nn.init.normal_(deepfm.logits.weight)
    torch.nn.init.normal_(deepfm.logits.bias)
    pairs_BT = (x_BX[:, 1:4] * x_BX[:, 4:7]) @ deepfm.machine.weight_TD.T
    (layer,) = deepfm.deep.layers
    h_BH = F.gelu(x_BX @ layer.weight.T + layer.bias)
    expected_BT = pairs_BT + h_BH @ deepfm.logits.weight.T + deepfm.logits.bias
    torch.testing.assert_close(deepfm(x_BX), expected_BT)
    torch.testing.assert_close(deepfm.eval()(x_BX), expected_BT)
    with torch.autocast("cpu", torch.bfloat16):
        assert deepfm(x_BX).dtype == torch.float32


@pytest.mark.parametrize("training", [True, False])
def test_attention_reads_embeddings_and_numbers_times_theirs(training):
    # Numbers a, t[0], t[1] and a's piece; embeddings at 4 and 9, and one of another width
    attention = AutoInt(3, [4, 9], [[(0, 1), (3, 4)], [(1, 3)]], heads=2, head_dim=5)
    attention.train(training)
    x_BX, v_CD = torch.randn(6, 12), attention.vectors_CD
    number = x_BX[:, 0, None] * v_CD[0] + x_BX[:, 3, None] * v_CD[3]
    vector = x_BX[:, 1, None] * v_CD[1] + x_BX[:, 2, None] * v_CD[2]
    fields = torch.stack([x_BX[:, 4:7], x_BX[:, 9:12], number, vector], 1)
    expected = attention.attention(fields).flatten(1)
    assert expected.shape == (6, attention.output_dim)
    torch.testing.assert_close(attention(x_BX), expected)


MAKE = {
    "deepfm": lambda: DeepFM([0, 2], 2, 5, 2, hidden=[3]),
    "masknet": lambda: MaskNet(5, None, dim=3, mask_hidden=4, fields=[(0, 2), (2, 2)]),
    "autoint": lambda: AutoInt(2, [2], [[(0, 1)], [(1, 2)]], heads=1, head_dim=3),
    "serial": lambda: Beside(MaskNet(5, None, dim=3, mask_hidden=4, arrangement="serial")),
}


@pytest.mark.parametrize("kind", MAKE)
def test_bf16_is_near(kind):
    module, x_BX = MAKE[kind](), torch.randn(50, 5)
    with torch.autocast("cpu", torch.bfloat16):
        narrow = module(x_BX).float()
    torch.testing.assert_close(narrow, module(x_BX), atol=0.1, rtol=0.1)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", MAKE)
def test_gradients(kind, training):
    module = MAKE[kind]().double().train(training)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    x_BX = torch.randn(3, 5).double().requires_grad_()
    assert torch.autograd.gradcheck(module, (x_BX,))
    assert torch.equal(module(x_BX[:0]), module(x_BX)[:0])


MORE = [
    {"kind": "numeric", "name": "a", "pieces": 3},
    {"kind": "numeric", "name": "b", "buckets": 4},
    *IDS,
    WIDE,
]


def _encoder(config):
    return FeatureEncoder.fit(config, pa.Table.from_pandas(make_log(200)), "log")


@pytest.mark.parametrize("kind", BEFORE, ids=str)
def test_the_network_reads_as_many_columns_as_have_names(kind):
    config = make_config([MLP], kind, DENSE, MORE, embedding_backend="plain")
    encoder = _encoder(config)
    columns, ranker = Columns.of(encoder), build_ranker(config, encoder)
    width = ranker.network.levels[0].mixture.experts.input_dim
    assert width == len(columns.names) + len(added_names(config, columns))
    assert len(set(columns.names + added_names(config, columns))) == width
    assert columns.names[:4] == ["a", "b", "a piece[0]", "a piece[1]"]
    if kind["kind"] == "autoint":
        fields = ["user@user", "item@item", "a", "b"]
        assert [name for name in fields_of(columns, 4) if "bucket" not in name] == fields
        assert len(fields_of(columns, 4)) == 5  # the bucket of b


@pytest.mark.parametrize("kind", BEFORE, ids=str)
def test_continued_with_other_features_and_tasks(tmp_path, kind):
    log = make_log(400)
    first = make_config([MLP], kind, DENSE, [NUMBERS[0], IDS[0], IDS[1]], epochs=1)
    train_run(first, tmp_path / "few", data=log)
    other = make_config([MLP], kind, DENSE, [WIDE, IDS[1], *NUMBERS[::-1], IDS[0]], epochs=1,
                        optimizer={"learning_rate": 1e-12},
                        embedding_optimizer={"learning_rate": 1e-12})  # fmt: skip
    third = other.tasks[0].model_copy(update={"name": "late"})
    other = other.model_copy(update={"tasks": [third, *other.tasks[::-1]]})
    train_run(other, tmp_path / "more", data=log, warm_start=WarmStart(tmp_path / "few"))
    few, more = (mmoe.load(tmp_path / name).predict(log) for name in ("few", "more"))
    for task in ("pred_click", "pred_buy"):
        # Attention gives a new field some of its weight
        loose = kind["kind"] == "autoint"
        np.testing.assert_allclose(more[task], few[task], atol=0.2 if loose else 1e-5)


def test_another_arrangement_continues_nothing(tmp_path):
    log, kind = make_log(200), {"kind": "masknet", "blocks": 1, "dim": 4, "mask_hidden": 4}
    train_run(make_config([MLP], kind, DENSE, NUMBERS, epochs=1), tmp_path / "run", data=log)
    config = make_config([MLP], {**kind, "arrangement": "serial"}, DENSE, NUMBERS)
    with pytest.raises(ValueError, match=r"interaction.arrangement is 'parallel' there and"):
        train_run(config, tmp_path / "x", data=log, warm_start=WarmStart(tmp_path / "run"))


@pytest.mark.parametrize(
    ("kind", "features", "message"),
    [
        ("deepfm", IDS[:1], "model.interaction is deepfm, which .*there is user alone; set"),
        ("autoint", IDS[:1], "model.interaction is autoint, but there is user alone among"),
        ("autoint", [WIDE], "model.interaction is autoint, but there is none among features"),
    ],
)
def test_fewer_than_two_fields(kind, features, message):
    def build():
        config = make_config([MLP], kind, DENSE, features, embedding_backend="plain")
        build_ranker(config, _encoder(config))

    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize(
    ("interaction", "message"),
    [
        ({"kind": "masknet", "hidden": [3]}, "hidden goes with kind deepfm, but kind is masknet"),
        ({"kind": "autoint", "heads": 0}, "model.interaction.heads: .*greater than or equal to 1"),
        ({"kind": "deepfm", "dropuot": 0.1}, "unknown key 'dropuot'; did you mean 'dropout'"),
    ],
)
def test_bad_keys(interaction, message):
    with pytest.raises(ValueError, match=message):
        make_config([MLP], interaction, DENSE)


def test_what_a_report_says():
    said = {kind: model_line(ModelConfig(interaction=kind)).split(" · ")[-1] for kind in (
        "deepfm", "masknet", "autoint")}  # fmt: skip
    assert said == {
        "deepfm": "DeepFM",
        "masknet": "inputs and a MaskNet of them",
        "autoint": "inputs and attention among them",
    }
    kinds = [
        {"kind": kind, "count": 1} for kind in ("dcn_v2", "fm", "deepfm", "masknet", "autoint")
    ]
    kinds += [{"kind": "frozen", "count": 2, "module": "my.file:make", "output": 128}]
    line = model_line(ModelConfig(experts=kinds))
    assert line.split(" · ")[1] == (
        "7 experts of 1 × cross network and 1 × factorization machine and 1 × DeepFM and "
        "1 × MaskNet and 1 × AutoInt and 2 × frozen make"
    )
