"""Features: a kind is a class with its own keys, and a line in `FEATURES`."""

from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, ModelWrapValidatorHandler, model_validator

from mmoe.config.base import Name
from mmoe.config.datetimes import DatetimeFeature
from mmoe.config.feature import Feature
from mmoe.config.kinds import Kinds
from mmoe.config.tables import TableSettings

_NAME = "of the feature, in reports and files of a run"


class NumericFeature(Feature):
    """A number: scaled, and if asked its quantile bucket's embedding and its pieces as well."""

    derived_are: ClassVar[str] = "buckets"

    kind: Literal["numeric"] = "numeric"
    name: Name = Field(description=_NAME)
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

    @property
    def source_column(self) -> str:
        """Name of the column that it is read from."""
        return self.column or self.name

    @property
    def source_columns(self) -> list[str]:
        """Names of all columns that it is read from."""
        return [self.source_column]

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


class IdFeature(TableSettings, Feature):
    """Base of features that look ids up: in a table of their own, or a shared one."""

    name: Name = Field(description=_NAME)
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

    @model_validator(mode="wrap")
    @classmethod
    def _settings_belong_to_the_table(
        cls, raw: Any, handler: ModelWrapValidatorHandler["IdFeature"]
    ) -> "IdFeature":
        feature = handler(raw)
        if feature.table is not None and isinstance(raw, Mapping):
            own = [key for key in TableSettings.model_fields if getattr(feature, key) is not None]
            inline = cls.inlines.changed(raw) + own
            if inline:
                raise ValueError(
                    f"feature {feature.name!r} uses the shared table {feature.table!r}, so "
                    f"{', '.join(inline)} must be set on that table under `tables`"
                )
        return feature


class CategoricalFeature(IdFeature):
    """One id (integer or string) a row."""

    kind: Literal["categorical"] = "categorical"
    column: str | None = Field(
        default=None, description="column in the data; default: the feature's name"
    )

    @property
    def source_column(self) -> str:
        """Name of the column that it is read from."""
        return self.column or self.name

    @property
    def source_columns(self) -> list[str]:
        """Names of all columns that it is read from."""
        return [self.source_column]


class ListFeature(CategoricalFeature):
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

    @property
    def weighted(self) -> bool:
        """Whether every id has a weight."""
        return self.weights is not None or self.weight_separator is not None

    @property
    def source_columns(self) -> list[str]:
        """Names of the column of ids, and of that of weights."""
        return [self.source_column, *([self.weights] if self.weights is not None else [])]

    @model_validator(mode="after")
    def _list_keys_agree(self) -> "ListFeature":
        if self.keep == "last" and self.max_length is None:
            raise ValueError(
                "keep is last, but no list is cut without max_length; say max_length, or remove "
                "keep"
            )
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


class VectorFeature(Feature):
    """A list of numbers, as many in every row: a pretrained embedding."""

    kind: Literal["vector"] = "vector"
    name: Name = Field(description=_NAME)
    column: str | None = Field(
        default=None, description="column in the data; default: the feature's name"
    )
    standardise: bool = Field(
        default=True,
        description="zero mean of each number on the training split, and one variance for all: "
        "1 / √length",
    )
    dim: int | None = Field(
        default=None,
        ge=1,
        le=4096,
        description="width that a linear layer projects the vector to; left out: it is read as "
        "it is",
    )

    @property
    def source_column(self) -> str:
        """Name of the column that it is read from."""
        return self.column or self.name

    @property
    def source_columns(self) -> list[str]:
        """Names of all columns that it is read from."""
        return [self.source_column]


class _Features(Kinds[Feature]):
    """Each is implemented by a `Codec`."""

    def add(self, kind: str, config_class: type[Feature], implementation: Any) -> None:
        """Makes a kind of feature known.

        Raises:
            ValueError: There is such a kind, or the class is not one of a feature of this name.
        """
        if isinstance(config_class, type) and issubclass(config_class, Feature):
            lacks = "" if "name" in config_class.model_fields else "key `name`"
            if config_class.source_columns is Feature.source_columns:
                lacks = "property `source_columns`, the columns that it is read from"
            if lacks:
                raise ValueError(
                    f"feature {kind!r}: {config_class.__name__} has no {lacks}; add it"
                )
        super().add(kind, config_class, implementation)


# Config class → codec; what is not imported here needs NumPy and PyArrow
FEATURES = _Features("feature", Feature)
FEATURES.add("numeric", NumericFeature, "mmoe.datasets.features.numeric:NumericCodec")
FEATURES.add(
    "categorical", CategoricalFeature, "mmoe.datasets.features.categorical:CategoricalCodec"
)
FEATURES.add("list", ListFeature, "mmoe.datasets.features.list:ListCodec")
FEATURES.add("cross", CrossFeature, "mmoe.datasets.features.cross:CrossCodec")
FEATURES.add("datetime", DatetimeFeature, "mmoe.datasets.features.datetime:DatetimeCodec")
FEATURES.add("vector", VectorFeature, "mmoe.datasets.features.vector:VectorCodec")

FeatureConfig = Feature  # of any kind that there is
