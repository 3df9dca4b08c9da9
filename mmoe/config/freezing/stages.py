"""`StageConfig`: the parts that a model had before others were added to it."""

from collections.abc import Collection, Sequence

from pydantic import Field

from mmoe.config.base import Name, Strict


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
        >>> from mmoe.config.freezing.stages import domains_known_to
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
