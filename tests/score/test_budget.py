"""Scoring within a budget of experts: by hand, independent of batch mates, and what is refused."""

import json
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from mmoe import load
from mmoe.config import config_from_dict, set_values
from mmoe.datasets.rows.encoded import EncodedData
from mmoe.explain import explain_run, summary_lines
from mmoe.mixture import GateOutput, MLPExperts, MultiGateMixture, Selection, SoftmaxGate
from mmoe.mixture.gates import CosineGate, SigmoidGate, SwitchGate, TopKGate
from mmoe.report.explanation import write_explanation_page
from mmoe.run import RunDirectory
from mmoe.score import load_predictor, score_files
from mmoe.train import evaluate_run, train_run

EXPERTS, GATES, ROWS = 8, 3, 257


def layer(gate=None, visibility=None, scale=20.0):
    torch.manual_seed(4)
    gate = gate or SoftmaxGate(16, GATES, EXPERTS)
    made = MultiGateMixture(
        16, GATES, experts=MLPExperts(EXPERTS, 16, [24, 8]), gate=gate, visibility=visibility
    ).eval()
    with torch.no_grad():
        for weight in gate.parameters():
            weight.mul_(scale)
    return made, torch.randn(ROWS, 16)


def mixed(made, x, weights_BGE):
    y_BEO = torch.stack(list(made.experts.dense([x])), dim=1)
    return torch.einsum("bge,beo->bgo", weights_BGE, y_BEO)


@torch.no_grad()
@pytest.mark.parametrize("budget", [1, 2, 3, 7])
def test_it_is_the_experts_of_most_summed_probability_renormalised(budget):
    made, x = layer()
    p_BGE = made(x, return_gates=True).gate_weights_BGE
    made.bound(budget)
    found = made(x, return_gates=True)
    kept_BE = torch.zeros(ROWS, EXPERTS).scatter(1, p_BGE.sum(1).topk(budget).indices, 1.0)
    weights_BGE = p_BGE * kept_BE[:, None]
    weights_BGE /= weights_BGE.sum(-1, keepdim=True)
    torch.testing.assert_close(found.gate_weights_BGE, weights_BGE, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.out_BGO, mixed(made, x, weights_BGE), atol=1e-5, rtol=1e-5)
    assert made.policy.most_pairs == budget


@torch.no_grad()
def test_as_many_as_there_are_is_what_was_trained_to_the_bit_and_none_brings_it_back():
    made, x = layer()
    dense, gate, policy = made(x).out_BGO, made.gate, made.policy
    made.bound(EXPERTS)
    assert torch.equal(made(x).out_BGO, dense) and made.gate is gate
    made.bound(2)
    assert not torch.equal(made(x).out_BGO, dense)
    made.bound(None)
    assert torch.equal(made(x).out_BGO, dense)
    assert (made.gate, made.policy) == (gate, policy)
    assert [name for name, _ in made.named_parameters()] == [
        name for name, _ in layer()[0].named_parameters()
    ]


@torch.no_grad()
@pytest.mark.parametrize(
    "gate",
    [
        SoftmaxGate(16, GATES, EXPERTS),
        TopKGate(16, GATES, EXPERTS, k=2),
        TopKGate(16, GATES, EXPERTS, k=3, selection=Selection(shared_k=2, private_k=1)),
        TopKGate(
            16, GATES, EXPERTS, k=4, selection=Selection(private_k=4, budget=6, votes=[1, 1, 0])
        ),
        CosineGate(16, GATES, EXPERTS, k=2),
        SigmoidGate(16, GATES, EXPERTS, k=2),
        SwitchGate(16, GATES, EXPERTS),
    ],
    ids=lambda gate: type(gate).__name__,
)
@pytest.mark.parametrize("budget", [1, 3])
def test_gates_of_all_kinds_keep_within_it_whatever_stands_beside_a_row(gate, budget):
    made, x = layer(gate, scale=4.0)
    made.bound(budget)
    found = made(x, return_gates=True)
    weights_BGE = found.gate_weights_BGE
    assert int((weights_BGE > 0).any(1).sum(1).max()) <= budget
    assert bool((weights_BGE > 0).any(2).all()), "each gate mixes something"
    torch.testing.assert_close(found.out_BGO, mixed(made, x, weights_BGE), atol=1e-5, rtol=1e-5)
    parts = torch.cat([made(part).out_BGO for part in x.split(13)])
    torch.testing.assert_close(parts, found.out_BGO, atol=1e-6, rtol=1e-6)


@torch.no_grad()
def test_a_gate_sure_of_experts_that_are_not_kept_mixes_what_is():
    made, x = layer(scale=1e4)
    made.bound(1)
    weights_BGE = made(x, return_gates=True).gate_weights_BGE
    torch.testing.assert_close(weights_BGE.sum(2), torch.ones(ROWS, GATES))


