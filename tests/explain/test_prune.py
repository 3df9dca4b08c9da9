"""A pruned run: what it predicts, how it goes on, and what is refused."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from mmoe.checkpoint.folder import CheckpointFolder
from mmoe.config import config_from_dict, set_values
from mmoe.datasets.rows.batch_source import BatchSource
from mmoe.datasets.rows.splits import Splits
from mmoe.explain import ExplainSettings, explain_run, prune_run
from mmoe.explain.experts import places_of, predict_without
from mmoe.predictor import Predictor, load_predictor
from mmoe.run import RunDirectory
from mmoe.run.console import SilentReporter
from mmoe.train import WarmStart, train_run
from mmoe.train.evaluate import evaluate_run

MODELS = {
    "mmoe": (["model.num_experts=4"], 2),
    "ple_above": (["model.kind=ple", "model.shared_experts=2"], 11),
    "static": (["model.gate={kind: static}", "model.num_experts=4"], 1),
    "average": (["training.ema_decay=0.9", "model.num_experts=4"], 3),
    "sigmoid": (["model.gate={kind: sigmoid, k: 2}", "model.num_experts=4"], 4),
    "cosine": (["model.gate={kind: cosine, k: 1}", "model.num_experts=4"], 1),
    "of every row": (["model.gate={kind: top_k, k: 1, always: 2}", "model.num_experts=4"], 2),
    "beside these": (["model.gate={kind: top_k, k: 1, always: 2}", "model.num_experts=4"], 3),
}
NO_OTHERS = ["model.num_experts=3", "model.expert={}"]


@pytest.fixture(scope="module")
def splits(funnel_table):
    """As `train_funnel` splits them."""
    log = funnel_table
    return Splits(train=log[:3000], validation=log[3000:3300], test=log[3300:], origin="log")


def _trained(train_funnel, funnel_config, settings):
    return train_funnel(set_values(funnel_config, [*settings, "training.epochs=1"]))


def _predictions(run, table, config=None):
    predictor, encoder, own = load_predictor(run)
    return predictor.predict(BatchSource.of_table(table, encoder, "log", config or own))


@pytest.mark.parametrize("name", MODELS)
def test_a_pruned_run_predicts_what_the_model_does_without_the_expert(
    name, train_funnel, funnel_config, funnel_table, splits, tmp_path
):
    settings, number = MODELS[name]
    run = _trained(train_funnel, funnel_config, settings)
    predictor, encoder, config = load_predictor(run)
    table = funnel_table[:777]
    rows = BatchSource.of_table(table, encoder, "log", config)
    place = places_of(predictor.ranker.network)[number - 1]
    sparse = config.model.gate.picks is not None
    with SilentReporter().track("", None, "rows") as tracker:
        expected = predict_without(
            predictor.ranker, config, rows, [place], tracker, refill=sparse
        ).without_VNP[0]
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    finished = prune_run(run, [number], tmp_path / "pruned", splits=splits)
    pruned = RunDirectory.open(tmp_path / "pruned")
    assert np.abs(_predictions(pruned, table) - expected).max() <= 1e-6
    assert np.abs(Predictor(predictor.ranker, config).predict(rows) - expected).max() > 1e-5
    # A run as any other: metrics, curves, history, and fewer weights
    assert finished.metrics == pruned.metrics()
    found = evaluate_run(pruned, splits.test)
    for task, values in pruned.metrics()["tasks"].items():
        assert values["auc"] == found["tasks"][task]["auc"]
    history = json.loads(pruned.history_file.read_text())
    assert history["epochs"] == [] and history["start"]["best"]
    assert json.loads((pruned.path / "pruned.json").read_text())["experts"] == [
        {"number": number, "level": place.level + 1, "name": place.name}
    ]
    sizes = [
        sum(x.numel() for x in CheckpointFolder(one.checkpoint).model("best").values())
        for one in (run, pruned)
    ]
    assert sizes[1] < sizes[0]
    assert before == {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}


def test_kinds_with_tensors_of_the_same_names_are_told_apart(
    train_funnel, funnel_config, splits, tmp_path
):
    """A whole kind goes; numbers of shadowed experts are others where one before them is gone."""
    kinds = (
        "{kind: mlp, count: 1, hidden: [8]}, {kind: mlp, count: 2, activation: gelu, hidden: [8]}"
    )
    settings = [f"model.experts=[{kinds}]", *NO_OTHERS, "parallel.shadowed=[1, 2]"]
    run = _trained(train_funnel, funnel_config, settings)
    pruned = prune_run(run, [1], tmp_path / "pruned", splits=splits).directory
    assert [one.count for one in pruned.config().model.experts or []] == [2]
    assert pruned.config().parallel.shadowed == [1]
    there, here = (CheckpointFolder(one.checkpoint).model("best") for one in (run, pruned))
    prefix = "network.levels.0.mixture"
    old = there[f"{prefix}.experts.pools.1.weights.0"]
    np.testing.assert_array_equal(here[f"{prefix}.experts.weights.0"], old)
    gates = [weights[f"{prefix}.gate.logits.weights.0"] for weights in (there, here)]
    np.testing.assert_array_equal(gates[1], gates[0][:, 1:])


def test_a_pruned_run_is_trained_on_resumed_and_continued(
    train_funnel, funnel_config, funnel_table, splits, tmp_path
):
    run = _trained(train_funnel, funnel_config, ["model.kind=ple"])
    finished = prune_run(run, [2, 7], tmp_path / "tuned", finetune_epochs=2, splits=splits)
    pruned = finished.directory
    history = json.loads(pruned.history_file.read_text())
    assert [entry["epoch"] for entry in history["epochs"]] == [1, 2]
    assert history["start"]["validation"]["click"]["auc"] > 0.5
    assert finished.metrics["train"]["epochs"] == 2
    plain = prune_run(run, [2, 7], tmp_path / "plain", splits=splits).directory
    moved = np.abs(
        _predictions(pruned, funnel_table[:500]) - _predictions(plain, funnel_table[:500])
    ).max()
    assert moved > 1e-3
    again = train_run(pruned.config(), pruned.path, splits=splits, resume=True)
    assert again.metrics["tasks"] == finished.metrics["tasks"]
    # A warm start knows the experts by their names, and can give back those that are gone
    raw = set_values(funnel_config, ["model.kind=ple", "training.epochs=1"])
    whole = train_run(
        config_from_dict(raw), tmp_path / "whole", splits=splits, warm_start=WarmStart(pruned.path)
    )
    told = json.loads(whole.directory.warm_start_file.read_text())
    assert any("click expert 2" in phrase for phrase in told["initialised"])


@pytest.mark.parametrize(
    ("settings", "refused"),
    [
        (
            ["model.gate={kind: top_k, k: 2}"],
            {
                (4,): "there is no expert 4; the run has 1 to 3",
                (0,): "there is no expert 0",
                (): "expected numbers such as 3,5, got none",
                (1, 2): "the gate of 'click' picks 2 experts and would see 1; prune fewer",
            },
        ),
        (["model.num_experts=2"], {(1, 2): "the gate of 'click' would see no expert"}),
        (["model.kind=shared_bottom"], {(1,): "no gate of this run chooses between experts"}),
        (["model.gate={kind: dselect_k, k: 2}"], {(1,): "spell the experts' numbers"}),
        (
            ["model.kind=ple", "model.shared_experts=1"],
            {(10,): "level 2 would have no shared expert"},
        ),
    ],
)
def test_what_cannot_go_is_refused_before_anything_is_written(
    settings, refused, train_funnel, funnel_config, splits, tmp_path
):
    run = _trained(train_funnel, funnel_config, settings)
    for experts, said in refused.items():
        with pytest.raises(ValueError, match=said) as caught:
            prune_run(run, [*experts], tmp_path / "out", splits=splits)
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "out").exists()
    if len(refused) > 1:  # of a run that can be pruned
        (tmp_path / "notes.txt").write_text("mine")
        with pytest.raises(ValueError, match="exists already"):
            prune_run(run, [1], tmp_path, splits=splits)
        assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_rows_in_files_are_found_again(funnel_config, funnel_table, mmoe, tmp_path):
    pq.write_table(funnel_table, tmp_path / "log.parquet")
    raw = set_values(funnel_config, ["training.epochs=1"])
    run = train_run(config_from_dict(raw), tmp_path / "run", data=tmp_path / "log.parquet")
    del run
    code, out, err = mmoe(
        "prune", tmp_path / "run", "--experts", "1,3", "--out", tmp_path / "new", "-q"
    )
    assert (code, err) == (0, ""), err
    assert out.splitlines()[-1] == str(tmp_path / "new")
    assert RunDirectory.open(tmp_path / "new").config().model.num_experts == 1


def test_an_expert_that_a_gate_sees_alone_is_said_and_kept(
    train_funnel, funnel_config, splits, tmp_path
):
    run = _trained(
        train_funnel,
        funnel_config,
        ["model.kind=cgc", "model.shared_experts=1", "model.task_experts=1"],
    )
    left = prune_run(run, [3], tmp_path / "left", splits=splits).directory
    assert [place.alone for place in places_of(load_predictor(left)[0].ranker.network)] == [
        ("click",),
        ("buy",),
    ]
    found = explain_run(left, splits.test, ExplainSettings(tolerance=0.9))
    verdicts = [[one["verdict"] for one in e["tasks"].values()] for e in found["experts"]]
    assert verdicts == [["alone", "unneeded"], ["unneeded", "alone"]]
    assert found["unneeded"] == []
    with pytest.raises(ValueError, match="the gate of 'buy' would see no expert"):
        prune_run(left, [2], tmp_path / "none", splits=splits)
