"""How the model is trained."""

import re
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticKnownError

from mmoe.config.base import Strict
from mmoe.config.optimizers import EmbeddingOptimizerConfig, OptimizerConfig
from mmoe.metrics.columns import WITH_BIAS
from mmoe.metrics.task_kinds import HIGHER_IS_BETTER

DeviceKind = Literal["auto", "cpu", "cuda"]
LoggerName = Literal["tensorboard", "mlflow"]


class TrainingConfig(Strict):
    """Epochs, batches, optimizers, and what decides which checkpoint is kept."""

    epochs: int = Field(default=10, ge=1, description="passes over the training split, at most")
    batch_size: int = Field(
        default=4096, ge=1, le=2**31 - 1, description="rows of a batch, of all ranks together"
    )
    accumulate_batches: int = Field(
        default=1,
        ge=1,
        le=2**31 - 1,
        description="batches to a step: their gradients are added up, so that the step is that of "
        "one batch so many times as large, while the network runs on batch_size rows at a time",
    )
    eval_batch_size: int = Field(
        default=4096,
        ge=1,
        le=2**24,  # rows: the last batch is padded to it
        description="most rows of a batch in evaluation and scoring; on a GPU all are so high",
    )
    optimizer: OptimizerConfig = Field(
        default=OptimizerConfig(), description="of experts, gates and towers"
    )
    embedding_optimizer: EmbeddingOptimizerConfig = Field(
        default=EmbeddingOptimizerConfig(), description="of the tables"
    )
    embedding_backend: Literal["auto", "torchrec", "plain"] = Field(
        default="auto",
        description="torchrec: TorchRec and FBGEMM; plain: nn.EmbeddingBag; auto: torchrec where "
        "it is installed and has what the config asks for",
    )
    device: DeviceKind = Field(
        default="auto",
        description="auto: a GPU where torch sees one (with embedding_backend torchrec: and FBGEMM "
        "has kernels for it), else the CPU; --device says otherwise for one command",
    )
    gradient_clip: float | None = Field(
        default=None, gt=0, description="L2 norm of the dense gradients"
    )
    precision: Literal["fp32", "bf16"] = Field(
        default="fp32", description="bf16: of the dense part's products; weights stay fp32"
    )
    monitor: str = Field(
        default="mean.auc",
        description="TASK.METRIC, or mean.METRIC: over the tasks that have it; on the validation "
        "split; picks the best checkpoint; with model.bias also METRIC_with_bias (auc, logloss, "
        "rmse)",
    )
    patience: int = Field(default=3, ge=1, description="epochs without improvement before stopping")
    checkpoint_every_steps: int | None = Field(
        default=None, ge=1, description="also save every so many steps; always saved after an epoch"
    )
    keep_checkpoints: int = Field(
        default=1, ge=1, le=10_000, description="how many of the latest stay, beside the best"
    )
    checkpoint_in_background: bool = Field(
        default=True,
        description="write while training goes on, from a copy in memory of weights and optimizer "
        "state; false: training waits, and needs no copy",
    )
    ema_decay: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="evaluate and keep an average of the dense weights, over some "
        "1 / (1 - ema_decay) steps; in the first ones over fewer",
    )

    freeze: list[str] = Field(
        default_factory=list,
        description="parts of the --warm-start run that stay as they score: experts, gates, towers "
        "(towers.TASK), tables (tables.NAME), encoder, inputs, sequences, interaction, transfer, "
        "bias, or globs over parameter names; what is new is trained. --freeze is the same key",
    )
    extend_ids: bool = Field(
        default=False,
        description="with a frozen encoder: ids that it does not know get rows that new gates and "
        "experts alone read (`mmoe train` adds a feature NAME__new1 for them)",
    )
    loggers: list[LoggerName] = Field(
        default=["tensorboard"],
        description="where losses and metrics are logged beside the run's own files: tensorboard "
        "(RUN/tensorboard), mlflow (wherever MLflow is set to log to; needs mmoe[mlflow])",
    )

    @field_validator("freeze", mode="before")
    @classmethod
    def _a_name_is_a_list(cls, raw: Any) -> Any:
        return [raw] if isinstance(raw, str) else raw

    @field_validator("loggers", "freeze")
    @classmethod
    def _names_are_distinct(cls, names: list[Any]) -> list[Any]:
        return list(dict.fromkeys(names))

    @field_validator("monitor")
    @classmethod
    def _monitor_is_a_metric(cls, monitor: str) -> str:
        """Of those that there are now: others may add kinds of tasks with theirs."""
        pattern = rf"^[^.]+\.({'|'.join(HIGHER_IS_BETTER)})$"
        if not re.fullmatch(pattern, monitor.removesuffix(WITH_BIAS)):
            raise PydanticKnownError("string_pattern_mismatch", {"pattern": pattern})
        return monitor

    @model_validator(mode="after")
    def _the_backend_has_the_optimizer(self) -> "TrainingConfig":
        if self.embedding_backend == "torchrec" and self.embedding_optimizer.kind == "adam":
            raise ValueError(
                "embedding_optimizer.kind is adam, which embedding_backend torchrec does not have "
                "on the CPU; set embedding_backend: plain (or auto), or another kind"
            )
        return self
