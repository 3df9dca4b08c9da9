"""`Feature`: what a run asks of a feature of any kind."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from mmoe.config.kinds import HasKinds

NAME_OF_FEATURE = "of the feature, in reports and files of a run"
LEVEL = (
    "with data.requests, whose value it is: request, the same for all candidates of one and "
    "computed once for them; or row. Default: row; with data.requests.candidates that of its column"
)
Level = Literal["request", "row"]
Outside = Literal["clip", "keep"]
OUTSIDE = (
    "numbers more than one width of training's range below or above it: clip takes them as that "
    "end, keep as they are; what never varied in training stays what it was either way"
)


class Feature(HasKinds):
    """What a run asks of a feature of any kind; a kind overrides what differs.

    It says its `source_columns`, and has a key `name`; `dim` where it looks tables up whose width
    may be chosen; `level` where it may be of a request.
    """

    if TYPE_CHECKING:  # each kind has them at its own place in the run's files
        kind: Any
        name: Any
        dim: Any
        level: Any

    derived_are: ClassVar[str] = "parts"  # what `derived_names` are names of, in an error

    @property
    def asked_level(self) -> Level | None:
        """Its key `level`; None where it has none, or leaves it to the data."""
        return self.level if "level" in type(self).model_fields else None

    @property
    def source_columns(self) -> list[str]:
        """Names of all columns that it is read from."""
        raise NotImplementedError

    @property
    def text_columns(self) -> list[str]:
        """Names of those whose text it reads in a way of its own, so that it has to stay text."""
        return []

    @property
    def derived_names(self) -> list[str]:
        """Names of further features and tables that it makes."""
        return []

    @property
    def table_names(self) -> list[str]:
        """Names of the embedding tables that it looks up."""
        return self.derived_names

    @property
    def id_columns(self) -> int:
        """Number of columns that one of its ids is made of."""
        return 1

    def check_tables(self, shared: Collection[str]) -> None:
        """Refuses tables under `tables` that it does not go with."""

    def check_among(self, features: "Sequence[Feature]") -> None:
        """Refuses features of a run, this one among them, that it does not go with."""


class ColumnFeature(Feature):
    """A feature of one column: that of its key `column`, or of its own name."""

    if TYPE_CHECKING:
        column: Any

    @property
    def source_column(self) -> str:
        """Name of the column that it is read from."""
        return self.column or self.name

    @property
    def source_columns(self) -> list[str]:
        """Names of all columns that it is read from."""
        return [self.source_column]
