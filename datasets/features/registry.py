"""The codecs of a run's features; which kind has which is in `mmoe.config.features.FEATURES`."""

from typing import Any

from mmoe.config import FEATURES, RunConfig
from mmoe.datasets.features.codec import Codec, Section


def codecs_of(config: RunConfig) -> list[Codec[Any]]:
    """Makes a codec for each feature, in their order."""
    return [FEATURES.implementation(feature)(feature, config) for feature in config.features]


def sections() -> dict[str, Section]:
    """Lists the sections of encoder.json, in their order."""
    codecs = [FEATURES.implementation(kind) for kind in FEATURES.names()]
    return {section.name: section for codec in codecs for section in codec.sections}
