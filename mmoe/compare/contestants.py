"""Which models are compared: the config with another `model.kind` and seed each."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from mmoe.config import RunConfig, config_from_dict
from mmoe.config.model import MODELS

# Seeds are counted from the config's
_MOST_SEEDS = 1000


@dataclass(frozen=True, kw_only=True)
class ComparisonSettings:
    """What is compared.

    Attributes:
        models: Kinds of models; the others are judged against the first.
        seeds: How often each is trained, with the config's seed and those after it.
    """

    models: Sequence[str] = ("single_task", "shared_bottom", "mmoe", "ple")
    seeds: int = 5

    def __post_init__(self) -> None:
        if not self.models:
            raise ValueError(
                f"--models: expected kinds of models, such as {','.join(MODELS.names())}"
            )
        if not 1 <= self.seeds <= _MOST_SEEDS:
            raise ValueError(f"--seeds: expected 1 to {_MOST_SEEDS}, got {self.seeds}")
        for number, name in enumerate(self.models):
            if name in self.models[:number]:
                raise ValueError(f"--models: {name} is named twice; remove one")

    @classmethod
    def of_text(cls, models: str, seeds: int) -> "ComparisonSettings":
        """Reads kinds of models with commas between them.

        Example:
            >>> ComparisonSettings.of_text("mmoe, ple", 2).models
            ('mmoe', 'ple')
        """
        names = tuple(name.strip() for name in models.split(",") if name.strip())
        return cls(models=names, seeds=seeds)


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """A model with one config for each seed."""

    name: str
    configs: tuple[RunConfig, ...]

    def folder(self, config: RunConfig) -> str:
        """Names the run directory of one of its configs."""
        return f"{self.name}-seed-{config.seed}"


def contestants_of(config: RunConfig, settings: ComparisonSettings) -> list[Contestant]:
    """Returns the models, each with the config of every seed; nothing else differs.

    Raises:
        ValueError: There is no such kind of model, or the config does not go with it.

    Example:
        >>> config = config_from_dict({
        ...     "features": [{"kind": "numeric", "name": "age"}],
        ...     "tasks": [{"name": "click", "label": "click"}]})
        >>> settings = ComparisonSettings(models=["ple"], seeds=2)
        >>> [(one.name, [c.seed for c in one.configs]) for one in contestants_of(config, settings)]
        [('ple', [0, 1])]
    """
    if config.seed + settings.seeds > 2**32:
        raise ValueError(f"seed: {config.seed} leaves no room for {settings.seeds} seeds after it")
    contestants = []
    for name in settings.models:
        first = _of_kind(config, name)
        seeds = range(config.seed, config.seed + settings.seeds)
        configs = tuple(first.model_copy(update={"seed": seed}) for seed in seeds)
        contestants.append(Contestant(name=name, configs=configs))
    return contestants


def _of_kind(config: RunConfig, name: str) -> RunConfig:
    if name == config.model.kind:
        return config
    known = MODELS.names()
    if name not in known:
        close = get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"expected some of {', '.join(known)}"
        raise ValueError(f"--models: there is no model {name!r}; {hint}")
    raw = config.model_dump(mode="json")
    known = MODELS.config_class(name).model_fields
    theirs = {key: value for key, value in raw["model"].items() if key in known}
    raw["model"] = theirs | {"kind": name}
    return config_from_dict(raw, f"--models {name}")
