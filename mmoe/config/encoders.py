"""What becomes of a sequence's events: a kind is a class, and a line in `SEQUENCE_ENCODERS`."""

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from mmoe.config.gates import Width
from mmoe.config.kinds import HasKinds, Kinds


class SequenceEncoderConfig(HasKinds):
    """What makes one vector of a row's events."""

    reads_target: ClassVar[bool] = False  # it needs the row's candidate to say what matters

    kind: Any = Field(description="what makes a vector of events")

    if TYPE_CHECKING:

        def __init__(self, **keys: Any) -> None: ...

    def keywords(self) -> dict[str, Any]:
        """Returns what it is built with, beside the width of an event and the most there are."""
        return {key: value for key, value in self if key != "kind"}


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


SEQUENCE_ENCODERS.add("mean", MeanEncoderConfig, "mmoe.models.sequences.events:MeanEncoder")


SEQUENCE_ENCODERS.add("din", DINEncoderConfig, "mmoe.models.sequences.din:DINEncoder")


SEQUENCE_ENCODERS.add(
    "transformer",
    TransformerEncoderConfig,
    "mmoe.models.sequences.transformer:TransformerEncoder",
)


SEQUENCE_ENCODERS.add("gru", GRUEncoderConfig, "mmoe.models.sequences.gru:GRUEncoder")
