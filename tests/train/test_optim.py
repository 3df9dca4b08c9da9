"""Schedules at exact values, what weight decay takes, and resuming with either."""

import math

import pytest
import torch

from mmoe.config import ModelConfig, OptimizerConfig, PiecesSpec, config_from_dict, set_values
from mmoe.models import build_network
from mmoe.models.inputs import InputLayers
from mmoe.models.interactions.factorization_machine import FactorizationMachine
from mmoe.train.optim import build_average, build_optimizer, learning_rate_factor


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"warmup_steps": 4}, {0: 0.2, 1: 0.4, 3: 0.8, 4: 1.0, 99: 1.0}),
        ({"schedule": "linear"}, {0: 1.0, 25: 0.75, 100: 0.0, 120: 0.0}),
        ({"schedule": "linear", "warmup_steps": 20}, {0: 1 / 21, 20: 1.0, 60: 0.5, 100: 0.0}),
        ({"schedule": "cosine"}, {0: 1.0, 25: 0.5 + math.sqrt(0.125), 50: 0.5, 100: 0.0}),
        ({"schedule": "cosine", "final_rate": 0.1, "warmup_steps": 20}, {20: 1.0, 60: 0.55}),
        ({"schedule": "inverse_sqrt"}, {0: 1.0, 3: 0.5, 99: 0.1}),
        ({"schedule": "inverse_sqrt", "warmup_steps": 24}, {4: 0.2, 24: 1.0, 99: 0.5}),
    ],
    ids=str,
)
def test_schedules(settings, expected):
    config = OptimizerConfig.model_validate(settings)
    for step, factor in expected.items():
        assert learning_rate_factor(config, step, 100) == pytest.approx(factor, abs=1e-12), step


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimizer": {"final_rate": 0.1}}, "schedule constant does not fall to an end"),
        ({"optimizer": {"weight_decay_on": "matrices"}}, "weight_decay is 0; set it too"),
        ({"embedding_optimizer": {"kind": "sgd"}}, "kind sgd needs a learning_rate"),
        (
            {"embedding_optimizer": {"betas": [0.9, 0.99]}},
            "betas goes with kind adam, but kind is rowwise_adagrad",
        ),
        (
            {"embedding_optimizer": {"kind": "sgd", "learning_rate": 1, "eps": 1e-4}},
            "eps goes with kind .*, but kind is sgd",
        ),
        ({"embedding_optimizer": {"kind": "adam", "betas": [0.9, 1]}}, "from 0 to below 1"),
        (
            {"embedding_optimizer": {"kind": "adam"}, "embedding_backend": "torchrec"},
            "set embedding_backend: plain",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_settings_that_do_not_go_together(funnel_config, settings, message):
    raw = {**funnel_config, "training": settings}
    with pytest.raises(ValueError, match=message):
        config_from_dict(raw)


def test_default_rates_follow_the_kind(funnel_config):
    def rate(kind):
        raw = {**funnel_config, "training": {"embedding_optimizer": {"kind": kind}}}
        return config_from_dict(raw).training.embedding_optimizer.learning_rate

    assert (rate("rowwise_adagrad"), rate("adagrad"), rate("adam")) == (0.05, 0.05, 0.001)


def test_a_rate_belongs_to_the_shared_table(funnel_config):
    raw = set_values(funnel_config, ["features.user.table=t", "features.user.learning_rate=0.1"])
    raw["tables"] = [{"name": "t"}]
    with pytest.raises(ValueError, match="learning_rate must be set on that table"):
        config_from_dict(raw)


@pytest.mark.parametrize("kind", ["adam", "adamw"])
def test_one_fused_kernel_and_decay_of_matrices_alone(kind):
    model = {"expert": {"hidden": [8, 4], "norm": "layer"}, "tower": {"hidden": [4]}}
    network = build_network(ModelConfig.model_validate(model), 6, ["a", "b"])
    config = OptimizerConfig(kind=kind, weight_decay=0.1, weight_decay_on="matrices")
    optimizer = build_optimizer(network, config)
    assert all(group["fused"] for group in optimizer.param_groups)
    names = {id(weight): name for name, weight in network.named_parameters()}
    decayed, spared = (
        {names[id(weight)].removeprefix("levels.0.mixture.") for weight in group["params"]}
        for group in optimizer.param_groups
    )
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]
    assert decayed == {
        "experts.weights.0", "experts.weights.1", "gate.logits.weights.0",
        "towers.0.mlp.layers.0.weight", "towers.1.mlp.layers.0.weight",
        "towers.0.logit.weight", "towers.1.logit.weight",
    }  # fmt: skip
    assert {"experts.biases.0", "experts.norms.0.weight", "towers.0.logit.bias"} < spared
    assert len(decayed) + len(spared) == len(names)


def test_resume_continues_bit_identically(train, tmp_path, assert_same, dies_after):
    settings = (
        "training.embedding_optimizer.kind=adam",
        "training.optimizer.schedule=inverse_sqrt",
        "training.optimizer.weight_decay=0.1",
        "training.optimizer.weight_decay_on=matrices",
        "training.epochs=2",
        "training.checkpoint_every_steps=5",
        "training.optimizer.warmup_steps=8",
        "features.item.learning_rate=0.01",
    )
    train("whole", *settings)
    with pytest.raises(KeyboardInterrupt):
        train("broken", *settings, reporter=dies_after(11))
    train("broken", *settings, resume=True)
    assert_same(tmp_path / "whole", tmp_path / "broken")


def test_rates_follow_the_schedule_in_both_parts(train, tmp_path, weights):
    """A schedule whose first rate is tiny leaves both parts almost where they began."""
    slow = ("training.epochs=1", "training.batch_size=1500")
    with pytest.raises(ValueError, match=r"warmup_steps is 2, but training has only 2 steps;"):
        train("refused", *slow, "training.optimizer.warmup_steps=2")
    assert not (tmp_path / "refused").exists()
    train("full", *slow)
    train("warm", *slow, "training.optimizer.warmup_steps=1")
    full, warm = weights(tmp_path / "full"), weights(tmp_path / "warm")
    for name in ("tables.item", "network.towers.0.logit.weight"):
        assert not torch.equal(full[name], warm[name]), name


def test_the_average_of_a_short_run_follows_the_weights():
    layer = torch.nn.Linear(1, 1, bias=False)
    average = build_average(layer, 0.999)
    expected, seen = None, []
    for n in range(30):
        torch.nn.init.constant_(layer.weight, float(n))
        average.update_parameters(layer)
        # The first step's weights are taken as they are
        decay = min(0.999, (1 + n) / (10 + n))
        expected = float(n) if expected is None else decay * expected + (1 - decay) * n
        seen.append(float(average.module.weight.detach()))
        assert seen[-1] == pytest.approx(expected, rel=1e-5)
    assert seen[-1] > 20


def test_the_average_reads_the_same_columns():
    """Places are whole numbers: averaged with themselves some would be rounded down."""
    network = build_network(ModelConfig(kind="ple"), 2, ["click"])
    network.interaction = FactorizationMachine(range(0, 64, 4), 4, 1)
    network.inputs = InputLayers(
        [PiecesSpec(name=f"x{n}", first=n, pieces=4, missing=True) for n in range(64)]
    )
    average = build_average(network, 0.999)
    for _ in range(30):
        average.update_parameters(network)
    own, averaged = dict(network.named_buffers()), dict(average.module.named_buffers())
    assert {name for name in own if not torch.equal(own[name], averaged[name])} == set()
    assert own["interaction.columns_C"].equal(torch.arange(64))
