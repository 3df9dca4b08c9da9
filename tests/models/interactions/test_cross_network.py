"""Cross networks: against the equation written out, and as experts of a pool."""

import json

import numpy as np
import pandas as pd
import pytest
import torch

import mmoe
from mmoe.config import config_from_dict
from mmoe.mixture.batch_invariant import HAS_KERNELS
from mmoe.models.interactions.cross_network import CrossNetwork
from mmoe.train.fit import train_run
from mmoe.train.warm_start import WarmStart


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def test_it_is_the_equation():
    network = CrossNetwork(6, 4, layers=3)
    x_BD = torch.randn(5, 6)
    crossed_BD = x_BD
    for cross in network.crosses:
        crossed_BD = x_BD * (crossed_BD @ cross.weight.T + cross.bias) + crossed_BD
    expected_BO = crossed_BD @ network.project.weight.T + network.project.bias
    torch.testing.assert_close(network(x_BD), expected_BO)


def test_a_low_rank_is_the_product_of_its_matrices():
    narrow, whole = CrossNetwork(6, 4, layers=2, rank=2), CrossNetwork(6, 4, layers=2)
    with torch.no_grad():
        for cross, first, last in zip(whole.crosses, narrow.narrows, narrow.crosses, strict=True):
            cross.weight.copy_(last.weight @ first.weight)
            cross.bias.copy_(last.bias.normal_())
    whole.project.load_state_dict(narrow.project.state_dict())
    x_BD = torch.randn(5, 6)
    torch.testing.assert_close(narrow(x_BD), whole(x_BD))


@pytest.mark.parametrize("rank", [None, 2])
def test_gradients(rank):
    network = CrossNetwork(3, 2, rank=rank).double()
    assert torch.autograd.gradcheck(network, (torch.randn(4, 3).double().requires_grad_(),))


def test_one_behind_another_begins_with_the_loss_of_a_coin(tmp_path):
    config = _config({"kind": "softmax"}, CROSS, interaction=CROSSED)
    train_run(config, tmp_path / "run", data=_log(2000))
    first = json.loads((tmp_path / "run" / "history.json").read_text())["epochs"][0]
    assert max(first["loss"].values()) < 0.75


def _log(rows: int = 8000) -> pd.DataFrame:
    """What is clicked depends on the product of two numbers, what is bought on that of three."""
    rng = np.random.default_rng(5)
    a, b, c, d = rng.normal(size=(4, rows))
    click, buy = (rng.random(rows) < 1 / (1 + np.exp(-3 * x)) for x in (a * b, a * b * c))
    columns = {"a": a, "b": b, "c": c, "d": d, "click": click.astype(int), "buy": buy.astype(int)}
    return pd.DataFrame(columns)


def _config(gate, *experts, features="abcd", rate=0.003, interaction="none"):
    return config_from_dict(
        {
            "features": [{"kind": "numeric", "name": name} for name in features],
            "tasks": [{"name": "click", "label": "click"}, {"name": "buy", "label": "buy"}],
            "model": {"experts": list(experts), "gate": gate, "interaction": interaction},
            "training": {"epochs": 3, "batch_size": 128, "optimizer": {"learning_rate": rate}},
        }
    )


CROSS = {"kind": "dcn_v2", "count": 2, "output": 16}
MLP = {"kind": "mlp", "count": 3, "hidden": [16]}


CROSSED = {"kind": "dcn_v2", "layers": 3}
ALONE, MIXED, BEFORE = ((CROSS,), "none"), ((MLP, {**CROSS, "rank": 3}), "none"), ((MLP,), CROSSED)


@pytest.mark.parametrize(
    ("gate", "part"),
    [("softmax", ALONE), ("top_k", MIXED), ("softmax", BEFORE)],
    ids=["alone", "mixed", "before"],
)
def test_products_are_found_and_each_row_is_scored_alone(tmp_path, gate, part):
    log, run, (experts, interaction) = _log(), tmp_path / "run", part
    gate = {"kind": gate, **({"k": 2} if gate == "top_k" else {})}
    config = _config(gate, *experts, interaction=interaction)
    tasks = train_run(config, run, data=log).metrics["tasks"]
    assert tasks["click"]["auc"] > 0.8
    assert tasks["buy"]["auc"] > 0.65

    scores = mmoe.load(run).predict(log.head(200))
    other = mmoe.load(run).predict(log.head(200).iloc[::-1])
    if HAS_KERNELS:
        assert np.array_equal(scores["pred_buy"], other["pred_buy"][::-1])


@pytest.mark.parametrize(("rank", "before"), [(None, True), (3, False)], ids=["before", "expert"])
def test_continued_with_other_features_it_says_what_it_said(tmp_path, rank, before):
    log, gate = _log(600), {"kind": "softmax"}
    expert = MLP if before else {**CROSS, "rank": rank}
    interaction = {"kind": "dcn_v2", "rank": rank} if before else "none"
    first = _config(gate, expert, features="ab", interaction=interaction)
    train_run(first, tmp_path / "ab", data=log)
    config = _config(gate, expert, features="cbda", rate=1e-12, interaction=interaction)

    train_run(config, tmp_path / "cbda", data=log, warm_start=WarmStart(tmp_path / "ab"))

    before, after = (mmoe.load(tmp_path / name).predict(log) for name in ("ab", "cbda"))
    np.testing.assert_allclose(after["pred_click"], before["pred_click"], rtol=1e-5)


def test_a_network_that_projects_nothing_is_as_wide_as_its_input():
    network = CrossNetwork(6, None)
    x_BD = torch.randn(5, 6)
    assert network.output_dim == 6
    assert torch.equal(network.eval()(torch.zeros(5, 6)), torch.zeros(5, 6))
    torch.testing.assert_close(network.train()(x_BD), network.eval()(x_BD))


def test_an_unknown_kind_is_refused():
    with pytest.raises(
        ValueError, match=r"model.interaction.kind: .*'dcn_v2', 'deepfm', .* or 'autoint', got"
    ):
        _config({"kind": "softmax"}, MLP, interaction="dcn_v3")
