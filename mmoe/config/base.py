"""Base classes of config models: unknown keys are errors, values are frozen."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from mmoe.plugins import MODULE_NAME

NAME = r"^[A-Za-z_][A-Za-z0-9_\-]*$"
Name = Annotated[str, Field(pattern=NAME, max_length=200)]
ModuleName = Annotated[str, Field(pattern=MODULE_NAME, max_length=200)]


class Strict(BaseModel):
    """A config section that refuses unknown keys, so that no misspelt one passes in silence."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
