"""Takes back kinds that tests, or blocks of chapters, have registered."""

from mmoe.config import EXPERTS, FEATURES, GATES, METRICS, MODELS, TASKS, TOWERS

NOUNS = (FEATURES, TASKS, METRICS, GATES, EXPERTS, TOWERS, MODELS)


def forget_own_kinds() -> None:
    """Leaves the built-in ones."""
    for kinds in NOUNS:
        for kind in kinds.names():
            if not kinds.config_class(kind).__module__.startswith("mmoe."):
                kinds.remove(kind)
