"""`NumericFeature`: a number."""

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from mmoe.config.base import Name
from mmoe.config.features.base import (
    LEVEL,
    NAME_OF_FEATURE,
    OUTSIDE,
    ColumnFeature,
    Level,
    Outside,
)


class NumericFeature(ColumnFeature):
    """A number: scaled, and if asked its quantile bucket's embedding and its pieces as well."""

    derived_are: ClassVar[str] = "buckets"

    kind: Literal["numeric"] = "numeric"
    name: Name = Field(description=NAME_OF_FEATURE)
    column: str | None = Field(
        default=None, description="column in the data; default: the feature's name"
    )
    log: bool = Field(default=False, description="sign(x)·log(1 + |x|) before scaling")
    standardise: bool = Field(
        default=True, description="zero mean, unit variance on the training split"
    )
    buckets: int = Field(
        default=0,
        ge=0,
        le=10_000,
        description="quantile buckets embedded beside the number; 0 = none",
    )
    dim: int | None = Field(
        default=None, ge=4, le=4096, multiple_of=4, description="width of the bucket embedding"
    )
    # A position among 1,000 keeps 14 bits behind the point as float32
    pieces: int | None = Field(
        default=None,
        ge=2,
        le=1000,
        description="piecewise linear encoding beside the number: a column for each piece between "
        "quantiles, from −0.5 to 0.5 as the number goes through it",
    )
    decimal: Literal[".", ","] = Field(
        default=".", description="decimal mark of numbers in text: `,` in 1.234,50"
    )
    thousands: Literal[",", ".", " ", "'"] | None = Field(
        default=None,
        description="what parts thousands of numbers in text: `,` in 1,234.50; ' ' is any blank",
    )
    unit: str | None = Field(
        default=None,
        min_length=1,
        description="before or behind numbers in text: $, EUR, kg; a number may go without it, but "
        "not without %",
    )
    missing_values: list[int | float | str] = Field(
        default=[], description="numbers and words that mean a missing value: [-999, unknown]"
    )
    outside: Outside = Field(default="clip", description=OUTSIDE)
    level: Level | None = Field(default=None, description=LEVEL)

    @property
    def text_columns(self) -> list[str]:
        """Its column, where a key says how its text is read."""
        written = (self.decimal, self.thousands, self.unit) != (".", None, None)
        return [self.source_column] if written else []

    @property
    def bucket_name(self) -> str:
        """Name of the feature and table that embed the number's bucket."""
        return f"{self.name}__bucket"

    @property
    def derived_names(self) -> list[str]:
        """Names of further features and tables that it makes."""
        return [self.bucket_name] if self.buckets else []

    @model_validator(mode="after")
    def _marks_differ(self) -> "NumericFeature":
        if self.decimal == self.thousands:
            raise ValueError(
                f"decimal and thousands are both {self.decimal!r}; a number such as 1,234.50 has "
                "decimal: '.' and thousands: ','"
            )
        if self.unit is not None and (any(map(str.isdigit, self.unit)) or not self.unit.strip()):
            raise ValueError(f"unit {self.unit!r}: expected what is no number, such as $ or kg")
        return self
