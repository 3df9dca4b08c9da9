"""`FEATURES`: the kinds of features. One is a class with its own keys, and a line here."""

from typing import Any

from mmoe.config.features.base import Feature
from mmoe.config.features.datetimes import DatetimeFeature
from mmoe.config.features.ids import CategoricalFeature, CrossFeature, ListFeature
from mmoe.config.features.numeric import NumericFeature
from mmoe.config.features.sequence import SequenceFeature
from mmoe.config.features.vector import VectorFeature
from mmoe.config.kinds import Kinds


class _Features(Kinds[Feature]):
    """Each is implemented by a `Codec`."""

    def add(self, kind: str, config_class: type[Feature], implementation: Any) -> None:
        """Makes a kind of feature known.

        Raises:
            ValueError: There is such a kind, or the class is not one of a feature of this name.
        """
        if isinstance(config_class, type) and issubclass(config_class, Feature):
            lacks = "" if "name" in config_class.model_fields else "key `name`"
            if config_class.source_columns is Feature.source_columns:
                lacks = "property `source_columns`, the columns that it is read from"
            if lacks:
                raise ValueError(
                    f"feature {kind!r}: {config_class.__name__} has no {lacks}; add it"
                )
        super().add(kind, config_class, implementation)


# Config class → codec; what is not imported here needs NumPy and PyArrow
FEATURES = _Features("feature", Feature)
FEATURES.add("numeric", NumericFeature, "mmoe.datasets.features.numeric:NumericCodec")
FEATURES.add(
    "categorical", CategoricalFeature, "mmoe.datasets.features.categorical:CategoricalCodec"
)
FEATURES.add("list", ListFeature, "mmoe.datasets.features.list:ListCodec")
FEATURES.add("cross", CrossFeature, "mmoe.datasets.features.cross:CrossCodec")
FEATURES.add("datetime", DatetimeFeature, "mmoe.datasets.features.datetime:DatetimeCodec")
FEATURES.add("sequence", SequenceFeature, "mmoe.datasets.features.sequences.codec:SequenceCodec")
FEATURES.add("vector", VectorFeature, "mmoe.datasets.features.vector:VectorCodec")

FeatureConfig = Feature  # of any kind that there is
