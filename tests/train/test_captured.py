"""Passes captured as CUDA graphs: here with calls in the place of replays; on a GPU: test_cuda."""

import pytest
import torch

from mmoe.config import config_from_dict, set_values
from mmoe.train.cuda import CapturedPass, network_pass
from mmoe.train.fit import training_state
from mmoe.train.prepare import prepare

CPU = torch.device("cpu")
PICKS = ("model.gate.kind=top_k", "model.gate.k=2", "model.gate.balance_loss=0.1")
KINDS = {
    "softmax": (),
    "balance loss": PICKS,
    "capacity": (*PICKS, "model.capacity.factor=0.5"),
    "sigmoid": ("model.gate.kind=sigmoid", "model.gate.k=2", "model.gate.bias_speed=0.1"),
}


@pytest.fixture
def begun(funnel_config, splits):
    """A state in training mode, its config, and two batches, of which one is lower."""

    def begin(*overrides):
        keys = ["model.expert.dropout=0", "training.batch_size=64", *overrides]
        config = config_from_dict(set_values(funnel_config, keys))
        data = prepare(config, splits=splits)
        state = training_state(config, data, CPU)
        state.train_mode()
        return state, config, [data.train.held.batch(slice(0, rows)) for rows in (64, 9)]

    return begin


@pytest.fixture
def calls(monkeypatch):
    """How high the batches were that went through a graph."""
    found = []

    def make_graphed_callables(module, sample, *, allow_unused_input):
        assert allow_unused_input
        for _ in range(4):  # warming up, and capturing
            module(*sample)

        def graph(*read):
            found.append(len(read[0]))
            return module(*read)

        return graph

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", make_graphed_callables)
    return found


@pytest.mark.parametrize("overrides", KINDS.values(), ids=KINDS)
def test_it_is_the_pass_of_the_ranker(overrides, begun, calls):
    state, config, batches = begun(*overrides)
    ranker = state.ranker
    before = {name: buffer.clone() for name, buffer in ranker.network.named_buffers()}

    captured = CapturedPass(ranker, config)

    for name, buffer in ranker.network.named_buffers():
        assert torch.equal(buffer, before[name]), name
    for batch in batches:
        lookups = ranker.look_up(batch)
        output, expected = captured(batch, lookups), ranker(batch, lookups)
        assert torch.equal(output.logits_BT, expected.logits_BT)
        assert output.auxiliary_losses == expected.auxiliary_losses
        assert output.dropped == expected.dropped
    assert calls == [64]  # the lower one is the ranker's


def test_capturing_draws_no_number_of_the_run(begun, calls):
    state, config, _ = begun("model.expert.dropout=0.5")
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)

    CapturedPass(state.ranker, config)

    assert torch.equal(torch.rand(2), expected)


@pytest.mark.parametrize(
    "overrides", [(), ("training.cuda_graphs=false",), ("training.accumulate_batches=2",)]
)
def test_the_ranker_itself_runs_on_a_cpu(overrides, begun, calls):
    state, config, _ = begun(*overrides)
    found = network_pass(state.ranker, config, 640, pytest.fail)
    assert found is state.ranker and not calls
