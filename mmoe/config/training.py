"""The `training` section, and what stays of an earlier run: `training.freeze`, `model.stages`."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticKnownError

from mmoe.config.kinds import HasKinds, Kinds, Name, Strict
from mmoe.metrics.columns import WITH_BIAS
from mmoe.metrics.task_kinds import HIGHER_IS_BETTER


class StageConfig(Strict):
    """The parts that a model had before others were added to them, frozen; `mmoe train` writes it.

    Gates of a stage see the experts of this stage and those before, and read its features alone, as
    do its experts; they and the towers of its tasks know its domains alone. So they compute what
    they computed before, to the bit, whatever has come since.
    """

    tasks: list[Name] = Field(min_length=1, description="those there were, in their order")
    experts: list[str] = Field(
        default_factory=list,
        description="names of those there were; empty: neither experts nor gates were frozen, and "
        "all gates see all experts",
    )
    features: list[Name] = Field(min_length=1, description="those there were, in their order")
    tables: list[str] = Field(default_factory=list, description="embedding tables there were")
    domains: list[str] | None = Field(
        default=None,
        description="domains there were, which alone its gates and own towers know; null: they "
        "know those that come as well",
    )


def stage_of(name: str, stages: Sequence[Sequence[str]]) -> int:
    """Returns the first stage that has a name; one more than the last where none has.

    Args:
        name: Of a task or an expert.
        stages: Names by stage.

    Example:
        >>> [stage_of(name, [["click"], ["click", "like"]]) for name in ("click", "like", "buy")]
        [0, 1, 2]
    """
    return next((number for number, names in enumerate(stages) if name in names), len(stages))


def domains_known_to(
    task: str, stages: Sequence[StageConfig], domains: Sequence[str]
) -> Sequence[str]:
    """Returns the domains that the gates and the own tower of a task know.

    Args:
        task: Its name.
        stages: Of the model.
        domains: All that there are, in their order: those of a stage are the first ones.

    Example:
        >>> stage = StageConfig(tasks=["click"], features=["user"], domains=["feed"])
        >>> [list(domains_known_to(t, [stage], ["feed", "live"])) for t in ("click", "buy")]
        [['feed'], ['feed', 'live']]
    """
    for stage in stages:
        if stage.domains is not None and task in stage.tasks:
            return stage.domains
    return domains


def check_stages(
    stages: Sequence[StageConfig], tasks: Collection[str], features: Collection[str]
) -> None:
    """Refuses stages of another config: what there was must be there, stage by stage.

    Raises:
        ValueError: Names what is missing.
    """
    behind = [*((stage.tasks, stage.features) for stage in stages), (tasks, features)]
    for number, both in enumerate(pairwise(behind)):
        for what, own, later in zip(("task", "feature"), *both, strict=True):
            gone = [name for name in own if name not in later]
            if gone:
                raise ValueError(
                    f"model.stages.{number}: {what} {gone[0]!r} is not there any more, though the "
                    f"model was trained with it; bring it back, or train without --warm-start"
                )


ENCODER = "encoder"
TABLES = "tables"

# What a pattern begins with that means neither experts nor gates
_BESIDE = (
    TABLES,
    ENCODER,
    "towers",
    "inputs",
    "sequences",
    "interaction",
    "crossing",
    "transfer",
    "imputation",
    "bias",
    "bias_tower",
)


def names_part(pattern: str, name: str) -> bool:
    """Returns whether a pattern names a part that a dotted name lies in, or is.

    Example:
        >>> [names_part(p, "towers.click.mlp.weight") for p in ("towers", "towers.cl*", "*.buy")]
        [True, True, False]
    """
    return any(fnmatchcase(part, pattern) for part in accumulate(name.split("."), "{}.{}".format))


def frozen_tables(freeze: Sequence[str], stages: Sequence[StageConfig]) -> set[str]:
    """Returns the tables that were there before and are frozen.

    Example:
        >>> stage = StageConfig(tasks=["click"], features=["user"], tables=["user", "item"])
        >>> sorted(frozen_tables(["tables"], [stage])), frozen_tables(["tables.u*"], [stage])
        (['item', 'user'], {'user'})
    """
    tables = stages[-1].tables if stages else []
    return {t for t in tables if any(names_part(pattern, f"{TABLES}.{t}") for pattern in freeze)}


def keeps_pool(freeze: Iterable[str]) -> bool:
    """Returns whether patterns may name experts or gates, so that new ones stand beside them."""
    return any(pattern.split(".")[0] not in _BESIDE for pattern in freeze)


def keeps_towers(freeze: Iterable[str]) -> bool:
    """Returns whether patterns may name towers, which then stay as they are in new domains."""
    return keeps_pool(freeze) or any(pattern.split(".")[0] == "towers" for pattern in freeze)


def unmatched(pattern: str, parts: Sequence[str]) -> ValueError:
    """Returns the error of a pattern that names nothing.

    Args:
        pattern: As somebody wrote it.
        parts: What there is, by the names that it could have had.
    """
    near = get_close_matches(pattern, parts, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return ValueError(
        f"training.freeze: {pattern!r} matches no parameter of the --warm-start run; there are: "
        f"{', '.join(parts)}{hint}"
    )


class OptimizerConfig(HasKinds):
    """Optimizer of the dense part (experts, gates, towers)."""

    kind: Any = Field(description="adamw: weight_decay shrinks weights apart from the gradient")
    learning_rate: float = Field(default=1e-3, gt=0, description="times what the schedule says")
    weight_decay: float = Field(default=0.0, ge=0, description="adam: an L2 penalty")
    weight_decay_on: Literal["all", "matrices"] = Field(
        default="all", description="matrices: biases and the parameters of norms are left alone"
    )
    schedule: Literal["constant", "linear", "cosine", "inverse_sqrt"] = Field(
        default="constant",
        description="what the rates of the dense part and of the tables are multiplied with, step "
        "by step: linear and cosine fall from 1 to final_rate over `epochs`, inverse_sqrt as "
        "1 / √step",
    )
    warmup_steps: int = Field(
        default=0, ge=0, description="steps in which both rates first rise, in a straight line"
    )
    final_rate: float = Field(
        default=0.0, ge=0, lt=1, description="share of the rates left at the end: linear, cosine"
    )

    if TYPE_CHECKING:

        def __init__(self, **keys: Any) -> None: ...

    def _ensure_only_some_schedules_end(self) -> None:
        if self.final_rate and self.schedule not in ("linear", "cosine"):
            raise ValueError(
                f"final_rate is {self.final_rate}, but schedule {self.schedule} does not fall to "
                "an end; remove it, or set schedule: linear or cosine"
            )

    def _ensure_decay_has_a_size(self) -> None:
        if self.weight_decay_on != "all" and not self.weight_decay:
            raise ValueError(
                f"weight_decay_on is {self.weight_decay_on}, but weight_decay is 0; set it too"
            )


class AdamConfig(OptimizerConfig):
    """Adam."""

    kind: Literal["adam"] = "adam"


class AdamWConfig(OptimizerConfig):
    """Adam with decoupled decay."""

    kind: Literal["adamw"] = "adamw"


OPTIMIZERS = Kinds("optimizer", OptimizerConfig, default="adam")
OPTIMIZERS.add("adam", AdamConfig, "torch.optim:Adam")
OPTIMIZERS.add("adamw", AdamWConfig, "torch.optim:AdamW")


class EmbeddingOptimizerConfig(HasKinds):
    """Optimizer of the tables. Each step moves the rows that its batch looked up, and no others."""

    not_built_with = frozenset({"learning_rate", "weight_decay"})

    kind: Any = Field(description="how rows are moved")
    learning_rate: float = Field(default=0.05, gt=0, description="of tables that set none")
    weight_decay: float = Field(
        default=0.0,
        ge=0,
        description="an L2 penalty of each step on rows of ids (not on buckets of numbers); a row "
        "makes up for it when it is next looked up. So rare ids stay near zero",
    )

    if TYPE_CHECKING:

        def __init__(self, **keys: Any) -> None: ...

    @property
    def needs_copies(self) -> bool:
        """Whether several ranks train copies of a table of ids: fused kernels have no decay."""
        return self.weight_decay > 0


class _RootConfig(EmbeddingOptimizerConfig):
    eps: float = Field(default=1e-8, gt=0, description="added to the root")


class RowwiseAdagradConfig(_RootConfig):
    """Adagrad with one number for each row."""

    kind: Literal["rowwise_adagrad"] = "rowwise_adagrad"


class AdagradConfig(_RootConfig):
    """Adagrad with one number for each weight."""

    kind: Literal["adagrad"] = "adagrad"


class RowAdamConfig(_RootConfig):
    """Adam, on the plain backend alone (FBGEMM has none for the CPU)."""

    kind: Literal["adam"] = "adam"
    learning_rate: float = Field(default=0.001, gt=0, description="of tables that set none")
    betas: tuple[float, float] = Field(
        default=(0.9, 0.999), description="what the two averages keep at each step"
    )

    def _ensure_betas_are_shares(self) -> None:
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas is {self.betas}; expected two numbers from 0 to below 1")


class SgdConfig(EmbeddingOptimizerConfig):
    """Plain SGD."""

    kind: Literal["sgd"] = "sgd"
    learning_rate: float = Field(gt=0, description="of tables that set none")

    @model_validator(mode="before")
    @classmethod
    def _the_rate_is_said(cls, raw: Any) -> Any:
        if not isinstance(raw, Mapping) or "learning_rate" in raw:
            return raw
        if set(raw) - set(cls.model_fields):
            return raw  # refused by name; one of them may be the rate, misspelt
        raise ValueError(
            "kind sgd needs a learning_rate: its steps are as small as the gradients of a mean "
            "over the batch, so the rate that suits grows with batch_size"
        )


_RULES = "mmoe.embeddings.row_updates"

EMBEDDING_OPTIMIZERS = Kinds(
    "embedding optimizer", EmbeddingOptimizerConfig, default="rowwise_adagrad"
)
EMBEDDING_OPTIMIZERS.add("rowwise_adagrad", RowwiseAdagradConfig, f"{_RULES}:Adagrad")
EMBEDDING_OPTIMIZERS.add("adagrad", AdagradConfig, f"{_RULES}:full_adagrad")
EMBEDDING_OPTIMIZERS.add("adam", RowAdamConfig, f"{_RULES}:Adam")
EMBEDDING_OPTIMIZERS.add("sgd", SgdConfig, f"{_RULES}:Sgd")


DeviceKind = Literal["auto", "cpu", "cuda"]
LoggerName = Literal["tensorboard", "mlflow"]


_TO_BEGIN = 3  # epochs that experts have to outdo a wide part
_MOST_TO_BEGIN = 10  # while nothing moves
_STILL = 0.001  # of the monitored value: experts that moved it less have not begun to tell


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
    cuda_graphs: bool = Field(
        default=True,
        description="on one GPU, run the network's passes as CUDA graphs where batches have one "
        "shape: the same numbers, sooner where batches are of a few thousand rows",
    )
    monitor: str = Field(
        default="mean.auc",
        description="TASK.METRIC, or mean.METRIC: over the tasks that have it; on the validation "
        "split; picks the best checkpoint. gain: the share of the loss of predicting the mean that "
        "a task saves (1 - NE of events, R² of numbers), one scale for both. With model.bias also "
        "METRIC_with_bias (auc, logloss, rmse)",
    )
    patience: int = Field(
        default=3,
        ge=1,
        description="epochs without improvement before stopping; where there is a wide part before "
        "the first epoch, three at least to outdo it, and half of epochs (10 at most) while "
        "nothing moves",
    )
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
        """Checks `monitor` against the metrics there are now: plug-ins may add more."""
        pattern = rf"^[^.]+\.({'|'.join(HIGHER_IS_BETTER)})$"
        if not re.fullmatch(pattern, monitor.removesuffix(WITH_BIAS)):
            raise PydanticKnownError("string_pattern_mismatch", {"pattern": pattern})
        return monitor

    def waits(
        self, best_epoch: int, start: float | None = None, epochs: Iterable[float | None] = ()
    ) -> int:
        """Returns how many epochs without improvement end training.

        Experts beside a fitted wide part begin at 0, and what they read tells little more at first:
        until they have moved the monitored value by a thousandth, half of the epochs may pass, ten
        at most. Of six seeds of a log whose ids multiply, two ended at an AUC of 0.668 with three
        epochs of patience, and all come to 0.704 to 0.713 with half of fifteen.

        Args:
            best_epoch: 0: what was there before the first epoch is the best.
            start: The monitored value then; None: nothing was there.
            epochs: The monitored value after each epoch.
        """
        waits = self.patience if best_epoch else max(self.patience, _TO_BEGIN)
        if start is None:
            return waits
        # A gain and an R² are 1 less a relative loss, and may be 0: a thousandth is that loss's
        scale = abs(1 - start if self.monitor.endswith((".gain", ".r2")) else start)
        still = all(value is not None and abs(value - start) < _STILL * scale for value in epochs)
        return max(waits, min(self.epochs // 2, _MOST_TO_BEGIN)) if still else waits

    def _ensure_the_backend_has_the_optimizer(self) -> None:
        if self.embedding_backend == "torchrec" and self.embedding_optimizer.kind == "adam":
            raise ValueError(
                "embedding_optimizer.kind is adam, which embedding_backend torchrec does not have "
                "on the CPU; set embedding_backend: plain (or auto), or another kind"
            )
