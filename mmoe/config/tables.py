"""Tables, and encodings: how ids become rows. One is a class, and a line in `ENCODINGS`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from mmoe.config.experts import SequenceEncoderConfig
from mmoe.config.kinds import HasKinds, Kinds, Name, Strict


class TableVectors(Strict):
    """A file of vectors by id, with which rows of a table begin, to stay so or to be trained."""

    path: str = Field(
        min_length=1,
        description="Parquet (or what else data.path takes) with a column of ids and one of lists "
        "of numbers, or .safetensors; a file, folder, glob or fsspec address",
    )
    id: str | None = Field(
        default=None,
        description="column of ids; of safetensors a tensor of whole numbers [N], without which "
        "a row's number, from 0, is its id",
    )
    vector: str = Field(
        default="vector", description="column of lists of numbers; of safetensors a tensor [N, dim]"
    )
    frozen: bool = Field(
        default=False,
        description="rows are never moved, and have no optimizer state; else they are trained as "
        "others, and the vectors are where they begin",
    )
    scale: Literal["standard", "unit", "keep"] = Field(
        default="standard",
        description="standard: mean 0 and variance 1 / √dim of each number over the file, as a "
        "feature of kind vector has them; unit: length 1; keep: as they are",
    )
    ids: Literal["all", "seen"] | None = Field(
        default=None,
        description="all: ids of the file that training has not seen have rows too, for rows to "
        "come; seen: they share that of unseen ids. Default: all where frozen, else seen",
    )
    least_share: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="of the ids of training, that have to have a vector; fewer are an error",
    )

    @property
    def takes_all_ids(self) -> bool:
        """Whether ids that are in the file alone have rows."""
        return self.frozen if self.ids is None else self.ids == "all"


@dataclass(frozen=True, kw_only=True, slots=True)
class ManagedIds:
    """Coming and going of a table's ids; the keys of `TableSettings` with encoding managed.

    Attributes:
        rows: Ids that have a row at a time, at most.
        admit_after: Times that an id has to come before it gets one.
        evict: Rule by which ids make room.
        evict_every: Training steps of a window, at whose end rows change hands.
    """

    rows: int
    admit_after: int = 1
    evict: Literal["lfu", "lru", "distance_lfu"] = "distance_lfu"
    evict_every: int = 100


class TableEncoding(HasKinds):
    """Encoding of ids to a table's rows; its keys stand beside those of a feature or table."""

    # Keys that may change without giving a row another meaning
    free: ClassVar[frozenset[str]] = frozenset()
    why_not: ClassVar[Mapping[str, str]] = {
        "max_rows": "encoding {kind} has as many rows as it is told, whatever comes; remove it, or "
        "say encoding: vocabulary",
        "min_count": "encoding {kind} counts no ids; remove it, or say encoding: vocabulary",
    }
    # Of the range that rows are drawn from: next to nothing where training may never touch some
    initial_scale: ClassVar[float] = 1.0

    encoding: Any = Field(
        description="vocabulary: the ids seen in training get a row each; "
        "hash: every id is hashed into hash_size rows; "
        "managed: ids get one of `rows` rows while training goes on, and lose it when others "
        "need it more (TorchRec's managed collisions, ZCH). The keys of each stand beside this one"
    )

    if TYPE_CHECKING:

        def __init__(self, **keys: Any) -> None: ...

    # Whether ids that training did not see share one row
    lists_ids: ClassVar[bool] = False

    @property
    def least_seen(self) -> int:
        """Times that training has to see an id for a row of its own."""
        return 1

    @property
    def shares_rare(self) -> bool:
        """Whether ids that training saw too rarely may share a row."""
        return False

    @property
    def managed(self) -> ManagedIds | None:
        """Rule by which ids come and go in training; None: rows are those of the encoder."""
        return None

    def meaning(self) -> dict[str, object]:
        """Returns what says which row an id has."""
        return self.model_dump(exclude=set(self.free))


