"""Decorators that add a kind of one's own, to be named in a config as the built-in ones are.

A kind is a config class, whose keys a config may give, and what implements it. The module that
holds both is named under `imports:` in the config or by `--import`, or an installed package names
it in the entry-point group `mmoe.plugins`. Imports no torch.

Example:
    >>> from typing import Literal
    >>> import mmoe
    >>> from mmoe.config import METRICS, MetricConfig, config_from_dict
    >>> from mmoe.metrics import Column, NamedMetric
    >>> class BiasConfig(MetricConfig):
    ...     kind: Literal["bias"] = "bias"
    >>> @mmoe.register.metric("bias", BiasConfig)
    ... class Bias(NamedMetric):
    ...     higher_is_better = False
    ...     column = Column(key="bias", heading="bias", meaning="mean prediction − mean label")
    ...
    ...     def value(self, rows):
    ...         return float((rows.predictions - rows.labels).mean())
    >>> task = {"name": "click", "label": "click", "metrics": [{"kind": "bias"}]}
    >>> features = [{"kind": "numeric", "name": "age"}]
    >>> config_from_dict({"features": features, "tasks": [task]}).tasks[0].metrics
    [BiasConfig(kind='bias')]
    >>> METRICS.remove("bias")
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from mmoe.config import EXPERTS, FEATURES, GATES, METRICS, MODELS, TASKS, TOWERS
from mmoe.config.kinds import Kinds

if TYPE_CHECKING:
    from mmoe.config import (
        ExpertConfig,
        Feature,
        GateConfig,
        MetricConfig,
        ModelConfig,
        TaskConfig,
        TowerConfig,
    )
    from mmoe.metrics import TaskKind

Implementation = TypeVar("Implementation")
Decorator = Callable[[Implementation], Implementation]


def gate(kind: str, config: "type[GateConfig]") -> Decorator[Any]:
    """Adds a kind of gate; stands before a `Gate` class, or a function that returns one.

    Args:
        kind: Its name in a config.
        config: Derives from `mmoe.config.GateConfig`, or, where it takes the options of learned
            gates, from `LearnedGateConfig`; says `picks` where it picks experts. The gate is made
            of the width of its input, the numbers of gates and experts, and the keys of its section
            by their names.

    Raises:
        ValueError: Something else has this name, or the class says another one.
    """
    return _adding(GATES, kind, config)


def expert(kind: str, config: "type[ExpertConfig]") -> Decorator[Any]:
    """Adds a kind of expert; stands before a module, best one with an `output_dim`.

    Where it has none, each expert is run on one row of zeros to see how wide its output is.

    Args:
        kind: Its name in a config.
        config: Derives from `mmoe.config.ExpertConfig`. The module is made of the width of its
            input and the keys of its section; where the class says `makes_pools`, all experts are
            made at once, a pool, and their number comes first.

    Raises:
        ValueError: Something else has this name, or the class says another one.
    """
    return _adding(EXPERTS, kind, config)


def tower(kind: str, config: "type[TowerConfig]") -> Decorator[Any]:
    """Adds a kind of tower; stands before a module that maps `h_BO` to `logit_B`.

    Args:
        kind: Its name in a config.
        config: Derives from `mmoe.config.TowerConfig`. The module is made of the width of its
            input and the keys of its section.

    Raises:
        ValueError: Something else has this name, or the class says another one.
    """
    return _adding(TOWERS, kind, config)


def model(kind: str, config: "type[ModelConfig]") -> Decorator[Any]:
    """Adds a kind of model; stands before what builds its `MixtureNetwork`.

    Args:
        kind: Its name in a config.
        config: Derives from `mmoe.config.ModelConfig`, or, where gates choose among experts, from
            `GatedModelConfig` or `PoolModelConfig` (`num_experts`); its `check_tasks` may refuse
            tasks. The builder is called as `build_omoe` is: the `model` section, the width of its
            input, the tasks' names, the layout over ranks.

    Raises:
        ValueError: Something else has this name, or the class says another one.
    """
    return _adding(MODELS, kind, config)


def feature(kind: str, config: "type[Feature]") -> Decorator[Any]:
    """Adds a kind of feature; stands before its `mmoe.datasets.features.Codec`.

    Args:
        kind: Its name in a config.
        config: Derives from `mmoe.config.Feature`; has a key `name`, and says its `source_columns`.
            The codec is made of its section and the run's config; it names its numbers
            (`dense_names`) and what it looks up.

    Raises:
        ValueError: Something else has this name, or the class says another one.
    """
    return _adding(FEATURES, kind, config)


def task_kind(kind: str, config: "type[TaskConfig]", *, judge: "type[TaskKind]") -> Decorator[Any]:
    """Adds a kind of task; stands before its `mmoe.tasks.kinds.OneLogit`: loss and link.

    Args:
        kind: Its name in a config.
        config: Derives from `mmoe.config.TaskConfig`.
        judge: Derives from `mmoe.metrics.TaskKind`: which labels it takes, and how its predictions
            are judged and shown.

    Raises:
        ValueError: Something else has this name, or the class says another one.
    """
    return _adding(TASKS, kind, config, judge())


def metric(kind: str, config: "type[MetricConfig]") -> Decorator[Any]:
    """Adds a metric; stands before the `mmoe.metrics.NamedMetric` that computes it.

    Args:
        kind: Its name in a config, in metrics.json and as a `monitor`.
        config: Derives from `mmoe.config.MetricConfig`.

    Raises:
        ValueError: Something else has this name, or the class says another one.
    """
    return _adding(METRICS, kind, config)


def _adding(kinds: Kinds[Any], kind: str, config: type[Any], *more: Any) -> Decorator[Any]:
    def add(implementation: Implementation) -> Implementation:
        if kind in kinds.names() and _is_anew(config, kinds.config_class(kind)):
            kinds.remove(kind)
        kinds.add(kind, config, implementation, *more)
        return implementation

    return add


def _is_anew(config: type[Any], known: type[Any]) -> bool:
    """The same class, defined once more: a cell of a notebook was run again, a module reloaded."""
    return (config.__module__, config.__qualname__) == (known.__module__, known.__qualname__)
