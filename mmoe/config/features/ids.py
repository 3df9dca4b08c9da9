"""Features of ids: one a row, a list, a cross of columns."""

from collections.abc import Collection
from typing import Literal

from pydantic import Field, model_validator

from mmoe.config.base import Name
from mmoe.config.features.base import (
    LEVEL,
    NAME_OF_FEATURE,
    OUTSIDE,
    ColumnFeature,
    Feature,
    Level,
    Outside,
)
from mmoe.config.features.padding import PaddedLists
from mmoe.config.tables import TableSettings, VectorTable


class IdFeature(TableSettings, Feature):
    """Base of features that look ids up: in a table of their own, or a shared one."""

    name: Name = Field(description=NAME_OF_FEATURE)
    table: Name | None = Field(default=None, description="a table of `tables` to share")

    @property
    def table_name(self) -> str:
        """Name of the table that is looked up."""
        return self.table or self.name

    @property
    def table_names(self) -> list[str]:
        """Names of the tables that are looked up: one."""
        return [self.table_name]

    def check_tables(self, shared: Collection[str]) -> None:
        """Refuses a shared table that is not under `tables`, and an own one that is."""
        if self.table is not None and self.table not in shared:
            raise ValueError(
                f"feature {self.name!r} names the table {self.table!r}, which is not "
                f"under `tables`; there: {', '.join(sorted(shared)) or 'none'}"
            )
        if self.table is None and self.name in shared:
            raise ValueError(
                f"feature {self.name!r} and a shared table have the same name; "
                f"rename the table, or say `table: {self.name}` in the feature"
            )

    @model_validator(mode="after")
    def _settings_belong_to_the_table(self) -> "IdFeature":
        if self.table is not None:
            encoding = self.table_encoding
            inline = [key for key, value in encoding if value != encoding.default_of(key)]
            keys = ("dim", "learning_rate", "vectors")
            inline += [key for key in keys if getattr(self, key, None) is not None]
            if inline:
                raise ValueError(
                    f"feature {self.name!r} uses the shared table {self.table!r}, so "
                    f"{', '.join(inline)} must be set on that table under `tables`"
                )
        return self


class CategoricalFeature(VectorTable, IdFeature, ColumnFeature):
    """One id (integer or string) a row."""

    kind: Literal["categorical"] = "categorical"
    column: str | None = Field(
        default=None, description="column in the data; default: the feature's name"
    )
    beyond: list[str] = Field(
        default_factory=list,
        description="written by `mmoe train` with training.extend_ids: tables whose ids have no "
        "row here, but share that of unseen ones",
    )
    level: Level | None = Field(default=None, description=LEVEL)


class ListFeature(PaddedLists, CategoricalFeature):
    """Any number of ids a row, pooled into one embedding, with a weight for each if there are.

    Without weights the embedding is Σ e (sum) or Σ e / n (mean); with weights w, none of them
    negative, Σ w·e or Σ w·e / Σ w, and 0 where all weights are 0.
    """

    kind: Literal["list"] = "list"  # type: ignore[assignment]  # pydantic discriminator
    pooling: Literal["sum", "mean"] = Field(
        default="mean", description="what becomes of a row's embeddings"
    )
    separator: str = Field(
        default="|", min_length=1, description="between ids where the column is text"
    )
    format: Literal["separated", "json"] = Field(
        default="separated",
        description="of lists in text: items with the separator between them, or lists as JSON, "
        'Python or NumPy write them: ["a", "b"], [1 2]',
    )
    max_length: int | None = Field(
        default=None, ge=1, le=2**31 - 1, description="most ids kept of a list"
    )
    keep: Literal["first", "last"] = Field(
        default="first", description="which ids of a list that is longer than max_length"
    )
    weights: str | None = Field(
        default=None,
        description="column with a number for each id: lists, or text with the same separator",
    )
    weight_separator: str | None = Field(
        default=None, min_length=1, description="between an id and its weight: `sports:0.7`"
    )

    outside: Outside = Field(
        default="clip",
        description="of weights, and of the number of ids that a sum is over: " + OUTSIDE,
    )

    @property
    def weighted(self) -> bool:
        """Whether every id has a weight."""
        return self.weights is not None or self.weight_separator is not None

    @property
    def source_columns(self) -> list[str]:
        """Names of the column of ids, and of those of weights and of padding."""
        weights = [self.weights] if self.weights is not None else []
        return [self.source_column, *weights, *self.padding_columns]

    @model_validator(mode="after")
    def _list_keys_agree(self) -> "ListFeature":
        if self.keep == "last" and self.max_length is None:
            raise ValueError(
                "keep is last, but no list is cut without max_length; say max_length, or remove "
                "keep"
            )
        if self.outside == "keep" and not self.weighted and self.pooling == "mean":
            raise ValueError("outside is keep, but a mean has no weights here; remove outside")
        if self.weights is not None and self.weight_separator is not None:
            raise ValueError(
                "weights and weight_separator both say where the weights are; remove one of them"
            )
        if self.weights is not None and self.weights == self.source_column:
            raise ValueError(
                f"weights names the column of the ids, {self.weights!r}; name the column of "
                "numbers, or say weight_separator where ids and weights share a column"
            )
        if self.weight_separator is not None and self.separator in self.weight_separator:
            raise ValueError(
                f"weight_separator {self.weight_separator!r} holds the separator "
                f"{self.separator!r}, so lists would be cut inside their items; use another"
            )
        return self


class CrossFeature(IdFeature):
    """The ids of several columns together as one id: user × hour, ad × position.

    It is missing where one of its columns is. The order of the columns matters.
    """

    kind: Literal["cross"] = "cross"
    columns: list[str] = Field(min_length=2, max_length=16, description="two or more")
    level: Level | None = Field(default=None, description=LEVEL)

    @property
    def source_columns(self) -> list[str]:
        """Names of all columns that it is read from."""
        return self.columns

    @property
    def id_columns(self) -> int:
        """Number of columns that one of its ids is made of: all."""
        return len(self.columns)

    @model_validator(mode="after")
    def _columns_differ(self) -> "CrossFeature":
        for column in self.columns:
            if self.columns.count(column) > 1:
                raise ValueError(f"columns names {column!r} twice; a cross needs different ones")
        return self
