"""What one step of training leaves."""

from mmoe.tasks.masked_loss import TaskLosses
from mmoe.train.step import ONE_PROCESS, Step, StepProgram, backward, forward


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
