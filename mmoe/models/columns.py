"""Columns of a network's inputs: where each feature's stand, those of the display, of requests."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from typing import NamedTuple

import pyarrow as pa

from mmoe.config import FeatureSpec, RunConfig
from mmoe.config.model import BiasConfig
from mmoe.datasets import FeatureEncoder
from mmoe.datasets.features.id_map import MISSING, UNSEEN
from mmoe.mixture.inputs import RequestColumns
from mmoe.models.inputs import replaced_names
from mmoe.models.sequences import sequence_columns


class Embedding(NamedTuple):
    """Columns of one embedding: a feature's, or the vector that a sequence becomes.

    Attributes:
        start: First column.
        width: Number of columns.
        feature: What is looked up, by name; of a sequence's vector its name.
        table: Where it is looked up; empty of a sequence's vector.
    """

    start: int
    width: int
    feature: str
    table: str = ""

    @property
    def name(self) -> str:
        """`feature@table`: a feature that looks up another table now gives other numbers."""
        return f"{self.feature}@{self.table}" if self.table else self.feature


@dataclass(frozen=True)
class Columns:
    """Layout of a row of inputs: numbers first, then embeddings.

    Those of `model.bias`, which its tower alone reads, are not among them.

    Attributes:
        numbers: Names of the columns of numbers, as `InputLayers` returns them.
        embeddings: Of features, then the vectors that sequences become.
    """

    numbers: list[str]
    embeddings: list[Embedding]

    @classmethod
    def of(cls, encoder: FeatureEncoder, bias: BiasConfig | None = None) -> "Columns":
        """Returns those of a fitted encoder, without those that the tower of `bias` reads."""
        own = own_names(bias, encoder)
        names = replaced_names(encoder.dense_names, encoder.input_layers)
        numbers, biased = [name for name in names if name not in own], own_lookups(bias, encoder)
        dims = {table.name: table.dim for table in encoder.tables}
        parts = [
            (dims[spec.table], spec.name, spec.table)
            for spec in (*encoder.categorical, *encoder.lists)
            if spec.pooling != "none" and spec.name not in biased
        ]
        parts += [(width, name, "") for name, width in sequence_columns(encoder)]
        starts = accumulate((width for width, *_ in parts), initial=len(numbers))
        found = [Embedding(start, *part) for start, part in zip(starts, parts, strict=False)]
        return cls(numbers, found)

    @property
    def names(self) -> list[str]:
        """Names every column."""
        return self.numbers + _column_names(self.embeddings)

    def of_width(self, dim: int) -> list[Embedding]:
        """Lists the embeddings of this width."""
        return [embedding for embedding in self.embeddings if embedding.width == dim]

    @property
    def number_runs(self) -> dict[str, list[tuple[int, int]]]:
        """Returns, by feature, the runs [start, stop) of its columns of numbers."""
        runs: dict[str, list[tuple[int, int]]] = {}
        start = 0
        for feature, columns in groupby(self.numbers, _feature):
            stop = start + sum(1 for _ in columns)
            runs.setdefault(feature, []).append((start, stop))
            start = stop
        return runs


def _column_names(embeddings: Sequence[Embedding]) -> list[str]:
    return [f"{one.name}[{i}]" for one in embeddings for i in range(one.width)]


def _feature(column: str) -> str:
    """The feature of a column of numbers: its name, without `[3]` or ` piece[3]`."""
    return re.split(r"[\[ ]", column, maxsplit=1)[0]


def own_lookups(bias: BiasConfig | None, encoder: FeatureEncoder) -> set[str]:
    """Returns the names of the lookups of features of `model.bias`; none without a bias tower."""
    names = () if bias is None else bias.features
    own = [codec for codec in encoder.codecs if codec.feature.name in names]
    return {spec.name for codec in own for spec in (*codec.lookups, *codec.lists)}


def own_names(bias: BiasConfig | None, encoder: FeatureEncoder) -> set[str]:
    """Returns the names of the columns of numbers of features of `model.bias`.

    As they are before `InputLayers` and behind them.
    """
    names, rules = () if bias is None else bias.features, encoder.rules
    own = [codec for codec in encoder.codecs if codec.feature.name in names]
    made = {name for c in own for layer in c.input_layers(rules, 0) for name in layer.columns}
    return made.union(*(codec.dense_columns(rules) for codec in own))


def own_dense(bias: BiasConfig | None, encoder: FeatureEncoder) -> list[int]:
    """Returns the numbers of the raw dense columns of features of `model.bias`."""
    names = () if bias is None else bias.features
    found: list[int] = []
    start = 0
    for codec in encoder.codecs:
        width = len(codec.dense_columns(encoder.rules))
        found += range(start, start + width) if codec.feature.name in names else ()
        start += width
    return found


def _fixed(
    bias: BiasConfig, config: RunConfig, encoder: FeatureEncoder
) -> tuple[dict[int, float], dict[int, int]]:
    """The encoded values of `at`, by dense column and by feature of one id a row."""
    if bias.scoring != "fixed":
        return {}, {}
    fixed, row = bias.unread(config.features), pa.table({c: [v] for c, v in bias.at.items()})
    dense: dict[int, float] = {}
    ids: dict[int, int] = {}
    first_dense = first_id = 0
    for codec in encoder.codecs:
        width = len(codec.dense_columns(encoder.rules))
        if codec.feature.name in fixed:
            coded = encoder.encode_one(codec, row, "model.bias.at")
            values = [float(value) for part in coded.dense for value in part.reshape(-1)]
            dense |= dict(enumerate(values, first_dense))
            found = [int(part[0]) for part in coded.ids]
            strange = coded.outside_N is not None and coded.outside_N.any()
            if strange or UNSEEN in found or MISSING in found:
                asked = ", ".join(f"{c}: {bias.at[c]!r}" for c in codec.feature.source_columns)
                near = ", or a number near it" if strange and coded.dense else ""
                raise ValueError(
                    f"model.bias.at: no training row has {asked}{near} (feature "
                    f"{codec.feature.name!r}); name a value that the log has"
                )
            ids |= dict(enumerate(found, first_id))
        first_dense, first_id = first_dense + width, first_id + len(codec.lookups)
    return dense, ids


@dataclass(frozen=True, kw_only=True)
class BiasColumns:
    """Columns of a network's inputs that belong to the display, and the values that are fixed.

    Attributes:
        dense: Numbers of the tower's columns among dense ones, as `InputLayers` returns them.
        ids: Numbers of its columns among embeddings, behind which the vectors of sequences stand.
        num_dense: How many dense columns there are.
        num_ids: How many columns embeddings and those vectors have.
        fixed_dense: Raw dense column → the encoded value that every scored row has.
        fixed_ids: Feature of one id a row, by its number → the encoded id that it has.
    """

    dense: Sequence[int]
    ids: Sequence[int]
    num_dense: int
    num_ids: int
    fixed_dense: dict[int, float] = field(default_factory=dict)
    fixed_ids: dict[int, int] = field(default_factory=dict)

    @property
    def width(self) -> int:
        """Number of columns that the tower reads, and the rest of the network does not."""
        return len(self.dense) + len(self.ids)

    @classmethod
    def of(cls, config: RunConfig, encoder: FeatureEncoder) -> "BiasColumns":
        """Finds the columns of `config.model.bias`, which is not None.

        Raises:
            ValueError: A value of `at` is none that its feature has learnt.
        """
        bias = config.model.bias
        assert bias is not None, "asked for where there is one"
        own, looked_up = own_names(bias, encoder), own_lookups(bias, encoder)
        whole = Columns.of(encoder)
        num_dense = len(whole.numbers)
        fixed_dense, fixed_ids = _fixed(bias, config, encoder)
        return cls(
            dense=[place for place, name in enumerate(whole.numbers) if name in own],
            ids=[
                embedding.start - num_dense + i
                for embedding in whole.embeddings
                if embedding.table and embedding.feature in looked_up
                for i in range(embedding.width)
            ],
            num_dense=num_dense,
            num_ids=len(whole.names) - num_dense,
            fixed_dense=fixed_dense,
            fixed_ids=fixed_ids,
        )


def request_columns(
    encoder: FeatureEncoder, bias: BiasConfig | None = None, added: int = 0
) -> RequestColumns:
    """Finds which columns of a network's input are of requests.

    Args:
        encoder: Knows the level of every feature.
        bias: Whose columns the network does not read.
        added: How many columns stand behind them, all of rows.
    """
    places = {name: place for place, name in enumerate(Columns.of(encoder, bias).names)}
    shared, own = _names_of_levels(encoder)
    beside = range(len(places), len(places) + added)
    return RequestColumns(
        [places[name] for name in shared if name in places],
        len(places) + added,
        [*(places[name] for name in own if name in places), *beside],
    )


def _names_of_levels(encoder: FeatureEncoder) -> tuple[list[str], list[str]]:
    """Names of the columns of both parts, in their order."""
    dims = {table.name: table.dim for table in encoder.tables}
    parts: list[list[str]] = []
    looked_up: list[list[FeatureSpec]] = []
    for level in (encoder.of_level("request"), encoder.of_level("row")):
        specs = [*level.categorical, *level.lists]
        pooled = [
            Embedding(0, dims[spec.table], spec.name, spec.table)
            for spec in specs
            if spec.pooling != "none"
        ]
        numbers = replaced_names(level.dense_names, level.input_layers)
        parts.append(numbers + _column_names(pooled))
        looked_up.append(specs)
    of_request, of_row = parts
    shared = {spec.name for spec in looked_up[0]}
    columns = iter(sequence_columns(encoder))
    for spec in encoder.sequences:
        once = {*spec.events, *spec.targets} <= shared
        for name, width in (next(columns) for _ in range(1 + spec.unpooled)):
            (of_request if once else of_row).extend(f"{name}[{i}]" for i in range(width))
    return of_request, of_row


def columns_left_by_bias(
    encoder: FeatureEncoder,
) -> tuple[RequestColumns, list[int], list[int]] | None:
    """Returns the columns of each part that `model.bias` leaves to the network."""
    bias = encoder.config.model.bias
    if bias is None:
        return None
    left = set(Columns.of(encoder, bias).names)
    kept = [
        [i for i, name in enumerate(names) if name in left] for names in _names_of_levels(encoder)
    ]
    return request_columns(encoder, bias), kept[0], kept[1]
