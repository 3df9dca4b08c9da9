"""`StageConfig`: the parts that a model had before others were added to it."""

from collections.abc import Sequence

from pydantic import Field

from mmoe.config.base import Name, Strict


class StageConfig(Strict):
    """The parts that a model had before others were added to them, frozen; `mmoe train` writes it.

    Gates of a stage see the experts of this stage and those before, and read its features alone, as
    do its experts. So they compute what they computed before, to the bit, whatever has come since.
    """

    tasks: list[Name] = Field(min_length=1, description="those there were, in their order")
    experts: list[str] = Field(
        default_factory=list,
        description="names of those there were; empty: neither experts nor gates were frozen, and "
        "all gates see all experts",
    )
    features: list[Name] = Field(min_length=1, description="those there were, in their order")
    tables: list[str] = Field(default_factory=list, description="embedding tables there were")


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
