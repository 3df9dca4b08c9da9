"""The network: experts, gates, towers."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from mmoe.config.base import Strict

Activation = Literal["relu", "gelu", "silu"]
GateKind = Literal[
    "softmax",
    "top_k",
    "noisy_top_k",
    "switch",
    "gshard",
    "cosine",
    "sigmoid",
    "dselect_k",
    "static",
]
Width = Annotated[int, Field(ge=1, le=1_000_000)]


class ExpertConfig(Strict):
    """One expert: an MLP. Its last width is the expert's output width."""

    hidden: list[Width] = Field(default=[256, 128], min_length=1, description="width of each layer")
    activation: Literal["relu", "gelu", "silu", "swiglu"] = Field(
        default="relu", description="after each layer"
    )
    output_activation: Literal["same", "none", "relu", "gelu", "silu", "swiglu"] = Field(
        default="same", description="of the last layer; same: as the others; none: it has none"
    )
    norm: Literal["layer", "batch"] | None = Field(
        default=None, description="before each activation; batch: over each expert's own rows"
    )
    dropout: float = Field(default=0.0, ge=0, lt=1, description="after each activation")


class GateConfig(Strict):
    """How a gate mixes experts, and what keeps it balanced.

    The settings up to `balance_scope` go with every kind; the others say with which. A setting that
    does not go with the kind is refused, unless it has its default.
    """

    kind: GateKind = Field(default="softmax", description="see mmoe/mixture/README.md")
    k: int | None = Field(
        default=None,
        ge=1,
        description="experts a gate picks for one sample; null: 2, and all of them where kind is "
        "static; softmax always weighs all, switch picks 1 and gshard 2",
    )
    hidden: list[Width] = Field(
        default_factory=list, description="layers of a gate MLP; [] = linear"
    )
    temperature: float = Field(default=1.0, gt=0, description="logits are divided by it")
    dropout: float = Field(
        default=0.0, ge=0, lt=1, description="probability that a gate does without an expert"
    )
    z_loss: float = Field(default=0.0, ge=0, description="coefficient: keeps logits small")
    balance_loss: float | None = Field(
        default=None, ge=0, description="coefficient: even loads; null: 0.01 for switch and gshard"
    )
    balance_scope: Literal["gate", "all"] = Field(
        default="gate", description="whose loads are to be even: each gate's, or their sum"
    )
    softmax: Literal["after", "before"] = Field(
        default="after", description="top_k, cosine, static: after the selection or before it"
    )
    importance_loss: float = Field(default=0.01, ge=0, description="noisy_top_k: coefficient")
    load_loss: float = Field(default=0.01, ge=0, description="noisy_top_k: coefficient")
    jitter: float = Field(default=0.0, ge=0, lt=1, description="switch: noise on the input")
    projection_dim: Width = Field(default=256, description="cosine: width of the projection")
    normalize: bool = Field(default=True, description="sigmoid: weights add up to 1")
    bias_speed: float = Field(default=0.001, ge=0, description="sigmoid: 0 = no balancing")
    per_sample: bool = Field(default=True, description="dselect_k: false = one choice per task")
    gamma: float = Field(default=1.0, gt=0, description="dselect_k: width of the smooth step")
    entropy_loss: float = Field(default=0.01, ge=0, description="dselect_k: coefficient")
    code_loss: float = Field(default=1.0, ge=0, description="dselect_k: coefficient")

    @property
    def picks(self) -> int | None:
        """How many experts a gate picks for one sample; None: it weighs all of them."""
        fixed = {"softmax": None, "switch": 1, "gshard": 2}
        if self.kind in fixed:
            return fixed[self.kind]
        return self.k if self.k is not None or self.kind == "static" else 2

    @model_validator(mode="after")
    def _settings_go_with_the_kind(self) -> "GateConfig":
        for name, kinds in _GATE_SETTINGS.items():
            default = GateConfig.model_fields[name].default
            if self.kind not in kinds and getattr(self, name) != default:
                raise ValueError(
                    f"{name} goes with kind {' or '.join(kinds)}, but kind is {self.kind}; "
                    f"remove {name}, or change kind"
                )
        # 2 was the default in configs written before there were other kinds.
        if self.kind == "softmax" and self.k not in (None, 2):
            raise ValueError(
                f"k is {self.k}, but softmax gates weigh all experts; remove k or set kind to top_k"
            )
        if self.kind in ("switch", "gshard") and self.k not in (None, self.picks):
            raise ValueError(f"k is {self.k}, but {self.kind} always picks {self.picks}; remove k")
        if self.hidden and (self.kind == "static" or not self.per_sample):
            raise ValueError("hidden must be []: this gate reads no input")
        return self


_GATE_SETTINGS = {
    "softmax": ("top_k", "cosine", "static"),
    "importance_loss": ("noisy_top_k",),
    "load_loss": ("noisy_top_k",),
    "jitter": ("switch",),
    "projection_dim": ("cosine",),
    "normalize": ("sigmoid",),
    "bias_speed": ("sigmoid",),
    "per_sample": ("dselect_k",),
    "gamma": ("dselect_k",),
    "entropy_loss": ("dselect_k",),
    "code_loss": ("dselect_k",),
}


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


class TowerConfig(Strict):
    """One task's head over its mixture."""

    hidden: list[Width] = Field(default=[64], description="width of each layer; [] = linear")
    activation: Activation = Field(default="relu", description="after each of them")
    dropout: float = Field(default=0.0, ge=0, lt=1, description="after each activation")


class ModelConfig(Strict):
    """Which model, and its sizes. `kind` is a setting of one module, `MultiGateMixture`."""

    kind: Literal["mmoe", "shared_bottom", "single_task", "omoe", "cgc", "ple", "esmm"] = Field(
        default="mmoe", description="which experts there are, and which gates see them"
    )
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

    @property
    def has_gates(self) -> bool:
        """Whether tasks weigh experts; with one network for all, or one for each, none does."""
        return self.kind not in ("shared_bottom", "single_task")

    @property
    def depth(self) -> int:
        """How many levels of experts follow one another."""
        return self.levels if self.kind == "ple" else 1

    @model_validator(mode="after")
    def _execution_is_possible(self) -> "ModelConfig":
        if self.execution == "padded" and self.capacity is None:
            raise ValueError("execution is padded, which needs a capacity; set capacity or auto")
        if self.execution == "padded" and self.expert.norm == "batch":
            raise ValueError(
                "execution is padded, whose rows of zeros expert.norm batch would count; set "
                "execution to auto"
            )
        return self

    @model_validator(mode="after")
    def _k_within_what_a_gate_sees(self) -> "ModelConfig":
        picks = self.gate.picks
        if picks is None:
            return self
        visible = {
            "shared_bottom": 1,
            "single_task": 1,
            "cgc": self.shared_experts + self.task_experts,
            "ple": self.shared_experts + self.task_experts,
        }.get(self.kind, self.num_experts)
        if picks > visible:
            raise ValueError(
                f"gate.k is {picks}, but a gate of {self.kind} sees {visible} "
                f"expert(s); lower gate.k or add experts"
            )
        return self
