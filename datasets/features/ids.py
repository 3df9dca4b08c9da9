"""Features that look ids up: what they have in common, their table, and the plain kind."""

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar, Union

import numpy as np
import pyarrow as pa
from pydantic import Field

from mmoe.config import (
    ENCODINGS,
    CategoricalFeature,
    FeatureSpec,
    IdFeature,
    RunConfig,
    TableConfig,
    TableSettings,
    TableSpec,
)
from mmoe.config.tables import VectorTable
from mmoe.datasets.features.codec import Codec, Coded, LookedUp, Rules, Section
from mmoe.datasets.features.id_map import CountFit, IdMap, KindFit
from mmoe.datasets.features.table_vectors import VectorScaling, VectorScalings, learn_vectors
from mmoe.datasets.rows.locations import find_column, times_of
from mmoe.datasets.values.text import TextCells

IdFeatureT = TypeVar("IdFeatureT", bound=IdFeature)


_ENTRIES = [ENCODINGS.implementation(encoding).entry for encoding in ENCODINGS.names()]


class _IdTables(Section):
    """Section of encoder.json: table → its `IdMap`; a vocabulary is a Parquet file."""

    name = "tables"
    entry = Annotated[Union[*_ENTRIES], Field(discriminator="encoding")]

    def write(self, rule: IdMap, folder: Path, stem: str) -> Any:
        """Returns the rule, or the name of the file that holds the vocabulary."""
        return {"encoding": rule.encoding, **rule.write(folder, stem)}

    def read(self, entry: Any, folder: Path) -> IdMap:
        """Reads what `write` wrote."""
        return ENCODINGS.implementation(entry["encoding"]).read(entry, folder)

    def marks(self, rules: dict[str, IdMap]) -> Iterator[bytes | memoryview]:
        """Yields what tells tables of ids apart; not all keys are looked at."""
        for table, id_map in rules.items():
            yield from id_map.marks(table)


