"""What one step of training leaves."""

from mmoe.train.forward_backward import Step, backward, forward


def one_step(ranker, batches, config):
    """Losses; dense gradients and moved tables, after one step of several batches."""
    step = Step.of(batches)
    forward(ranker, step, config)
    losses = backward(step, config)
    ranker.tables.step()
    found = {name: weight.grad for name, weight in ranker.network.named_parameters()}
    return losses, found | ranker.tables.table_weights()
