"""Experts, towers, interactions: a kind is a class, and a line in its registry."""

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from mmoe.config.gates import Width
from mmoe.config.kinds import HasKinds, Kinds, Strict
from mmoe.plugins import MODULE_NAME

Activation = Literal["relu", "gelu", "silu"]
ExpertCount = Annotated[int, Field(le=65_536)]  # a stranger's config may say anything
FACTORY = rf"{MODULE_NAME[:-1]}:[A-Za-z_]\w*$"


class _MLPKeys(Strict):
    hidden: list[Width] = Field(default=[128, 64], min_length=1, description="width of each layer")
    activation: Activation = Field(default="relu", description="after each layer")
    dropout: float = Field(default=0.0, ge=0, lt=1, description="after each activation")


class _CrossKeys(Strict):
    layers: int = Field(default=2, ge=1, le=16, description="products of up to layers + 1 features")
    rank: Width | None = Field(
        default=None, description="of each layer's matrix, of input width squared; null: whole"
    )


class _MaskKeys(Strict):
    blocks: int = Field(default=2, ge=1, le=16, description="each with a mask of its own")
    arrangement: Literal["parallel", "serial"] = Field(
        default="parallel",
        description="parallel: every block masks the input; serial: the block before",
    )
    dim: Width = Field(default=64, description="width of a block")
    mask_hidden: Width = Field(default=256, description="width of the layer that computes a mask")
    dropout: float = Field(default=0.0, ge=0, lt=1, description="after each block")


class _AttentionKeys(Strict):
    layers: int = Field(default=2, ge=1, le=16, description="of attention, one on another")
    heads: int = Field(default=2, ge=1, le=64, description="of each layer")
    head_dim: Width = Field(default=8, description="of a field in each head")
    dropout: float = Field(default=0.0, ge=0, lt=1, description="after each layer")


class ExpertConfig(HasKinds):
    """One expert: a module that maps rows to as many rows of its output width."""

    kind: Any = Field(description="what an expert is")

    if TYPE_CHECKING:

        def __init__(self, **keys: Any) -> None: ...

    count: ExpertCount | None = Field(
        default=None, ge=1, description="under model.experts: how many such experts there are"
    )

    # Whether all experts are made at once: what implements the kind then takes their number first,
    # and returns a pool
    makes_pools: ClassVar[bool] = False
    called: ClassVar[str] = ""  # in a report; none: its kind
    not_built_with = frozenset({"count"})

    @property
    def uses_batch(self) -> bool:
        """Whether, in training, a row's result depends on its expert's other rows."""
        return False

    @property
    def title(self) -> str:
        """Name of it in a report."""
        return self.called or self.kind

    @property
    def needed_modules(self) -> list[str]:
        """Modules that its keys name, which have to be imported before it is built."""
        return []


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


class _OutputExpertConfig(ExpertConfig):
    output: Width = Field(default=128, description="width of what it returns")


class CrossExpertConfig(_CrossKeys, _OutputExpertConfig):
    """A cross network (DCN-v2): products of features, a degree more in each layer."""

    called: ClassVar[str] = "cross network"
    kind: Literal["dcn_v2"] = "dcn_v2"


class _PairsExpertConfig(_OutputExpertConfig):
    factors: Width = Field(default=16, description="numbers that an entry of the row is paired by")


class FactorizationExpertConfig(_PairsExpertConfig):
    """A factorization machine of the entries of its row: products of all pairs."""

    called: ClassVar[str] = "factorization machine"
    kind: Literal["fm"] = "fm"


class DeepFMExpertConfig(_MLPKeys, _PairsExpertConfig):
    """A factorization machine and an MLP of one row, added up (DeepFM)."""

    called: ClassVar[str] = "DeepFM"
    kind: Literal["deepfm"] = "deepfm"


class MaskNetExpertConfig(_MaskKeys, _OutputExpertConfig):
    """Layers of a row multiplied by masks that the row itself computes (MaskNet)."""

    called: ClassVar[str] = "MaskNet"
    kind: Literal["masknet"] = "masknet"


class _FieldsExpertConfig(_OutputExpertConfig):
    fields: int = Field(default=8, ge=2, le=1024, description="how many it makes of a row")
    field_dim: Width = Field(default=16, description="width of each")


class AutoIntExpertConfig(_AttentionKeys, _FieldsExpertConfig):
    """Attention among fields, which are linear projections of its row (AutoInt)."""

    called: ClassVar[str] = "AutoInt"
    kind: Literal["autoint"] = "autoint"


