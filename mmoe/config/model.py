"""The network: experts, gates, towers."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from mmoe.config.base import Strict

Activation = Literal["relu", "gelu", "silu"]
Width = Annotated[int, Field(ge=1, le=1_000_000)]


class ExpertConfig(Strict):
    """One expert: an MLP. Its last width is the expert's output width."""

    hidden: list[Width] = Field(default=[256, 128], min_length=1)
    activation: Activation = "relu"
    dropout: float = Field(default=0.0, ge=0, lt=1)


class GateConfig(Strict):
    """How a gate mixes experts: all of them (softmax) or the best k of them (top_k)."""

    kind: Literal["softmax", "top_k"] = "softmax"
    k: int = Field(
        default=2, ge=1, description="experts a gate picks for one sample, where kind is top_k"
    )
    hidden: list[Width] = Field(
        default_factory=list, description="layers of a gate MLP; [] = linear"
    )
    temperature: float = Field(default=1.0, gt=0)


class TowerConfig(Strict):
    """One task's head over its mixture."""

    hidden: list[Width] = [64]
    activation: Activation = "relu"
    dropout: float = Field(default=0.0, ge=0, lt=1)


class ModelConfig(Strict):
    """Which model, and its sizes. `kind` is a setting of one module, `MultiGateMixture`."""

    kind: Literal["mmoe", "shared_bottom", "single_task", "omoe", "cgc", "ple", "esmm"] = "mmoe"
    embedding_dim: int = Field(default=16, ge=4, le=4096, multiple_of=4)
    input_dropout: float = Field(default=0.0, ge=0, lt=1)
    num_experts: int = Field(default=8, ge=1, description="mmoe, omoe, esmm: experts in the pool")
    shared_experts: int = Field(
        default=4, ge=1, description="cgc, ple: experts that every task sees"
    )
    task_experts: int = Field(default=2, ge=1, description="cgc, ple: own experts of each task")
    levels: int = Field(default=2, ge=1, le=16, description="ple: extraction levels")
    expert: ExpertConfig = ExpertConfig()
    gate: GateConfig = GateConfig()
    tower: TowerConfig = TowerConfig()
    execution: Literal["auto", "dense", "grouped"] = "auto"

    @model_validator(mode="after")
    def _k_within_what_a_gate_sees(self) -> "ModelConfig":
        if self.gate.kind != "top_k":
            return self
        visible = {
            "shared_bottom": 1,
            "single_task": 1,
            "cgc": self.shared_experts + self.task_experts,
            "ple": self.shared_experts + self.task_experts,
        }.get(self.kind, self.num_experts)
        if self.gate.k > visible:
            raise ValueError(
                f"gate.k is {self.gate.k}, but a gate of {self.kind} sees {visible} "
                f"expert(s); lower gate.k or add experts"
            )
        return self
