"""What a run is: pydantic models read from YAML. Imports no torch."""

from mmoe.config.data import DataConfig, SplitConfig, StreamingConfig
from mmoe.config.datetimes import DatetimeFeature, Part, TimeUnit
from mmoe.config.experts import (
    EXPERTS,
    INTERACTIONS,
    TOWERS,
    ExpertConfig,
    InteractionConfig,
    TowerConfig,
)
from mmoe.config.feature import Feature
from mmoe.config.features import (
    FEATURES,
    CategoricalFeature,
    CrossFeature,
    FeatureConfig,
    IdFeature,
    ListFeature,
    NumericFeature,
    VectorFeature,
)
from mmoe.config.gates import GATES, GateConfig, LearnedGateConfig
from mmoe.config.loading import config_from_dict, dump_config, load_config, set_values
from mmoe.config.metrics import METRICS, MetricConfig
from mmoe.config.model import MODELS, CapacityConfig, ModelConfig
from mmoe.config.optimizers import EmbeddingOptimizerConfig, OptimizerConfig
from mmoe.config.parallel import ParallelConfig, ScoringPrecision, TablePlacement
from mmoe.config.run import RunConfig
from mmoe.config.specs import (
    FeatureSpec,
    InputLayerSpec,
    ManagedIds,
    PiecesSpec,
    ProjectionSpec,
    TableSpec,
)
from mmoe.config.tables import ENCODINGS, TableConfig, TableEncoding, TableSettings
from mmoe.config.tasks import TASKS, TaskConfig
from mmoe.config.training import DeviceKind, TrainingConfig

__all__ = [
    "ENCODINGS",
    "EXPERTS",
    "FEATURES",
    "GATES",
    "INTERACTIONS",
    "METRICS",
    "MODELS",
    "TASKS",
    "TOWERS",
    "CapacityConfig",
    "CategoricalFeature",
    "CrossFeature",
    "DataConfig",
    "DatetimeFeature",
    "DeviceKind",
    "EmbeddingOptimizerConfig",
    "ExpertConfig",
    "Feature",
    "FeatureConfig",
    "FeatureSpec",
    "GateConfig",
    "IdFeature",
    "InputLayerSpec",
    "InteractionConfig",
    "LearnedGateConfig",
    "ListFeature",
    "ManagedIds",
    "MetricConfig",
    "ModelConfig",
    "NumericFeature",
    "OptimizerConfig",
    "ParallelConfig",
    "Part",
    "PiecesSpec",
    "ProjectionSpec",
    "RunConfig",
    "ScoringPrecision",
    "SplitConfig",
    "StreamingConfig",
    "TableConfig",
    "TableEncoding",
    "TablePlacement",
    "TableSettings",
    "TableSpec",
    "TaskConfig",
    "TimeUnit",
    "TowerConfig",
    "TrainingConfig",
    "VectorFeature",
    "config_from_dict",
    "dump_config",
    "load_config",
    "set_values",
]
