"""Gates: how experts are weighed. A kind is a class with its own keys, and a line in `GATES`."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field

from mmoe.config.kinds import HasKinds, Kinds

Width = Annotated[int, Field(ge=1, le=1_000_000)]
SoftmaxOver = Annotated[
    Literal["after", "before"],
    Field(description="over the selection, or before it over all experts"),
]


class GateConfig(HasKinds):
    """Gate's way of mixing experts; the class of a gate without learnt weights and options."""

    learns: ClassVar[bool] = False  # whether it has the options of learned gates
    varies: ClassVar[bool] = False  # whether rows are to be weighed unlike, by more than a few
    always_picks: ClassVar[int | None] = None  # so many experts, whatever is said

    kind: Any = Field(description="see mmoe/mixture/README.md")

    if TYPE_CHECKING:

        def __init__(self, **keys: Any) -> None: ...

    @property
    def picks(self) -> int | None:
        """Number of experts that a gate picks for one sample; None: it weighs all."""
        return self.always_picks

    @property
    def routed(self) -> int | None:
        """Number of experts that a gate picks, beside those that every row computes."""
        return self.picks

    called: ClassVar[str] = ""  # in a report, {k} the experts it picks; none: its kind

    @property
    def title(self) -> str:
        """Name of it in a report."""
        of_kind = self.kind if self.routed is None else f"{self.kind} top-{{k}}"
        return (self.called or of_kind).format(k=self.routed)

    @property
    def voters(self) -> list[str] | None:
        """Tasks whose gates decide for others too; None: nobody said, or all decide alone."""
        return None

    def with_voters(self, tasks: Sequence[str], num_gates: int, *, grows: bool = False) -> Self:
        """Returns the same with its voters named, where gates decide together.

        Args:
            tasks: Names of all.
            num_gates: How many gates a level has at most.
            grows: An earlier run may have named some.

        Raises:
            ValueError: A voter is no task, or the budget has no room for every first choice.
        """
        return self

    def selection(self) -> dict[str, Any] | None:
        """Returns the keywords of a `Selection`, beside votes; None: gates decide alone."""
        return None

    def keywords(self) -> dict[str, Any]:
        """Returns what its gate is built with, beside sizes; null is the gate's default."""
        return {key: value for key, value in super().keywords().items() if value is not None}


