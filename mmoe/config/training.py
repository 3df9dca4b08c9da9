"""How the model is trained."""

from typing import Literal

from pydantic import Field

from mmoe.config.base import Strict


class OptimizerConfig(Strict):
    """Optimizer of the dense part (experts, gates, towers)."""

    kind: Literal["adam", "adamw"] = "adam"
    learning_rate: float = Field(default=1e-3, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    schedule: Literal["constant", "cosine"] = Field(
        default="constant", description="cosine: both learning rates decay to zero over `epochs`"
    )


class EmbeddingOptimizerConfig(Strict):
    """Optimizer of the tables, fused into the embedding's backward pass."""

    kind: Literal["rowwise_adagrad"] = "rowwise_adagrad"
    learning_rate: float = Field(default=0.05, gt=0)
    eps: float = Field(default=1e-8, gt=0)


class TrainingConfig(Strict):
    """Epochs, batches, optimizers, and what decides which checkpoint is kept."""

    epochs: int = Field(default=10, ge=1)
    batch_size: int = Field(default=4096, ge=1)
    eval_batch_size: int = Field(
        default=4096,
        ge=1,
        description="fixed height of evaluation and scoring batches (the last is padded)",
    )
    optimizer: OptimizerConfig = OptimizerConfig()
    embedding_optimizer: EmbeddingOptimizerConfig = EmbeddingOptimizerConfig()
    embedding_backend: Literal["auto", "torchrec", "plain"] = "auto"
    gradient_clip: float | None = Field(
        default=None, gt=0, description="L2 norm of the dense gradients"
    )
    precision: Literal["fp32", "bf16"] = "fp32"
    monitor: str = Field(
        default="mean.auc",
        pattern=r"^[^.]+\.(auc|logloss|ne|rmse|mae)$",
        description="TASK.METRIC or mean.METRIC on the validation split; picks the best checkpoint",
    )
    patience: int = Field(default=3, ge=1, description="epochs without improvement before stopping")
    checkpoint_every_steps: int | None = Field(
        default=None, ge=1, description="also save every so many steps; always saved after an epoch"
    )
    ema_decay: float | None = Field(
        default=None, gt=0, lt=1, description="evaluate and keep an average of the dense weights"
    )
