"""Codecs: what a kind of feature makes of columns of a file, for a network and a run's files."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar

import numpy as np
import pyarrow as pa
from pydantic import Field

from mmoe.config import (
    Feature,
    FeatureSpec,
    InputLayerSpec,
    Level,
    ProjectionSpec,
    RunConfig,
    SequenceSpec,
    TableSpec,
)
from mmoe.datasets.rows.encoded import EncodedFeatures
from mmoe.datasets.values.columns import to_numbers

Finite = Annotated[float, Field(allow_inf_nan=False)]  # in files
Rules = dict[str, dict[str, Any]]  # section of encoder.json → feature or table → what was learnt
FeatureT = TypeVar("FeatureT", bound=Feature)
# Numbers are clipped so many widths of training's range below its lowest and above its highest
MARGIN = 1.0


class Section:
    """Section of encoder.json: what training rows taught, by feature or by table.

    Attributes:
        name: Its key in the file.
        entry: What one entry looks like, a type that pydantic checks.
        rule: Dataclass whose fields are an entry's keys; None: the entry itself is the rule.
        tells_apart: Do its rules tell encoders apart? Not where the last bits of numbers may
            differ from machine to machine.
    """

    name: str
    entry: Any = Any
    rule: Any = None
    tells_apart: bool = True

    def __init__(self, name: str = "", entry: Any = None, *, tells_apart: bool = True) -> None:
        if name:  # nothing but these; else a class of its own says them
            self.name, self.entry, self.tells_apart = name, entry, tells_apart

    def write(self, rule: Any, folder: Path, stem: str) -> Any:
        """Returns an entry as plain JSON; writes what is large into a file of `folder`."""
        return asdict(rule) if is_dataclass(rule) and not isinstance(rule, type) else rule

    def read(self, entry: Any, folder: Path) -> Any:
        """Reads what `write` wrote; lists as tuples."""
        read = _with_tuples(entry)
        if self.rule is None:
            return read
        return self.rule(**{f.name: read[f.name] for f in fields(self.rule) if f.name in read})

    def marks(self, rules: dict[str, Any]) -> Iterator[bytes | memoryview]:
        """Yields what tells encoders of different rows apart, cheaply, on any machine alike."""
        if rules and self.tells_apart:
            yield repr(rules).encode()


def _with_tuples(entry: Any) -> Any:
    if isinstance(entry, dict):
        return {key: _with_tuples(value) for key, value in entry.items()}
    return tuple(map(_with_tuples, entry)) if isinstance(entry, list) else entry


@dataclass(frozen=True, kw_only=True)
class Coded:
    """Encoded rows of one feature, N of them.

    Attributes:
        dense: For each of the codec's `dense_columns` float32 [N], or several together [N, k].
        ids: For each of its `lookups` int32 [N]; int64 where ids are raw.
        lists: For each of its `lists` ids [V], offsets int64 [N + 1], and float32 weights [V] where
            ids have weights.
        outside_N: bool, rows that hold what training never did, which was encoded as what it had;
            None: there are none.
    """

    dense: Sequence[np.ndarray] = ()
    ids: Sequence[np.ndarray] = ()
    lists: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray | None]] = ()
    outside_N: np.ndarray | None = None


@dataclass(frozen=True, kw_only=True)
class LookedUp:
    """N rows of something looked up, for the baselines: ids and lists in one form.

    Attributes:
        ids: [V], rows of a table.
        offsets: int64 [N + 1].
        num_rows: Ids are below.
        weights: float [V], 1 where ids have none.
        rank: Number of each id in its key's order; None where ids have that order, or none.
        is_list: Has a row any number of ids?
    """

    ids: np.ndarray
    offsets: np.ndarray
    num_rows: int
    weights: np.ndarray
    rank: np.ndarray | None = None
    is_list: bool = False

    @classmethod
    def single(cls, ids_N: np.ndarray, num_rows: int, rank: np.ndarray | None = None) -> "LookedUp":
        """Makes it of one id a row."""
        offsets, weights_N = np.arange(len(ids_N) + 1), np.ones(len(ids_N))
        return cls(ids=ids_N, offsets=offsets, num_rows=num_rows, weights=weights_N, rank=rank)


class Codec(ABC, Generic[FeatureT]):
    """One feature of a run. It holds settings alone; what was learnt is in `rules`.

    A new kind is a codec in a file of its own and a config class, tied by a line in
    `mmoe.config.features`, or from outside by `mmoe.register.feature`. It says `tables` and
    `encode`; the names of what `encode` returns are `dense_names` (or `dense_columns`, where
    training rows decide how many there are), `lookups` and `lists`.

    Its methods are given the same things by the same names: `table`, N rows with the user's
    columns; `origin`, what the user calls the data, for errors; `fit`, what `start` returned;
    `rules`, what all features have learnt. A column that is missing, or a value that does not fit,
    is a `ValueError` that names file, column and row.

    Args:
        feature: Its settings.
        config: The run that it is a feature of.
    """

    sections: ClassVar[tuple[Section, ...]] = ()  # where its rules are kept
    content: str = "ids"  # what a row of its tables stands for
    long_tailed: ClassVar[bool] = True  # linear models take the logarithm of its numbers
    counts_times: ClassVar[bool] = False  # `add` counts rows that stand for several (`times_of`)
    by_cell: ClassVar[bool] = False  # a row's code follows from its cells of `source_columns` alone
    knows_range: ClassVar[bool] = False  # its rule says what a constant of training becomes
    # Settings that may change without giving weights another meaning (`dim` is compared by table)
    free: ClassVar[frozenset[str]] = frozenset({"name", "column", "dim", "level"})

    def __init__(self, feature: FeatureT, config: RunConfig) -> None:
        self.feature, self.config = feature, config
        self.used_by = f"feature {feature.name!r}"
        own = feature.dim if "dim" in type(feature).model_fields else None
        self.dim: int = own or config.model.embedding_dim

    @classmethod
    def of(cls, feature: FeatureT, config: RunConfig) -> "list[Codec[Any]]":
        """Makes the codecs of a feature: one, or one for each of its parts."""
        return [cls(feature, config)]

    # What it makes

    @property
    def dense_names(self) -> list[str]:
        """Names of the numbers that enter the network as they are."""
        return []

    def dense_columns(self, rules: Rules) -> list[str]:
        """Returns the same, where what was learnt says how many there are."""
        return self.dense_names

    @property
    def projected_to(self) -> int | None:
        """Width that a linear layer of the network projects them to; None: none does."""
        return None

    def input_layers(self, rules: Rules, first: int) -> list[InputLayerSpec]:
        """Returns the network's own layers over its numbers; none where it reads them unchanged.

        Args:
            rules: What was learnt.
            first: Number of the first of its `dense_columns` among all dense ones.
        """
        if self.projected_to is None:
            return []
        width, name = len(self.dense_columns(rules)), self.feature.name
        return [ProjectionSpec(name=name, first=first, width=width, dim=self.projected_to)]

    @property
    def lookups(self) -> list[FeatureSpec]:
        """Names of what is looked up with one id a row."""
        names = self.feature.derived_names
        return [FeatureSpec(name=name, table=name, pooling="sum") for name in names]

    @property
    def lists(self) -> list[FeatureSpec]:
        """Names of what is looked up with any number of ids a row."""
        return []

    @property
    def sequences(self) -> list[SequenceSpec]:
        """Lists that are events, and what becomes of them."""
        return []

    def tables(self, rules: Rules) -> list[TableSpec]:
        """Returns the embedding tables; default: none, as of one that makes numbers alone."""
        return []

    # Learning from training rows, chunk by chunk

    @property
    def keys(self) -> list[tuple[str, str]]:
        """Section and name of each of its rules; features whose first one is equal share them."""
        return []

    def start(self, origin: str, codecs: "Sequence[Codec[Any]]") -> Any:
        """Returns something to learn with; `codecs` are those of all the run's features."""
        return None

    def add(self, fit: Any, table: pa.Table, origin: str) -> None:
        """Learns from more training rows, into what `start` returned.

        Raises:
            ValueError: A column is missing, or a value does not fit.
        """
        self.check(fit, table, origin)

    def check(self, fit: Any, table: pa.Table, origin: str) -> None:
        """Refuses bad values in rows that do not train, before training instead of after it."""
        return

    def finish(self, fits: Sequence[Any], rules: Rules) -> None:
        """Puts what was learnt into `rules`, for all features that share it."""
        return

    def finish_own(self, fit: Any, rules: Rules) -> None:
        """Puts into `rules` what is its own beside a rule that features share."""
        return

    def hold(self, cells: Mapping[str, pa.ChunkedArray], rules: Rules) -> None:
        """Puts into `rules` what becomes of columns with one value in all training rows: [1]."""
        return

    def extend(self, rules: Rules, earlier: Rules, origin: str) -> None:
        """Makes today's rules encode known values as an earlier run's rules did.

        Raises:
            ValueError: They cannot.
        """
        for section, name in self.keys:
            if name in earlier[section]:
                rules[section][name] = earlier[section][name]

    @abstractmethod
    def encode(self, table: pa.Table, rules: Rules, origin: str) -> Coded:
        """Encodes N rows.

        Raises:
            ValueError: A column is missing, or a value does not fit.
        """

    # What its weights mean to a run that continues this one

    def meaning(self) -> dict[str, object]:
        """Returns settings that a continued run must keep, the kind first."""
        settings = self.feature.model_dump().items()
        return {"kind": self.feature.kind} | {k: v for k, v in settings if k not in self.free}

    def table_meanings(self) -> dict[str, dict[str, object]]:
        """Returns for each table what its rows stand for, and their width."""
        meaning: dict[str, object] = {"dim": self.dim, "content": self.content}
        return dict.fromkeys(self.feature.table_names, meaning)

    # Its form for linear models and trees

    @property
    def number_columns(self) -> list[str]:
        """Names of the columns that baselines take as numbers."""
        return []

    def numbers(self, table: pa.Table, origin: str) -> list[np.ndarray]:
        """Reads these columns, float64 [N] each, NaN where missing."""
        columns = self.number_columns
        return [to_numbers(table, column, origin, self.used_by) for column in columns]

    def number_inputs(self, table: pa.Table, rules: Rules, origin: str) -> list[np.ndarray]:
        """Reads the same, where what was learnt says how many there are."""
        return self.numbers(table, origin)

    def looked_up(
        self, table: pa.Table, rules: Rules, origin: str, numbers: Collection[str]
    ) -> list[LookedUp]:
        """Returns what baselines look up; nothing where a column of `numbers` says it."""
        return []


