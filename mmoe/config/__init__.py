"""What a run is: pydantic models read from YAML. Imports no torch."""

from mmoe.config.data import DataConfig, RequestsConfig, SplitConfig, StreamingConfig
from mmoe.config.domains import DomainsConfig
from mmoe.config.experts import EXPERTS, TOWERS, CapacityConfig, ExpertConfig, TowerConfig
from mmoe.config.features import (
    FEATURES,
    SEQUENCE_ENCODERS,
    CategoricalFeature,
    CrossFeature,
    Feature,
    FeatureConfig,
    IdFeature,
    ListFeature,
    NumericFeature,
    SequenceEncoderConfig,
    SequenceFeature,
    VectorFeature,
)
from mmoe.config.features.datetimes import DatetimeFeature, Part, TimeUnit
from mmoe.config.gates import GATES, GateConfig, LearnedGateConfig
from mmoe.config.interactions import INTERACTIONS, InteractionConfig
from mmoe.config.loading import config_from_dict, dump_config, load_config, set_values
from mmoe.config.metrics import METRICS, MetricConfig
from mmoe.config.model import MODELS, GatedModelConfig, ModelConfig, PoolModelConfig
from mmoe.config.optimizers import EmbeddingOptimizerConfig, OptimizerConfig
from mmoe.config.parallel import ParallelConfig, ScoringPrecision, TablePlacement
from mmoe.config.run import RunConfig
from mmoe.config.specs import (
    FeatureSpec,
    InputLayerSpec,
    LabelSpec,
    ManagedIds,
    PiecesSpec,
    ProjectionSpec,
    SequenceSpec,
    TableSpec,
)
from mmoe.config.tables import ENCODINGS, TableConfig, TableEncoding, TableSettings
from mmoe.config.tasks import TASKS, TaskConfig
from mmoe.config.training import DeviceKind, TrainingConfig
from mmoe.config.vectors import TableVectors

__all__ = [
    "ENCODINGS",
    "EXPERTS",
    "FEATURES",
    "GATES",
    "INTERACTIONS",
    "METRICS",
    "MODELS",
    "SEQUENCE_ENCODERS",
    "TASKS",
    "TOWERS",
    "CapacityConfig",
    "CategoricalFeature",
    "CrossFeature",
    "DataConfig",
    "DatetimeFeature",
    "DeviceKind",
    "DomainsConfig",
    "EmbeddingOptimizerConfig",
    "ExpertConfig",
    "Feature",
    "FeatureConfig",
    "FeatureSpec",
    "GateConfig",
    "GatedModelConfig",
    "IdFeature",
    "InputLayerSpec",
    "InteractionConfig",
    "LabelSpec",
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
    "PoolModelConfig",
    "ProjectionSpec",
    "RequestsConfig",
    "RunConfig",
    "ScoringPrecision",
    "SequenceEncoderConfig",
    "SequenceFeature",
    "SequenceSpec",
    "SplitConfig",
    "StreamingConfig",
    "TableConfig",
    "TableEncoding",
    "TablePlacement",
    "TableSettings",
    "TableSpec",
    "TableVectors",
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
