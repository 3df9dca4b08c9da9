"""Features: a kind is a class with its own keys, and a line in `FEATURES`."""

from mmoe.config.features.base import Feature
from mmoe.config.features.datetimes import DatetimeFeature
from mmoe.config.features.encoders import SEQUENCE_ENCODERS, SequenceEncoderConfig
from mmoe.config.features.ids import CategoricalFeature, CrossFeature, IdFeature, ListFeature
from mmoe.config.features.numeric import NumericFeature
from mmoe.config.features.registry import FEATURES, FeatureConfig
from mmoe.config.features.sequence import SequenceFeature
from mmoe.config.features.vector import VectorFeature

__all__ = [
    "FEATURES",
    "SEQUENCE_ENCODERS",
    "CategoricalFeature",
    "CrossFeature",
    "DatetimeFeature",
    "Feature",
    "FeatureConfig",
    "IdFeature",
    "ListFeature",
    "NumericFeature",
    "SequenceEncoderConfig",
    "SequenceFeature",
    "VectorFeature",
]
