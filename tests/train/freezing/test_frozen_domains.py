"""Models with domains that grow: old tasks' scores to the bit, gates and towers for new ones."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch

from mmoe.checkpoint.folder import CheckpointFolder
from mmoe.config import config_from_dict, set_values
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.train import WarmStart, train_run
from tests.train.freezing.growing import (
    AGE,
    BATCH_NORM,
    BUDGET,
    JOINT,
    TOP_K,
    assert_unchanged,
    config_of,
    grown_log,
    scores,
    splits_of,
)

DOMAINS = "model.domains={column: scene}"
OWN = "model.domains={column: scene, towers: own}"
BUY = "tasks.1.domains=[shop, live]"
LIKE = "tasks.2.domains=[shop, radio]"
NARROW = (DOMAINS, BUY)
UNGATED = "training.freeze=[experts, towers, tables, encoder, 'levels.*']"


@pytest.fixture(scope="module", name="log")
def _log(funnel_table) -> pa.Table:
    """The grown funnel; `radio` is the scene of rows that come later."""
    return grown_log(funnel_table)


@pytest.fixture(scope="module", name="begun")
def _begun(funnel_config, log, tmp_path_factory):
    """Two tasks on three scenes, and the ids of 25 users, once for each of some settings."""
    folder, runs = tmp_path_factory.mktemp("begun"), {}

    def run(before):
        if before not in runs:
            known = log.filter(pc.not_equal(log["scene"], "radio"))
            config = config_of(funnel_config, *before)
            out = folder / str(len(runs))
            runs[before] = train_run(config, out, splits=splits_of(known, users=25)).directory
        return runs[before]

    return run


@pytest.fixture(name="grow")
def _grow(funnel_config, log, tmp_path, begun):
    """Adds a third task on four scenes to one of those runs; returns both."""

    def run(before=NARROW, after=(), features=(), domains=(LIKE,)):
        one = begun(before)
        config = config_of(funnel_config, *before, *after, new=True, features=features)
        raw = config.model_dump(mode="json", exclude_none=True)
        config = config_from_dict(set_values(raw, domains))
        two = train_run(
            config, tmp_path / "two", splits=splits_of(log), warm_start=WarmStart(one.path)
        )
        return one, two.directory

    return run


def in_scene(log, scene) -> pa.Table:
    names = pa.array([scene] * len(log), pa.string())
    return log.set_column(log.column_names.index("scene"), "scene", names)


def assert_kept(one, two, log):
    """On rows of the log, with scenes and ids that are new; and of scenes that no run had."""
    for rows in (log, in_scene(log[:300], "station"), in_scene(log[:300], None)):
        assert scores(one, rows).tobytes() == scores(two, rows).tobytes()
    assert_unchanged(two)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((OWN, BUY, *BATCH_NORM, "model.tower.hidden=[6, 4]"), ("model.num_experts=9",)),
        ((*NARROW, *TOP_K, "model.gate.kind=noisy_top_k"), ("model.num_experts=6",)),
        ((*NARROW, *TOP_K, "model.gate.kind=sigmoid"), ()),
        ((*NARROW, *TOP_K, "model.gate.kind=dselect_k"), ("model.num_experts=7",)),
        ((*NARROW, "model.gate.kind=static"), ("model.num_experts=5",)),
        ((*NARROW, "model.gate.kind=gshard"), ("model.num_experts=5",)),
        ((DOMAINS, *JOINT, "model.gate.aggregate=max", *BATCH_NORM), ()),
        ((*NARROW, *BUDGET, "training.ema_decay=0.8"), ("model.num_experts=6",)),
        ((*NARROW, *JOINT, "model.gate.kind=cosine", "model.gate.budget=3"), ()),
        (
            (OWN, BUY, "model.kind=ple", "model.task_experts=1", "model.shared_experts=1"),
            ("model.shared_experts=2",),
        ),
        (JOINT, (DOMAINS, "model.num_experts=6")),  # domains come with the task
        ((OWN, BUY, "model.kind=omoe"), (UNGATED,)),
        ((OWN, BUY, "model.kind=shared_bottom"), (UNGATED,)),
    ],
    ids=lambda values: " ".join(v.partition("=")[2] for v in values) or "as it is",
)  # fmt: skip
def test_old_tasks_score_to_the_bit(grow, log, before, after):
    one, two = grow(before, after)
    assert_kept(one, two, log)
    likes = {scene: scores(two, in_scene(log[:300], scene), ["like"]) for scene in ("shop", "feed")}
    assert np.isfinite(likes["shop"]).all() and np.isnan(likes["feed"]).all()


def test_the_new_task_has_gates_of_its_domains_and_the_old_ones_of_theirs(grow, log):
    one, two = grow((OWN, BUY), (), features=(AGE,))
    assert_kept(one, two, log)
    before, after = (CheckpointFolder(run.checkpoint).model("best") for run in (one, two))
    gates = "network.levels.0.mixture.gate."
    assert before[f"{gates}logits.own_GMED"].shape[:2] == (2, 3)
    assert after[f"{gates}gates.0.logits.own_GMED"].shape[:2] == (2, 3)
    assert after[f"{gates}gates.1.logits.own_GMED"].shape[:2] == (1, 4)
    assert [len(after[f"network.towers.{t}.own_weights.0"]) for t in range(3)] == [3, 3, 4]
    assert FeatureEncoder.load(two.vocabulary).domains.names == ["feed", "live", "shop", "radio"]
    own_MED = after[f"{gates}gates.1.logits.own_GMED"][0]
    assert own_MED[[2, 3]].any() and not own_MED[[0, 1]].any()  # it is asked in shop and radio
    (stage,) = two.config().model.stages
    assert stage.domains == ["feed", "live", "shop"]


def test_it_goes_on_day_by_day(grow, log, tmp_path):
    """The same config again, with another scene: new gates have it as the mean of theirs."""
    one, two = grow((OWN, BUY))
    radio = pc.equal(log["scene"], "radio")
    some = pa.array(np.random.default_rng(2).random(len(log)) < 0.5)
    scenes = pc.if_else(pc.and_(radio, some), "night", log["scene"])
    later = log.set_column(log.column_names.index("scene"), "scene", scenes)
    still = ["training.optimizer.learning_rate=1e-12",
             "training.embedding_optimizer.learning_rate=1e-12"]  # fmt: skip
    raw = set_values(two.config().model_dump(mode="json", exclude_none=True), still)
    raw["model"].pop("stages")
    three = train_run(
        config_from_dict(raw),
        tmp_path / "three",
        splits=splits_of(later),
        warm_start=WarmStart(two.path),
    ).directory
    assert_kept(one, three, later)
    assert three.config().model.stages == two.config().model.stages
    rows = in_scene(log[:300], "radio")
    np.testing.assert_allclose(
        scores(three, rows, ["like"]), scores(two, rows, ["like"]), atol=2e-5
    )
    after = CheckpointFolder(three.checkpoint).model("best")
    own_GMED = after["network.levels.0.mixture.gate.gates.1.logits.own_GMED"]
    assert own_GMED.shape[1] == 5
    torch.testing.assert_close(own_GMED[:, 4], own_GMED[:, :4].mean(1))


@pytest.mark.parametrize(("frozen", "towers"), [("towers", [3, 3, 4]), ("tables", [4, 4, 4])])
def test_what_learns_on_has_the_new_domain(grow, frozen, towers):
    _, two = grow((OWN, BUY), (f"training.freeze=[{frozen}]",))
    after = CheckpointFolder(two.checkpoint).model("best")
    assert after["network.levels.0.mixture.gate.logits.own_GMED"].shape[:2] == (3, 4)
    assert [len(after[f"network.towers.{t}.own_weights.0"]) for t in range(3)] == towers
    assert (two.config().model.stages[0].domains is None) == (frozen == "tables")
