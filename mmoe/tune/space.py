"""The search space: which keys are tried, with which values around the config's own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmoe.config import RunConfig, config_from_dict

_WIDER = (0.25, 0.5, 1, 2)
_RATES = (0.125, 0.25, 0.5, 1, 2, 4)
# Key → what its own value is multiplied with
_TIMES: Mapping[str, Sequence[float]] = {
    "training.optimizer.learning_rate": _RATES,
    "training.embedding_optimizer.learning_rate": _RATES,
    "training.batch_size": (0.25, 0.5, 1, 2, 4),
    "model.embedding_dim": (0.25, 0.5, 1, 2, 4),
    "model.expert.hidden": _WIDER,
    "model.tower.hidden": _WIDER,
    "model.num_experts": (0.5, 1, 2),
    "model.shared_experts": (0.5, 1, 2),
    "model.task_experts": (0.5, 1, 2),
}
# Key → values beside its own. The decay of adam is an L2 penalty, that of adamw shrinks weights
# by itself, and needs far larger numbers
_DECAYS: Mapping[str, Sequence[float]] = {
    "adam": (0, 1e-6, 1e-5, 1e-4, 1e-3),
    "adamw": (0, 1e-3, 1e-2, 0.1, 0.5),
}
_LISTED: Mapping[str, Sequence[float]] = {
    "model.input_dropout": (0, 0.05, 0.1, 0.2),
    "model.expert.dropout": (0, 0.1, 0.2, 0.3, 0.5),
    "model.tower.dropout": (0, 0.1, 0.3),
}
_SMALLEST: Mapping[str, int] = {"training.batch_size": 16, "model.embedding_dim": 4}
# An epoch should have so many steps, however large batches get
_STEPS = 8


@dataclass(frozen=True, kw_only=True)
class Dimension:
    """One key and the values that are tried, in order.

    Attributes:
        key: Of the config, with dots.
        values: The config's own is among them.
        own: Its place.
    """

    key: str
    values: tuple[Any, ...]
    own: int

    @property
    def name(self) -> str:
        """Its name in tables: the key without its section."""
        return self.key.partition(".")[2]


def search_space(config: RunConfig, train_rows: int | None = None) -> list[Dimension]:
    """Lists the keys to search over, with values that the config can have.

    Args:
        config: Every dimension goes around its values.
        train_rows: Batches are kept small enough for some steps an epoch; None: as many as may be.

    Example:
        >>> config = config_from_dict({
        ...     "features": [{"kind": "numeric", "name": "age"}],
        ...     "tasks": [{"name": "click", "label": "click"}]})
        >>> space = search_space(config, 100_000)
        >>> [dimension.values for dimension in space if dimension.name == "batch_size"]
        [(1024, 2048, 4096, 8192)]
        >>> any(dimension.name == "embedding_dim" for dimension in space)  # there is no table
        False
    """
    raw = config.model_dump(mode="json")
    dimensions = []
    for key in _keys(config):
        own = _get(raw, key)
        values = [value for value in _values(config, key, own, train_rows) if value != own]
        fitting = [value for value in values if _fits(config, key, value)]
        if fitting:
            together = sorted([own, *fitting])
            place = together.index(own)
            dimensions.append(Dimension(key=key, values=tuple(together), own=place))
    return dimensions


def with_values(config: RunConfig, values: Mapping[str, Any], origin: str = "tune") -> RunConfig:
    """Returns the config with other values of some keys.

    Raises:
        ValueError: They do not go together.
    """
    raw = config.model_dump(mode="json")
    for key, value in values.items():
        *sections, last = key.split(".")
        section = raw
        for name in sections:
            section = section[name]
        section[last] = value
    return config_from_dict(raw, origin)


def _keys(config: RunConfig) -> list[str]:
    """Those that the config has, and that change its model."""
    raw = config.model_dump(mode="json")
    unused: set[str] = set()
    if raw["model"].get("experts") is not None:
        unused |= {"model.num_experts", "model.expert.hidden", "model.expert.dropout"}
    tables = {name for feature in config.features for name in feature.table_names}
    if not tables:
        unused |= {key for key in _TIMES if "embedding" in key}
    keys = [*_TIMES, "training.optimizer.weight_decay", *_LISTED]
    return [key for key in keys if key not in unused and _get(raw, key) not in (None, [])]


def _values(config: RunConfig, key: str, own: Any, train_rows: int | None) -> list[Any]:
    if key == "training.optimizer.weight_decay":
        return list(_DECAYS.get(config.training.optimizer.kind, (0,)))
    if key in _LISTED:
        return list(_LISTED[key])
    values = [_times(own, factor, _SMALLEST.get(key, 1)) for factor in _TIMES[key]]
    if key == "model.embedding_dim":
        values = [max(4, value // 4 * 4) for value in values]
    if key == "training.batch_size" and train_rows is not None:
        values = [value for value in values if value * _STEPS <= train_rows]
    return [value for n, value in enumerate(values) if value not in values[:n]]


def _times(own: Any, factor: float, smallest: int) -> Any:
    if isinstance(own, list):
        return [max(4, round(width * factor)) for width in own]
    if isinstance(own, int):
        return max(smallest, round(own * factor))
    return float(f"{own * factor:.6g}")


def _fits(config: RunConfig, key: str, value: Any) -> bool:
    try:
        with_values(config, {key: value})
    except ValueError:
        return False
    return True


def _get(raw: Mapping[str, Any], key: str) -> Any:
    """The value of a key; None where the config has none."""
    found: Any = raw
    for name in key.split("."):
        if not isinstance(found, Mapping) or name not in found:
            return None
        found = found[name]
    return found
