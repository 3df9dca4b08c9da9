"""What of an earlier run is frozen, and which parts a model had before others came."""

from mmoe.config.freezing.names import (
    ENCODER,
    TABLES,
    frozen_tables,
    keeps_pool,
    names_part,
    unmatched,
)
from mmoe.config.freezing.stages import StageConfig, stage_of

__all__ = [
    "ENCODER",
    "TABLES",
    "StageConfig",
    "frozen_tables",
    "keeps_pool",
    "names_part",
    "stage_of",
    "unmatched",
]