class VocabularyEncoding(TableEncoding):
    """The ids seen in training get a row each."""

    free = frozenset({"min_count", "max_rows"})
    lists_ids = True

    encoding: Literal["vocabulary"] = "vocabulary"
    # Rows are counted in 64 bits
    min_count: Annotated[int, Field(ge=1, le=2**62)] | Literal["auto"] = Field(
        default=1,
        description="ids seen less often share the row of unseen ids; auto: 20 where ids repeat so "
        "rarely that most rows, held out of training, would have unseen ones, else 1",
    )
    max_rows: int | None = Field(
        default=None,
        ge=1,
        le=2**31 - 8,
        description="more ids with a row of their own than this are an error",
    )

    @property
    def least_seen(self) -> int:
        """Returns `min_count`; of `auto`, which training rows decide, the least that it may be."""
        return 1 if self.min_count == "auto" else self.min_count

    @property
    def shares_rare(self) -> bool:
        """Returns whether `min_count` may be above 1."""
        return self.min_count != 1


class HashEncoding(TableEncoding):
    """Hashes every id into one of `hash_size` rows."""

    # Not 0: with nothing but hashed ids, ReLU would have no slope and no row would ever move
    initial_scale = 2.0**-20

    encoding: Literal["hash"] = "hash"
    hash_size: int = Field(default=100_000, ge=2, le=2**31 - 8, description="rows")


class ManagedEncoding(TableEncoding):
    """Ids get one of `rows` rows while training goes on, and lose it when others need it more."""

    free = frozenset({"admit_after", "evict", "evict_every"})

    encoding: Literal["managed"] = "managed"
    rows: int | None = Field(
        default=None, ge=2, le=2**31 - 8, description="how many ids own a row at one time"
    )
    admit_after: int = Field(
        default=1,
        ge=1,
        le=2**62,
        description="ids share the row of unseen ids until they were seen so often; of those that "
        "wait the last `rows` sightings are remembered",
    )
    evict: Literal["lfu", "lru", "distance_lfu"] = Field(
        default="distance_lfu",
        description="who loses the row to a new id. lfu: the least often seen; lru: the longest "
        "not seen; distance_lfu: the lowest count / (1 + windows since it was seen)",
    )
    evict_every: int = Field(
        default=100,
        ge=1,
        description="steps of a window; at its end rows are given and taken (the first windows are "
        "shorter: they end after steps 1, 2, 4, 8, …). Its ids are held in memory",
    )

    @property
    def managed(self) -> ManagedIds:
        """Its keys."""
        return ManagedIds(**self.model_dump(exclude={"encoding"}))

    def _ensure_has_rows(self) -> None:
        if self.rows is None:
            raise ValueError(
                "encoding managed needs `rows`: how many ids own a row at one time; add rows: N"
            )


# Config class → what turns ids into rows, once it has seen those of training
ENCODINGS = Kinds("encoding", TableEncoding, default="vocabulary", key="encoding")
ENCODINGS.add("vocabulary", VocabularyEncoding, "mmoe.datasets.features.id_map:Vocabulary")
ENCODINGS.add("hash", HashEncoding, "mmoe.datasets.features.id_map:HashRule")
ENCODINGS.add("managed", ManagedEncoding, "mmoe.datasets.features.id_map:ManagedRule")