# Of each task two, two shared; one gate more sees all
SEES = torch.eye(3)[:, [0, 0, 1, 1, 2, 2, 2, 2]].bool() | torch.tensor([False] * 6 + [True] * 2)
SEES[2] = True


@torch.no_grad()
@pytest.mark.parametrize("budget", [3, 4, 7])
def test_gates_that_see_unlike_experts_keep_their_first_choice(budget):
    made, x = layer(visibility=SEES)
    p_BGE = made(x, return_gates=True).gate_weights_BGE
    made.bound(budget)
    weights_BGE = made(x, return_gates=True).gate_weights_BGE
    used_BE = (weights_BGE > 0).any(1)
    assert int(used_BE.sum(1).max()) <= budget
    assert not weights_BGE[:, ~SEES].any()
    firsts = weights_BGE.gather(2, p_BGE.argmax(2, keepdim=True))
    assert bool((firsts > 0).all())
    kept_BGE = p_BGE * used_BE[:, None]
    torch.testing.assert_close(
        weights_BGE, kept_BGE / kept_BGE.sum(2, keepdim=True), atol=1e-5, rtol=1e-5
    )


def test_own_gates_say_that_they_heed_it():
    class Own(SoftmaxGate):
        def pick(self, scored):
            return super().pick(scored)

    class Said(Own):
        heeds_selection = True

        def pick(self, scored):
            return super().pick(scored)

    class Plain(torch.nn.Module):
        def forward(self, inputs, visibility_GE):
            return GateOutput(visibility_GE.float().expand(inputs[0].shape[0], -1, -1))

    layer(Said(16, GATES, EXPERTS))[0].bound(2)
    for gate, word in ((Own(16, GATES, EXPERTS), "heeds_selection"), (Plain(), "no budget")):
        with pytest.raises(ValueError, match=word):
            layer(gate)[0].bound(2)


def _train(raw, changes, table, folder):
    pq.write_table(table, folder / "log.parquet")
    config = config_from_dict(set_values(raw, ["training.epochs=1", *changes]))
    return train_run(config, folder / "run", data=folder / "log.parquet").directory


@pytest.fixture(scope="module", params=["mmoe", "ple"], name="run")
def _run(request, funnel_config, funnel_table, tmp_path_factory):
    changes = {"mmoe": ["model.num_experts=8"], "ple": ["model={kind: ple, expert: {hidden: [8]}}"]}
    folder = tmp_path_factory.mktemp(request.param)
    return _train(funnel_config, changes[request.param], funnel_table, folder)


def test_a_run_scores_within_it_by_its_config_or_by_what_is_asked(run, funnel_table, tmp_path):
    (dense, encoder, _), rows = load_predictor(run, "cpu"), funnel_table[:700]
    data = EncodedData(features=encoder.encode(rows, "log"))
    expected, full = dense.predict(data), 8
    every, bounded = (load_predictor(run, "cpu", budget=k)[0] for k in (full, 4))
    np.testing.assert_allclose(every.predict(data), expected, atol=1e-6)
    found = bounded.predict(data)
    assert np.abs(found - expected).max() > 1e-6
    assert all(level.mixture.policy.most_pairs == 4 for level in bounded.ranker.network.levels)
    one = np.concatenate([bounded.predict(rows[at : at + 1]) for at in range(0, 20)])
    np.testing.assert_array_equal(one, found[:20])
    asked = load(run, "cpu", budget=4).predict(rows)
    np.testing.assert_array_equal(np.asarray(asked["pred_click"]), found[:, 0])
    # Of the config, which `budget` goes before
    told = RunDirectory.open(run.path)
    config = replace_config(told, tmp_path, 4)
    np.testing.assert_array_equal(load_predictor(config, "cpu")[0].predict(data), found)
    np.testing.assert_allclose(
        load_predictor(config, "cpu", budget=full)[0].predict(data), expected, atol=1e-6
    )


def replace_config(run, folder, budget):
    """A copy of a run, whose config has a budget."""
    copy = folder / "copy"
    shutil.copytree(run.path, copy)
    text = (copy / "config.yaml").read_text()
    assert "budget: null" in text
    (copy / "config.yaml").write_text(text.replace("  budget: null", f"  budget: {budget}"))
    return RunDirectory.open(copy)