class FrozenExpertConfig(ExpertConfig):
    """A trained module of somebody's, which is not trained further: rows to rows."""

    kind: Literal["frozen"] = "frozen"
    module: Annotated[str, Field(pattern=FACTORY, max_length=400)] = Field(
        description="what makes it, as my_package.file:make_expert: called with the width of a row"
    )
    weights: str | None = Field(
        default=None,
        min_length=1,
        description="safetensors file with all its tensors; null: it is trained as it is made",
    )
    output: Width = Field(description="width of what it returns")

    @property
    def title(self) -> str:
        """Name in a report."""
        return f"frozen {self.module.partition(':')[2]}"

    @property
    def needed_modules(self) -> list[str]:
        """Names the module of `module`."""
        return [self.module.partition(":")[0]]


class TowerConfig(HasKinds):
    """One task's head over its mixture: a module that maps rows to a logit each."""

    has_hidden: ClassVar[bool] = False  # whether model.transfer can read its last hidden layer

    kind: Any = Field(description="what a tower is")

    if TYPE_CHECKING:

        def __init__(self, **keys: Any) -> None: ...

    @property
    def title(self) -> str:
        """Name of it in a report."""
        return f"{self.kind} tower"


class MLPTowerConfig(TowerConfig):
    """An MLP and a linear layer to one number."""

    has_hidden: ClassVar[bool] = True

    kind: Literal["mlp"] = "mlp"
    hidden: list[Width] = Field(default=[64], description="width of each layer; [] = linear")
    activation: Activation = Field(default="relu", description="after each of them")
    dropout: float = Field(default=0.0, ge=0, lt=1, description="after each activation")

    @property
    def title(self) -> str:
        """Its widths, for a report."""
        widths = "-".join(map(str, self.hidden))
        return f"tower {widths}" if widths else "linear tower"


class CapacityConfig(Strict):
    """Limit of the rows that an expert computes in a training step; the rest is dropped.

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

    def _ensure_minimum_within_maximum(self) -> None:
        if self.minimum is not None and self.maximum is not None and self.minimum > self.maximum:
            raise ValueError(f"minimum must be at most maximum ({self.maximum})")


class PrunedExpert(Strict):
    """An expert that a model of own and shared experts does without: what `mmoe prune` writes."""

    level: int = Field(default=1, ge=1, le=16, description="from the input on")
    name: str = Field(description="as reports call it: `click expert 2`, `shared expert 1`")


# Config class → what is called with the input's width and its keywords, and gives one module
EXPERTS = Kinds("expert", ExpertConfig, default="mlp")
EXPERTS.add("mlp", MLPExpertConfig, "mmoe.mixture:MLPExperts")
EXPERTS.add("dcn_v2", CrossExpertConfig, "mmoe.models.interactions.cross_network:CrossNetwork")
EXPERTS.add(
    "fm",
    FactorizationExpertConfig,
    "mmoe.models.interactions.factorization_machine:FactorizationExpert",
)
EXPERTS.add(
    "deepfm", DeepFMExpertConfig, "mmoe.models.interactions.factorization_machine:DeepFMExpert"
)
EXPERTS.add("masknet", MaskNetExpertConfig, "mmoe.models.interactions.masknet:MaskNet")
EXPERTS.add("autoint", AutoIntExpertConfig, "mmoe.models.interactions.autoint:AutoIntExpert")
EXPERTS.add("frozen", FrozenExpertConfig, "mmoe.models.frozen:FrozenExpert")


TOWERS = Kinds("tower", TowerConfig, default="mlp")
TOWERS.add("mlp", MLPTowerConfig, "mmoe.tasks:Tower")


class InteractionConfig(HasKinds):
    """Products of features, beside the experts, which are slow to find them."""

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


class DeepFMConfig(_MLPKeys, InteractionConfig):
    """DeepFM: a factorization machine of the features of ids, and an MLP of all embeddings.

    Both are added to every task's logit.
    """

    title: ClassVar[str] = "DeepFM"
    pairs_ids: ClassVar[bool] = True
    kind: Literal["deepfm"] = "deepfm"


class CrossNetworkConfig(_CrossKeys, InteractionConfig):
    """A cross network (DCN-v2) of all inputs, which gates and experts then read in their place.

    Each layer adds products of a degree more.
    """

    title: ClassVar[str] = "inputs through a cross network"
    replaces_inputs: ClassVar[bool] = True
    kind: Literal["dcn_v2"] = "dcn_v2"


class MaskNetConfig(_MaskKeys, InteractionConfig):
    """A MaskNet of all inputs, which gates and experts read beside them.

    Its blocks are layers of the inputs multiplied by masks that the row itself computes.
    """

    title: ClassVar[str] = "inputs and a MaskNet of them"
    kind: Literal["masknet"] = "masknet"

    @property
    def added_width(self) -> int:
        """Width of the blocks that no other one reads."""
        return self.dim * (self.blocks if self.arrangement == "parallel" else 1)


class AutoIntConfig(_AttentionKeys, InteractionConfig):
    """Attention among features (AutoInt), which gates and experts read beside the inputs.

    Fields are embeddings of width embedding_dim, and numbers, each times an embedding of its own.
    """

    title: ClassVar[str] = "inputs and attention among them"
    adds_to_fields: ClassVar[bool] = True
    kind: Literal["autoint"] = "autoint"

    @property
    def added_width(self) -> int:
        """Width of a field behind the last layer."""
        return self.heads * self.head_dim


# Config class → what puts it into a network, called as `mmoe.models.build.build_ranker` does; None:
# nothing does
INTERACTIONS = Kinds("interaction", InteractionConfig, default="none")

_ADD = "mmoe.models.interactions.add"
INTERACTIONS.add("none", NoInteraction, None)
INTERACTIONS.add("fm", FactorizationMachineConfig, f"{_ADD}:add_factorization_machine")
INTERACTIONS.add("dcn_v2", CrossNetworkConfig, f"{_ADD}:add_cross_network")
INTERACTIONS.add("deepfm", DeepFMConfig, f"{_ADD}:add_deepfm")
INTERACTIONS.add("masknet", MaskNetConfig, f"{_ADD}:add_masknet")
INTERACTIONS.add("autoint", AutoIntConfig, f"{_ADD}:add_autoint")


class SequenceEncoderConfig(HasKinds):
    """Encoder that makes one vector of a row's events."""

    reads_target: ClassVar[bool] = False  # it needs the row's candidate to say what matters

    kind: Any = Field(description="what makes a vector of events")

    if TYPE_CHECKING:

        def __init__(self, **keys: Any) -> None: ...