class TableSettings(Strict):
    """Encoding of ids to rows of an embedding table, and the rows' width.

    The keys of its encoding stand beside its own, and come first when it is written.

    Example:
        >>> settings = TableSettings(encoding="hash", hash_size=64, dim=8)
        >>> settings.table_encoding
        HashEncoding(encoding='hash', hash_size=64)
        >>> settings.model_dump()
        {'encoding': 'hash', 'hash_size': 64, 'dim': 8, 'learning_rate': None}
    """

    dim: int | None = Field(
        default=None,
        ge=4,
        le=4096,
        multiple_of=4,  # FBGEMM reads rows in vectors of four
        description="embedding width; default model.embedding_dim",
    )
    learning_rate: float | None = Field(
        default=None,
        gt=0,
        description="of this table; default training.embedding_optimizer.learning_rate. The "
        "schedule multiplies it too",
    )

    _encoding: TableEncoding = PrivateAttr()

    if TYPE_CHECKING:

        def __init__(self, **keys: Any) -> None: ...

    @property
    def table_encoding(self) -> TableEncoding:
        """Encoding of ids to rows."""
        return self._encoding

    @model_validator(mode="wrap")
    @classmethod
    def _read_encoding(cls, raw: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Makes the encoding of its keys, so that errors name them where they stand."""
        if not isinstance(raw, Mapping):
            return handler(raw)
        theirs = ENCODINGS.all_keys()
        encoding = ENCODINGS.validate({key: raw[key] for key in raw if key in theirs})
        settings = handler({key: raw[key] for key in raw if key not in theirs})
        settings._encoding = encoding
        return settings._checked()

    @model_validator(mode="after")
    def _run_checks(self) -> Self:
        """Waits: the encoding is not there yet, which a check may ask for."""
        return self

    @model_serializer(mode="wrap")
    def _write(
        self, handler: SerializerFunctionWrapHandler, info: SerializationInfo
    ) -> dict[str, Any]:
        exclude: Any = info.exclude
        return self._encoding.model_dump(mode=info.mode, exclude=exclude) | handler(self)


class VectorTable(TableSettings):
    """Settings of a table whose ids are those of one column, so that a file may have vectors."""

    vectors: TableVectors | None = Field(
        default=None,
        description="embeddings from elsewhere: a file of vectors by id, with which rows begin; "
        "`dim` is then their width, rounded up to a multiple of 4",
    )


class TableConfig(VectorTable):
    """A named table that several features share (`table: NAME` in each of them)."""

    name: Name = Field(description="by which features name it")


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
    """An embedding table, after fitting.

    Attributes:
        name: Of the table.
        num_rows: Those that stand for missing and unseen ids are among them.
        dim: Width of a row.
        managed: How its ids come and go: batches carry raw ids, and the embeddings turn them into
            rows. None: batches carry rows.
        learning_rate: None: that of all tables.
        ids: Rows stand for ids, not for buckets of numbers or parts of datetimes.
        frozen: Rows are never moved.
        initial_scale: Multiplies the range that rows are drawn from.
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

    A model learns `(label − center) / scale`, or `(ψ(that) − shift) / spread` with a curve ψ
    (`mmoe.datasets.labels.targets`); the mean, the deviation and what follows them are of these
    targets. The ones of a task that is observed after an event are conditional on it.

    Attributes:
        center: In the label's units; 0 where it is not shifted.
        scale: Likewise; 1 where it is not scaled.
        mean: Of the targets.
        deviation: Of the targets.
        positive: Share of the targets above 0.
        log_mean: Mean logarithm of the targets above 0.
        log_deviation: Deviation of these logarithms.
        shares: Share of each of the task's levels, for kinds that have levels.
        power: Of the curve; 1: none.
        shift: Of the curved label.
        spread: Of the curved label.
        low: The least prediction; None: there is none.
        high: The largest; None: there is none.
        residuals: Of targets, over which predictions are a mean; none: there is no curve, or no row
            beside those of training.
    """

    center: float = 0.0
    scale: float = 1.0
    mean: float = 0.0
    deviation: float = 0.0
    positive: float = 0.0
    log_mean: float = 0.0
    log_deviation: float = 0.0
    shares: tuple[float, ...] = ()
    power: float = 1.0
    shift: float = 0.0
    spread: float = 1.0
    low: float | None = None
    high: float | None = None
    residuals: tuple[float, ...] = ()


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
        """Number of dense columns: its position."""
        return 1

    @property
    def columns(self) -> list[str]:
        """Names of the columns that it becomes, that of missing numbers last."""
        names = [f"{self.name} piece[{i}]" for i in range(self.pieces)]
        return names + [f"{self.name}[missing]"] * self.missing


InputLayerSpec = ProjectionSpec | PiecesSpec
