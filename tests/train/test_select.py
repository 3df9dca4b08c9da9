"""Gates that decide together in whole runs: models, scoring, tasks that come later, resuming."""

import json
import re

import numpy as np
import pyarrow.parquet as pq
import pytest

from mmoe.config import config_from_dict, load_config, set_values
from mmoe.datasets.rows.encoded import EncodedData
from mmoe.mixture import MultiGateMixture
from mmoe.report import write_report
from mmoe.score import load_predictor, score_files
from mmoe.train import evaluate_run

JOINT = "{kind: top_k, select: joint, shared_k: 2, private_k: 1, balance_loss: 0.01}"
BUDGET = "{kind: sigmoid, k: 3, select: budget, budget: 4}"
CAPPED = "{kind: noisy_top_k, select: joint, shared_k: 1, private_k: 2, budget: 4}"
SETTINGS = {
    "mmoe, joint": ("model.num_experts=8", f"model.gate={JOINT}"),
    "ple, budget": ("model.kind=ple", "model.shared_experts=4", f"model.gate={BUDGET}"),
    "mmoe, joint within a budget": ("model.num_experts=8", f"model.gate={CAPPED}"),
}


@pytest.fixture(scope="module", name="run", params=SETTINGS.values(), ids=SETTINGS)
def _run(request, funnel_config, train_funnel):
    settings = (*request.param, "training.epochs=1", "model.execution=grouped")
    return train_funnel(set_values(funnel_config, settings))


def test_it_trains_evaluates_and_reports(run, funnel_table):
    metrics = json.loads((run.path / "metrics.json").read_text())["tasks"]
    assert all(np.isfinite(metrics[task]["logloss"]) for task in ("click", "buy"))
    (level, *_) = json.loads((run.path / "curves.json").read_text())["gates"]
    predictor, *_ = load_predictor(run)
    for mixture in predictor.ranker.modules():
        if not isinstance(mixture, MultiGateMixture):
            continue
        assert mixture.policy.most_pairs is not None
    for share in level["kept_probability"]:
        assert 0.3 < share <= 1
    assert all(0 <= share < 1 for share in level["first_choice_missing"])
    assert "the gates decide together" in write_report(run.path).read_text()
    again = evaluate_run(run, funnel_table[3300:])["tasks"]
    assert again["click"]["logloss"] == pytest.approx(metrics["click"]["logloss"], rel=1e-9)


def test_tasks_one_by_one_are_all_together_bit_for_bit(run, funnel_table, tmp_path):
    pq.write_table(funnel_table[:700], tmp_path / "log.parquet")
    score_files(run, tmp_path / "log.parquet", tmp_path / "all.parquet")
    together = pq.read_table(tmp_path / "all.parquet")
    for task in ("click", "buy"):
        out = tmp_path / f"{task}.parquet"
        score_files(run, tmp_path / "log.parquet", out, tasks=[task])
        alone = pq.read_table(out)
        assert f"pred_{task}" in alone.column_names
        assert alone[f"pred_{task}"].equals(together[f"pred_{task}"])


def test_a_score_depends_on_no_other_row(run, funnel_table):
    predictor, encoder, _ = load_predictor(run)

    def scores(table):
        return predictor.predict(EncodedData(features=encoder.encode(table, "log")))

    whole, order = scores(funnel_table[:500]), np.random.default_rng(1).permutation(500)
    assert np.array_equal(scores(funnel_table[:500].take(order)), whole[order])
    assert np.array_equal(scores(funnel_table[17:18]), whole[17:18])


def test_resume_continues_bit_identically(train, tmp_path, assert_same, dies_after):
    settings = (
        f"model.gate={BUDGET}",
        "model.gate.dropout=0.2",
        "model.num_experts=8",
        "training.checkpoint_every_steps=5",
        "training.epochs=2",
    )
    train("whole", *settings)
    with pytest.raises(KeyboardInterrupt):
        train("broken", *settings, reporter=dies_after(14))
    train("broken", *settings, resume=True)
    assert_same(tmp_path / "whole", tmp_path / "broken")


def test_a_task_added_to_a_run_s_config_has_no_vote(run, funnel_config):
    stored = load_config(run.path / "config.yaml")
    assert stored.model.gate.select_voters == ["click", "buy"]
    later = {"name": "again", "label": "buy"}
    raw = stored.model_dump() | {"tasks": [*stored.model_dump()["tasks"], later]}
    assert config_from_dict(raw).model.gate.select_voters == ["click", "buy"]


WRONG = {
    "gate.shared_k + gate.private_k is 9, but a gate of mmoe sees 8": (
        "{kind: top_k, select: joint, shared_k: 4, private_k: 5}",
    ),
    "gate.shared_k is 5, but the gates of cgc see 4 expert": (
        "{kind: top_k, select: joint, shared_k: 5, private_k: 1}",
        "model.kind=cgc",
    ),
    "model.gate.budget is 1, but 2 gates keep their first choice": (
        "{kind: top_k, select: budget, budget: 1}",
    ),
    "model.gate.budget is 2, but 3 gates keep their first choice": (
        "{kind: top_k, select: budget, budget: 2}",
        "model.kind=ple",
    ),
    "budget is 2, but shared_k is 3; raise budget": (
        "{kind: top_k, select: joint, shared_k: 3, private_k: 1, budget: 2}",
    ),
    "budget is missing": ("{kind: cosine, select: budget}",),
    "shared_k goes with select joint or budget, but select is independent": (
        "{kind: top_k, shared_k: 2}",
    ),
    "shared_k goes with select joint, but select is budget": (
        "{kind: top_k, select: budget, budget: 4, shared_k: 2}",
    ),
    "k is 3, but shared_k + private_k is 4": (
        "{kind: top_k, k: 3, select: joint, shared_k: 3, private_k: 1}",
    ),
    "model.gate.select_voters names 'clik', but the tasks are click, buy": (
        "{kind: top_k, select: joint, shared_k: 1, select_voters: [clik]}",
    ),
    "select goes with kind top_k or noisy_top_k or cosine or sigmoid, but kind is softmax": (
        "{kind: softmax, select: joint}",
    ),
}


@pytest.mark.parametrize("message", WRONG)
def test_what_cannot_be_is_one_line(funnel_config, message):
    gate, *others = WRONG[message]
    settings = ("model.num_experts=8", f"model.gate={gate}", *others)
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        config_from_dict(set_values(funnel_config, settings))
    assert "\n" not in str(error.value).removeprefix("config:").strip()
