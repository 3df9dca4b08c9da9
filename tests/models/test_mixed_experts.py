"""Experts and towers of somebody's, and experts of several kinds, from the config to a network."""

from typing import Literal

import pytest
import torch
import yaml
from pydantic import Field
from torch import nn

from mmoe.config import (
    EXPERTS,
    TOWERS,
    ExpertConfig,
    ModelConfig,
    TowerConfig,
    config_from_dict,
    dump_config,
)
from mmoe.mixture import ExpertPool
from mmoe.models import build_network
from mmoe.report.tables import model_line


class CrossConfig(ExpertConfig):
    kind: Literal["cross_net"] = "cross_net"
    width: int = Field(default=4, ge=1, description="of the output")


class CrossNet(nn.Module):
    def __init__(self, input_dim: int, width: int) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(input_dim, width), nn.Linear(input_dim, width)
        self.output_dim = width

    def forward(self, x):
        return self.left(x) * self.right(x)


class DotConfig(TowerConfig):
    kind: Literal["dot"] = "dot"


class Dot(nn.Module):
    def __init__(self, input_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(input_dim))

    def forward(self, h):
        return h @ self.weight


@pytest.fixture(autouse=True)
def kinds():
    EXPERTS.add("cross_net", CrossConfig, CrossNet)
    TOWERS.add("dot", DotConfig, Dot)
    yield
    EXPERTS.remove("cross_net")
    TOWERS.remove("dot")


MIXED = [{"kind": "mlp", "count": 3, "hidden": [8, 4]}, {"kind": "cross_net", "count": 2}]


def _raw(**model):
    return {
        "features": [{"kind": "numeric", "name": "age"}],
        "tasks": [{"name": "click", "label": "click"}],
        "model": model,
    }


@pytest.mark.parametrize("gate", ["softmax", "top_k"])
def test_a_mixed_pool_is_its_kinds_apart(gate):
    torch.manual_seed(0)
    model = ModelConfig(experts=MIXED, gate={"kind": gate}, execution="grouped")
    assert model.num_experts == 5
    network = build_network(model, 6, ["click", "buy"]).eval()
    mlp, mine = network.levels[0].mixture.experts.pools
    x = torch.randn(20, 6)
    out = network(x, return_gates=True)
    outputs = torch.stack([*mlp.dense([x]), *mine.dense([x])], 1)
    mixed = torch.einsum("bge,beo->bgo", out.gates[0].weights_BGE, outputs)
    logits = torch.stack([network.towers[t](mixed[:, t]) for t in range(2)], 1)
    torch.testing.assert_close(out.logits_BT, logits)


@pytest.mark.parametrize("kind", ["ple", "single_task", "shared_bottom", "omoe"])
def test_one_kind_of_somebodys_for_any_model(kind):
    expert = {"kind": "cross_net", "width": 3}
    model = ModelConfig(kind=kind, expert=expert, tower={"kind": "dot"})
    network = build_network(model, 6, ["click", "buy"])
    network(torch.randn(20, 6)).logits_BT.sum().backward()
    assert all(p.grad is not None for name, p in network.named_parameters() if "towers" in name)
    assert network.towers[0].weight.shape == (3,)


def test_it_is_written_and_read_and_shown():
    config = config_from_dict(_raw(experts=MIXED))
    assert config_from_dict(yaml.safe_load(dump_config(config))) == config
    shown = "MMoE · 5 experts of 3 × 8-4 and 2 × cross_net · softmax gates · tower 64"
    assert model_line(config.model) == shown


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"experts": [{"kind": "mlp"}]}, "experts.0.count is missing"),
        ({"experts": MIXED, "num_experts": 4}, "num_experts is 4, but the counts .* add up to 5"),
        ({"experts": MIXED, "kind": "ple"}, "experts is set, but kind ple has not one pool"),
        ({"experts": MIXED, "expert": {"hidden": [4]}}, "expert and experts both say"),
        ({"expert": {"count": 3}}, "expert.count is 3, but expert says what every expert is"),
        ({"experts": [{"kind": "conv", "count": 1}]}, r"model.experts.0.kind: .*'cross_net', got"),
        ({"experts": [{"kind": "cross_net", "count": 0}]}, r"model.experts.0.count: .*got 0"),
        ({"experts": [{"kind": "cross_net", "wdith": 0}]}, r"'wdith'; did you mean 'width'"),
        ({"experts": 3}, "model.experts: .*valid list"),
        (
            {"experts": [{"kind": "cross_net", "count": 9}], "gate": {"kind": "top_k", "k": 10}},
            "gate.k is 10, but a gate of mmoe sees 9 expert",
        ),
    ],
)
def test_what_is_refused(model, message):
    with pytest.raises(ValueError, match=message):
        config_from_dict(_raw(**model))


def test_a_count_in_quotes_is_counted():
    config = config_from_dict(_raw(experts=[{**MIXED[0], "count": "3"}, MIXED[1]]))
    assert config.model.num_experts == 5


def test_widths_that_differ():
    experts = [MIXED[0], {"kind": "cross_net", "count": 1, "width": 7}]
    message = r"experts.0 \(mlp\) returns width 4, but experts.1 \(cross_net\) .* width 7"
    with pytest.raises(ValueError, match=message):
        build_network(ModelConfig(experts=experts), 6, ["click"])


class Untold(nn.Sequential):
    """Does not say how wide its output is; every other one has a layer more."""

    made = 0

    def __init__(self, input_dim: int, width: int) -> None:
        Untold.made += 1
        more = [nn.Linear(5, 5)] if Untold.made % 2 else []
        super().__init__(nn.Linear(input_dim, 5), *more, nn.Linear(5, width))


def test_modules_that_differ_stay_modules_and_their_width_is_found():
    EXPERTS.remove("cross_net")
    EXPERTS.add("cross_net", CrossConfig, Untold)
    network = build_network(ModelConfig(expert={"kind": "cross_net"}, num_experts=3), 6, ["click"])
    pool = network.levels[0].mixture.experts
    assert isinstance(pool, ExpertPool) and pool.output_dim == 4
    assert network(torch.randn(7, 6)).logits_BT.shape == (7, 1)


def test_modules_that_return_no_rows_are_named():
    class NoRows(nn.Linear):
        def __init__(self, input_dim: int, width: int) -> None:
            super().__init__(input_dim, width)
            del self.out_features

        def forward(self, x):
            return super().forward(x).sum()

    EXPERTS.remove("cross_net")
    EXPERTS.add("cross_net", CrossConfig, NoRows)
    with pytest.raises(ValueError, match="expert kind cross_net: its modules do not say how wide"):
        build_network(ModelConfig(expert={"kind": "cross_net"}, num_experts=3), 6, ["click"])
