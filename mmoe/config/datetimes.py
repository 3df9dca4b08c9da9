"""Features made of datetimes."""

import difflib
from typing import Literal
from zoneinfo import available_timezones

from pydantic import Field, field_validator, model_validator

from mmoe.config.base import Name
from mmoe.config.feature import Feature

Part = Literal[
    "minute",
    "hour",
    "weekday",
    "hour_of_week",
    "day",
    "day_of_year",
    "week",
    "month",
    "quarter",
]
TimeUnit = Literal["s", "ms", "us", "ns"]
_NO_ZONES = {"localtime", "Factory"}  # another one on every machine; none


class DatetimeFeature(Feature):
    """Parts of a datetime: hour, weekday, …, each looked up in a small table of its own."""

    kind: Literal["datetime"] = "datetime"
    name: Name = Field(description="of the feature, in reports and files of a run")
    column: str | None = Field(
        default=None, description="column in the data; default: the feature's name"
    )
    parts: list[Part] = Field(min_length=1, description="each becomes a feature NAME__PART")
    timezone: str = Field(
        default="UTC",
        description="whose clock and calendar are read, such as Europe/Berlin; datetimes without a "
        "zone are UTC, dates stay the days they are",
    )
    unit: TimeUnit | None = Field(
        default=None, description="of numbers since 1970; text and timestamps say it themselves"
    )
    cyclic: bool = Field(
        default=False, description="sine and cosine of each part as inputs as well"
    )
    dim: int | None = Field(
        default=None, ge=4, le=4096, multiple_of=4, description="width of each embedding"
    )

    @property
    def source_column(self) -> str:
        """Name of the column that it is read from."""
        return self.column or self.name

    @property
    def source_columns(self) -> list[str]:
        """Names of all columns that it is read from."""
        return [self.source_column]

    @property
    def derived_names(self) -> list[str]:
        """Names of the features and tables of its parts."""
        return [f"{self.name}__{part}" for part in self.parts]

    @field_validator("timezone")
    @classmethod
    def _is_a_zone(cls, name: str) -> str:
        if name == "UTC":  # also where no time zones are installed
            return name
        known = available_timezones() - _NO_ZONES
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f" (did you mean {close[0]!r}?)" if close else ""
            raise ValueError(
                f"there is no time zone {name!r}{hint}; expected a name of the IANA database, "
                "such as Europe/Berlin"
            )
        return name

    @model_validator(mode="after")
    def _parts_differ(self) -> "DatetimeFeature":
        for part in self.parts:
            if self.parts.count(part) > 1:
                raise ValueError(f"parts names {part!r} twice; remove one of them")
        return self
