"""Gates with state and chance of their own, in whole runs: bias updates, capacities, resuming."""

import pytest
import torch

from mmoe.train.step import StepProgram

STEPS_PER_EPOCH = 8  # 3,000 rows in batches of 384


@pytest.fixture(name="train")
def _train(train, weights):
    def run(name: str, *overrides: str, **keywords) -> dict[str, torch.Tensor]:
        finished = train(name, "training.checkpoint_every_steps=5", *overrides, **keywords)
        return weights(finished.directory.path)

    return run


def test_a_bias_moves_once_a_step_and_is_saved(train):
    speed = 2**-10
    settings = ("model.gate.kind=sigmoid", "model.gate.k=1", f"model.gate.bias_speed={speed}")
    weights = train("run", *settings, "training.epochs=1")
    bias_GE = weights["network.levels.0.mixture.gate.bias_GE"]
    moves_GE = bias_GE / speed
    assert torch.equal(moves_GE, moves_GE.round())
    assert 0 < moves_GE.abs().max() <= STEPS_PER_EPOCH


@pytest.mark.parametrize(("kind", "execution"), [("switch", "auto"), ("gshard", "grouped")])
def test_runs_with_a_capacity(train, monkeypatch, kind, execution):
    """Some picks are dropped, and counted; the run trains and scores all the same."""
    dropped, real = [], StepProgram.backward

    def backward(program, step):
        real(program, step)
        dropped.append(step.found.dropped)

    monkeypatch.setattr(StepProgram, "backward", backward)
    capacity = ("model.capacity.factor=0.5", "model.capacity.priority=choice")
    settings = (f"model.gate.kind={kind}", f"model.execution={execution}", "training.epochs=1")
    weights = train("run", *settings, *capacity)
    assert all(tensor.isfinite().all() for tensor in weights.values())
    assert len(dropped) == STEPS_PER_EPOCH
    assert all(0 < count < 384 * 2 * 2 for count in dropped)


@pytest.mark.parametrize("kind", ["sigmoid", "noisy_top_k"])
def test_a_killed_run_goes_on_to_the_same_bits(train, kind, dies_after):
    """Biases are state, noise and dropout are drawn."""
    settings = (f"model.gate.kind={kind}", "model.gate.dropout=0.2", "training.epochs=2")
    whole = train("whole", *settings)
    with pytest.raises(KeyboardInterrupt):
        train("broken", *settings, reporter=dies_after(11))
    resumed = train("broken", *settings, resume=True)
    assert whole.keys() == resumed.keys()
    assert [name for name in whole if not torch.equal(whole[name], resumed[name])] == []
