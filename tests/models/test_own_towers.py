"""Towers that a model computes together in a way of its own, and models without a pool."""

from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from mmoe.config import ModelConfig, TaskConfig
from mmoe.models import build_network
from mmoe.models.build import relate_tasks
from mmoe.tasks import TaskTowers

TASKS = ["click", "buy"]


class SharedWeight(TaskTowers):
    """Of each task `(w * shared) · h`, of tensors alone."""

    def __init__(self) -> None:
        super().__init__(0, 1, [])
        self.shared = nn.Parameter(torch.full((8,), 2.0))
        self.extend(nn.Linear(8, 1) for _ in TASKS)

    def forward(self, inputs) -> Tensor:
        assert all(isinstance(h_BO, Tensor) for h_BO in inputs)
        return torch.cat([t(h * self.shared) for t, h in zip(self, inputs, strict=True)], dim=1)


def network_of(**settings):
    torch.manual_seed(0)
    return build_network(ModelConfig(num_experts=2, expert={"hidden": [8]}, **settings), 4, TASKS)


def test_towers_that_share_weights_get_tensors():
    network, x_BD = network_of(execution="dense"), torch.randn(5, 4)
    mixes = [h_BO.detach() for h_BO in network.levels[0].mixture(x_BD).out_BGO.unbind(1)]
    network.towers = SharedWeight()
    assert network(x_BD).logits_BT.tolist() == network.towers(mixes).tolist()


def test_what_would_leave_their_forward_out_is_refused():
    tasks = [TaskConfig(name="click", label="click"),
             TaskConfig(name="buy", label="buy", after="click")]  # fmt: skip
    network = network_of(transfer="dbmtl", tower={"hidden": [8]})
    network.towers = SharedWeight()
    words = "transfer is dbmtl, which computes each tower by itself, but this model's are Shared"
    with pytest.raises(ValueError, match=words):
        relate_tasks(network, ModelConfig(transfer="dbmtl", tower={"hidden": [8]}), tasks)


def test_experts_of_a_model_without_a_pool_have_names():
    class OwnConfig(ModelConfig):
        kind: Literal["own"] = "own"

    assert OwnConfig.model_construct().expert_names(TASKS) == ["bottom"]
    assert ModelConfig(kind="single_task").expert_names(TASKS) == TASKS
