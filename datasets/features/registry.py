"""Registry: which codec each kind of feature has."""

from collections.abc import Mapping
from typing import Any

from mmoe.config import (
    CategoricalFeature,
    CrossFeature,
    DatetimeFeature,
    Feature,
    ListFeature,
    NumericFeature,
    RunConfig,
)
from mmoe.datasets.features.categorical import CategoricalCodec
from mmoe.datasets.features.codec import Codec, Section
from mmoe.datasets.features.cross import CrossCodec
from mmoe.datasets.features.datetime import DatetimeCodec
from mmoe.datasets.features.list import ListCodec
from mmoe.datasets.features.numeric import NumericCodec

CODECS: Mapping[type[Feature], type[Codec[Any]]] = {
    NumericFeature: NumericCodec,
    CategoricalFeature: CategoricalCodec,
    ListFeature: ListCodec,
    CrossFeature: CrossCodec,
    DatetimeFeature: DatetimeCodec,
}


def codecs_of(config: RunConfig) -> list[Codec[Any]]:
    """Makes a codec for each feature, in their order."""
    return [CODECS[type(feature)](feature, config) for feature in config.features]


def sections() -> dict[str, Section]:
    """Lists the sections of encoder.json, in their order."""
    return {section.name: section for codec in CODECS.values() for section in codec.sections}
