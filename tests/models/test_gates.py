"""From the gate section to a gate, and through a step of training."""

import inspect

import pytest
import torch

from mmoe.config import GateConfig, ModelConfig
from mmoe.mixture import update_biases
from mmoe.mixture.gates.learned import GateSettings
from mmoe.models import build_network
from mmoe.models.sections import build_gate

OWN = {
    "softmax": {},
    "top_k": {"k": 3, "softmax": "before"},
    "noisy_top_k": {"k": 3, "importance_loss": 0.2, "load_loss": 0.3},
    "switch": {"jitter": 0.1},
    "gshard": {},
    "cosine": {"k": 3, "projection_dim": 7, "softmax": "before"},
    "sigmoid": {"k": 3, "normalize": False, "bias_speed": 0.5},
    "dselect_k": {"k": 3, "gamma": 2.0, "entropy_loss": 0.2, "code_loss": 0.3},
    "static": {"k": 3, "softmax": "before"},
}
COMMON = {
    "temperature": 2.0,
    "dropout": 0.2,
    "z_loss": 0.3,
    "balance_loss": 0.4,
    "balance_scope": "all",
}


@pytest.mark.parametrize("kind", OWN)
def test_every_setting_arrives(kind):
    hidden = {} if kind == "static" else {"hidden": [6]}
    model = ModelConfig(gate={"kind": kind, **hidden, **OWN[kind], **COMMON})
    gate = build_gate(model, 5, 2, 8)
    for name, value in OWN[kind].items():
        if name != "projection_dim":
            assert getattr(gate, name) == value, name
    assert {name: getattr(gate.options, name) for name in COMMON} == COMMON
    assert list(gate.options.hidden) == hidden.get("hidden", [])


def test_dselect_k_per_task():
    gate = build_gate(ModelConfig(gate={"kind": "dselect_k", "per_sample": False}), 5, 2, 8)
    assert gate.codes_GKM.shape == (2, 2, 3)


@pytest.mark.parametrize("kind", OWN)
def test_defaults_are_the_gates_own(kind):
    """They are written twice, since the config imports no torch."""
    gate = build_gate(ModelConfig(gate={"kind": kind}), 5, 2, 8)
    config = GateConfig(kind=kind)
    assert config.keywords().keys() >= {"temperature", "dropout"}
    for name, parameter in inspect.signature(type(gate)).parameters.items():
        if name in type(config).model_fields and parameter.default is not inspect.Parameter.empty:
            assert getattr(config, name) == parameter.default, name
    balanced = GateSettings(balance_loss=0.01) if kind in ("switch", "gshard") else GateSettings()
    assert list(gate.options.hidden) == []
    for name in COMMON:
        assert getattr(gate.options, name) == getattr(balanced, name), name


@pytest.mark.parametrize(
    ("kind", "model_kind"), [*((kind, "mmoe") for kind in OWN), ("top_k", "ple")]
)
def test_a_network_trains_with_it(kind, model_kind):
    torch.manual_seed(0)
    model = ModelConfig(
        kind=model_kind,
        **({"num_experts": 6} if model_kind == "mmoe" else {}),
        expert={"hidden": [8]},
        tower={"hidden": []},
        gate={"kind": kind, "dropout": 0.1, "z_loss": 0.01, "balance_loss": 0.01},
    )
    network = build_network(model, 5, ["click", "buy"])
    optimizer = torch.optim.Adam(network.parameters(), lr=0.03)
    x = torch.randn(256, 5)
    labels = (x[:, :2] * x[:, 2:4] > 0).float()
    losses = []
    for _ in range(25):
        output = network(x)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(output.logits_BT, labels)
        losses.append(float(loss.detach()))
        optimizer.zero_grad()
        (loss + sum(output.auxiliary_losses.values())).backward()
        optimizer.step()
        update_biases(network)
    assert {name.split(".")[0] for name in output.auxiliary_losses} <= {"level1", "level2"}
    assert "level1.balance_loss" in output.auxiliary_losses
    assert losses[-1] < 0.9 * losses[0]
    network.eval()
    (record, *_) = network(x, return_gates=True).gates
    assert (record.weights_BGE >= 0).all()
    assert network(x).auxiliary_losses == {}
