"""The network: which model, and its sizes. A kind is a class, and a line in `MODELS`."""

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from mmoe.config.base import Strict
from mmoe.config.experts import ExpertConfig, TowerConfig
from mmoe.config.gates import GateConfig
from mmoe.config.kinds import HasKinds, Kinds


class CapacityConfig(Strict):
    """How many rows an expert computes in a training step at most; the rest is dropped.

    Scoring and evaluation drop nothing.
    """

    factor: float = Field(
        default=1.25,
        description="of the mean load; 0: what the busiest expert needs; below 0: that, at most "
        "|factor| of the mean load",
    )
    priority: Literal["position", "choice", "probability"] = Field(
        default="position",
        description="whose rows stay: the first; first picks before second ones; the largest "
        "weights",
    )
    minimum: int | None = Field(default=None, ge=1, description="rows")
    maximum: int | None = Field(default=None, ge=1, description="rows")

    @model_validator(mode="after")
    def _minimum_within_maximum(self) -> "CapacityConfig":
        if self.minimum is not None and self.maximum is not None and self.minimum > self.maximum:
            raise ValueError(f"minimum must be at most maximum ({self.maximum})")
        return self


class ModelConfig(HasKinds):
    """Which model, and its sizes. `kind` is a setting of one module, `MultiGateMixture`."""

    title: ClassVar[str] = ""  # what a report calls the model; default: its kind
    has_gates: ClassVar[bool] = True  # whether tasks weigh experts

    kind: Any = Field(description="which experts there are, and which gates see them")
    embedding_dim: int = Field(
        default=16, ge=4, le=4096, multiple_of=4, description="of tables that set no dim"
    )
    input_dropout: float = Field(
        default=0.0, ge=0, lt=1, description="of the input: dense features and embeddings"
    )
    num_experts: int = Field(default=8, ge=1, description="mmoe, omoe, esmm: experts in the pool")
    shared_experts: int = Field(
        default=4, ge=1, description="cgc, ple: experts that every task sees"
    )
    task_experts: int = Field(default=2, ge=1, description="cgc, ple: own experts of each task")
    levels: int = Field(default=2, ge=1, le=16, description="ple: extraction levels")
    expert: ExpertConfig = Field(default=ExpertConfig(), description="every expert")
    gate: GateConfig = Field(default=GateConfig(), description="every gate")
    tower: TowerConfig = Field(default=TowerConfig(), description="the head of every task")
    capacity: CapacityConfig | None = Field(
        default=None, description="null: nothing is dropped; {} = factor 1.25"
    )
    execution: Literal["auto", "dense", "grouped", "padded"] = Field(
        default="auto", description="padded: every expert computes as many rows as the capacity"
    )

    if TYPE_CHECKING:

        def __init__(self, **keys: Any) -> None: ...

    @property
    def depth(self) -> int:
        """How many levels of experts follow one another."""
        return 1

    @property
    def visible_experts(self) -> int:
        """How many experts a task's gate sees."""
        return self.num_experts

    @property
    def pool_title(self) -> str:
        """What a report says of its experts."""
        return f"{self.num_experts} expert{'s' * (self.num_experts > 1)}"

    @model_validator(mode="after")
    def _execution_is_possible(self) -> "ModelConfig":
        if self.execution == "padded" and self.capacity is None:
            raise ValueError("execution is padded, which needs a capacity; set capacity or auto")
        if self.execution == "padded" and self.expert.uses_batch:
            raise ValueError(
                "execution is padded, whose rows of zeros expert.norm batch would count; set "
                "execution to auto"
            )
        return self

    @model_validator(mode="after")
    def _k_within_what_a_gate_sees(self) -> "ModelConfig":
        picks = self.gate.picks
        if picks is not None and picks > self.visible_experts:
            raise ValueError(
                f"gate.k is {picks}, but a gate of {self.kind} sees {self.visible_experts} "
                f"expert(s); lower gate.k or add experts"
            )
        return self


class MMoEConfig(ModelConfig):
    """Every task has a gate of its own over one pool of experts."""

    title: ClassVar[str] = "MMoE"
    kind: Literal["mmoe"] = "mmoe"


class SharedBottomConfig(ModelConfig):
    """One network for all tasks."""

    title: ClassVar[str] = "Shared-Bottom"
    has_gates: ClassVar[bool] = False
    kind: Literal["shared_bottom"] = "shared_bottom"

    @property
    def visible_experts(self) -> int:
        """The network."""
        return 1

    @property
    def pool_title(self) -> str:
        """What a report says of its experts."""
        return "1 shared network"


class SingleTaskConfig(ModelConfig):
    """A network for each task."""

    title: ClassVar[str] = "Single-task"
    has_gates: ClassVar[bool] = False
    kind: Literal["single_task"] = "single_task"

    @property
    def visible_experts(self) -> int:
        """Its network."""
        return 1

    @property
    def pool_title(self) -> str:
        """What a report says of its experts."""
        return "1 network a task"


class OMoEConfig(ModelConfig):
    """One gate for all tasks."""

    title: ClassVar[str] = "OMoE"
    kind: Literal["omoe"] = "omoe"


class CGCConfig(ModelConfig):
    """Own experts of each task beside shared ones."""

    title: ClassVar[str] = "CGC"
    kind: Literal["cgc"] = "cgc"

    @property
    def visible_experts(self) -> int:
        """A task's own and the shared ones."""
        return self.shared_experts + self.task_experts

    @property
    def pool_title(self) -> str:
        """What a report says of its experts."""
        return f"{self.shared_experts} shared + {self.task_experts} own experts a task"


class PLEConfig(CGCConfig):
    """The same on several levels."""

    title: ClassVar[str] = "PLE"
    kind: Literal["ple"] = "ple"  # type: ignore[assignment]  # another kind than its parent

    @property
    def depth(self) -> int:
        """As many as were asked for."""
        return self.levels

    @property
    def pool_title(self) -> str:
        """What a report says of its experts."""
        return f"{self.levels} levels of {super().pool_title}"


class ESMMConfig(ModelConfig):
    """MMoE for an event and its consequence."""

    title: ClassVar[str] = "ESMM"
    kind: Literal["esmm"] = "esmm"


# Config class → what builds the network, as `mmoe.models.registry.build_network` calls it
MODELS = Kinds("model", ModelConfig, default="mmoe")
MODELS.add("mmoe", MMoEConfig, "mmoe.models.mmoe:build_mmoe")
MODELS.add("shared_bottom", SharedBottomConfig, "mmoe.models.shared_bottom:build_shared_bottom")
MODELS.add("single_task", SingleTaskConfig, "mmoe.models.single_task:build_single_task")
MODELS.add("omoe", OMoEConfig, "mmoe.models.omoe:build_omoe")
MODELS.add("cgc", CGCConfig, "mmoe.models.cgc:build_cgc")
MODELS.add("ple", PLEConfig, "mmoe.models.ple:build_ple")
MODELS.add("esmm", ESMMConfig, "mmoe.models.esmm:build_esmm")