# A codec, its level, and its dense columns, ids and lists among those of its level
Place = tuple[Codec[Any], Level, tuple[slice, slice, slice]]
# By what training rows are known again: all of them, in their order; or what they say, of a stream
TrainingRows = Literal["order", "values"]


class RuleCodec(Codec[FeatureT]):
    """Codec of a column with a rule of its own, which what `start` returns makes.

    Attributes:
        section: Where its rule is kept.
    """

    section: ClassVar[str]
    knows_range = True

    @property
    def keys(self) -> list[tuple[str, str]]:
        """Its own rule."""
        return [(self.section, self.rule_name)]

    @property
    def rule_name(self) -> str:
        """Name of its rule in the section."""
        return self.feature.name

    @property
    def number_columns(self) -> list[str]:
        """Name of its column."""
        return [self.feature.source_columns[0]]

    def rule(self, rules: Rules) -> Any:
        """Returns what was learnt."""
        return rules[self.section][self.rule_name]

    def add(self, fit: Any, table: pa.Table, origin: str) -> None:
        """Learns from the numbers of more training rows."""
        fit.add(*self.numbers(table, origin))

    def finish(self, fits: Sequence[Any], rules: Rules) -> None:
        """Makes the rule."""
        [fit] = fits
        rules[self.section][self.rule_name] = fit.finish()

    def extend(self, rules: Rules, earlier: Rules, origin: str) -> None:
        """Keeps the rule of an earlier run, with the range of both."""
        before = earlier[self.section].get(self.rule_name)
        if before is not None:
            rules[self.section][self.rule_name] = self.rule(rules).after(before)