class LearnedGateConfig(GateConfig):
    """Options of all learned gates: those of `mmoe.mixture.GateOptions`."""

    learns = True
    varies = True
    balances: ClassVar[bool] = False  # whether loads are evened out if nothing is said

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
    shared_logits: bool = Field(
        default=False,
        description="add to each gate's weights some that all gates learn together, which helps "
        "where experts are chosen by what a row is, whatever the task; not for cosine, dselect_k",
    )

    def _refuse_shared_logits(self) -> None:
        if self.shared_logits:
            raise ValueError(
                f"shared_logits is true, but the logits of {self.kind} gates are no product of "
                "weights with their input; remove it, or set kind: top_k"
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
        """Adds k."""
        return super().keywords() | {"k": self.routed}


_TOGETHER = ("shared_k", "private_k", "budget", "floor", "aggregate", "select_voters")


class SelectingGateConfig(_PickingGateConfig):
    """Options of gates that may decide together which experts a row computes."""

    select: Literal["independent", "joint", "budget"] = Field(
        default="independent",
        description="independent: every gate picks its own k; joint: experts that all gates of a "
        "row share, and private ones; budget: a set of experts for all gates of a row",
    )
    shared_k: int | None = Field(
        default=None, ge=1, description="joint: picks that all gates share; null: k − private_k"
    )
    private_k: int | None = Field(
        default=None, ge=0, description="joint: picks of each gate alone; null: k − shared_k, or 1"
    )
    budget: int | None = Field(
        default=None,
        ge=1,
        description="experts that a row computes at most, over all gates; budget needs it, joint "
        "may have it; null: joint is bounded by shared_k + gates · private_k",
    )
    floor: Literal[0, 1] = Field(
        default=1, description="1: within a budget each gate keeps its first choice; 0: not all do"
    )
    aggregate: Literal["mean", "max"] = Field(
        default="mean", description="joint: which experts are shared, by all votes or the largest"
    )
    select_voters: list[str] | None = Field(
        default=None,
        min_length=1,
        description="tasks whose gates decide; others mix what these chose, and picks of their "
        "own; null: all tasks there are, whose names the run then stores",
    )
    always: int = Field(
        default=0,
        ge=0,
        description="so many experts, the first ones, are mixed for every row, as by a softmax "
        "gate; k, shared_k and the others are of picks among the rest, which are added to that mix",
    )
    routed_start: float = Field(
        default=1.0,
        ge=0,
        description="with always: what the picks' part is multiplied by at first; learnt by each "
        "gate. 0: training begins as a dense model of the first experts would",
    )

    @property
    def together(self) -> bool:
        """Whether gates decide together."""
        return self.select != "independent"

    @property
    def voters(self) -> list[str] | None:
        """Tasks of `select_voters`."""
        return self.select_voters

    @property
    def picks(self) -> int:
        """Counts experts of every row too."""
        return self.always + self.routed

    @property
    def routed(self) -> int:
        """Counts the shared picks too."""
        return super().picks if self.select != "joint" else self.shares + self.own_picks

    @property
    def own_picks(self) -> int:
        """Picks of each gate alone, or of the budget."""
        if self.select != "joint":
            return super().picks
        if self.private_k is not None:
            return self.private_k
        return 1 if self.k is None or self.shared_k is None else self.k - self.shared_k

    @property
    def shares(self) -> int:
        """Picks that all gates share."""
        if self.select != "joint":
            return 0
        return super().picks - self.own_picks if self.shared_k is None else self.shared_k

    @property
    def title(self) -> str:
        """Name of it in a report, with what gates decide together."""
        said = [f"{self.shares} shared"] if self.select == "joint" else []
        said += [] if self.budget is None else [f"at most {self.budget} a row"]
        beside = f" beside {self.always} of every row" if self.always else ""
        return super().title + (f" ({', '.join(said)})" if said else "") + beside

    def keywords(self) -> dict[str, Any]:
        """Leaves out what `selection` says, which knows the gates by name."""
        left_out = ("select", *_TOGETHER, *(() if self.always else ("always", "routed_start")))
        own = super().keywords()
        return {key: value for key, value in own.items() if key not in left_out}

    def selection(self) -> dict[str, Any] | None:
        """Returns the keywords of a `Selection`, beside votes; None: gates decide alone."""
        if not self.together:
            return None
        return {
            "shared_k": self.shares,
            "private_k": self.own_picks,
            "budget": self.budget,
            "floor": self.floor,
            "aggregate": self.aggregate,
        }

    def with_voters(self, tasks: Sequence[str], num_gates: int, *, grows: bool = False) -> Self:
        """Returns the same with its voters named, all tasks where nobody said which."""
        if not self.together:
            return self
        voters = list(tasks) if self.select_voters is None else self.select_voters
        if strange := [name for name in voters if name not in tasks]:
            raise ValueError(
                f"model.gate.select_voters names {strange[0]!r}, but the tasks are "
                f"{', '.join(tasks)}"
            )
        keeping = max(num_gates - len(set(tasks) - set(voters)), 1)
        known = self.select_voters is not None or not grows
        if known and self.floor and self.budget is not None and self.budget < keeping:
            raise ValueError(
                f"model.gate.budget is {self.budget}, but {keeping} gates keep their first choice "
                f"(model.gate.floor: 1); set budget to {keeping} or more, or floor: 0"
            )
        return self.model_copy(update={"select_voters": voters})

    def check_experts(self, kind: str, visible: int, common: int) -> None:
        """Refuses more shared and private picks than gates of a kind of model see experts."""
        if self.shares > common:
            raise ValueError(
                f"gate.shared_k is {self.shares}, but the gates of {kind} see {common} expert(s) "
                "in common; lower gate.shared_k or add experts"
            )
        if self.always and self.picks > visible:
            raise ValueError(
                f"gate.always is {self.always} and {self.routed} more are picked, but a gate of "
                f"{kind} sees {visible} expert(s); lower gate.always or add experts"
            )
        if self.select == "joint" and self.routed > visible:
            raise ValueError(
                f"gate.shared_k + gate.private_k is {self.routed}, but a gate of {kind} sees "
                f"{visible} expert(s); lower one of them or add experts"
            )

    def _ensure_keys_go_with_select(self) -> None:
        fields = type(self).model_fields
        given = [key for key in _TOGETHER if getattr(self, key) != fields[key].default]
        if given and not self.together:
            raise ValueError(
                f"{given[0]} goes with select joint or budget, but select is independent; remove "
                f"{given[0]}, or set select"
            )
        shared = [key for key in given if key in ("shared_k", "private_k", "aggregate")]
        if shared and self.select == "budget":
            raise ValueError(
                f"{shared[0]} goes with select joint, but select is budget, where every pick is of "
                f"the budget; remove {shared[0]}, or set select: joint"
            )
        if not self.always and self.routed_start != 1:
            raise ValueError(
                f"routed_start is {self.routed_start}, but always is 0, so that nothing stands "
                "beside the picks; remove it, or set always"
            )
        if self.select == "budget" and self.budget is None:
            raise ValueError(
                "budget is missing: select is budget, so say how many experts a row computes at "
                "most, such as budget: 6"
            )
        if self.select == "joint":
            self._check_joint()

    def _check_joint(self) -> None:
        if self.k is not None and self.k != self.routed:
            raise ValueError(
                f"k is {self.k}, but shared_k + private_k is {self.routed}; remove k, or let them "
                "add up to it"
            )
        if self.shares < 1 or self.own_picks < 0:
            raise ValueError(
                f"shared_k + private_k: {self.routed} picks leave {self.shares} shared and "
                f"{self.own_picks} private ones; set shared_k from 1 and private_k from 0 on"
            )
        if self.budget is not None and self.budget < self.shares:
            raise ValueError(
                f"budget is {self.budget}, but shared_k is {self.shares}; raise budget, or lower "
                "shared_k"
            )


class SoftmaxGateConfig(_ReadingGateConfig):
    """Weighs all experts."""

    why_not: ClassVar[Mapping[str, str]] = {
        "k": "softmax gates weigh all experts; remove k or set kind to top_k"
    }

    kind: Literal["softmax"] = "softmax"


class TopKGateConfig(SelectingGateConfig):
    """Weighs the k experts of the largest logits."""

    called: ClassVar[str] = "top-{k}"
    kind: Literal["top_k"] = "top_k"
    softmax: SoftmaxOver = "after"


class NoisyTopKGateConfig(SelectingGateConfig):
    """Picks k under noise, with losses for even importance and load."""

    called: ClassVar[str] = "noisy top-{k}"
    kind: Literal["noisy_top_k"] = "noisy_top_k"
    importance_loss: float = Field(default=0.01, ge=0, description="coefficient")
    load_loss: float = Field(default=0.01, ge=0, description="coefficient")


class SwitchGateConfig(_ReadingGateConfig):
    """Picks one expert (Switch Transformer)."""

    balances: ClassVar[bool] = True
    why_not: ClassVar[Mapping[str, str]] = {"k": "switch always picks 1; remove k"}

    called: ClassVar[str] = "Switch"
    always_picks = 1
    kind: Literal["switch"] = "switch"
    jitter: float = Field(default=0.0, ge=0, lt=1, description="noise on the input")


class GShardGateConfig(_ReadingGateConfig):
    """Picks two experts, the second by chance while training (GShard)."""

    balances: ClassVar[bool] = True
    why_not: ClassVar[Mapping[str, str]] = {"k": "gshard always picks 2; remove k"}

    called: ClassVar[str] = "GShard"
    always_picks = 2
    kind: Literal["gshard"] = "gshard"


class CosineGateConfig(SelectingGateConfig):
    """Picks by the cosine between a projection of the input and each expert's vector."""

    kind: Literal["cosine"] = "cosine"
    projection_dim: Width = Field(default=256, description="width of the projection")
    softmax: SoftmaxOver = "after"

    def _ensure_logits_are_products(self) -> None:
        self._refuse_shared_logits()


class SigmoidGateConfig(SelectingGateConfig):
    """Picks by sigmoids, balanced by a bias for each expert (DeepSeek-V3)."""

    kind: Literal["sigmoid"] = "sigmoid"
    normalize: bool = Field(default=True, description="weights add up to 1")
    bias_speed: float = Field(default=0.001, ge=0, description="0 = no balancing")


class DSelectKGateConfig(_PickingGateConfig):
    """Picks k by smooth binary codes, without a jump (DSelect-k)."""

    called: ClassVar[str] = "DSelect-{k}"
    varies = False

    kind: Literal["dselect_k"] = "dselect_k"
    per_sample: bool = Field(default=True, description="false = one choice per task")
    gamma: float = Field(default=1.0, gt=0, description="width of the smooth step")
    entropy_loss: float = Field(default=0.01, ge=0, description="coefficient")
    code_loss: float = Field(default=1.0, ge=0, description="coefficient")

    def _ensure_reads_what_it_is_given(self) -> None:
        self._refuse_shared_logits()
        if self.hidden and not self.per_sample:
            raise ValueError("hidden must be []: this gate reads no input")


class StaticGateConfig(LearnedGateConfig):
    """Learns the same weights for all samples."""

    why_not: ClassVar[Mapping[str, str]] = {"hidden": "this gate reads no input; remove it"}

    varies = False

    kind: Literal["static"] = "static"
    k: int | None = Field(
        default=None, ge=1, description="experts a gate picks; null: it weighs all of them"
    )
    softmax: SoftmaxOver = "after"

    @property
    def picks(self) -> int | None:
        """Number of experts that it picks; None: all, if nothing else is said."""
        return self.k


# Config class → what is called with input width, numbers of gates and experts, and its keywords
GATES = Kinds("gate", GateConfig, default="softmax")
GATES.add("softmax", SoftmaxGateConfig, "mmoe.mixture:SoftmaxGate")
GATES.add("top_k", TopKGateConfig, "mmoe.mixture:TopKGate")
GATES.add("noisy_top_k", NoisyTopKGateConfig, "mmoe.mixture:NoisyTopKGate")
GATES.add("switch", SwitchGateConfig, "mmoe.mixture:SwitchGate")
GATES.add("gshard", GShardGateConfig, "mmoe.mixture:GShardGate")
GATES.add("cosine", CosineGateConfig, "mmoe.mixture:CosineGate")
GATES.add("sigmoid", SigmoidGateConfig, "mmoe.mixture:SigmoidGate")
GATES.add("dselect_k", DSelectKGateConfig, "mmoe.models.sections:dselect_k_gate")
GATES.add("static", StaticGateConfig, "mmoe.models.sections:static_gate")
