"""What a model would do without an expert, against really evaluating a model that masks it."""

import copy

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

from mmoe.config import set_values
from mmoe.datasets.rows.batch_source import BatchSource
from mmoe.explain.experts import places_of, predict_without
from mmoe.mixture import GateOutput, MLPExperts, MultiGateMixture
from mmoe.mixture.leave_out import mixes_without
from mmoe.predictor import Predictor, load_predictor
from mmoe.run.console import SilentReporter

DOMAINS = "model.domains={column: scene}"
MODELS = {
    "mmoe": ["model.kind=mmoe"],
    "omoe": ["model.kind=omoe"],
    "ple": ["model.kind=ple", "model.levels=3", "model.shared_experts=2"],
    "top_k": ["model.gate.kind=top_k", "model.gate.k=2", "model.num_experts=5"],
    "sigmoid": ["model.gate={kind: sigmoid, k: 2}", "model.num_experts=4"],
    "noisy": ["model.gate={kind: noisy_top_k, k: 2}", "model.num_experts=4"],
    "dselect_k": ["model.gate={kind: dselect_k, k: 2}", "model.num_experts=4"],
    "ple_top_k": ["model.kind=ple", "model.gate={kind: top_k, k: 2}"],
    "wide_bias": [
        "model.wide=true",
        "model.interaction=deepfm",
        "model.bias={features: [price]}",
        "features.2={kind: numeric, name: price}",
        "features.1.dim=4",
    ],
    "deep_tower": ["model.tower.hidden=[8, 6]", "model.tower.activation=gelu"],
    "aitm": ["model.transfer=aitm", "tasks.1.after=click"],
    "domains": [DOMAINS, "model.gate={kind: cosine, k: 2}"],
    "own towers, ple": [
        "model.domains={column: scene, towers: own}",
        "model.kind=ple",
        "model.gate={kind: top_k, k: 2}",
    ],
    "mixed": [
        "model.num_experts=3",
        "model.experts=[{kind: mlp, count: 2, hidden: [8]}, {kind: dcn_v2, count: 1, output: 8}]",
        "model.expert={}",
    ],
}


class _Renormalised(nn.Module):
    """A gate without one expert: the weights of the others are scaled to the old sum."""

    def __init__(self, gate: nn.Module, expert: int) -> None:
        super().__init__()
        self.gate, self.expert = gate, expert
        self.takes_rows = getattr(gate, "takes_rows", False)

    def forward(self, inputs, visibility_GE, **said):
        decision = self.gate(inputs, visibility_GE, **said)
        whole = decision.as_weights(visibility_GE.shape[1])
        rest = whole.double()
        rest[..., self.expert] = 0
        total = rest.sum(-1, keepdim=True)
        rest = rest * (whole.double().sum(-1, keepdim=True) / torch.where(total > 0, total, 1.0))
        return GateOutput(rest.float(), None, {})


def _masked(ranker, place, *, refill):
    """A copy of a model that really does without the expert."""
    model = copy.deepcopy(ranker)
    mixture = model.network.levels[place.level].mixture
    if refill:
        mixture.visibility_GE[:, place.expert] = False
    else:
        mixture.gate = _Renormalised(mixture.gate, place.expert)
        mixture.policy = copy.copy(mixture.policy)
    return model


@pytest.fixture(name="loaded", scope="module")
def _loaded(train_funnel, funnel_config, funnel_table):
    """Of a model, trained once: its predictor, its config, and rows: so many that one is padded."""
    scenes = np.random.default_rng(1).choice(["feed", "live", "shop"], len(funnel_table))
    log, made = funnel_table.append_column("scene", pa.array(scenes)), {}

    def load(name):
        if name not in made:
            raw = set_values(funnel_config, [*MODELS[name], "training.epochs=1"])
            predictor, encoder, config = load_predictor(train_funnel(raw, log))
            rows = BatchSource.of_table(log[:777], encoder, "log", config)
            made[name] = predictor, config, rows
        return made[name]

    return load


@pytest.mark.parametrize("name", MODELS)
def test_every_left_out_expert_is_what_a_masked_model_predicts(name, loaded):
    predictor, config, rows = loaded(name)
    places = places_of(predictor.ranker.network)
    with SilentReporter().track("", None, "rows") as tracker:
        found = predict_without(predictor.ranker, config, rows, places, tracker)
    base = predictor.predict(rows)
    assert np.abs(found.base_NP - base).max() <= 1e-6
    moved = 0.0
    for place, without_NP in zip(places, found.without_VNP, strict=True):
        masked = _masked(predictor.ranker, place, refill=False)
        expected = Predictor(masked, config).predict(rows)
        assert np.abs(without_NP - expected).max() <= 1e-6, place
        moved = max(moved, float(np.abs(without_NP - base).max()))
    assert moved > 1e-4  # else nothing was left out


@pytest.mark.parametrize("name", ["mmoe", "top_k", "sigmoid", "noisy", "ple_top_k"])
def test_refilled_is_what_gates_do_that_do_not_see_the_expert(name, loaded):
    predictor, config, rows = loaded(name)
    places = places_of(predictor.ranker.network)
    with SilentReporter().track("", None, "rows") as tracker:
        found = predict_without(predictor.ranker, config, rows, places, tracker, refill=True)
        plain = predict_without(predictor.ranker, config, rows, places, tracker)
    for place, without_NP in zip(places, found.without_VNP, strict=True):
        masked = _masked(predictor.ranker, place, refill=True)
        expected = Predictor(masked, config).predict(rows)
        assert np.abs(without_NP - expected).max() <= 1e-6, place
    same = np.abs(found.without_VNP - plain.without_VNP).max()
    # Dense gates renormalise by themselves; of those that pick the next best comes in
    assert same <= 1e-6 if name in ("mmoe", "ple") else same > 1e-4


def test_a_gate_that_is_sure_of_one_expert_still_shares_out_what_is_left():
    """Its other weights are 0 in fp32, and yet the next expert is the better of the two."""
    torch.manual_seed(0)
    layer = MultiGateMixture(2, num_gates=1, experts=MLPExperts(3, 2, [4])).eval()
    with torch.no_grad():
        layer.gate.logits.weights[0].copy_(torch.tensor([[[200.0, 0], [2.0, 0], [0.0, 0]]]))
    x_BD = torch.ones(3, 2)
    with torch.no_grad():
        mixed = mixes_without(layer, [x_BD], [0])
        assert mixed.weights_BGE[0, 0].tolist() == [1.0, 0.0, 0.0]
        (block,) = mixed.without
        layer.visibility_GE[:, 0] = False
        (mix,) = block.mixes()
        assert torch.allclose(mix, layer(x_BD).out_BGO, atol=1e-6)
        assert float(mix.abs().max()) > 0


@pytest.mark.parametrize(("kernels", "cores"), [(True, 1), (False, 2)])
def test_a_thread_takes_one_core_only_where_others_take_the_rest(
    kernels, cores, loaded, monkeypatch
):
    (predictor, config, rows), told, output = loaded("mmoe"), [], Predictor.output
    monkeypatch.setattr("mmoe.predictor.HAS_KERNELS", kernels)

    def telling(*args, **named):
        told.append(torch.get_num_threads())
        return output(*args, **named)

    monkeypatch.setattr(Predictor, "output", telling)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with SilentReporter().track("", None, "rows") as tracker:
            predict_without(predictor.ranker, config, rows, [], tracker)
    finally:
        torch.set_num_threads(before)
    assert set(told) == {cores}
