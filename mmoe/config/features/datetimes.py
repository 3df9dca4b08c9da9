"""Features made of datetimes."""

import difflib
import re
from datetime import UTC, datetime
from typing import Annotated, Literal
from zoneinfo import available_timezones

from pydantic import AfterValidator, Field, field_validator, model_validator

from mmoe.config.base import Name
from mmoe.config.features.base import LEVEL, ColumnFeature, Level

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
# Directives of strptime that mean the same on every machine
_DIRECTIVES = "aAbBdmyYHIpMSfzj%"
_PROBE = datetime(2024, 11, 24, 13, 5, 9, tzinfo=UTC)


def _says_a_day(form: str) -> str:
    """Refuses a format that leaves year, month or day open."""
    mend = "write such as %d/%m/%Y, %m/%d/%Y %H:%M or %Y%m%d"
    for directive in re.findall(r"%(.?)", form):
        if directive not in _DIRECTIVES or not directive:
            known = " ".join(f"%{one}" for one in _DIRECTIVES)
            raise ValueError(
                f"format {form!r} holds %{directive}, expected of strptime's directives {known}; "
                f"{mend}"
            )
    try:
        read = datetime.strptime(_PROBE.strftime(form), form)
    except (ValueError, re.error) as error:
        raise ValueError(f"format {form!r} cannot be read ({error}); {mend}") from None
    if read.date() != _PROBE.date():
        raise ValueError(f"format {form!r} leaves year, month or day open; {mend}")
    return form


# How text says a datetime, in strptime's directives
DatetimeFormat = Annotated[str, AfterValidator(_says_a_day)]


class DatetimeFeature(ColumnFeature):
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
    format: DatetimeFormat | None = Field(
        default=None,
        description="how text (or a number such as 20231124) says it, such as %d/%m/%Y %H:%M in "
        "strptime's directives; default: ISO 8601",
    )
    missing_values: list[str] = Field(
        default=[], description="words that mean a missing value, such as 0000-00-00"
    )
    cyclic: bool = Field(
        default=False, description="sine and cosine of each part as inputs as well"
    )
    dim: int | None = Field(
        default=None, ge=4, le=4096, multiple_of=4, description="width of each embedding"
    )
    level: Level | None = Field(default=None, description=LEVEL)

    @property
    def text_columns(self) -> list[str]:
        """Its column, where `format` says how its text is read."""
        return [self.source_column] if self.format is not None else []

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
    def _one_way_to_read(self) -> "DatetimeFeature":
        if self.unit is not None and self.format is not None:
            raise ValueError(
                "unit (of numbers since 1970) and format (of text) both say how the column is "
                "read; remove one of them"
            )
        return self

    @model_validator(mode="after")
    def _parts_differ(self) -> "DatetimeFeature":
        for part in self.parts:
            if self.parts.count(part) > 1:
                raise ValueError(f"parts names {part!r} twice; remove one of them")
        return self
