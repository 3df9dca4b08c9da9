"""What `training.freeze` holds still: old tasks' scores to the bit; weights, ids, statistics."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from mmoe.checkpoint.folder import CheckpointFolder
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.mixture import ExpertPool, MoE
from mmoe.mixture.axes import Entry, axes_of
from mmoe.run.console import ConsoleReporter
from mmoe.train import WarmStart, frozen, train_run
from mmoe.train.frozen import Frozen
from tests.train.freezing.growing import (
    AGE,
    BATCH_NORM,
    BUDGET,
    FREEZE,
    JOINT,
    OLD,
    PLACE,
    TOP_K,
    assert_unchanged,
    config_of,
    grown_log,
    scores,
    splits_of,
)

UNGATED = "training.freeze=[experts, towers, tables, encoder, 'levels.*']"


@pytest.fixture(scope="module", name="log")
def _log(funnel_table) -> pa.Table:
    return grown_log(funnel_table)


@pytest.fixture(scope="module", name="begun")
def _begun(funnel_config, log, tmp_path_factory):
    """Two tasks trained on the ids of 25 users, once for each of some settings."""
    folder, runs = tmp_path_factory.mktemp("begun"), {}

    def run(before):
        if before not in runs:
            config = config_of(funnel_config, *before)
            out = folder / str(len(runs))
            runs[before] = train_run(config, out, splits=splits_of(log, users=25)).directory
        return runs[before]

    return run


@pytest.fixture(name="grow")
def _grow(funnel_config, log, tmp_path, begun):
    """Adds a third task to one of those runs, on the ids of all users; returns both."""

    def run(before=(), after=(), features=(), new_experts="fresh"):
        one = begun(before)
        config = config_of(funnel_config, *before, *after, new=True, features=features)
        start = WarmStart(one.path, new_experts)
        two = train_run(config, tmp_path / "two", splits=splits_of(log), warm_start=start)
        return one, two.directory

    return run


def assert_kept(one, two, log, tasks=OLD):
    """Old tasks score as before, on rows with ids that are new, and that is what was said."""
    assert scores(one, log, tasks).tobytes() == scores(two, log, tasks).tobytes()
    assert_unchanged(two, tasks)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (("training.ema_decay=0.8",), ("model.num_experts=5",)),
        ((*TOP_K, "model.gate.kind=noisy_top_k", *BATCH_NORM), ("model.num_experts=6",)),
        ((*TOP_K, "model.gate.kind=sigmoid"), ("model.num_experts=6",)),
        ((*TOP_K, "model.gate.kind=dselect_k"), ("model.num_experts=7",)),
        (("model.gate.kind=cosine", "model.gate.k=2"), ()),
        ((*JOINT, "model.gate.aggregate=max", *BATCH_NORM), ("model.num_experts=6",)),
        ((*BUDGET, "model.gate.kind=sigmoid"), ("model.num_experts=6",)),
        ((*JOINT, "model.gate.kind=cosine", "model.gate.budget=3"), ()),
        (
            ("model.kind=ple", "model.task_experts=1", "model.shared_experts=1"),
            ("model.shared_experts=2",),
        ),
        (
            ("model.interaction=dcn_v2",),
            ("training.freeze=[levels, towers, tables, interaction, encoder]",),
        ),
        (("training.precision=bf16",), ("model.num_experts=5",)),
        (("model.wide=true",), ("model.num_experts=4",)),
        (("model.kind=single_task",), (UNGATED,)),
        (("model.kind=omoe",), (UNGATED,)),
    ],
    ids=lambda values: " ".join(v.partition("=")[2] for v in values) or "as it is",
)  # fmt: skip
def test_old_tasks_score_to_the_bit(grow, log, before, after):
    one, two = grow(before, after)
    assert_kept(one, two, log)
    assert len(np.unique(scores(two, log, ["like"]))) > 100


@pytest.mark.parametrize("experts", [(), ("model.num_experts=6",)], ids=str)
def test_new_features_reach_new_parts_alone(grow, log, experts):
    one, two = grow(TOP_K if experts else (), experts, features=(AGE, PLACE))
    assert_kept(one, two, log)
    other = log.set_column(log.column_names.index("age"), "age", pa.array(np.zeros(len(log)) + 2))
    for task, reads in (("click", False), ("like", True)):
        now, then = scores(two, log, [task]), scores(two, other, [task])
        assert (now.tobytes() != then.tobytes()) is reads


@pytest.mark.torchrec
def test_managed_ids_keep_their_rows_and_owners(grow, log):
    managed = ("features.0.encoding=managed", "features.0.rows=12", "features.1.encoding=hash",
               "features.1.hash_size=7", "training.embedding_backend=torchrec")  # fmt: skip
    one, two = grow(managed, ("model.num_experts=5",), features=(AGE,))
    assert_kept(one, two, log)
    ids = [
        {name: tensor for name, tensor in CheckpointFolder(run.checkpoint).model("best").items()
         if name.startswith("ids.")}
        for run in (one, two)
    ]  # fmt: skip
    assert ids[0] and ids[0].keys() == ids[1].keys()
    assert all(torch.equal(ids[0][name], ids[1][name]) for name in ids[0])


def test_frozen_weights_are_those_that_score_and_have_no_moments(grow, log):
    """With a decay and a clip; the average is what stays, in the weights behind it too."""
    training = ("training.optimizer.kind=adamw", "training.optimizer.weight_decay=0.5",
                "training.embedding_optimizer.weight_decay=0.1", "training.gradient_clip=0.1",
                "training.accumulate_batches=2", "training.epochs=2")  # fmt: skip
    one, two = grow(BATCH_NORM, (*training, "model.num_experts=5"))
    assert_kept(one, two, log)
    before, after = (CheckpointFolder(run.checkpoint).model("best") for run in (one, two))
    state = CheckpointFolder(two.checkpoint).training()
    level = "network.levels.0.mixture"
    moved = {
        f"{level}.experts.": f"{level}.experts.pools.0.",
        f"{level}.gate.": f"{level}.gate.gates.0.",
    }
    for name, tensor in before.items():
        now = name
        for old, new in moved.items():
            now = now.replace(old, new)
        assert torch.equal(after[now], tensor), name
        if name.startswith("network."):
            assert torch.equal(state[now.replace("network.", "raw.")], tensor), name
    trained = {name.split("/")[0] for name in state if name.startswith("optimizer.")}
    assert len(trained) == 4 + 4 + 1 + 4  # two layers with norms, a gate, a tower
    assert not [name for name in state if name.startswith("accumulators.") and "/" in name]


@pytest.mark.torchrec
@pytest.mark.parametrize("backend", ["plain", "torchrec"])
def test_a_frozen_table_keeps_its_ids_where_others_grow(grow, backend):
    kind = f"training.embedding_backend={backend}"
    freeze = "training.freeze=[experts, gates, tables.user, towers.buy]"
    one, two = grow((kind,), (freeze, "features.1.min_count=2"))
    before, after = (FeatureEncoder.load(run.vocabulary) for run in (one, two))
    assert after.ids["user"].num_rows == before.ids["user"].num_rows == 27
    summary = json.loads((two.path / "metrics.json").read_text())["train"]["frozen"]
    assert summary["changed_tasks"]["click"] == ["towers.click", "tables", "encoder"]
    old, new = (CheckpointFolder(run.checkpoint).model("best") for run in (one, two))
    assert old["tables.user"].numpy().tobytes() == new["tables.user"].numpy().tobytes()
    assert not torch.equal(old["tables.item"], new["tables.item"])
    for name in old:
        if name.startswith("network.towers"):
            assert torch.equal(new[name], old[name]) is name.startswith("network.towers.1"), name
    state = CheckpointFolder(two.checkpoint).training()
    assert {n for n in state if n.startswith("accumulators.")} == {
        f"accumulators.{name}/sum" for name in ("item", "price__bucket", "tags")
    }


def test_new_ids_get_rows_that_new_parts_alone_read(grow, funnel_config, log, tmp_path, dies_after):
    values = (
        "model.num_experts=5",
        "training.extend_ids=true",
        "training.checkpoint_every_steps=2",
    )
    one, two = grow((), values)
    assert_kept(one, two, log)
    names = [feature.name for feature in two.config().features]
    assert names[-3:] == ["user__new1", "item__new1", "tags__new1"]
    before, after = (FeatureEncoder.load(run.vocabulary) for run in (one, two))
    assert after.ids["user"].keys == before.ids["user"].keys
    assert sorted(after.ids["user__new1"].keys.to_pylist()) == list(range(25, 40))
    user = log.column_names.index("user")
    other = log.set_column(user, "user", pa.array(np.where(log["user"].to_numpy() >= 25, 25, 0)))
    another = log.set_column(user, "user", pa.array(np.where(log["user"].to_numpy() >= 25, 26, 0)))
    for task, reads in (("click", False), ("like", True)):
        pair = [scores(two, rows, [task]).tobytes() for rows in (other, another)]
        assert (pair[0] != pair[1]) is reads
    # The same config again: continued every day, and resumed
    mine = config_of(funnel_config, *values, new=True)
    renamed = log.set_column(user, "user", pa.array(log["user"].to_numpy() + 20))
    splits, start = splits_of(renamed, users=60), WarmStart(two.path)
    three = train_run(mine, tmp_path / "three", splits=splits, warm_start=start).directory
    assert_kept(two, three, log)
    grown = FeatureEncoder.load(three.vocabulary).ids
    assert grown["user"].keys == before.ids["user"].keys
    assert set(grown["user__new1"].keys.to_pylist()) == set(range(25, 60))
    with pytest.raises(KeyboardInterrupt):
        train_run(mine, tmp_path / "x", splits=splits, warm_start=start, reporter=dies_after(3))
    again = train_run(mine, tmp_path / "x", splits=splits, resume=True).directory
    assert scores(again, log, ["like"]).tobytes() == scores(three, log, ["like"]).tobytes()


def test_scores_of_tasks_that_are_partly_frozen_may_change(grow, capsys):
    _, two = grow(("model.tower.hidden=[4]",), ("training.freeze=[experts, towers.buy]",))
    Frozen(summary=two.metrics()["train"]["frozen"]).say(ConsoleReporter())
    said = " ".join(capsys.readouterr().err.split())
    assert "scores of click may change: not frozen: gates, towers.click, tables, encoder" in said
    assert "scores of buy may change: not frozen: gates, tables, encoder" in said


def test_a_model_grows_again_and_goes_on_every_day(grow, funnel_config, log, tmp_path):
    _, two = grow(TOP_K, ("model.num_experts=6",), features=(AGE,))
    old = ("click", "buy", "like")
    raw = {**funnel_config, "features": [*funnel_config["features"], AGE, PLACE]}
    raw["tasks"] = [{"name": "dear", "label": "price > 1"}, *raw["tasks"]]
    third = config_of(raw, *TOP_K, "model.num_experts=7", new=True)
    three = train_run(
        third, tmp_path / "three", splits=splits_of(log), warm_start=WarmStart(two.path)
    )
    assert_kept(two, three.directory, log, old)
    stages = three.directory.config().model.stages
    assert [len(stage.experts) for stage in stages] == [4, 6]
    four = train_run(
        three.directory.config(),
        tmp_path / "four",
        splits=splits_of(log),
        warm_start=WarmStart(three.directory.path),
    )
    assert four.directory.config().model.stages == stages
    assert_kept(three.directory, four.directory, log, old)
    assert not np.array_equal(*(scores(r.directory, log, ["dear"]) for r in (three, four)))


def test_copies_of_experts_begin_as_they_are(grow, log):
    one, two = grow(
        (), ("model.num_experts=5", "training.optimizer.learning_rate=1e-12"), new_experts="copy"
    )
    assert_kept(one, two, log)
    weights = CheckpointFolder(two.checkpoint).model("best")
    level = "network.levels.0.mixture.experts.pools"
    copies = [name for name in weights if name.startswith(f"{level}.1.")]
    assert {f"{level}.1.{name}" for name in ("weights.0", "weights.1", "biases.1")} <= {*copies}
    for name in copies:
        torch.testing.assert_close(weights[name], weights[name.replace(".1.", ".0.", 1)][:2])


def test_resumed_to_the_bit(begun, funnel_config, log, tmp_path, dies_after, assert_same):
    one = begun(BATCH_NORM)
    pq.write_table(log[:1200], tmp_path / "log.parquet", row_group_size=200)
    mine = config_of(
        funnel_config, *BATCH_NORM, "model.num_experts=5", f"data.path={tmp_path}/log.parquet",
        "data.input=stream", "data.split.by=random", "training.checkpoint_every_steps=2", new=True,
        features=(AGE,),
    )  # fmt: skip
    start = WarmStart(one.path)
    whole = train_run(mine, tmp_path / "whole", warm_start=start)
    with pytest.raises(KeyboardInterrupt):
        train_run(mine, tmp_path / "broken", warm_start=start, reporter=dies_after(3))
    resumed = train_run(mine, tmp_path / "broken", resume=True)
    assert_same(tmp_path / "whole", tmp_path / "broken")
    assert resumed.metrics["tasks"] == whole.metrics["tasks"]
    assert_kept(one, resumed.directory, log)


@pytest.mark.parametrize(
    "values", [("model.tower.activation=gelu",), ("training.precision=bf16",)], ids=str
)
def test_one_tower_scores_to_the_bit_when_another_comes(funnel_config, log, tmp_path, values):
    raw = {**funnel_config, "tasks": funnel_config["tasks"][:1]}
    splits = splits_of(log)
    one = train_run(config_of(raw, *values), tmp_path / "one", splits=splits).directory
    two = train_run(
        config_of(raw, *values, new=True), tmp_path / "two", splits=splits,
        warm_start=WarmStart(one.path),
    ).directory  # fmt: skip
    assert_kept(one, two, log, ("click",))


def test_on_the_command_line(mmoe, funnel_config, log, tmp_path):
    """Trained, reported, and scored for one task as for all together."""
    import yaml

    pq.write_table(log[:1000], tmp_path / "log.parquet")
    path = f"data.path={tmp_path}/log.parquet"
    for name, new in (("old", False), ("new", True)):
        raw = config_of(funnel_config, path, "data.split.by=random", new=new).model_dump(
            mode="json", exclude_none=True
        )
        raw["training"]["freeze"] = []
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(raw))
    one, two = tmp_path / "one", tmp_path / "two"
    assert mmoe("train", tmp_path / "old.yaml", "--out", one)[0] == 0
    code, _, err = mmoe(
        "train", tmp_path / "new.yaml", "--warm-start", one, "--out", two, "--freeze", *FREEZE
    )
    assert code == 0, err
    assert "frozen: experts, gates, towers.click, towers.buy, 4 tables, encoder: " in err
    assert "scores of click, buy stay as they are" in err
    columns = {}
    for run, tasks in ((one, ["click"]), (two, ["click"]), (two, ["click", "buy", "like"])):
        out = tmp_path / "scores.parquet"
        code, _, err = mmoe("score", run, "--input", tmp_path / "log.parquet", "--output", out,
                            "--overwrite", "--tasks", *tasks)  # fmt: skip
        assert code == 0, err
        columns[run.name, len(tasks)] = pq.read_table(out)["pred_click"].to_numpy()
    assert len({column.tobytes() for column in columns.values()}) == 1
    assert mmoe("report", two)[0] == 0
    page = (two / "report.html").read_text()
    assert "experts, gates, towers.click, towers.buy, 4 tables, encoder" in page


def test_a_gate_inside_an_expert_is_the_experts():
    class Gated(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = torch.nn.Linear(2, 2)

    for name, axes in axes_of(MoE(2, ExpertPool([Gated(), Gated()], 2)), {}).items():
        of_level = replace(axes, path=(Entry("levels", 0), *axes.path))
        part = "gates" if name.startswith("mixture.gate") else "experts"
        assert frozen._short(of_level, None) == (part, False)


def test_gates_that_decide_together_are_resumed(grow, funnel_config, log, tmp_path, dies_after):
    """Whoever says nothing of voters gets the earlier run's, then too; a budget is theirs."""
    values = ("model.num_experts=4", "model.gate.kind=top_k", "model.gate.select=budget",
              "model.gate.budget=2", "model.gate.k=2")  # fmt: skip
    one, whole = grow(values)
    assert whole.config().model.gate.select_voters == ["click", "buy"]
    mine = config_of(funnel_config, *values, "training.checkpoint_every_steps=2", new=True)
    splits, start = splits_of(log), WarmStart(one.path)
    with pytest.raises(KeyboardInterrupt):
        train_run(mine, tmp_path / "x", splits=splits, warm_start=start, reporter=dies_after(3))
    again = train_run(mine, tmp_path / "x", splits=splits, resume=True).directory
    assert scores(again, log, ["like"]).tobytes() == scores(whole, log, ["like"]).tobytes()
    assert_kept(one, again, log)
