"""When labels are final: windows such as 7d, the rows' times, and the end of the log."""

import re
from datetime import UTC, date, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from mmoe.config.base import Strict
from mmoe.config.features.datetimes import DatetimeFormat, TimeUnit

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_LONGEST = 36_500 * _SECONDS["d"]  # far below where microseconds leave 64 bits
_WRITTEN = re.compile(r"\s*(\d{1,12}(?:\.\d{1,9})?)\s*([smhdw])\s*")


def _is_window(given: Any) -> str:
    """Refuses what is no number with a unit, in words that say how one is written."""
    found = _WRITTEN.fullmatch(given) if isinstance(given, str) else None
    if found is None:
        raise ValueError(
            f"expected a number with a unit (s, m, h, d or w), such as 7d or 36h, got {given!r}"
        )
    seconds = float(found[1]) * _SECONDS[found[2]]
    if not 0 < seconds <= _LONGEST:
        raise ValueError(f"expected more than 0s and at most 36500d, got {given!r}")
    return f"{found[1]}{found[2]}"


def microseconds(window: str) -> int:
    """Returns the length of a window in microseconds.

    Example:
        >>> microseconds("90m") == 90 * 60 * 1_000_000
        True
    """
    found = _WRITTEN.fullmatch(window)
    assert found is not None, "a config holds no others"
    return round(float(found[1]) * _SECONDS[found[2]] * 1_000_000)


def _as_text(given: Any) -> Any:
    """YAML reads 2024-01-31 as a date, and 2024-01-31T00:00:00 as a datetime."""
    return given.isoformat() if isinstance(given, date) else given


def _is_moment(text: str) -> str:
    try:
        moment_of(text)
    except ValueError:
        raise ValueError(f"expected a datetime such as 2024-01-31T00:00, got {text!r}") from None
    return text


def moment_of(text: str) -> int:
    """Returns microseconds since 1970 of a datetime in ISO 8601; without a zone it is UTC.

    Raises:
        ValueError: It is none.

    Example:
        >>> moment_of("1970-01-02T00:00"), moment_of("1970-01-01T01:00+01:00")
        (86400000000, 0)
    """
    read = datetime.fromisoformat(text.strip())
    since = (read if read.tzinfo else read.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


Window = Annotated[str, BeforeValidator(_is_window)]
Moment = Annotated[str, BeforeValidator(_as_text), AfterValidator(_is_moment)]


class TimeConfig(Strict):
    """When each row happened, and when its labels were collected: for `matures_after` of tasks."""

    column: str | None = Field(
        default=None,
        min_length=1,
        description="of each row's time; default: the column of a split by time or day",
    )
    unit: TimeUnit | None = Field(
        default=None,
        description="of numbers since 1970; default: told by their size, from 1973 on; text and "
        "timestamps say it themselves",
    )
    format: DatetimeFormat | None = Field(
        default=None,
        description="how text (or a number such as 20231124) says it, such as %d/%m/%Y %H:%M; "
        "default: that of the split where the column is the split's, else ISO 8601",
    )
    as_of: Moment | None = Field(
        default=None,
        description="when the labels were collected, such as 2024-01-31T00:00 (UTC); default: the "
        "newest time of all rows",
    )

    @model_validator(mode="after")
    def _one_way_to_read(self) -> "TimeConfig":
        if self.unit is not None and self.format is not None:
            raise ValueError(
                "unit (of numbers since 1970) and format (of text) both say how the column is "
                "read; remove one of them"
            )
        return self
