"""Runs whose gates of each domain are of other kinds than softmax: rows, ranks, warm starts."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import yaml

from mmoe.config import config_from_dict, load_config, set_values
from mmoe.datasets.rows.splits import Splits
from mmoe.explain import prune_run
from mmoe.parallel import ensure_process_group
from mmoe.score import load_predictor
from mmoe.train import train_run
from mmoe.train.warm_start import WarmStart
from tests.runs import scores

BALANCED = "balance_loss: 0.01, z_loss: 0.01"
# By name: `model.gate`
GATES = {
    "cosine": f"{{kind: cosine, k: 2, projection_dim: 8, {BALANCED}}}",
    "switch": f"{{kind: switch, {BALANCED}}}",
    "gshard": f"{{kind: gshard, {BALANCED}}}",
    "dselect_k": f"{{kind: dselect_k, k: 2, {BALANCED}}}",
    "dselect_k_per_task": f"{{kind: dselect_k, k: 2, per_sample: false, {BALANCED}}}",
    "static": f"{{kind: static, {BALANCED}}}",
}
# Each rank draws which second picks stay for its own rows
OF_RANKS = [name for name in GATES if name != "gshard"]
SMALL = ("model.expert.hidden=[8, 4]", "model.tower.hidden=[4]", "model.expert.dropout=0")
STILL = (
    "training.optimizer.learning_rate=1e-12",
    "training.embedding_optimizer.learning_rate=1e-12",
)


@pytest.fixture(scope="module", name="log")
def _log(funnel_table):
    scenes = np.random.default_rng(1).choice(["feed", "live", "shop"], len(funnel_table))
    return funnel_table.append_column("scene", pa.array(scenes)).slice(0, 1500)


@pytest.fixture(scope="module", name="raw")
def _raw(funnel_config):
    raw = set_values(funnel_config, [*SMALL, "training.epochs=1", "training.loggers=[]"])
    raw["tasks"][1] |= {"observed_when": None, "domains": ["shop", "live"]}
    raw["model"] |= {"domains": {"column": "scene"}, "num_experts": 4}
    return raw


def _splits(log):
    return Splits(train=log[:1000], validation=log[1000:1200], test=log[1200:], origin="log")


def in_scene(table, scene):
    names = pa.array([scene] * len(table), pa.string())
    return table.set_column(table.schema.get_field_index("scene"), "scene", names)


@pytest.fixture(scope="module", name="run", params=GATES)
def _run(request, raw, log, tmp_path_factory):
    gate = f"model.gate={GATES[request.param]}"
    capacity = ["model.capacity.factor=1.0"] * (request.param in ("switch", "gshard"))
    config = config_from_dict(set_values(raw, [gate, *capacity, "training.epochs=2"]))
    folder = tmp_path_factory.mktemp("run") / request.param
    return train_run(config, folder, splits=_splits(log)).directory


def test_each_domain_is_mixed_by_its_own_gate(run, log):
    in_shop, in_live = (scores(run, in_scene(log[:300], scene)) for scene in ("shop", "live"))
    assert np.isfinite(in_shop).all()
    assert (in_shop != in_live).any(0).all()
    assert [e["domain"] for e in run.metrics()["domains"]["each"]] == ["feed", "live", "shop"]


def test_a_score_depends_on_no_other_row(run, log):
    whole = scores(run, log[:900])
    order = np.random.default_rng(0).permutation(900)[:333]
    assert np.array_equal(scores(run, log[:900].take(order)), whole[order], equal_nan=True)


def test_rows_of_other_domains_are_scored_by_the_mean(run, log):
    strange, missing = (scores(run, in_scene(log[:300], scene)) for scene in ("radio", None))
    assert np.array_equal(strange, missing, equal_nan=True)
    assert np.isfinite(strange[:, 0]).all() and np.isnan(strange[:, 1]).all()


def test_a_new_domain_begins_as_the_mean_of_the_others(run, log, tmp_path):
    raw = run.config().model_dump(mode="json", exclude_none=True)
    of_one = pc.if_else(pc.equal(log["item"], log["item"][0]), "radio", log["scene"])
    later = log.set_column(log.schema.get_field_index("scene"), "scene", of_one)
    config = config_from_dict(set_values(raw, STILL))
    second = train_run(
        config, tmp_path / "second", splits=_splits(later), warm_start=WarmStart(run.path)
    ).directory
    _, encoder, _ = load_predictor(second)
    assert encoder.domains.names == ["feed", "live", "shop", "radio"]
    for scene in ("shop", "radio"):
        table = in_scene(log[:300], scene)
        if run.config().model.gate.kind == "cosine" and scene == "radio":
            continue  # the mean of its directions is not the direction of the mean's logits
        np.testing.assert_allclose(scores(second, table), scores(run, table), atol=2e-5)


def test_experts_can_be_pruned(run, log, tmp_path):
    if run.config().model.gate.kind == "dselect_k":  # its codes spell the numbers of all experts
        with pytest.raises(ValueError, match="dselect_k"):
            prune_run(run, [1], tmp_path / "pruned", splits=_splits(log))
        return
    pruned = prune_run(run, [1], tmp_path / "pruned", splits=_splits(log)).directory
    found = scores(pruned, log[:200])
    assert np.isfinite(found[:, 0]).all()


@pytest.fixture(scope="module", name="folder")
def _folder(raw, log, tmp_path_factory):
    folder = tmp_path_factory.mktemp("worlds")
    pq.write_table(log, folder / "log.parquet")
    values = [
        f"data.path={folder}/log.parquet",
        "training.embedding_backend=torchrec",
        "training.batch_size=200",
    ]
    for name in OF_RANKS:
        config = config_from_dict(set_values(raw, [*values, f"model.gate={GATES[name]}"]))
        dumped = config.model_dump(mode="json", exclude_none=True)
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(dumped))
    return folder


@pytest.fixture(scope="module", name="reports")
def _reports(folder, run_ranks):
    ranks = run_ranks("train.configs_world", 2, folder)
    one, two = ({n: run["domains"]["each"] for n, run in rank.items()} for rank in ranks)
    assert one == two
    ensure_process_group()
    return one


@pytest.mark.torchrec
@pytest.mark.parametrize("name", OF_RANKS)
def test_two_ranks_are_one_process(folder, reports, name):
    alone = train_run(load_config(folder / f"{name}.yaml"), folder / f"{name}-1")
    for mine, theirs in zip(alone.metrics["domains"]["each"], reports[name], strict=True):
        assert mine["rows"] == theirs["rows"]
        for task, values in mine["tasks"].items():
            assert theirs["tasks"][task]["ne"] == pytest.approx(values["ne"], abs=3e-4)
    one, two = (json.loads((folder / f"{name}-{w}" / "history.json").read_text()) for w in (1, 2))
    assert two["epochs"][0]["loss"] == pytest.approx(one["epochs"][0]["loss"], rel=1e-5)
