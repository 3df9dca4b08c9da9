"""Gates with state and chance of their own, in whole runs: bias updates, saving, resuming."""

import pytest
import torch

from mmoe.train.step import StepProgram

STEPS_PER_EPOCH = 8  # 3,000 rows in batches of 384


@pytest.fixture(name="train")
def _train(train, weights):
    def run(name: str, *overrides: str, resume: bool = False) -> dict[str, torch.Tensor]:
        finished = train(name, "training.checkpoint_every_steps=5", *overrides, resume=resume)
        return weights(finished.directory.path)

    return run


def _dying_after(steps: int, monkeypatch) -> None:
    real, left = StepProgram.forward, [steps]

    def forward(program, step):
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        real(program, step)

    monkeypatch.setattr(StepProgram, "forward", forward)


def test_a_bias_moves_once_a_step_and_is_saved(train):
    speed = 2**-10
    settings = ("model.gate.kind=sigmoid", "model.gate.k=1", f"model.gate.bias_speed={speed}")
    weights = train("run", *settings, "training.epochs=1")
    bias_GE = weights["network.levels.0.mixture.gate.bias_GE"]
    moves_GE = bias_GE / speed
    assert torch.equal(moves_GE, moves_GE.round())
    assert 0 < moves_GE.abs().max() <= STEPS_PER_EPOCH


@pytest.mark.parametrize("kind", ["sigmoid", "noisy_top_k"])
def test_resume_continues_bit_identically(train, monkeypatch, kind):
    settings = (f"model.gate.kind={kind}", "model.gate.dropout=0.2", "training.ema_decay=0.9")
    whole = train("whole", *settings)
    with monkeypatch.context() as patch:
        _dying_after(18, patch)
        with pytest.raises(KeyboardInterrupt):
            train("broken", *settings)
    resumed = train("broken", *settings, resume=True)
    assert whole.keys() == resumed.keys()
    for name in whole:
        assert torch.equal(whole[name], resumed[name]), name


@pytest.mark.parametrize(
    ("kind", "execution"), [("switch", "auto"), ("gshard", "padded"), ("gshard", "grouped")]
)
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
    dropped.clear()
    train("without", *settings[:1], "training.epochs=1")
    assert set(dropped) == {None}
