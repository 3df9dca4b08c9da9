"""What a run is: pydantic models read from YAML. Imports no torch."""

from mmoe.config.data import DataConfig, SplitConfig, StreamingConfig
from mmoe.config.features import (
    CategoricalFeature,
    FeatureConfig,
    ListFeature,
    NumericFeature,
    TableConfig,
)
from mmoe.config.loading import config_from_dict, dump_config, load_config, set_values
from mmoe.config.model import CapacityConfig, ExpertConfig, GateConfig, ModelConfig, TowerConfig
from mmoe.config.run import RunConfig
from mmoe.config.specs import FeatureSpec, TableSpec
from mmoe.config.tasks import TaskConfig
from mmoe.config.training import EmbeddingOptimizerConfig, OptimizerConfig, TrainingConfig

__all__ = [
    "CapacityConfig",
    "CategoricalFeature",
    "DataConfig",
    "EmbeddingOptimizerConfig",
    "ExpertConfig",
    "FeatureConfig",
    "FeatureSpec",
    "GateConfig",
    "ListFeature",
    "ModelConfig",
    "NumericFeature",
    "OptimizerConfig",
    "RunConfig",
    "SplitConfig",
    "StreamingConfig",
    "TableConfig",
    "TableSpec",
    "TaskConfig",
    "TowerConfig",
    "TrainingConfig",
    "config_from_dict",
    "dump_config",
    "load_config",
    "set_values",
]
