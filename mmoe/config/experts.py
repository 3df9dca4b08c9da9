"""Experts, towers and interactions of features.

A kind is a class with its own keys, and a line in `EXPERTS`, `TOWERS` or `INTERACTIONS`.
"""

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from mmoe.config.gates import Width
from mmoe.config.kinds import HasKinds, Kinds

Activation = Literal["relu", "gelu", "silu"]
# Of a cross network
Layers = Annotated[int, Field(ge=1, le=16, description="products of up to layers + 1 features")]
Rank = Annotated[
    Width | None, Field(description="of each layer's matrix, of input width squared; null: whole")
]


class ExpertConfig(HasKinds):
    """One expert: a module that maps rows to as many rows of its output width."""

    kind: Any = Field(description="what an expert is")

    if TYPE_CHECKING:

        def __init__(self, **keys: Any) -> None: ...

    count: int | None = Field(
        default=None, ge=1, description="under model.experts: how many such experts there are"
    )

    # Whether all experts are made at once: what implements the kind then takes their number first,
    # and returns a pool
    makes_pools: ClassVar[bool] = False

    @property
    def uses_batch(self) -> bool:
        """Whether, in training, a row's result depends on its expert's other rows."""
        return False

    @property
    def title(self) -> str:
        """Name of it in a report."""
        return self.kind

    def keywords(self) -> dict[str, Any]:
        """Returns what it is built with, beside the width of its input."""
        return {key: value for key, value in self if key not in ("kind", "count")}

    def narrow(self) -> "ExpertConfig":
        """Returns the same, as small as can be: for a network asked for its names alone."""
        return self


class MLPExpertConfig(ExpertConfig):
    """An MLP. Its last width is the expert's output width."""

    makes_pools: ClassVar[bool] = True

    kind: Literal["mlp"] = "mlp"
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

    @property
    def uses_batch(self) -> bool:
        """Whether its norm is `batch`, which looks at the other rows."""
        return self.norm == "batch"

    @property
    def title(self) -> str:
        """Its widths, for a report."""
        return "-".join(map(str, self.hidden))

    def keywords(self) -> dict[str, Any]:
        """Returns what its pool is built with, where no activation is None."""
        last = None if self.output_activation == "none" else self.output_activation
        return super().keywords() | {"output_activation": last}

    def narrow(self) -> "MLPExpertConfig":
        """Returns the same with one unit."""
        return self.model_copy(update={"hidden": [1]})


class CrossExpertConfig(ExpertConfig):
    """A cross network (DCN-v2): products of features, a degree more in each layer."""

    kind: Literal["dcn_v2"] = "dcn_v2"
    output: Width = Field(default=128, description="width of what it returns")
    layers: Layers = 2
    rank: Rank = None

    @property
    def title(self) -> str:
        """Its layers, for a report."""
        return f"{self.layers}-layer cross network"

    def narrow(self) -> "CrossExpertConfig":
        """Returns the same with one output, through one number a layer."""
        return self.model_copy(update={"output": 1, "rank": 1})


class TowerConfig(HasKinds):
    """One task's head over its mixture: a module that maps rows to a logit each."""

    kind: Any = Field(description="what a tower is")

    if TYPE_CHECKING:

        def __init__(self, **keys: Any) -> None: ...

    @property
    def title(self) -> str:
        """Name of it in a report."""
        return f"{self.kind} tower"

    def keywords(self) -> dict[str, Any]:
        """Returns what it is built with, beside the width of its input."""
        return {key: value for key, value in self if key != "kind"}

    def narrow(self) -> "TowerConfig":
        """Returns the same, as small as can be."""
        return self


class MLPTowerConfig(TowerConfig):
    """An MLP and a linear layer to one number."""

    kind: Literal["mlp"] = "mlp"
    hidden: list[Width] = Field(default=[64], description="width of each layer; [] = linear")
    activation: Activation = Field(default="relu", description="after each of them")
    dropout: float = Field(default=0.0, ge=0, lt=1, description="after each activation")

    @property
    def title(self) -> str:
        """Its widths, for a report."""
        widths = "-".join(map(str, self.hidden))
        return f"tower {widths}" if widths else "linear tower"

    def narrow(self) -> "MLPTowerConfig":
        """Returns the same with one unit."""
        return self.model_copy(update={"hidden": [1]})


class InteractionConfig(HasKinds):
    """What multiplies features, beside the experts, which are slow to find products."""

    title: ClassVar[str] = ""  # what a report calls it; none: it says nothing

    kind: Any = Field(description="what multiplies which features")

    if TYPE_CHECKING:

        def __init__(self, **keys: Any) -> None: ...


class NoInteraction(InteractionConfig):
    """Nothing: experts read features as they are."""

    kind: Literal["none"] = "none"


class FactorizationMachineConfig(InteractionConfig):
    """A factorization machine of the features of ids (of width embedding_dim).

    It adds products of their embeddings to every task's logit.
    """

    title: ClassVar[str] = "factorization machine"
    kind: Literal["fm"] = "fm"


class CrossNetworkConfig(InteractionConfig):
    """A cross network (DCN-v2) of all inputs, which gates and experts then read in their place.

    Each layer adds products of a degree more.
    """

    title: ClassVar[str] = "inputs through a cross network"
    kind: Literal["dcn_v2"] = "dcn_v2"
    layers: Layers = 2
    rank: Rank = None


# Config class → what is called with the input's width and its keywords, and gives one module
EXPERTS = Kinds("expert", ExpertConfig, default="mlp")
EXPERTS.add("mlp", MLPExpertConfig, "mmoe.mixture:MLPExperts")
EXPERTS.add("dcn_v2", CrossExpertConfig, "mmoe.models.cross_network:CrossNetwork")
TOWERS = Kinds("tower", TowerConfig, default="mlp")
TOWERS.add("mlp", MLPTowerConfig, "mmoe.tasks:Tower")
# Config class → what puts it into a network, called as `mmoe.models.build.build_ranker` does
INTERACTIONS = Kinds("interaction", InteractionConfig, default="none")
INTERACTIONS.add("none", NoInteraction, "mmoe.models.build:no_interaction")
INTERACTIONS.add("fm", FactorizationMachineConfig, "mmoe.models.build:add_factorization_machine")
INTERACTIONS.add("dcn_v2", CrossNetworkConfig, "mmoe.models.build:add_cross_network")
