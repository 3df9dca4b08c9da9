"""Tasks with several outcomes: classes without an order, levels in one."""

from typing import Any, Literal

from pydantic import Field, StrictInt, StrictStr, model_validator

from mmoe.config.tasks.base import TaskConfig

_MOST_LEVELS = 100


class MulticlassTask(TaskConfig):
    """One of several classes, each with a probability."""

    kind: Literal["multiclass"] = "multiclass"
    classes: list[StrictInt | StrictStr] = Field(
        min_length=2,
        max_length=10_000,
        description="values of the label, text or whole numbers; probabilities are the columns "
        "pred_NAME_CLASS, and pred_NAME is the likeliest class",
    )

    @property
    def further(self) -> list[str]:
        """Probabilities of the classes."""
        return [str(name) for name in self.classes]

    @property
    def outcomes(self) -> list[Any]:
        """The classes, all text unless all are numbers."""
        if all(isinstance(name, int) for name in self.classes):
            return list(self.classes)
        return self.further

    @property
    def levels(self) -> list[float]:
        """Numbers of the classes."""
        return [float(number) for number in range(len(self.classes))]

    @property
    def meaning(self) -> dict[str, Any]:
        """The classes: they are logits."""
        return {"classes": self.classes}

    @model_validator(mode="after")
    def _classes_differ(self) -> "MulticlassTask":
        names = self.further
        for name in self.classes:
            if isinstance(name, int) and abs(name) > 2**53:  # labels are read as float64
                raise ValueError(
                    f"classes has {name}, but whole numbers are told apart up to 2^53 alone; write "
                    "such classes, and the label's column, as text"
                )
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"classes name {', '.join(map(repr, twice))} twice; remove one")
        return self


class OrdinalTask(TaskConfig):
    """Levels in an order, whole numbers such as ratings from 1 to 5."""

    kind: Literal["ordinal"] = "ordinal"
    lowest: int = Field(ge=-(2**24), le=2**24, description="level of the label, such as 1")
    highest: int = Field(
        ge=-(2**24),
        le=2**24,
        description=f"level of the label, such as 5; at most {_MOST_LEVELS} levels. pred_NAME is "
        "the expected one, pred_NAME_LEVEL each one's probability",
    )

    @property
    def further(self) -> list[str]:
        """Probabilities of the levels."""
        return [str(level) for level in range(self.lowest, self.highest + 1)]

    @property
    def levels(self) -> list[float]:
        """The levels."""
        return [float(level) for level in range(self.lowest, self.highest + 1)]

    @property
    def meaning(self) -> dict[str, Any]:
        """The levels: there is a threshold between each and the next."""
        return {"lowest": self.lowest, "highest": self.highest}

    @model_validator(mode="after")
    def _there_are_levels(self) -> "OrdinalTask":
        if not 0 < self.highest - self.lowest < _MOST_LEVELS:
            raise ValueError(
                f"lowest is {self.lowest} and highest {self.highest}; expected 2 to "
                f"{_MOST_LEVELS} levels, the lowest first"
            )
        return self