def that_share(codecs: "Iterable[Codec[Any]]") -> "list[list[Codec[Any]]]":
    """Groups codecs that share a rule, in the order in which features first use it."""
    groups: dict[tuple[str, str], list[Codec[Any]]] = {}
    for codec in codecs:
        key = codec.keys[0] if codec.keys else ("", codec.feature.name)
        groups.setdefault(key, []).append(codec)
    return list(groups.values())


def joined(
    codecs: Sequence[Codec[Any]], coded: Sequence[Coded], num_rows: int, **beside: Any
) -> EncodedFeatures:
    """Returns what some codecs made of N rows as one; `beside` it other fields."""

    def stacked(columns: list[np.ndarray], dtype: Any) -> np.ndarray:
        """[N, columns], row-major; filled in blocks of rows, so that writes stay in the cache."""
        matrices = [column.reshape(num_rows, width_of(column)) for column in columns]
        out = np.empty((num_rows, sum(matrix.shape[1] for matrix in matrices)), dtype)
        block = 8192
        for start in range(0, num_rows if matrices else 0, block):
            rows = slice(start, start + block)
            np.concatenate([matrix[rows] for matrix in matrices], axis=1, out=out[rows])
        return out

    ids = [column_N for one in coded for column_N in one.ids]
    weights = [weights_V for one in coded for _, _, weights_V in one.lists]
    outside: dict[str, np.ndarray] = {}
    for codec, one in zip(codecs, coded, strict=True):
        if one.outside_N is not None and one.outside_N.any():
            name = codec.feature.name
            outside[name] = outside[name] | one.outside_N if name in outside else one.outside_N
    # Raw ids need 64 bits; rows of tables do not, and take half the memory
    id_type = np.result_type(np.int32, *(column_N.dtype for column_N in ids))
    return EncodedFeatures(
        dense_NF=stacked([column_N for one in coded for column_N in one.dense], np.float32),
        ids_NC=stacked(ids, id_type),
        lists=[(ids_V, offsets) for one in coded for ids_V, offsets, _ in one.lists],
        list_weights=weights if any(w is not None for w in weights) else [],
        outside=outside,
        **beside,
    )


