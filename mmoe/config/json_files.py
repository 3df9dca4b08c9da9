"""Reads JSON files of a run into the shape they must have: else one line, no traceback."""

import json
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from mmoe.errors import Damaged

M = TypeVar("M", bound=BaseModel)
# Beyond any number of a run, and safe to calculate with
_LARGEST = 1e100
Number = Annotated[float, Field(ge=-_LARGEST, le=_LARGEST, allow_inf_nan=False)]


def _in_range(value: float) -> float:
    if abs(value) > _LARGEST:
        raise ValueError(f"expected a number up to {_LARGEST:g} in size")
    return value


# Also NaN: it could not be computed
Measured = Annotated[float, AfterValidator(_in_range)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, lt=2**63)]


class Stored(BaseModel):
    """Shape of a JSON file; keys that are not named may hold anything.

    Example:
        >>> class Weather(Stored):
        ...     rain: Share
        >>> check_stored({"rain": "much"}, Weather, "sky", "go")
        Traceback (most recent call last):
            ...
        mmoe.errors.Damaged: sky: is damaged (rain: Input should be a valid number, got 'much'); go
    """

    model_config = ConfigDict(extra="allow", strict=True)


def read_stored(path: Path, shape: Any, remedy: str) -> Any:
    """Reads a file's content as `json` does, when it has the shape.

    Args:
        path: The file.
        shape: A `Stored`, or any other type that pydantic checks.
        remedy: How to mend it, for the error.

    Raises:
        ValueError: The file is absent, no JSON, or holds something else; names the key.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise Damaged(path, reason[:_LONGEST], remedy) from None
    check_stored(content, shape, str(path), remedy)
    return content


def read_model(path: Path, model: type[M], remedy: str) -> M:
    """Reads a file as `read_stored` does, into the model."""
    return model.model_validate(read_stored(path, model, remedy))


def check_stored(content: Any, shape: Any, origin: str, remedy: str) -> None:
    """Refuses content that has not the shape.

    Raises:
        ValueError: Names the first key that has not.
    """
    try:
        _adapter(shape).validate_python(content, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])[:_LONGEST] or "the whole"
        got = "" if first["type"] == "missing" else f", got {_short(first['input'])}"
        raise Damaged(origin, f"{where}: {first['msg'][:_LONGEST]}{got}", remedy) from None


_LONGEST = 200


def _short(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # a whole number of thousands of digits
        return "a number of too many digits"
    return text if len(text) <= 60 else f"{text[:57]}..."


@cache
def _adapter(shape: Any) -> TypeAdapter[Any]:
    return TypeAdapter(shape)
