"""Any network's feed-forward layers as mixtures of experts, by one line."""

from mmoe.integrations.convert.conversion import convert
from mmoe.integrations.convert.distribute import distribute
from mmoe.integrations.convert.feed_forward import FeedForward
from mmoe.integrations.convert.layer import (
    ConvertedMoE,
    ParameterCounts,
    auxiliary_losses,
    parameter_counts,
)
from mmoe.integrations.convert.recognisers import RECOGNISERS, Recogniser, register

__all__ = [
    "RECOGNISERS",
    "ConvertedMoE",
    "FeedForward",
    "ParameterCounts",
    "Recogniser",
    "auxiliary_losses",
    "convert",
    "distribute",
    "parameter_counts",
    "register",
]
