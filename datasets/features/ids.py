"""What kinds of features that look ids up have in common: their table, own or shared."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from mmoe.config import FeatureSpec, IdFeature, ManagedIds, RunConfig, TableSettings, TableSpec
from mmoe.config.json_files import Count, Stored
from mmoe.datasets.features.codec import Codec, Rules, Section
from mmoe.datasets.features.extend_ids import extended_ids
from mmoe.datasets.features.fit_ids import CountFit, Counts, KindFit
from mmoe.datasets.features.vocabulary import (
    FIRST_KNOWN,
    HashRule,
    IdMap,
    ManagedRule,
    Vocabulary,
)
from mmoe.datasets.features.vocabulary_size import refuse_too_many
from mmoe.datasets.values.arrow import may_use_threads
from mmoe.datasets.values.keys import ARROW_TYPES, KeyKind, widest

IdFeatureT = TypeVar("IdFeatureT", bound=IdFeature)
# Of a table, whoever looks it up
_OF_TABLES = ("encoding", "hash_size", "rows")


class _VocabularyEntry(Stored):
    """A `Vocabulary`, whose keys lie in a file beside."""

    encoding: Literal["vocabulary"]
    kind: KeyKind
    file: Annotated[str, Field(pattern=r"^[^/\\]+\.parquet$")]


class _RuleEntry(Stored):
    """A `HashRule` or a `ManagedRule`."""

    encoding: Literal["hash", "managed"]
    kind: KeyKind
    size: Annotated[Count, Field(gt=0)]


class _IdTables(Section):
    """Section of encoder.json: table → its `IdMap`; a vocabulary is a Parquet file."""

    name = "tables"
    entry = Annotated[_VocabularyEntry | _RuleEntry, Field(discriminator="encoding")]
    required = True

    def write(self, rule: IdMap, folder: Path, stem: str) -> Any:
        """Returns the rule, or the name of the file that holds the vocabulary."""
        if not isinstance(rule, Vocabulary):
            encoding = "hash" if isinstance(rule, HashRule) else "managed"
            return {"encoding": encoding, **asdict(rule)}
        file = f"{stem}.parquet"
        temporary = (folder / file).with_suffix(".tmp")
        columns = {"key": rule.keys, "count": pa.array(rule.counts, pa.int64())}
        pq.write_table(pa.table(columns), temporary)
        temporary.replace(folder / file)
        return {"encoding": "vocabulary", "kind": rule.kind, "file": file}

    def read(self, entry: Any, folder: Path) -> IdMap:
        """Reads what `write` wrote."""
        if entry["encoding"] != "vocabulary":
            rule = {"hash": HashRule, "managed": ManagedRule}[entry["encoding"]]
            return rule(kind=entry["kind"], size=entry["size"])
        # Not with pq.read_table, which takes threads whatever it is told
        with pq.ParquetFile(folder / entry["file"]) as file:
            table = file.read(use_threads=may_use_threads())
        return Vocabulary(
            kind=entry["kind"],
            keys=table["key"].combine_chunks().cast(ARROW_TYPES[entry["kind"]]),
            counts=table["count"].to_numpy().astype(np.int64),
        )

    def marks(self, rules: dict[str, IdMap]) -> Iterator[bytes | memoryview]:
        """Yields what tells tables of ids apart; not all keys are looked at."""
        for name, id_map in rules.items():
            if isinstance(id_map, Vocabulary):
                yield f"{name} {id_map.kind} {id_map.keys[:1000].to_pylist()}".encode()
                yield memoryview(np.ascontiguousarray(id_map.counts))
            else:
                yield f"{name} {id_map}".encode()


class IdCodec(Codec[IdFeatureT]):
    """Codec of a feature that looks ids up, in a table of its own or a shared one."""

    sections = (_IdTables(),)
    # How much is read, who gets a row, and how fast rows learn
    free = Codec.free | {
        *("min_count", "max_rows", "admit_after", "evict", "evict_every", "learning_rate"),
    }

    def __init__(self, feature: IdFeatureT, config: RunConfig) -> None:
        super().__init__(feature, config)
        shared = {table.name: table for table in config.tables}
        self.table = feature.table_name
        self.settings: TableSettings = shared.get(self.table) or feature
        self.counted = self.settings.encoding == "vocabulary"
        self.dim = self.settings.dim or config.model.embedding_dim

    def label(self, origin: str) -> str:
        """Returns its name in errors."""
        raise NotImplementedError

    @property
    def lookups(self) -> list[FeatureSpec]:
        """Its own name: it looks one id up."""
        return [FeatureSpec(name=self.feature.name, table=self.table, pooling="sum")]

    def tables(self, rules: Rules) -> list[TableSpec]:
        """Returns the table of its ids."""
        return [
            TableSpec(
                name=self.table,
                num_rows=self.ids(rules).num_rows,
                dim=self.dim,
                managed=_managed_ids(self.settings),
                learning_rate=self.settings.learning_rate,
            )
        ]

    @property
    def keys(self) -> list[tuple[str, str]]:
        """Rule of its table's ids."""
        return [("tables", self.table)]

    def ids(self, rules: Rules) -> IdMap:
        """Returns what turns ids into rows."""
        return rules["tables"][self.table]

    def start(
        self, origin: str, codecs: Sequence[Codec[Any]], *, settle: bool = False
    ) -> CountFit | KindFit:
        """Returns what counts ids, or finds their kind; `settle` as there."""
        return (CountFit if self.counted else KindFit)(self.label(origin), settle=settle)

    def finish(self, fits: Sequence[Any], rules: Rules) -> None:
        """Makes one table's ids of all the features that share it."""
        found = [fit.finish() for fit in fits]
        rules["tables"][self.table] = (
            self.vocabulary(found) if self.counted else self.uncounted(widest(found))
        )

    def vocabulary(self, counts: list[Counts]) -> Vocabulary:
        """Makes a vocabulary of counted ids; it may not outgrow the table."""
        vocabulary = Vocabulary.of(counts, self.settings.min_count)
        refuse_too_many(len(vocabulary.keys), self.settings, counts[0].label, vocabulary.counts)
        return vocabulary

    def uncounted(self, kind: KeyKind) -> IdMap:
        """Makes a rule for ids that are not counted."""
        if self.settings.encoding == "hash":
            return HashRule(kind=kind, size=self.settings.hash_size)
        assert self.settings.rows is not None, "the config asks for them"
        return ManagedRule(kind=kind, size=self.settings.rows)

    def extend(self, rules: Rules, earlier: Rules, origin: str) -> None:
        """Keeps the rows of earlier ids; new ones get the next, in today's order."""
        before = earlier["tables"].get(self.table)
        if before is not None:
            label = self.extended_label(origin)
            rules["tables"][self.table] = extended_ids(
                self.ids(rules), before, self.settings, label
            )

    def extended_label(self, origin: str) -> str:
        """Returns its name in errors where an earlier run had other ids."""
        return self.label(origin)

    def table_meanings(self) -> dict[str, dict[str, object]]:
        """Returns what rows stand for: also how ids become rows."""
        [meaning] = super().table_meanings().values()
        return {self.table: meaning | {key: getattr(self.settings, key) for key in _OF_TABLES}}

    def rows(self, ids: np.ndarray, rules: Rules) -> np.ndarray:
        """Returns raw ids as rows by their remainder: a baseline has no owners to ask."""
        id_map = self.ids(rules)
        if not isinstance(id_map, ManagedRule):
            return ids
        return np.where(ids < FIRST_KNOWN, ids, FIRST_KNOWN + (ids - FIRST_KNOWN) % id_map.size)


def _managed_ids(settings: TableSettings) -> ManagedIds | None:
    if settings.encoding != "managed":
        return None
    assert settings.rows is not None, "the config asks for them"
    return ManagedIds(
        rows=settings.rows,
        admit_after=settings.admit_after,
        evict=settings.evict,
        evict_every=settings.evict_every,
    )
