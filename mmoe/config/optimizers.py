"""Optimizers of the dense part and of the tables. A kind is a class, and a line below it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from mmoe.config.kinds import HasKinds, Kinds


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

    @model_validator(mode="after")
    def _only_some_schedules_end(self) -> "OptimizerConfig":
        if self.final_rate and self.schedule not in ("linear", "cosine"):
            raise ValueError(
                f"final_rate is {self.final_rate}, but schedule {self.schedule} does not fall to "
                "an end; remove it, or set schedule: linear or cosine"
            )
        return self

    @model_validator(mode="after")
    def _decay_has_a_size(self) -> "OptimizerConfig":
        if self.weight_decay_on != "all" and not self.weight_decay:
            raise ValueError(
                f"weight_decay_on is {self.weight_decay_on}, but weight_decay is 0; set it too"
            )
        return self


class AdamConfig(OptimizerConfig):
    """Adam."""

    kind: Literal["adam"] = "adam"


class AdamWConfig(OptimizerConfig):
    """Adam with decoupled decay."""

    kind: Literal["adamw"] = "adamw"


OPTIMIZERS = Kinds("optimizer", OptimizerConfig, default="adam")
OPTIMIZERS.add("adam", AdamConfig, "torch.optim:Adam")
OPTIMIZERS.add("adamw", AdamWConfig, "torch.optim:AdamW")


_OF_ALL = ("kind", "learning_rate", "weight_decay")


class EmbeddingOptimizerConfig(HasKinds):
    """Optimizer of the tables. Each step moves the rows that its batch looked up, and no others."""

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

    def keywords(self) -> dict[str, Any]:
        """Returns what the rule of its steps is built with; not rate and decay."""
        return {key: value for key, value in self if key not in _OF_ALL}


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

    @model_validator(mode="after")
    def _betas_are_shares(self) -> "RowAdamConfig":
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas is {self.betas}; expected two numbers from 0 to below 1")
        return self


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
