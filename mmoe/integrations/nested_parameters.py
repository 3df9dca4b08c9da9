"""Config keys as parameters of an estimator: `model__gate__kind` is `model.gate.kind`."""

from collections.abc import Mapping
from typing import Any

from mmoe.config import RunConfig


def split_parameters(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parts parameters into an estimator's own, and keys of the config with their values.

    Example:
        >>> split_parameters({"epochs": 3, "model__gate__kind": "top_k"})
        ({'epochs': 3}, {'model.gate.kind': 'top_k'})
    """
    own: dict[str, Any] = {}
    keys: dict[str, Any] = {}
    for name, value in given.items():
        if "__" in name and name.partition("__")[0] in RunConfig.model_fields:
            keys[name.replace("__", ".")] = value
        else:
            own[name] = value
    return own, keys


def as_parameters(settings: Any) -> dict[str, Any]:
    """Returns values of config keys as parameters; nothing where they are none.

    Example:
        >>> as_parameters({"model.gate.kind": "top_k", "seed": 2})
        {'model__gate__kind': 'top_k'}
    """
    if not isinstance(settings, Mapping):
        return {}
    nested = {key: value for key, value in settings.items() if "." in str(key)}
    return {key.replace(".", "__"): value for key, value in nested.items()}
