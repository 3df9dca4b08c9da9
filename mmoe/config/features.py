"""Features and the embedding tables they look up."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from mmoe.config.base import Strict

Name = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_\-]*$", max_length=200)]


class TableSettings(Strict):
    """How ids become rows of an embedding table, and how wide the rows are."""

    encoding: Literal["vocabulary", "hash"] = Field(
        default="vocabulary",
        description="vocabulary: the ids seen in training get a row each; "
        "hash: every id is hashed into hash_size rows",
    )
    min_count: int = Field(
        default=1, ge=1, description="ids seen less often share the row of unseen ids"
    )
    hash_size: int = Field(
        default=100_000, ge=2, le=2**31 - 8, description="rows, where encoding is hash"
    )
    dim: int | None = Field(
        default=None,
        ge=4,
        le=4096,
        multiple_of=4,  # FBGEMM reads rows in vectors of four
        description="embedding width; default model.embedding_dim",
    )

    @model_validator(mode="after")
    def _counts_need_a_vocabulary(self) -> "TableSettings":
        if self.encoding == "hash" and self.min_count != 1:
            raise ValueError(
                f"min_count is {self.min_count}, but encoding hash counts no ids; remove it, "
                "or say encoding: vocabulary"
            )
        return self


class TableConfig(TableSettings):
    """A named table that several features share (`table: NAME` in each of them)."""

    name: Name


class NumericFeature(Strict):
    """A number: scaled, and optionally looked up in a table of quantile buckets as well."""

    kind: Literal["numeric"] = "numeric"
    name: Name
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

    @property
    def source_column(self) -> str:
        """The column it is read from."""
        return self.column or self.name


class CategoricalFeature(TableSettings):
    """One id (integer or string) a row."""

    kind: Literal["categorical"] = "categorical"
    name: Name
    column: str | None = None
    table: Name | None = Field(default=None, description="a table of `tables` to share")

    @property
    def source_column(self) -> str:
        """The column it is read from."""
        return self.column or self.name

    @model_validator(mode="after")
    def _settings_belong_to_the_table(self) -> "CategoricalFeature":
        if self.table is not None:
            inline = [
                key
                for key, field in TableSettings.model_fields.items()
                if getattr(self, key) != field.default
            ]
            if inline:
                raise ValueError(
                    f"feature {self.name!r} uses the shared table {self.table!r}, so "
                    f"{', '.join(inline)} must be set on that table under `tables`"
                )
        return self


class ListFeature(CategoricalFeature):
    """Any number of ids a row, pooled into one embedding."""

    kind: Literal["list"] = "list"  # type: ignore[assignment]  # pydantic discriminator
    pooling: Literal["sum", "mean"] = "mean"
    separator: str = Field(
        default="|", min_length=1, description="between ids where the column is text"
    )
    max_length: int | None = Field(
        default=None, ge=1, description="keep the first ids of longer lists"
    )


FeatureConfig = Annotated[
    NumericFeature | CategoricalFeature | ListFeature, Field(discriminator="kind")
]
