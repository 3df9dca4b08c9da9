"""A warm start onto an equal model: every tensor bit by bit, for every kind that is registered."""

import json
import sys
from typing import Any

import pytest
import torch

from mmoe.checkpoint.folder import CheckpointFolder
from mmoe.checkpoint.resume_state import flatten_optimizer
from mmoe.checkpoint.saver import CheckpointSaver
from mmoe.config import EXPERTS, INTERACTIONS, MODELS, config_from_dict
from mmoe.config.experts import SEQUENCE_ENCODERS
from mmoe.config.features import FEATURES
from mmoe.config.gates import GATES
from mmoe.config.relations import TRANSFERS
from mmoe.config.tables import ENCODINGS
from mmoe.config.tasks import TASKS
from mmoe.mixture import FixedGate
from mmoe.train.fit import training_state
from mmoe.train.prepare import prepare
from mmoe.train.warm_start import EarlierRun, transfer
from mmoe.train.warm_start.places import tensor_sources
from tests.train.every_kind import CLICK, GIVEN_CLICK, KINDS, SPLITS, raw_config

EXPERT = {"hidden": [8, 6, 4]}
OF_EXPERT = {"frozen": {"module": "tests.models.interactions.frozen_modules:make_eight",
                        "output": 8}, "mlp": EXPERT, "deepfm": {"hidden": [8, 6, 4]}}  # fmt: skip
OF_INTERACTION = {"deepfm": {"hidden": [8, 6, 4]}}
FEATURE = {
    "cross": {"columns": ["item", "group"]},
    "vector": {"column": "vector", "dim": 3},
    "datetime": {"column": "at", "parts": ["hour"]},
    "numeric": {"column": "seconds", "buckets": 4, "dim": 4},
    "list": {"column": "seen_items", "dim": 4},
    "categorical": {"column": "position", "dim": 4},
    "sequence": {"columns": ["seen_items"], "target": ["item"], "times": "seen_times"},
    "trees": {"trees": 5, "folds": 2},
}
OF_ENCODING = {"hash": {"hash_size": 50}, "managed": {"rows": 50}}


def _model(**keys: Any) -> dict[str, Any]:
    return {"model": {"num_experts": 3, "expert": {"hidden": [8]}, "embedding_dim": 8, **keys}}


def _domains(towers: str) -> dict[str, Any]:
    return {} if towers == "none" else {"domains": {"column": "group", "towers": towers}}


def _gate(kind: str) -> dict[str, Any]:
    config = GATES.config_class(kind)
    keys: dict[str, Any] = {"hidden": [6]} if "hidden" in config.model_fields else {}
    return {"kind": kind, **keys, **({"k": 2} if "k" in config.model_fields else {})}


# Name → sections of a config, as in every_kind.py; what a registry has is found there
CASES = {
    **KINDS,
    **{
        f"model {kind}, towers {depth} {towers}": _model(
            kind=kind, tower={"hidden": [6, 5, 4][:depth]}, gate={}, **_domains(towers)
        )
        for kind in MODELS.names()
        for towers, depths in (("none", [2]), ("own", range(4) if kind == "mmoe" else [1]))
        for depth in depths
    },
    **{
        f"gate {kind}, towers {towers}": _model(
            num_experts=4, gate=_gate(kind), tower={"hidden": [6, 5]}, **_domains(towers)
        )
        for kind in GATES.names()
        for towers in ("none", "own")
    },
    **{
        f"only experts {kind}": _model(expert={"kind": kind, **OF_EXPERT.get(kind, {})})
        for kind in EXPERTS.names()
    },
    **{
        f"interaction {kind}": _model(interaction={"kind": kind, **OF_INTERACTION.get(kind, {})})
        for kind in INTERACTIONS.names()
    },
    **{
        f"transfer {kind}, towers {depth}": {
            **_model(transfer={"kind": kind}, tower={"hidden": [6, 5, 4][:depth]}),
            "tasks": [CLICK, {**GIVEN_CLICK, "after": "click"}],
        }
        for kind in TRANSFERS.names()
        for depth in ((2, 3) if kind == "dbmtl" else (0, 2))
    },
    **{
        f"feature {kind}": {"features": [{"kind": kind, "name": "more", **FEATURE[kind]}]}
        for kind in FEATURES.names()
    },
    **{
        f"encoding {kind}": {"features": [{"kind": "categorical", "name": "position", "dim": 4,
                                           "encoding": kind, **OF_ENCODING.get(kind, {})}]}
        for kind in ENCODINGS.names()
    },
    "a projection that the bias tower reads": {
        **_model(bias={"features": ["more"]}),
        "features": [{"kind": "vector", "name": "more", **FEATURE["vector"]}],
    },
    "average": {"training": {"ema_decay": 0.9}},
    "wide": _model(wide=True),
}  # fmt: skip


