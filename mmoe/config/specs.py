"""What a model needs to know of the data: tables, features that look them up, input layers."""

from dataclasses import dataclass
from typing import Literal

from mmoe.config.encoders import SequenceEncoderConfig
from mmoe.config.tables import ManagedIds


@dataclass(frozen=True, kw_only=True, slots=True)
class FeatureSpec:
    """A feature that looks ids up, after fitting: its table and how its ids are pooled.

    Attributes:
        pooling: Σ e, or Σ e / n over a row's n ids; none: the n embeddings as they are, one event
            of a sequence each.
        weighted: Σ w·e with the batch's weights of ids. A weighted mean is such a sum as well: the
            encoder has divided each row's weights by their sum, so `pooling` is sum.
    """

    name: str
    table: str
    pooling: Literal["sum", "mean", "none"]
    weighted: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class SequenceSpec:
    """A sequence, after fitting: whose ids its events are, and what makes a vector of them.

    Attributes:
        events: Features with pooling none; a row has as many ids of each. Their embeddings side by
            side are an event.
        gap: Another one, the time since an event, of the width of all; None: times are not known.
        targets: Features of one id, the candidate's; a pair with `events`; may be empty.
        max_length: Most events of a row.
        unpooled: How many of the latest are read as they are.
        encoder: What makes a vector of them.
    """

    name: str
    events: tuple[str, ...]
    gap: str | None
    targets: tuple[str, ...]
    max_length: int
    unpooled: int
    encoder: SequenceEncoderConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class TableSpec:
    """An embedding table, after fitting: `num_rows` rows of width `dim`.

    With `managed`, batches carry raw ids, and the embeddings turn them into rows.
    `learning_rate` is None where the table is trained at the rate of all tables. `ids`: its rows
    stand for ids, not for buckets of numbers or parts of datetimes. `frozen`: they are never moved.
    `initial_scale` multiplies the range that they are drawn from.
    """

    name: str
    num_rows: int
    dim: int
    managed: ManagedIds | None = None
    learning_rate: float | None = None
    ids: bool = False
    frozen: bool = False
    initial_scale: float = 1.0

    @property
    def decays(self) -> bool:
        """Whether a decay of rows is meant for it: not where rows change hands, or never move."""
        return self.ids and self.managed is None and not self.frozen


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelSpec:
    """A task's label, after fitting: its weighted statistics over the rows that train the task.

    A model learns `(label − center) / scale`; all statistics below are of these targets. The ones
    of a task that is observed after an event are conditional on it.

    Attributes:
        center: In the label's units; 0 where it is not shifted.
        scale: Likewise; 1 where it is not scaled.
        mean: Of the targets.
        deviation: Of the targets.
        positive: Share of the targets above 0.
        log_mean: Mean logarithm of the targets above 0.
        log_deviation: Deviation of these logarithms.
        shares: Share of each of the task's levels, for kinds that have levels.
    """

    center: float = 0.0
    scale: float = 1.0
    mean: float = 0.0
    deviation: float = 0.0
    positive: float = 0.0
    log_mean: float = 0.0
    log_deviation: float = 0.0
    shares: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ProjectionSpec:
    """A feature whose dense columns a linear layer projects, after fitting.

    Attributes:
        name: Of the feature.
        first: Number of the first of its columns among all dense ones.
        width: How many columns it has.
        dim: Width that they are projected to.
    """

    name: str
    first: int
    width: int
    dim: int

    @property
    def columns(self) -> list[str]:
        """Names of the columns that stand in their place."""
        return [f"{self.name} projected[{i}]" for i in range(self.dim)]


@dataclass(frozen=True, kw_only=True, slots=True)
class PiecesSpec:
    """A number that the network expands into pieces, after fitting: piecewise linear encoding.

    Attributes:
        name: Of the feature.
        first: Number of the dense column with its position among the pieces; −1 where it is
            missing.
        pieces: How many it has; 0 where all training rows have one value.
        missing: Has it a column that says that it is missing?
    """

    name: str
    first: int
    pieces: int
    missing: bool

    @property
    def width(self) -> int:
        """How many dense columns it has: its position."""
        return 1

    @property
    def columns(self) -> list[str]:
        """Names of the columns that it becomes, that of missing numbers last."""
        names = [f"{self.name} piece[{i}]" for i in range(self.pieces)]
        return names + [f"{self.name}[missing]"] * self.missing


InputLayerSpec = ProjectionSpec | PiecesSpec
