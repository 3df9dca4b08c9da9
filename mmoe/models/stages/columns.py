"""Which columns of x there were in each stage of a model."""

from dataclasses import replace

from mmoe.config import RunConfig
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.models.interactions.add import Columns


def stage_columns(config: RunConfig, encoder: FeatureEncoder) -> list[list[int] | None]:
    """Returns for each of `model.stages` the columns that its parts read, in its own order.

    Args:
        config: Of the run.
        encoder: Of the run.

    Returns:
        Their numbers; None: all, in the order that there is.
    """
    if not config.model.stages:
        return []
    places = {name: place for place, name in enumerate(_names(encoder))}
    features = {feature.name: feature for feature in config.features}
    found: list[list[int] | None] = []
    for stage in config.model.stages:
        own = config.model_copy(update={"features": [features[name] for name in stage.features]})
        columns = [places[name] for name in _names(replace(encoder, config=own))]
        found.append(None if columns == list(range(len(places))) else columns)
    return found


def _names(encoder: FeatureEncoder) -> list[str]:
    return Columns.of(encoder, encoder.config.model.bias).names
