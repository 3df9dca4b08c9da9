"""What of an earlier run is frozen, and which parts a model had before others came."""

from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from itertools import accumulate

from pydantic import Field

from mmoe.config.kinds import Name, Strict


class StageConfig(Strict):
    """The parts that a model had before others were added to them, frozen; `mmoe train` writes it.

    Gates of a stage see the experts of this stage and those before, and read its features alone, as
    do its experts; they and the towers of its tasks know its domains alone. So they compute what
    they computed before, to the bit, whatever has come since.
    """

    tasks: list[Name] = Field(min_length=1, description="those there were, in their order")
    experts: list[str] = Field(
        default_factory=list,
        description="names of those there were; empty: neither experts nor gates were frozen, and "
        "all gates see all experts",
    )
    features: list[Name] = Field(min_length=1, description="those there were, in their order")
    tables: list[str] = Field(default_factory=list, description="embedding tables there were")
    domains: list[str] | None = Field(
        default=None,
        description="domains there were, which alone its gates and own towers know; null: they "
        "know those that come as well",
    )


def stage_of(name: str, stages: Sequence[Sequence[str]]) -> int:
    """Returns the first stage that has a name; one more than the last where none has.

    Args:
        name: Of a task or an expert.
        stages: Names by stage.

    Example:
        >>> from mmoe.config.freezing import stage_of
        >>> [stage_of(name, [["click"], ["click", "like"]]) for name in ("click", "like", "buy")]
        [0, 1, 2]
    """
    return next((number for number, names in enumerate(stages) if name in names), len(stages))


def domains_known_to(
    task: str, stages: Sequence[StageConfig], domains: Sequence[str]
) -> Sequence[str]:
    """Returns the domains that the gates and the own tower of a task know.

    Args:
        task: Its name.
        stages: Of the model.
        domains: All that there are, in their order: those of a stage are the first ones.

    Example:
        >>> from mmoe.config.freezing import StageConfig
        >>> from mmoe.config.freezing import domains_known_to
        >>> stage = StageConfig(tasks=["click"], features=["user"], domains=["feed"])
        >>> [list(domains_known_to(t, [stage], ["feed", "live"])) for t in ("click", "buy")]
        [['feed'], ['feed', 'live']]
    """
    for stage in stages:
        if stage.domains is not None and task in stage.tasks:
            return stage.domains
    return domains


def check_stages(
    stages: Sequence[StageConfig], tasks: Collection[str], features: Collection[str]
) -> None:
    """Refuses stages of another config: what there was must be there, stage by stage.

    Raises:
        ValueError: Names what is missing.
    """
    behind: list[tuple[Collection[str], Collection[str]]] = [(s.tasks, s.features) for s in stages]
    for number, stage in enumerate(stages):
        later_tasks, later_features = [*behind, (tasks, features)][number + 1]
        for what, own, later in (
            ("task", stage.tasks, later_tasks),
            ("feature", stage.features, later_features),
        ):
            gone = [name for name in own if name not in later]
            if gone:
                raise ValueError(
                    f"model.stages.{number}: {what} {gone[0]!r} is not there any more, though the "
                    f"model was trained with it; bring it back, or train without --warm-start"
                )


ENCODER = "encoder"


TABLES = "tables"


# What a pattern begins with that means neither experts nor gates
_BESIDE = (
    TABLES,
    ENCODER,
    "towers",
    "inputs",
    "sequences",
    "interaction",
    "crossing",
    "transfer",
    "imputation",
    "bias",
    "bias_tower",
)


def names_part(pattern: str, name: str) -> bool:
    """Returns whether a pattern names a part that a dotted name lies in, or is.

    Example:
        >>> from mmoe.config.freezing import names_part
        >>> [names_part(p, "towers.click.mlp.weight") for p in ("towers", "towers.cl*", "*.buy")]
        [True, True, False]
    """
    return any(fnmatchcase(part, pattern) for part in accumulate(name.split("."), "{}.{}".format))


def frozen_tables(freeze: Sequence[str], stages: Sequence[StageConfig]) -> set[str]:
    """Returns the tables that were there before and are frozen.

    Example:
        >>> from mmoe.config.freezing import StageConfig
        >>> from mmoe.config.freezing import frozen_tables
        >>> stage = StageConfig(tasks=["click"], features=["user"], tables=["user", "item"])
        >>> sorted(frozen_tables(["tables"], [stage])), frozen_tables(["tables.u*"], [stage])
        (['item', 'user'], {'user'})
    """
    tables = stages[-1].tables if stages else []
    return {t for t in tables if any(names_part(pattern, f"{TABLES}.{t}") for pattern in freeze)}


def keeps_pool(freeze: Iterable[str]) -> bool:
    """Returns whether patterns may name experts or gates, so that new ones stand beside them."""
    return any(pattern.split(".")[0] not in _BESIDE for pattern in freeze)


def keeps_towers(freeze: Iterable[str]) -> bool:
    """Returns whether patterns may name towers, which then stay as they are in new domains."""
    return keeps_pool(freeze) or any(pattern.split(".")[0] == "towers" for pattern in freeze)


def unmatched(pattern: str, parts: Sequence[str]) -> ValueError:
    """Returns the error of a pattern that names nothing.

    Args:
        pattern: As somebody wrote it.
        parts: What there is, by the names that it could have had.
    """
    near = get_close_matches(pattern, parts, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return ValueError(
        f"training.freeze: {pattern!r} matches no parameter of the --warm-start run; there are: "
        f"{', '.join(parts)}{hint}"
    )
