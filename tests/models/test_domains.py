"""What rows ask of the gates of a network with domains."""

import pytest
import torch

from mmoe.config import ModelConfig, config_from_dict
from mmoe.datasets.features.domains import Domains
from mmoe.mixture import FixedGate
from mmoe.models import build_network
from mmoe.models.build import add_domains
from mmoe.models.network import NetworkDomains


def test_rows_ask_the_gates_of_tasks_that_exist_and_shared_ones():
    asked = torch.tensor([[True, True], [True, False], [True, False]])
    domains = NetworkDomains(["shop", "feed"], ["click", "buy"], asked)
    rows = domains.of(torch.zeros(3, 5), torch.tensor([0, 1, 2]).int())
    (read,) = domains.read(rows, [rows], ["click", "buy", "shared"])
    assert read.asked_BG.tolist() == [[True, True, True], [True, False, True], [True, False, True]]
    assert read.by_domain is rows.by_domain


def test_a_task_may_be_called_as_the_shared_gate_is():
    domains = NetworkDomains(["shop"], ["shared"], torch.tensor([[True], [False]]))
    rows = domains.of(torch.zeros(1, 5), torch.tensor([1]).int())
    (read,) = domains.read(rows, [rows], ["shared", "shared"])
    assert read.asked_BG.tolist() == [[False, True]]


def test_a_network_says_whether_it_has_domains():
    network = build_network(ModelConfig(num_experts=2), 5, ["click"]).eval()
    x_BD, codes_B = torch.zeros(2, 5), torch.zeros(2).int()
    with pytest.raises(ValueError, match="domains_B: expected none, as the network has no domains"):
        network(x_BD, domains_B=codes_B)
    network.domains = NetworkDomains(["a", "b"], ["click"])
    network.levels[0].mixture.gate.add_domains(2)
    with pytest.raises(ValueError, match="domains_B: expected one of each row"):
        network(x_BD)
    output = network(x_BD, return_gates=True, domains_B=codes_B)
    assert output.gates[0].domain_names == ("a", "b")
    assert output.gates[0].domains_B.tolist() == [0, 0]


def test_gates_of_somebodys_that_know_no_domains_are_refused():
    """As of a kind that was registered; `FixedGate` stands for its module."""
    config = config_from_dict(
        {
            "features": [{"kind": "numeric", "name": "price"}],
            "tasks": [{"name": "click", "label": "click"}],
            "model": {"domains": {"column": "scene"}, "num_experts": 2},
        }
    )
    network = build_network(config.model, 5, ["click"])
    network.levels[0].mixture.gate = FixedGate(torch.ones(1, 2))
    with pytest.raises(ValueError, match=r"kind softmax, whose FixedGate has none of each domain"):
        add_domains(network, config, Domains(["a", "b"]))
