"""What models with domains would do without an expert, against models that really do without."""

import copy

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

from mmoe.config import config_from_dict, set_values
from mmoe.datasets.rows.batch_source import BatchSource
from mmoe.datasets.rows.splits import Splits
from mmoe.explain.passes import places_of, predict_without
from mmoe.mixture import GateOutput
from mmoe.predictor import Predictor, load_predictor
from mmoe.run.console import SilentReporter
from mmoe.train import train_run

MODELS = {
    "softmax": (),
    "own towers": ("model.domains.towers=own",),
    "top_k": ("model.gate={kind: top_k, k: 2}",),
    "cosine": ("model.gate={kind: cosine, k: 2}",),
    "static": ("model.gate={kind: static}",),
    "dselect_k": ("model.gate={kind: dselect_k, k: 2}",),
    "ple": ("model.kind=ple", "model.gate={kind: top_k, k: 2}"),
}


class _Renormalised(nn.Module):
    """Gates of domains without one expert."""

    takes_rows = True

    def __init__(self, gate: nn.Module, expert: int) -> None:
        super().__init__()
        self.gate, self.expert = gate, expert

    def forward(self, inputs, visibility_GE, **said):
        whole = self.gate(inputs, visibility_GE, **said).as_weights(visibility_GE.shape[1]).double()
        rest = whole.clone()
        rest[..., self.expert] = 0
        total = rest.sum(-1, keepdim=True)
        rest = rest * whole.sum(-1, keepdim=True) / torch.where(total > 0, total, 1.0)
        return GateOutput(rest.float(), None, {})


@pytest.mark.parametrize("name", MODELS)
def test_every_row_does_without_by_the_gates_of_its_domain(
    name, funnel_config, funnel_table, tmp_path
):
    scenes = np.random.default_rng(1).choice(["feed", "live", "shop"], 1500)
    log = funnel_table[:1500].append_column("scene", pa.array(scenes))
    raw = set_values(
        {**funnel_config, "model": {**funnel_config["model"], "domains": {"column": "scene"}}},
        [*MODELS[name], "training.epochs=1", "training.eval_batch_size=300"],
    )
    raw["tasks"][1] |= {"observed_when": None, "domains": ["shop", "live"]}
    splits = Splits(train=log[:900], validation=log[900:1100], test=log[1100:], origin="log")
    run = train_run(config_from_dict(raw), tmp_path / "run", splits=splits).directory
    predictor, encoder, config = load_predictor(run)
    rows = BatchSource.of_table(log[:777], encoder, "log", config)

    with SilentReporter().track("", None, "rows") as tracker:
        places = places_of(predictor.ranker.network)
        found = predict_without(predictor.ranker, config, rows, places, tracker)

    there = ~np.isnan(predictor.predict(rows))
    assert not there.all()
    for place, without_NP in zip(places, found.without_VNP, strict=True):
        model = copy.deepcopy(predictor.ranker)
        mixture = model.network.levels[place.level].mixture
        mixture.gate = _Renormalised(mixture.gate, place.expert)
        expected = Predictor(model, config).predict(rows)
        assert np.abs(without_NP - expected)[there].max() <= 1e-6, place
