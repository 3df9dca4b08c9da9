"""What of an earlier run is frozen, and which parts a model had before others came."""

from mmoe.config.freezing.names import (
    ENCODER,
    TABLES,
    frozen_tables,
    keeps_pool,
    keeps_towers,
    names_part,
    unmatched,
)
from mmoe.config.freezing.stages import (
    StageConfig,
    check_stages,
    domains_known_to,
    stage_of,
)

__all__ = [
    "ENCODER",
    "TABLES",
    "StageConfig",
    "check_stages",
    "domains_known_to",
    "frozen_tables",
    "keeps_pool",
    "keeps_towers",
    "names_part",
    "stage_of",
    "unmatched",
]
