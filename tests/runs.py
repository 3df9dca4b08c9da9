"""What tests of runs share: reporters, scores, all that a checkpoint holds, a step's gradients."""

from pathlib import Path

import numpy as np
import torch

from mmoe.checkpoint.folder import CheckpointFolder
from mmoe.run import RunDirectory
from mmoe.run.console import SilentReporter
from mmoe.score import load_predictor
from mmoe.tasks.masked_loss import TaskLosses
from mmoe.train.step import ONE_PROCESS, Step, StepProgram, backward, forward


class Listens(SilentReporter):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str, *_: object) -> None:
        self.lines.append(str(text))


class Dies(SilentReporter):
    """Raises after so many training steps, as a killed process stops there."""

    def __init__(self, after: int) -> None:
        self.left = after

    def track(self, what, total, unit, *, done=0):
        outer = self

        class Context:
            def __enter__(self):
                return self

            def __exit__(self, *_):
                return None

            def advance(self, amount, note=""):
                outer.left -= what.startswith("epoch")
                if outer.left < 0:
                    raise KeyboardInterrupt

        return Context()


def scores(run: RunDirectory | Path, rows) -> np.ndarray:
    """What a run predicts, [rows, predictions]."""
    run = run if isinstance(run, RunDirectory) else RunDirectory.open(run)
    return load_predictor(run)[0].predict(rows)


def states(run: Path) -> dict[str, torch.Tensor]:
    """Weights that score and all that training needs, but for what ranks draw and hold."""
    checkpoint = CheckpointFolder(run / "checkpoint")
    tensors = checkpoint.model("latest") | checkpoint.training("latest")
    return {n: t for n, t in tensors.items() if not n.startswith(("random_state", "placement"))}


def one_step(ranker, batches, config):
    """Losses; dense gradients and moved tables, after one step of several batches."""
    step, losses_of_tasks = Step.of(batches), TaskLosses(config.trained_tasks)
    forward(ranker, step, losses_of_tasks)
    losses = backward(step, losses_of_tasks)
    ranker.tables.step()
    found = {name: weight.grad for name, weight in ranker.network.named_parameters()}
    return losses, found | ranker.tables.table_weights()


def train_step(state, batches, config, total_steps, ranks=ONE_PROCESS):
    """Trains on one step of `batches`; returns the losses over all ranks' rows."""
    return StepProgram(state, config, total_steps, ranks).train(Step.of(batches)).found