def test_every_kind_of_task_and_of_encoder_is_among_them():
    text = json.dumps(CASES)
    for kind in [*TASKS.names(), *SEQUENCE_ENCODERS.names()]:
        assert kind in ("binary", "regression") or f'"{kind}"' in text


@pytest.fixture(name="state_of", scope="module")
def _state_of(tmp_path_factory):
    """The state of a case before its first step, and what its encoder has learnt, made once."""
    folder, prepared = tmp_path_factory.mktemp("files"), {}

    def make(name, seed):
        keys = {"embedding_backend": "plain", **CASES[name].get("training", {})}
        config = config_from_dict(raw_config(CASES[name], folder, **keys) | {"seed": seed})
        if name not in prepared:
            prepared[name] = prepare(config, splits=SPLITS)
        return config, training_state(config, prepared[name]), prepared[name].encoder

    return make


def _trained(state):
    """Moves every number, as training would, and gives the optimizers a past."""
    network = state.ranker.network
    constant = tuple(n for n, module in network.named_modules() if isinstance(module, FixedGate))
    moved = [t for name, t in network.state_dict().items() if not name.startswith(constant)]
    moved += state.ranker.tables.table_weights().values()
    moved += state.ranker.tables.optimizer_state().values()
    with torch.no_grad():
        for tensor in moved:
            if tensor.is_floating_point():
                tensor.add_(torch.rand_like(tensor))
    for parameter in network.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.rand_like(parameter)
    state.optimizer.step()
    if state.average is not None:
        state.average.update_parameters(network)


def _all_of(state):
    ranker = state.ranker
    found = {f"network {name}": tensor for name, tensor in ranker.network.state_dict().items()}
    found |= {f"table {name}": rows for name, rows in ranker.tables.table_weights().items()}
    found |= {f"sums {name}": sums for name, sums in ranker.tables.optimizer_state().items()}
    moments = flatten_optimizer(state.optimizer, ranker.network)
    found |= {f"moment {name}": moment for name, moment in moments.items()}
    scoring = state.scoring_network.state_dict()
    return found | {f"scoring {name}": tensor for name, tensor in scoring.items()}


def _continued(name, state_of, folder):
    config, before, encoder = state_of(name, seed=1)
    _trained(before)
    with CheckpointSaver(CheckpointFolder(folder), background=False) as saver:
        before.save(saver, best=True)
    earlier = EarlierRun(folder, config, encoder, CheckpointFolder(folder), "step-00000000")
    config, now, encoder = state_of(name, seed=2)
    return before, now, transfer(earlier, now, config, encoder)


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_lost(name, state_of, tmp_path):
    before, now, report = _continued(name, state_of, tmp_path)
    there, here = _all_of(before), _all_of(now)
    assert there.keys() == here.keys()
    assert [key for key in there if not torch.equal(there[key], here[key])] == []
    assert not report.not_carried and not report.dropped
    assert report.initialised == ["the wide part (fitted to these rows)"] * (name == "wide")


def test_what_both_runs_have_and_is_not_carried_over_is_named(state_of, tmp_path, monkeypatch):
    def forgetful(*shapes):
        found = tensor_sources(*shapes)
        return {n: s for n, s in found.items() if n != "towers.1.logit.bias"} | {
            "towers.1.logit.bias": type(found["towers.1.logit.bias"])(None)
        }

    monkeypatch.setattr(sys.modules[transfer.__module__], "tensor_sources", forgetful)
    _, _, report = _continued("plain", state_of, tmp_path)
    assert report.not_carried == ["towers.1.logit.bias"]
    assert report.lines()[-1] == "  not carried over: towers.1.logit.bias"
    assert report.not_carried == ["towers.1.logit.bias"]
