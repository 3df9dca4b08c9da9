"""Features for ids that a frozen encoder does not know: `training.extend_ids`."""

from typing import Any

from mmoe.config import CategoricalFeature, RunConfig, config_from_dict
from mmoe.config.freezing import StageConfig
from mmoe.config.tables import VocabularyEncoding

_NEW = "__new"  # then the number of the stage


def with_known_features(config: RunConfig, other: RunConfig) -> RunConfig:
    """Returns the config with the features for new ids that another one has beside it."""
    names = {feature.name for feature in config.features}
    more = [
        feature
        for feature in other.features
        if isinstance(feature, CategoricalFeature) and feature.beyond and feature.name not in names
    ]
    return config.model_copy(update={"features": [*config.features, *more]}) if more else config


def with_new_features(config: RunConfig, stages: list[StageConfig]) -> RunConfig:
    """Returns the config with a feature for the new ids of each that has a frozen vocabulary.

    Args:
        config: Of a run that adds something to the last stage.
        stages: Those that it will have.

    Raises:
        ValueError: Neither the encoder nor a table is frozen.
    """
    raw = config.model_dump(mode="json")
    shared = {table["name"]: table for table in raw["tables"]}
    by_name = {feature["name"]: feature for feature in raw["features"]}
    kept = config.keeps_encoder
    found: list[dict[str, Any]] = []
    for feature in config.features:
        if not isinstance(feature, CategoricalFeature) or feature.beyond:
            continue
        if feature.name not in stages[-1].features:
            continue
        table = feature.table_name
        encoding = next((t for t in config.tables if t.name == table), feature).table_encoding
        if not isinstance(encoding, VocabularyEncoding):
            continue  # every id has a row, or may get one
        if kept or table in config.frozen_tables:
            own = {**by_name[feature.name], **shared.get(table, {})}
            earlier = [f"{feature.name}{_NEW}{n}" for n in range(1, len(stages))]
            found.append(
                {
                    **own,
                    "name": f"{feature.name}{_NEW}{len(stages)}",
                    "column": feature.source_column,
                    "table": None,
                    "vectors": None,
                    "beyond": [table, *(name for name in earlier if name in by_name)],
                }
            )
    if not found:
        raise ValueError(
            "training.extend_ids gives rows to ids that a frozen vocabulary does not know, and "
            "none is frozen: add encoder to training.freeze, or remove extend_ids"
        )
    return config_from_dict({**raw, "features": [*raw["features"], *found]}, of_run=True)