class MeanEncoderConfig(SequenceEncoderConfig):
    """The mean of the events."""

    kind: Literal["mean"] = "mean"


class DINEncoderConfig(SequenceEncoderConfig):
    """Deep interest network: a sum of events, each weighed by a small MLP that sees the target."""

    reads_target: ClassVar[bool] = True

    kind: Literal["din"] = "din"
    hidden: list[Width] = Field(
        default=[64, 32],
        min_length=1,
        max_length=8,
        description="width of each layer of the activation unit",
    )
    softmax: bool = Field(
        default=False,
        description="weights that sum to 1; as published they do not, and keep how strong an "
        "interest is",
    )


class TransformerEncoderConfig(SequenceEncoderConfig):
    """A Transformer over the events and, behind them, the target, whose output is read (BST)."""

    reads_target: ClassVar[bool] = True

    kind: Literal["transformer"] = "transformer"
    layers: int = Field(default=1, ge=1, le=8, description="blocks that follow one another")
    heads: int = Field(default=2, ge=1, le=64, description="of attention; they divide the width")
    dropout: float = Field(
        default=0.0, ge=0, lt=1, description="after attention and feed-forward, while training"
    )


class GRUEncoderConfig(SequenceEncoderConfig):
    """The last state of a gated recurrent unit that reads the events, the oldest first."""

    kind: Literal["gru"] = "gru"
    output: Width | None = Field(default=None, description="width of its state; null: an event's")


# Config class → a module that is called with the width of an event and the most there are
SEQUENCE_ENCODERS = Kinds("sequence encoder", SequenceEncoderConfig, default="mean")
SEQUENCE_ENCODERS.add("mean", MeanEncoderConfig, "mmoe.models.sequences:MeanEncoder")
SEQUENCE_ENCODERS.add("din", DINEncoderConfig, "mmoe.models.sequences:DINEncoder")
SEQUENCE_ENCODERS.add(
    "transformer", TransformerEncoderConfig, "mmoe.models.sequences:TransformerEncoder"
)
SEQUENCE_ENCODERS.add("gru", GRUEncoderConfig, "mmoe.models.sequences:GRUEncoder")
