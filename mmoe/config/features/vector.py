"""`VectorFeature`: a list of numbers."""

from typing import Literal

from pydantic import Field

from mmoe.config.base import Name
from mmoe.config.features.base import (
    LEVEL,
    NAME_OF_FEATURE,
    OUTSIDE,
    ColumnFeature,
    Level,
    Outside,
)


class VectorFeature(ColumnFeature):
    """A list of numbers, as many in every row: a pretrained embedding."""

    kind: Literal["vector"] = "vector"
    name: Name = Field(description=NAME_OF_FEATURE)
    column: str | None = Field(
        default=None, description="column in the data; default: the feature's name"
    )
    standardise: bool = Field(
        default=True,
        description="zero mean of each number on the training split, and one variance for all: "
        "1 / √length",
    )
    dim: int | None = Field(
        default=None,
        ge=1,
        le=4096,
        description="width that a linear layer projects the vector to; left out: it is read as "
        "it is",
    )
    outside: Outside = Field(default="clip", description=OUTSIDE)
    level: Level | None = Field(default=None, description=LEVEL)
