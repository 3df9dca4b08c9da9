"""Features: fitted on training rows, then rows become numbers and ids; see `FeatureEncoder`.

A kind of feature is a `Codec` in a file of its own; `sections` lists what encoders store.
"""

from typing import TYPE_CHECKING

from mmoe.lazy_exports import lazily

if TYPE_CHECKING:
    from mmoe.datasets.features.codec import Codec, Coded, LookedUp, Rules, Section

__all__ = ["Codec", "Coded", "LookedUp", "Rules", "Section"]

__getattr__ = lazily(__name__, {"codec": __all__})
