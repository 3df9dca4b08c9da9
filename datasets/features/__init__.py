"""Features: fitted on training rows, then rows become numbers and ids; see `FeatureEncoder`.

A kind of feature is a `Codec` in a file of its own; `encoder_files.py` lists them. `EncoderFit`
learns chunk by chunk, `extend_encoder` continues an earlier run's encoder.
"""

from typing import TYPE_CHECKING

from mmoe.lazy_exports import lazily

if TYPE_CHECKING:
    from mmoe.datasets.features.codec import Codec, Coded, LookedUp, Rules, Section
    from mmoe.datasets.features.encoder import FeatureEncoder
    from mmoe.datasets.features.encoder_files import codecs_of
    from mmoe.datasets.features.extend_encoder import extend_encoder
    from mmoe.datasets.features.fit_encoder import EncoderFit
    from mmoe.datasets.features.ids import IdCodec
    from mmoe.datasets.features.ragged import RaggedRows

__all__ = [
    "Codec",
    "Coded",
    "EncoderFit",
    "FeatureEncoder",
    "IdCodec",
    "LookedUp",
    "RaggedRows",
    "Rules",
    "Section",
    "codecs_of",
    "extend_encoder",
]

__getattr__ = lazily(
    __name__,
    {
        "codec": ["Codec", "Coded", "LookedUp", "Rules", "Section"],
        "encoder": ["FeatureEncoder"],
        "encoder_files": ["codecs_of"],
        "extend_encoder": ["extend_encoder"],
        "fit_encoder": ["EncoderFit"],
        "ids": ["IdCodec"],
        "ragged": ["RaggedRows"],
    },
)
