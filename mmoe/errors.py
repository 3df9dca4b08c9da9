"""Exceptions that callers tell apart by their class."""


class Diverged(ValueError):
    """A loss, a weight or a prediction is no finite number."""


WHAT_TO_CHANGE = (
    "lower training.optimizer.learning_rate or that of the tables "
    "(training.embedding_optimizer.learning_rate), or set training.gradient_clip"
)