def test_files_note_it_and_the_command_line_takes_it(run, mmoe, tmp_path):
    log, out = run.path.parent / "log.parquet", tmp_path / "scores"
    args = ["score", run.path, "--input", log, "--quiet", "--output", out]
    assert mmoe(*args, "--budget", 4)[0] == 0
    assert score_files(run, log, tmp_path / "all.parquet", budget=4) == 4000
    by = json.loads((out / "_manifest.json").read_text())["scored_by"]
    assert by["the model"].endswith("--budget 4")
    code, _, said = mmoe(*args, "--resume")
    assert code == 2 and "--budget 4" in said
    found = evaluate_run(run, budget=4)["tasks"]["click"]["logloss"]
    assert found != run.metrics()["tasks"]["click"]["logloss"]


@pytest.mark.parametrize(
    ("budget", "words"), [(0, "set 1 or more"), (-3, "set 1 or more"), (9, "has 8 expert")]
)
def test_a_budget_beyond_the_experts_is_refused(run, mmoe, tmp_path, budget, words):
    args = ["score", run.path, "--input", run.path.parent / "log.parquet", "--quiet"]
    code, _, said = mmoe(*args, "--output", tmp_path / "s.parquet", "--budget", budget)
    assert code == 2
    assert words in said
    assert "score.budget" in said
    assert "\n" not in said.strip()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["score.budget=0"], "score.budget"),
        (["score.budget=4"], "has 3 expert"),
        (["score.budget=1", "model={kind: shared_bottom}"], "no gates"),
        (["score.budget=1", "model={kind: single_task}"], "no gates"),
    ],
)
def test_a_config_that_cannot_be_scored_so_is_refused_before_it_is_trained(
    funnel_config, changes, words
):
    with pytest.raises(ValueError, match=words):
        config_from_dict(set_values(funnel_config, changes))


def test_gates_that_would_see_none_of_the_kept_experts_are_refused(
    funnel_config, funnel_table, tmp_path
):
    run = _train(
        funnel_config, ["model={kind: cgc, expert: {hidden: [8]}}"], funnel_table, tmp_path
    )
    with pytest.raises(ValueError, match=r"score.budget is 1, but level 1 has 2 gates"):
        load_predictor(run, "cpu", budget=1)
    (tmp_path / "codes").mkdir()
    coded = ["model={num_experts: 8, expert: {hidden: [8]}, gate: {kind: dselect_k, k: 2}}"]
    run = _train(funnel_config, coded, funnel_table, tmp_path / "codes")
    with pytest.raises(ValueError, match="DSelectKGate, which take no budget"):
        load_predictor(run, "cpu", budget=2)
    assert "budget" not in explain_run(run)


def test_explain_measures_budgets_and_proposes_the_smallest_that_costs_nothing(run, tmp_path):
    from mmoe.explain.run import write_explanation

    result = explain_run(run)
    curve = result["budget"]
    budgets = [point["budget"] for point in curve["points"]]
    assert budgets == ([1, 2, 4] if run.path.parent.name.startswith("mmoe") else [4])
    stored = run.metrics()["tasks"]
    dense = np.mean([stored[task]["logloss"] for task in ("click", "buy")])
    assert curve["log_loss"] == pytest.approx(dense, abs=1e-6)
    for point in curve["points"]:
        tasks = evaluate_run(run, budget=point["budget"])["tasks"]
        bounded = np.mean([tasks[task]["logloss"] for task in ("click", "buy")])
        loss = point["log_loss"]
        assert loss["value"] == pytest.approx(bounded - dense, abs=1e-6)
        assert loss["low"] < loss["value"] < loss["high"]
        assert point["rows_per_second"] > 0
    page = write_explanation(result, tmp_path)
    assert json.loads((tmp_path / "explain.json").read_text())["budget"] == curve
    assert "Fewer experts a row" in page.read_text()
    write_explanation_page(tmp_path / "explain.json", tmp_path / "again.html")


def test_what_it_proposes_is_one_line(run):
    loss = {"value": 1e-5, "low": -1e-5, "high": 3e-5}
    points = [{"budget": 2, "rows_per_second": 3e4, "log_loss": loss}]
    curve = {"experts": 8, "rows_per_second": 2e4, "points": points, "tolerance": 2e-4}
    told = {"tolerance": 2e-4, "unneeded": [], "experts": []}
    line, *_ = summary_lines({**told, "budget": {**curve, "proposed": 2}}, "runs/mine")
    assert line == (
        "2 of 8 experts a row: 1.50 × the rows a second, log-loss +0.00001 (-0.00001 to +0.00003): "
        "mmoe score runs/mine --budget 2, or --set score.budget=2 in training"
    )
    line, *_ = summary_lines({**told, "budget": {**curve, "proposed": None}}, "runs/mine")
    assert line.startswith("no budget of 2 experts a row")
    assert len(summary_lines(told, "runs/mine")) == 1