class IdCodec(Codec[IdFeatureT]):
    """Codec of a feature that looks ids up, in a table of its own or a shared one.

    Args:
        feature: Its settings.
        config: The run that it is a feature of.
        owner: What says how ids become rows of its table; default: the feature.
    """

    sections = (_IdTables(), VectorScalings())
    of_lists: ClassVar[bool] = False  # it looks any number of ids up
    # How fast rows learn, how much is read, who gets a row, and where new ones begin
    free = Codec.free.union(
        {"learning_rate", "vectors"}, *(known.free for known in ENCODINGS.classes())
    )

    def __init__(
        self, feature: IdFeatureT, config: RunConfig, owner: TableConfig | IdFeature | None = None
    ) -> None:
        super().__init__(feature, config)
        shared = {table.name: table for table in config.tables}
        owner = owner or feature
        self.table = owner.name if isinstance(owner, TableConfig) else owner.table_name
        self.settings: TableSettings = shared.get(self.table) or owner
        self.encoding = self.settings.table_encoding
        self.id_map: type[IdMap] = ENCODINGS.implementation(self.encoding)
        self.counted = self.id_map.counted
        self.dim = self.settings.dim or config.model.embedding_dim
        self.vectors = self.settings.vectors if isinstance(self.settings, VectorTable) else None

    @property
    def column(self) -> str:
        """Name of its column."""
        return self.feature.source_columns[0]

    def label(self, origin: str) -> str:
        """Returns the name of its column, for errors."""
        return f"{origin}: column {self.column!r} (of {self.used_by})"

    @property
    def lookups(self) -> list[FeatureSpec]:
        """Its own name: it looks one id up; nothing where it looks lists of them up."""
        own = FeatureSpec(name=self.feature.name, table=self.table, pooling="sum")
        return [] if self.of_lists else [own]

    def tables(self, rules: Rules) -> list[TableSpec]:
        """Returns the table of its ids."""
        return [
            TableSpec(
                name=self.table,
                num_rows=self.ids(rules).num_rows,
                dim=self.dim if self.vectors is None else self.scaling(rules).dim,
                managed=self.encoding.managed,
                learning_rate=self.settings.learning_rate,
                ids=True,
                frozen=self.vectors is not None and self.vectors.frozen,
                initial_scale=self.encoding.initial_scale,
            )
        ]

    @property
    def keys(self) -> list[tuple[str, str]]:
        """Rule of its table's ids, and of the vectors that it begins with."""
        vectors = [] if self.vectors is None else [("table_vectors", self.table)]
        return [("tables", self.table), *vectors]

    def ids(self, rules: Rules) -> IdMap:
        """Returns what turns ids into rows."""
        return rules["tables"][self.table]

    def scaling(self, rules: Rules) -> VectorScaling:
        """Returns how vectors become rows of its table."""
        return rules["table_vectors"][self.table]

    def start(self, origin: str, codecs: Sequence[Codec[Any]]) -> Any:
        """Returns what counts ids or, in text of lists, finds how it is written."""
        fit = CountFit if self.counted else KindFit
        known = TextCells(words=self.config.data.missing_words).known
        return fit(self.label(origin), settle=self.of_lists, words=known)

    def finish(self, fits: Sequence[Any], rules: Rules) -> None:
        """Makes one table's ids of all the features that share it."""
        found = [fit.finish() for fit in fits]
        if self.vectors is None:
            rules["tables"][self.table] = self.learnt(found)
            return
        encoding: Any = self.encoding  # a vocabulary, as the config has checked
        ids, scaling = learn_vectors(found, encoding, self.vectors, self.table, self.settings.dim)
        rules["tables"][self.table], rules["table_vectors"][self.table] = ids, scaling

    def learnt(self, found: Sequence[Any]) -> IdMap:
        """Makes its table's rule of what was found, counts or kinds of ids."""
        return self.id_map.learnt(found, self.encoding)

    def extend(self, rules: Rules, earlier: Rules, origin: str) -> None:
        """Keeps the rows of earlier ids; new ones get the next, in today's order."""
        before = earlier["tables"].get(self.table)
        if before is not None:
            label = self.extended_label(origin)
            rules["tables"][self.table] = self.ids(rules).extended(before, self.encoding, label)
        scaled = earlier["table_vectors"].get(self.table)
        if (
            self.vectors is not None
            and scaled is not None
            and scaled.dim == self.scaling(rules).dim
        ):
            rules["table_vectors"][self.table] = scaled

    def extended_label(self, origin: str) -> str:
        """Returns its name in errors where an earlier run had other ids."""
        return self.label(origin)

    def table_meanings(self) -> dict[str, dict[str, object]]:
        """Returns what rows of a table stand for, and where frozen ones came from."""
        # The same for all that share the table, a sequence that targets it included
        meaning: dict[str, object] = {"dim": self.dim, "content": self.content}
        if self.vectors is not None:
            del meaning["dim"]  # the vectors', which the tables themselves show
            if self.vectors.frozen:
                meaning |= {"vectors": f"frozen, scale {self.vectors.scale}"}
        return {self.table: meaning | self.encoding.meaning()}

    def looked_up(
        self, table: pa.Table, rules: Rules, origin: str, numbers: Collection[str]
    ) -> list[LookedUp]:
        """Returns its ids, with their rank among those of training, or their weights in lists."""
        if self.column in numbers:
            return []
        coded, id_map = self.encode(table, rules, origin), self.ids(rules)
        if not self.of_lists:
            [ids_N] = coded.ids
            return [LookedUp.single(id_map.rows(ids_N), id_map.num_rows, id_map.rank())]
        [(ids_V, offsets, weights_V)] = coded.lists
        return [
            LookedUp(
                ids=id_map.rows(ids_V),
                offsets=offsets,
                num_rows=id_map.num_rows,
                weights=np.ones(len(ids_V)) if weights_V is None else weights_V.astype(np.float64),
                is_list=True,
            )
        ]


class CategoricalCodec(IdCodec[CategoricalFeature]):
    """Codec of a column of ids."""

    counts_times = True
    by_cell = True

    def add(self, fit: Any, table: pa.Table, origin: str) -> None:
        """Counts the ids of more training rows."""
        fit.add(self._column(table, origin), times_of(table))

    def encode(self, table: pa.Table, rules: Rules, origin: str) -> Coded:
        """Encodes rows: ids, one column."""
        column = self._column(table, origin)
        return Coded(ids=[self.ids(rules).lookup(column, self.label(origin))])

    def _column(self, table: pa.Table, origin: str) -> pa.ChunkedArray:
        return find_column(table, self.feature.source_column, origin, self.used_by)
