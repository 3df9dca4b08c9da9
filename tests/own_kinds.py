"""What tests of many kinds share: keys of one kind, and kinds that they have registered."""

from typing import Any

from mmoe.config import EXPERTS, FEATURES, GATES, METRICS, MODELS, TASKS, TOWERS

NOUNS = (FEATURES, TASKS, METRICS, GATES, EXPERTS, TOWERS, MODELS)


def forget_own_kinds() -> None:
    """Leaves the built-in ones."""
    for kinds in NOUNS:
        for kind in kinds.names():
            if not kinds.config_class(kind).__module__.startswith("mmoe."):
                kinds.remove(kind)


def own_keys(model: dict[str, Any]) -> dict[str, Any]:
    """Returns a `model` section without the keys that its kind has not."""
    known = MODELS.config_class(model.get("kind", "mmoe")).model_fields
    return {key: value for key, value in model.items() if key in known}
