"""A fitted encoder on disk: encoder.json and one Parquet file for each vocabulary."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from mmoe.config import (
    CategoricalFeature,
    CrossFeature,
    ListFeature,
    NumericFeature,
    RunConfig,
    config_from_dict,
)
from mmoe.config.stored import Count, Stored, read_stored
from mmoe.datasets.features.numeric import NumericRule
from mmoe.datasets.features.vocabulary import HashRule, IdMap, ManagedRule, Vocabulary
from mmoe.datasets.values.arrow import may_use_threads, out_of_memory
from mmoe.datasets.values.keys import ARROW_TYPES, KeyKind

_FORMAT = 1
_Finite = Annotated[float, Field(allow_inf_nan=False)]


class _Numeric(Stored):
    """A `NumericRule`."""

    log: bool
    mean: _Finite
    deviation: Annotated[_Finite, Field(gt=0)]
    edges: list[_Finite]


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


class _Encoder(Stored):
    """encoder.json."""

    format: Literal[1]
    config: dict[str, Any]
    numeric: dict[str, _Numeric]
    tables: dict[str, Annotated[_VocabularyEntry | _RuleEntry, Field(discriminator="encoding")]]
    crosses: dict[str, list[KeyKind]] = Field(default_factory=dict)


def save(
    folder: Path,
    config: RunConfig,
    numeric: dict[str, NumericRule],
    ids: dict[str, IdMap],
    crosses: dict[str, tuple[KeyKind, ...]],
) -> None:
    """Writes every file under a temporary name first; encoder.json comes last, as the seal."""
    folder.mkdir(parents=True, exist_ok=True)
    tables: dict[str, Any] = {}
    for number, (name, id_map) in enumerate(ids.items()):
        if not isinstance(id_map, Vocabulary):
            encoding = "hash" if isinstance(id_map, HashRule) else "managed"
            tables[name] = {"encoding": encoding, **asdict(id_map)}
            continue
        # The number keeps names apart that differ in case only, for disks that ignore case.
        file = f"{number:03d}-{name}.parquet"
        _write_parquet(folder / file, id_map)
        tables[name] = {"encoding": "vocabulary", "kind": id_map.kind, "file": file}
    content = {
        "format": _FORMAT,
        "config": config.model_dump(mode="json"),
        "numeric": {name: asdict(rule) for name, rule in numeric.items()},
        "tables": tables,
        "crosses": crosses,
    }
    target = folder / "encoder.json"
    temporary = target.with_suffix(".json.tmp")
    temporary.write_text(json.dumps(content, indent=1), encoding="utf-8")
    temporary.replace(target)


def load(
    folder: Path,
) -> tuple[RunConfig, dict[str, NumericRule], dict[str, IdMap], dict[str, tuple[KeyKind, ...]]]:
    """Reads what `save` wrote.

    Raises:
        ValueError: The folder holds no complete encoder.
    """
    file = folder / "encoder.json"
    try:
        content = read_stored(file, _Encoder, "copy the run again")
        config = config_from_dict(content["config"], origin=str(file))
        numeric = {
            name: NumericRule(**{**rule, "edges": tuple(rule["edges"])})
            for name, rule in content["numeric"].items()
        }
        ids = {name: _read_table(folder, table) for name, table in content["tables"].items()}
        crosses = {name: tuple(kinds) for name, kinds in content.get("crosses", {}).items()}
        _check_complete(file, config, numeric, ids, crosses)
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        reason = " ".join(str(error).split())
        raise out_of_memory(error, str(folder)) or ValueError(
            f"{folder}: holds no complete encoder ({reason}); expected the vocabulary folder of a "
            "run that mmoe train wrote"
        ) from None
    return config, numeric, ids, crosses


def _check_complete(
    file: Path,
    config: RunConfig,
    numeric: Mapping[str, object],
    ids: Mapping[str, object],
    crosses: Mapping[str, object],
) -> None:
    """What the features of the config are encoded by has to be there."""
    for feature in config.features:
        needed: list[tuple[str, str, Mapping[str, object]]] = []
        if isinstance(feature, NumericFeature):
            needed.append(("numeric", feature.name, numeric))
        elif isinstance(feature, CategoricalFeature | ListFeature | CrossFeature):
            needed.append(("tables", feature.table_name, ids))
        if isinstance(feature, CrossFeature):
            needed.append(("crosses", feature.table_name, crosses))
        for section, name, there in needed:
            if name not in there:
                raise ValueError(f"{file}: {section}.{name}: is missing")


def _write_parquet(target: Path, vocabulary: Vocabulary) -> None:
    temporary = target.with_suffix(".tmp")
    columns = {"key": vocabulary.keys, "count": pa.array(vocabulary.counts, pa.int64())}
    pq.write_table(pa.table(columns), temporary)
    temporary.replace(target)


def _read_table(folder: Path, entry: dict[str, Any]) -> IdMap:
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
