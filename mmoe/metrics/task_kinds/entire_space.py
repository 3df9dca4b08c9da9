"""Entire space: a binary task that happens only after another one, trained over all rows."""

from mmoe.metrics.task_kinds.binary import Binary


class EntireSpace(Binary):
    """Consequence of an event: a probability given the event, judged where it happened."""

    weighs_unobserved = True  # without the event, both are known not to have happened
