"""Codecs of a run's features, and files of a fitted encoder: encoder.json, and what is large."""

import json
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from pydantic import Field, create_model

from mmoe.config import FEATURES, RunConfig, config_from_dict
from mmoe.config.json_files import Stored, read_stored
from mmoe.datasets.features.codec import Codec, Rules, Section
from mmoe.datasets.features.domains import DomainsSection
from mmoe.datasets.features.levels import LevelsSection
from mmoe.datasets.features.seen import Constants, HeldColumns, SeenIds, SeenLengths, SeenWeights
from mmoe.datasets.labels.targets import LabelsSection
from mmoe.datasets.labels.watch_quantiles import WatchQuantilesSection
from mmoe.datasets.values.arrow import out_of_memory
from mmoe.errors import NotImported


def codecs_of(config: RunConfig) -> list[Codec[Any]]:
    """Makes the codecs of the features, in their order: one each, or one for each part."""
    return [
        codec
        for feature in config.features
        for codec in FEATURES.implementation(feature).of(feature, config)
    ]


def sections() -> dict[str, Section]:
    """Lists the sections of encoder.json, in their order."""
    codecs = [FEATURES.implementation(kind) for kind in FEATURES.names()]
    of_features = {section.name: section for codec in codecs for section in codec.sections}
    others: tuple[Section, ...] = (
        LevelsSection(),
        WatchQuantilesSection(),
        DomainsSection(),
        SeenIds(),
        SeenWeights(),
        SeenLengths(),
        HeldColumns(),
        Constants(),
        LabelsSection(),
    )
    return {**of_features, **{section.name: section for section in others}}


_FORMAT = 1


@cache
def _shape(_: tuple[str, ...]) -> type[Stored]:
    """encoder.json, with the sections that there are."""
    fields: dict[str, Any] = {"format": (Literal[1], ...), "config": (dict[str, Any], ...)}
    for section in sections().values():
        default = ... if section.required else Field(default_factory=dict)
        fields[section.name] = (dict[str, section.entry], default)
    return create_model("Encoder", __base__=Stored, **fields)


def save(folder: Path, config: RunConfig, rules: Rules) -> None:
    """Writes a fitted encoder, under temporary names first; encoder.json last, as the seal."""
    folder.mkdir(parents=True, exist_ok=True)
    content: dict[str, Any] = {"format": _FORMAT, "config": config.model_dump(mode="json")}
    for key, section in sections().items():
        # The number keeps names apart that differ in case only, for disks that ignore case.
        content[key] = {
            name: section.write(rule, folder, f"{number:03d}-{name}")
            for number, (name, rule) in enumerate(rules.get(key, {}).items())
        }
    target = folder / "encoder.json"
    temporary = target.with_suffix(".json.tmp")
    temporary.write_text(json.dumps(content, indent=1), encoding="utf-8")
    temporary.replace(target)


def load(folder: Path) -> tuple[RunConfig, Rules]:
    """Reads what `save` wrote.

    Raises:
        ValueError: The folder holds no complete encoder, or needs a module that is not allowed.
    """
    file = folder / "encoder.json"
    try:
        content = read_stored(file, _shape(tuple(sections())), "copy the run again")
        config = config_from_dict(content["config"], origin=str(file), of_run=True)
        rules = {
            key: {name: section.read(entry, folder) for name, entry in content.get(key, {}).items()}
            for key, section in sections().items()
        }
        _check_complete(file, config, rules)
    except NotImported:
        raise
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        reason = " ".join(str(error).split())
        raise out_of_memory(error, str(folder)) or ValueError(
            f"{folder}: holds no complete encoder ({reason}); expected the vocabulary folder of a "
            "run that mmoe train wrote"
        ) from None
    return config, rules


def _check_complete(file: Path, config: RunConfig, rules: Rules) -> None:
    """What the features of the config are encoded by has to be there."""
    for codec in codecs_of(config):
        for section, name in codec.keys:
            if name not in rules[section]:
                raise ValueError(f"{file}: {section}.{name}: is missing")
