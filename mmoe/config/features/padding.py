"""`PaddedLists`: keys of features whose lists are padded to one length."""

from typing import Literal

from pydantic import Field, model_validator

from mmoe.config.features.base import Feature

PaddingValue = int | float | str


class PaddedLists(Feature):
    """Keys that say which items of a padded list are padding: a value, a length or a mask.

    Only the run at one end is padding; it is removed before lists are cut to `max_length`.
    """

    padding: PaddingValue | list[PaddingValue] | None = Field(
        default=None,
        description="a value, or several, that lists are padded with; removed at one end alone; "
        '"" stands for items that are empty',
    )
    padding_side: Literal["left", "right"] | None = Field(
        default=None,
        description="the end with the padding; default: either one, and a row with padding at both "
        "ends is refused",
    )
    length: str | None = Field(
        default=None, description="column with the number of items that are no padding"
    )
    mask: str | None = Field(
        default=None,
        description="column of lists with a 1 for each item, and a 0 where it is padding",
    )

    @property
    def padding_values(self) -> list[PaddingValue]:
        """The values of `padding`, [] where there are none."""
        if self.padding is None:
            return []
        return self.padding if isinstance(self.padding, list) else [self.padding]

    @property
    def padding_columns(self) -> list[str]:
        """Names of the columns that say which items are padding."""
        return [column for column in (self.length, self.mask) if column is not None]

    @model_validator(mode="after")
    def _one_way_to_say_it(self) -> "PaddedLists":
        said = [key for key in ("padding", "length", "mask") if getattr(self, key) is not None]
        if len(said) > 1:
            raise ValueError(
                f"{' and '.join(said)} each say which items are padding; remove all but one"
            )
        if self.padding == []:
            raise ValueError("padding names no value; name one, or remove it")
        if self.padding_side is not None and not said:
            raise ValueError(
                "padding_side has no effect without padding, length or mask; add one of them, or "
                "remove it"
            )
        return self