def missing(codec: Codec[Any], rules: Rules, num_rows: int) -> Coded:
    """Returns what stands for a feature that nobody looks at."""
    zeros_N = np.zeros(num_rows, np.float32)
    none = np.zeros(0, np.int32), np.zeros(num_rows + 1, np.int64)
    return Coded(
        dense=[zeros_N for _ in codec.dense_columns(rules)],
        ids=[np.zeros(num_rows, np.int32) for _ in codec.lookups],
        lists=[(*none, np.zeros(0, np.float32) if f.weighted else None) for f in codec.lists],
    )


def width_of(columns_NK: np.ndarray) -> int:
    """Returns how many columns it is."""
    return 1 if columns_NK.ndim == 1 else columns_NK.shape[1]


@dataclass(frozen=True, kw_only=True)
class FeatureColumns:
    """Columns that features become, in the features' order.

    An encoder has them of all features, and of those of one level.
    """

    codecs: Sequence[Codec[Any]]  # of these features
    rules: Rules  # what training rows taught

    @property
    def dense_names(self) -> list[str]:
        """Names of dense columns: numbers, positions, those of vectors, sines."""
        return [name for codec in self.codecs for name in codec.dense_columns(self.rules)]

    @property
    def input_layers(self) -> list[InputLayerSpec]:
        """Layers that the network makes of these dense columns, in their order."""
        found: list[InputLayerSpec] = []
        first = 0
        for codec in self.codecs:
            found += codec.input_layers(self.rules, first)
            first += len(codec.dense_columns(self.rules))
        return found

    @property
    def categorical(self) -> list[FeatureSpec]:
        """Features of one id a row, also buckets and parts: columns of ids."""
        return [spec for codec in self.codecs for spec in codec.lookups]

    @property
    def lists(self) -> list[FeatureSpec]:
        """List features."""
        return [spec for codec in self.codecs for spec in codec.lists]

    @property
    def sequences(self) -> list[SequenceSpec]:
        """Sequences; their events are among the lists."""
        return [spec for codec in self.codecs for spec in codec.sequences]


def limits_of(lowest: Any, highest: Any) -> tuple[Any, Any]:
    """Returns the ends that numbers are clipped to: one of the range's widths beyond it.

    Example:
        >>> lowest, highest = limits_of(10.0, 30.0)
        >>> float(lowest), float(highest)
        (-10.0, 50.0)
    """
    with np.errstate(over="ignore"):  # to infinity: near the limit of float64 nothing is outside
        width = MARGIN * (np.float64(highest) - np.float64(lowest))
        return lowest - width, highest + width
