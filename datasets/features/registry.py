"""The codecs of a run's features; which kind has which is in `mmoe.config.features.FEATURES`."""

from typing import Any

from mmoe.config import FEATURES, RunConfig
from mmoe.datasets.features.codec import Codec, Section
from mmoe.datasets.features.domains import DomainsSection
from mmoe.datasets.features.levels import LevelsSection
from mmoe.datasets.features.seen import Constants, HeldColumns, SeenIds, SeenLengths, SeenWeights
from mmoe.datasets.labels.targets import LabelsSection
from mmoe.datasets.labels.watch_quantiles import WatchQuantilesSection


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
