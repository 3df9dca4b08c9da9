"""Interactions of features before the mixture. A kind is a class, and a line in `INTERACTIONS`."""

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from mmoe.config.experts import (
    Activation,
    Arrangement,
    AttentionLayers,
    Blocks,
    BlockWidth,
    Heads,
    HeadWidth,
    Layers,
    MaskHidden,
    Rank,
)
from mmoe.config.gates import Width
from mmoe.config.kinds import HasKinds, Kinds


class InteractionConfig(HasKinds):
    """What multiplies features, beside the experts, which are slow to find products."""

    title: ClassVar[str] = ""  # what a report calls it; none: it says nothing
    pairs_ids: ClassVar[bool] = False  # whether it multiplies embeddings of two features of ids
    adds_to_fields: ClassVar[bool] = False  # whether `added_width` is that of each field
    replaces_inputs: ClassVar[bool] = False  # whether gates and experts read it in their place

    kind: Any = Field(description="what multiplies which features")

    if TYPE_CHECKING:

        def __init__(self, **keys: Any) -> None: ...

    @property
    def added_width(self) -> int:
        """Number of columns that it puts beside the inputs, for gates and experts to read."""
        return 0


class NoInteraction(InteractionConfig):
    """Nothing: experts read features as they are."""

    kind: Literal["none"] = "none"


class FactorizationMachineConfig(InteractionConfig):
    """A factorization machine of the features of ids (of width embedding_dim).

    It adds products of their embeddings to every task's logit.
    """

    title: ClassVar[str] = "factorization machine"
    pairs_ids: ClassVar[bool] = True
    kind: Literal["fm"] = "fm"


class DeepFMConfig(InteractionConfig):
    """DeepFM: a factorization machine of the features of ids, and an MLP of all embeddings.

    Both are added to every task's logit.
    """

    title: ClassVar[str] = "DeepFM"
    pairs_ids: ClassVar[bool] = True
    kind: Literal["deepfm"] = "deepfm"
    hidden: list[Width] = Field(default=[128, 64], min_length=1, description="width of each layer")
    activation: Activation = Field(default="relu", description="after each layer")
    dropout: float = Field(default=0.0, ge=0, lt=1, description="after each activation")


class CrossNetworkConfig(InteractionConfig):
    """A cross network (DCN-v2) of all inputs, which gates and experts then read in their place.

    Each layer adds products of a degree more.
    """

    title: ClassVar[str] = "inputs through a cross network"
    replaces_inputs: ClassVar[bool] = True
    kind: Literal["dcn_v2"] = "dcn_v2"
    layers: Layers = 2
    rank: Rank = None


class MaskNetConfig(InteractionConfig):
    """A MaskNet of all inputs, which gates and experts read beside them.

    Its blocks are layers of the inputs multiplied by masks that the row itself computes.
    """

    title: ClassVar[str] = "inputs and a MaskNet of them"
    kind: Literal["masknet"] = "masknet"
    blocks: Blocks = 2
    arrangement: Arrangement = "parallel"
    dim: BlockWidth = 64
    mask_hidden: MaskHidden = 256
    dropout: float = Field(default=0.0, ge=0, lt=1, description="after each block")

    @property
    def added_width(self) -> int:
        """Width of the blocks that no other one reads."""
        return self.dim * (self.blocks if self.arrangement == "parallel" else 1)


class AutoIntConfig(InteractionConfig):
    """Attention among features (AutoInt), which gates and experts read beside the inputs.

    Fields are embeddings of width embedding_dim, and numbers, each times an embedding of its own.
    """

    title: ClassVar[str] = "inputs and attention among them"
    adds_to_fields: ClassVar[bool] = True
    kind: Literal["autoint"] = "autoint"
    layers: AttentionLayers = 2
    heads: Heads = 2
    head_dim: HeadWidth = 8
    dropout: float = Field(default=0.0, ge=0, lt=1, description="after each layer")

    @property
    def added_width(self) -> int:
        """Width of a field behind the last layer."""
        return self.heads * self.head_dim


# Config class → what puts it into a network, called as `mmoe.models.build.build_ranker` does
INTERACTIONS = Kinds("interaction", InteractionConfig, default="none")
_ADD = "mmoe.models.interactions.add"
INTERACTIONS.add("none", NoInteraction, f"{_ADD}:no_interaction")
INTERACTIONS.add("fm", FactorizationMachineConfig, f"{_ADD}:add_factorization_machine")
INTERACTIONS.add("dcn_v2", CrossNetworkConfig, f"{_ADD}:add_cross_network")
INTERACTIONS.add("deepfm", DeepFMConfig, f"{_ADD}:add_deepfm")
INTERACTIONS.add("masknet", MaskNetConfig, f"{_ADD}:add_masknet")
INTERACTIONS.add("autoint", AutoIntConfig, f"{_ADD}:add_autoint")
