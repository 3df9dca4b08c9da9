"""Gates: how experts are weighed. A kind is a class with its own keys, and a line in `GATES`."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from mmoe.config.kinds import HasKinds, Kinds

Width = Annotated[int, Field(ge=1, le=1_000_000)]


class GateConfig(HasKinds):
    """How a gate mixes experts; the class of a gate that learns nothing and shares no options."""

    kind: Any = Field(description="see mmoe/mixture/README.md")

    if TYPE_CHECKING:

        def __init__(self, **keys: Any) -> None: ...

    @property
    def picks(self) -> int | None:
        """Number of experts that a gate picks for one sample; None: it weighs all."""
        return None

    @property
    def title(self) -> str:
        """Name of it in a report."""
        return self.kind if self.picks is None else f"{self.kind} top-{self.picks}"

    def keywords(self) -> dict[str, Any]:
        """Returns what its gate is built with, beside sizes; null is the gate's default."""
        return {key: value for key, value in self if key != "kind" and value is not None}


class LearnedGateConfig(GateConfig):
    """What all learned gates can be asked for: the options `mmoe.mixture.GateOptions`."""

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


class _ReadingGateConfig(LearnedGateConfig):
    hidden: list[Width] = Field(
        default_factory=list, description="layers of a gate MLP; [] = linear"
    )


class _PickingGateConfig(_ReadingGateConfig):
    k: int | None = Field(
        default=None, ge=1, description="experts a gate picks for one sample; null: 2"
    )

    @property
    def picks(self) -> int:
        """Two, if nothing else is said."""
        return 2 if self.k is None else self.k

    def keywords(self) -> dict[str, Any]:
        """With k."""
        return super().keywords() | {"k": self.picks}


class SoftmaxGateConfig(_ReadingGateConfig):
    """Weighs all experts."""

    kind: Literal["softmax"] = "softmax"

    def refuse(self, key: str, value: Any, kinds: list[str]) -> None:
        """Refuses keys of other kinds, but a k of 2, the default of old configs."""
        if key != "k":
            super().refuse(key, value, kinds)
        elif value != 2:
            raise ValueError(
                f"k is {value}, but softmax gates weigh all experts; remove k or set kind to top_k"
            )


class TopKGateConfig(_PickingGateConfig):
    """Weighs the k experts of the largest logits."""

    kind: Literal["top_k"] = "top_k"
    softmax: Literal["after", "before"] = Field(
        default="after", description="over the selection, or before it over all experts"
    )

    @property
    def title(self) -> str:
        """Name of it in a report."""
        return f"top-{self.picks}"


class NoisyTopKGateConfig(_PickingGateConfig):
    """Picks k under noise, with losses for even importance and load."""

    kind: Literal["noisy_top_k"] = "noisy_top_k"
    importance_loss: float = Field(default=0.01, ge=0, description="coefficient")
    load_loss: float = Field(default=0.01, ge=0, description="coefficient")

    @property
    def title(self) -> str:
        """Name of it in a report."""
        return f"noisy top-{self.picks}"


class _FixedPicksConfig(_ReadingGateConfig):
    def refuse(self, key: str, value: Any, kinds: list[str]) -> None:
        """Its k, said once more, is no other."""
        if key != "k":
            super().refuse(key, value, kinds)
        elif value != self.picks:
            raise ValueError(f"k is {value}, but {self.kind} always picks {self.picks}; remove k")


class SwitchGateConfig(_FixedPicksConfig):
    """Picks one expert (Switch Transformer)."""

    kind: Literal["switch"] = "switch"
    jitter: float = Field(default=0.0, ge=0, lt=1, description="noise on the input")

    @property
    def picks(self) -> int:
        """Number of experts that it picks: one."""
        return 1

    @property
    def title(self) -> str:
        """Name of it in a report."""
        return "Switch"


class GShardGateConfig(_FixedPicksConfig):
    """Picks two experts, the second by chance while training (GShard)."""

    kind: Literal["gshard"] = "gshard"

    @property
    def picks(self) -> int:
        """Number of experts that it picks: two."""
        return 2

    @property
    def title(self) -> str:
        """Name of it in a report."""
        return "GShard"


class CosineGateConfig(_PickingGateConfig):
    """Picks by the cosine between a projection of the input and each expert's vector."""

    kind: Literal["cosine"] = "cosine"
    projection_dim: Width = Field(default=256, description="width of the projection")
    softmax: Literal["after", "before"] = Field(
        default="after", description="over the selection, or before it over all experts"
    )


class SigmoidGateConfig(_PickingGateConfig):
    """Picks by sigmoids, balanced by a bias for each expert (DeepSeek-V3)."""

    kind: Literal["sigmoid"] = "sigmoid"
    normalize: bool = Field(default=True, description="weights add up to 1")
    bias_speed: float = Field(default=0.001, ge=0, description="0 = no balancing")


class DSelectKGateConfig(_PickingGateConfig):
    """Picks k by smooth binary codes, without a jump (DSelect-k)."""

    kind: Literal["dselect_k"] = "dselect_k"
    per_sample: bool = Field(default=True, description="false = one choice per task")
    gamma: float = Field(default=1.0, gt=0, description="width of the smooth step")
    entropy_loss: float = Field(default=0.01, ge=0, description="coefficient")
    code_loss: float = Field(default=1.0, ge=0, description="coefficient")

    @property
    def title(self) -> str:
        """Name of it in a report."""
        return f"DSelect-{self.picks}"

    @model_validator(mode="after")
    def _reads_what_it_is_given(self) -> "DSelectKGateConfig":
        if self.hidden and not self.per_sample:
            raise ValueError(_READS_NOTHING)
        return self


class StaticGateConfig(LearnedGateConfig):
    """Learns the same weights for all samples."""

    kind: Literal["static"] = "static"
    k: int | None = Field(
        default=None, ge=1, description="experts a gate picks; null: it weighs all of them"
    )
    softmax: Literal["after", "before"] = Field(
        default="after", description="over the selection, or before it over all experts"
    )

    @property
    def picks(self) -> int | None:
        """Number of experts that it picks; None: all, if nothing else is said."""
        return self.k

    def refuse(self, key: str, value: Any, kinds: list[str]) -> None:
        """Refuses keys of other kinds, and layers: it has no input to read."""
        if key == "hidden":
            raise ValueError(_READS_NOTHING)
        super().refuse(key, value, kinds)


_READS_NOTHING = "hidden must be []: this gate reads no input"

# Config class → what is called with input width, numbers of gates and experts, and its keywords
GATES = Kinds("gate", GateConfig, default="softmax")
GATES.add("softmax", SoftmaxGateConfig, "mmoe.mixture:SoftmaxGate")
GATES.add("top_k", TopKGateConfig, "mmoe.mixture:TopKGate")
GATES.add("noisy_top_k", NoisyTopKGateConfig, "mmoe.mixture:NoisyTopKGate")
GATES.add("switch", SwitchGateConfig, "mmoe.mixture:SwitchGate")
GATES.add("gshard", GShardGateConfig, "mmoe.mixture:GShardGate")
GATES.add("cosine", CosineGateConfig, "mmoe.mixture:CosineGate")
GATES.add("sigmoid", SigmoidGateConfig, "mmoe.mixture:SigmoidGate")
GATES.add("dselect_k", DSelectKGateConfig, "mmoe.models.gates:dselect_k_gate")
GATES.add("static", StaticGateConfig, "mmoe.models.gates:static_gate")
