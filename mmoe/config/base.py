"""The base of every config model: unknown keys are errors, values are frozen."""

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """A config section. Unknown keys are refused, so a misspelt key never passes in silence."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
