"""The network: which model, and its sizes. A kind is a class, and a line in `MODELS`."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, StrictFloat, StrictInt, StrictStr, model_validator

from mmoe.config.experts import (
    CapacityConfig,
    ExpertConfig,
    ExpertCount,
    InteractionConfig,
    PrunedExpert,
    TowerConfig,
)
from mmoe.config.features import Feature, ListFeature, SequenceFeature, VectorFeature
from mmoe.config.gates import GateConfig, SelectingGateConfig, Width
from mmoe.config.kinds import HasKinds, Kinds, Name, OrName, Strict
from mmoe.config.relations import TransferConfig, entire_space_tasks
from mmoe.config.tasks import BinaryTask, EntireSpaceTask, TaskConfig, refuse_sampled
from mmoe.config.training import StageConfig

MOST_DOMAINS = 1024  # each has gates; a column with more values is an id, for a feature


class DomainsConfig(Strict):
    """Domains of rows, and what each domain has of its own."""

    column: str = Field(
        min_length=1,
        description="whose values are the domains (scenes, markets, surfaces): each has gates of "
        f"its own, which its rows alone ask; of ids or text, {MOST_DOMAINS:,} values at most",
    )
    towers: Literal["shared", "own"] = Field(
        default="shared", description="one tower a task, or one for each task and domain"
    )
    unseen: Literal["mean_gate", "refuse"] = Field(
        default="mean_gate",
        description="rows whose domain is empty, or which no training row has. mean_gate: they are "
        "mixed by the mean of the domains' gates; refuse: an error names the row",
    )


def check_domains(model: "ModelConfig", tasks: Sequence[TaskConfig]) -> None:
    """Refuses domains of tasks without `model.domains`, and what these do not go with.

    Raises:
        ValueError: Names the key, and how to mend it.
    """
    domains = model.domains
    for task in tasks:
        if task.domains is not None and domains is None:
            raise ValueError(
                f"task {task.name!r}: domains says where the task exists, but no column says which "
                "domain a row is of; set model.domains.column, or remove domains"
            )
    if domains is None:
        return
    for key, kind, mend in (
        ("tower.kind", model.tower.kind, "mlp"),
        ("transfer", model.transfer.kind, "none"),
    ):
        if domains.towers == "own" and kind != mend:
            raise ValueError(
                f"model.domains.towers is own, which model.{key} {kind} does not go with; set "
                f"model.{key}: {mend}, or model.domains.towers: shared"
            )
    for task in tasks:
        _check_event(task, tasks)


def _check_event(task: TaskConfig, tasks: Sequence[TaskConfig]) -> None:
    """A probability that is multiplied by its event's needs that event wherever it exists."""
    if not isinstance(task, EntireSpaceTask):
        return
    events = {*task.after, task.observed_when}
    for event in tasks:
        if event.name not in events or event.domains is None:
            continue
        missing = sorted({*(task.domains or ["every domain"])} - {*event.domains})
        if missing:
            raise ValueError(
                f"task {task.name!r}: exists in {missing[0]}, but its event {event.name!r} does "
                f"not; add it to the domains of {event.name!r}, or narrow those of {task.name!r}"
            )


class BiasConfig(Strict):
    """A shallow tower over features of the display, such as the position of an impression.

    Its logit is added to a task's own in training, and left out or fixed when rows are scored. No
    expert, gate, interaction or wide part reads its features.
    """

    features: list[Name] = Field(
        min_length=1, description="names of features, which the tower alone then reads"
    )
    tasks: list[Name] | None = Field(
        default=None, description="whose logits it is added to; null: all"
    )
    hidden: list[Width] = Field(
        default=[16], description="width of each layer; []: linear, one number an id"
    )
    dropout: float = Field(
        default=0.1,
        ge=0,
        lt=1,
        description="share of the rows of each training batch whose logit of the tower is left "
        "out, so that the rest of the model learns to do without it",
    )
    scoring: Literal["drop", "fixed"] = Field(
        default="drop",
        description="drop: scores are without the tower's logit, and none of its columns is read; "
        "fixed: every row is scored as if shown as `at` says",
    )
    at: dict[str, StrictInt | StrictFloat | StrictStr] = Field(
        default={},
        description="fixed: column → the value that every row has when it is scored; the column "
        "itself is not read then",
    )

    def _ensure_keys_agree(self) -> None:
        for key, names in (("features", self.features), ("tasks", self.tasks or [])):
            for name in names:
                if names.count(name) > 1:
                    raise ValueError(f"{key} names {name!r} twice; remove one of them")
        if self.tasks == []:
            raise ValueError("tasks is empty, so nothing would be added; name a task, or remove it")
        if self.scoring == "fixed" and not self.at:
            raise ValueError(
                "scoring is fixed, but at says no value; write such as at: {position: 1}"
            )
        if self.scoring == "drop" and self.at:
            raise ValueError("at has no effect with scoring drop; set scoring: fixed, or remove at")

    def check(self, features: Sequence[Feature], tasks: Sequence[str]) -> None:
        """Refuses names that a run has not, and values that cannot be fixed.

        Args:
            features: All of the run.
            tasks: Names of its tasks.

        Raises:
            ValueError: With the key of `model.bias` and its mend.
        """
        known = [feature.name for feature in features]
        for name in self.features:
            if name not in known:
                raise ValueError(
                    f"model.bias.features names {name!r}, but there is no such feature under "
                    f"`features`; there: {', '.join(known)}"
                )
        if not set(known) - set(self.features):
            raise ValueError(
                "model.bias.features names all features, so that experts would have none to read; "
                "leave out those of users and items"
            )
        for name in self.tasks or ():
            if name not in tasks:
                raise ValueError(
                    f"model.bias.tasks names {name!r}, but there is no such task; tasks: "
                    f"{', '.join(tasks)}"
                )
        self._check_sequences(features)
        self._check_fixed(features)

    def _check_sequences(self, features: Sequence[Feature]) -> None:
        """Refuses sequences, which experts read, and their targets, which they look at."""
        for feature in features:
            if not isinstance(feature, SequenceFeature):
                continue
            if feature.name in self.features:
                raise ValueError(
                    f"model.bias.features names {feature.name!r}, which is of kind sequence: what "
                    "somebody did is no part of the display; remove it there"
                )
            for target in feature.target or ():
                if target in self.features:
                    raise ValueError(
                        f"model.bias.features names {target!r}, but it is a target of feature "
                        f"{feature.name!r} (sequence), which experts read; remove it in one place"
                    )

    def _check_fixed(self, features: Sequence[Feature]) -> None:
        own = [feature for feature in features if feature.name in self.features]
        columns = [column for feature in own for column in feature.source_columns]
        for feature in features:
            read = [column for column in feature.source_columns if column in self.at]
            if read and feature.name not in self.features:
                raise ValueError(
                    f"model.bias.at fixes {read[0]!r}, but feature {feature.name!r}, which is not "
                    "under model.bias.features, reads it too; remove that feature"
                )
        for column in self.at:
            if column not in columns:
                raise ValueError(
                    f"model.bias.at names {column!r}, which no feature of model.bias.features "
                    f"reads; their columns: {', '.join(columns)}"
                )
        for feature in own:
            left = [column for column in feature.source_columns if column not in self.at]
            fixed = [column for column in feature.source_columns if column in self.at]
            if fixed and left:
                raise ValueError(
                    f"model.bias.at fixes {fixed[0]!r}, but feature {feature.name!r} also reads "
                    f"{left[0]!r}; give that a value too"
                )
            if fixed and isinstance(feature, ListFeature | VectorFeature):
                raise ValueError(
                    f"model.bias.at fixes {fixed[0]!r}, but feature {feature.name!r} is of kind "
                    f"{feature.kind}; only features of one value a row can be fixed"
                )

    def unread(self, features: Sequence[Feature]) -> set[str]:
        """Returns the names of features whose columns are not read when rows are scored."""
        if self.scoring == "drop":
            return set(self.features)
        return {
            feature.name
            for feature in features
            if feature.name in self.features and set(feature.source_columns) <= self.at.keys()
        }


_ONE_POOL = "kind {kind} has not one pool of experts; set kind: mmoe, omoe or esmm, or remove it"

_OWN_EXPERTS = "kind {kind} has no own and shared experts; set kind: cgc or ple, or remove it"


class ModelConfig(HasKinds):
    """Model and its sizes. `kind` is a setting of one module, `MultiGateMixture`.

    Its keys are those that every kind has: what stands before and behind the experts, and what one
    expert is.
    """

    title: ClassVar[str] = ""  # what a report calls the model; default: its kind
    of_experts: ClassVar[str] = "a network"  # what a report says of its experts
    has_gates: ClassVar[bool] = False  # whether tasks weigh experts, as `gate` says
    has_one_pool: ClassVar[bool] = False  # whether num_experts, or experts, says what there is
    why_not: ClassVar[Mapping[str, str]] = {
        "num_experts": _ONE_POOL,
        "request_experts": _ONE_POOL,
        "experts": _ONE_POOL,
        "shared_experts": _OWN_EXPERTS,
        "task_experts": _OWN_EXPERTS,
        "pruned": "kind {kind} has no own and shared experts; lower num_experts",
        "levels": "kind {kind} has one level; set kind: ple, or remove it",
        "gate": "kind {kind} has no gates that choose among experts; set kind: mmoe, or remove it",
    }

    kind: Any = Field(description="which experts there are, and which gates see them")
    embedding_dim: int = Field(
        default=16, ge=4, le=4096, multiple_of=4, description="of tables that set no dim"
    )
    input_dropout: float = Field(
        default=0.0, ge=0, lt=1, description="of the input: dense features and embeddings"
    )
    interaction: OrName[InteractionConfig] = Field(
        default=InteractionConfig(),
        description="products of features; a bare name is short for {kind: name}",
    )
    expert: ExpertConfig = Field(default=ExpertConfig(), description="every expert")
    tower: TowerConfig = Field(default=TowerConfig(), description="the head of every task")
    transfer: OrName[TransferConfig] = Field(
        default=TransferConfig(),
        description="what towers read of those of the tasks that theirs comes after; a bare name "
        "is short for {kind: name}",
    )
    capacity: CapacityConfig | None = Field(
        default=None, description="null: nothing is dropped; {} = factor 1.25"
    )
    bias: BiasConfig | None = Field(
        default=None,
        description="a shallow tower over features of the display, such as position, which is "
        "trained beside the tasks and left out (or fixed) when rows are scored; null: none",
    )
    domains: DomainsConfig | None = Field(
        default=None, description="rows of several domains, each with gates of its own; null: one"
    )
    wide: bool = Field(
        default=False,
        description="add a logistic regression of all features (for a regression task a linear "
        "one), fitted before the first epoch and then kept, to what the towers say, which "
        "begin at 0",
    )
    execution: Literal["auto", "dense", "grouped", "padded"] = Field(
        default="auto", description="padded: every expert computes as many rows as the capacity"
    )
    stages: list[StageConfig] = Field(
        default_factory=list,
        description="written by `mmoe train` where training.freeze holds parts of another run: "
        "what the model had each time before others were added",
    )

    if TYPE_CHECKING:  # keys of a kind, for whoever builds it
        gate: Any
        num_experts: Any
        experts: Any
        shared_experts: Any
        task_experts: Any
        levels: Any
        pruned: Any

        def __init__(self, **keys: Any) -> None: ...

    @property
    def depth(self) -> int:
        """Number of levels of experts that follow one another."""
        return 1

    @property
    def visible_experts(self) -> int:
        """Number of experts that a task sees."""
        return 1

    @property
    def experts_of_requests(self) -> int:
        """Number of experts that are computed once for all candidates of a request."""
        return 0

    @property
    def pool_title(self) -> str:
        """Returns what a report says of its experts."""
        return self.of_experts

    @property
    def expert_kinds(self) -> list[tuple[ExpertConfig, int | None]]:
        """Kinds of experts, and how many of each; None: as many as a level has."""
        return [(self.expert, None)]

    @property
    def experts_title(self) -> str:
        """Name of the experts in a report."""
        kinds = [f"{n} × {expert.title}" if n else expert.title for expert, n in self.expert_kinds]
        return " and ".join(kinds)

    def _ensure_an_expert_is_not_counted(self) -> None:
        if self.expert.count is not None:
            raise ValueError(
                f"expert.count is {self.expert.count}, but expert says what every expert is; set "
                "num_experts, or list kinds of experts under experts"
            )

    def _ensure_execution_is_possible(self) -> None:
        if self.execution == "padded" and self.capacity is None:
            raise ValueError("execution is padded, which needs a capacity; set capacity or auto")
        if self.execution == "padded" and any(e.uses_batch for e, _ in self.expert_kinds):
            raise ValueError(
                "execution is padded, whose rows of zeros expert.norm batch would count; set "
                "execution to auto"
            )

    def _ensure_towers_can_be_read(self) -> None:
        if self.transfer.reads_hidden and not self.tower.has_hidden:
            raise ValueError(
                f"transfer is {self.transfer.kind}, which reads towers' hidden layers, but those "
                f"of tower.kind {self.tower.kind} cannot be read; set tower.kind: mlp, or "
                "transfer: aitm"
            )

    def check_tasks(self, tasks: Sequence[TaskConfig]) -> None:
        """Refuses tasks that such a model cannot be trained for.

        Raises:
            ValueError: Their number or kind does not go with it.
        """

    def trained_tasks(self, tasks: Sequence[TaskConfig]) -> list[TaskConfig]:
        """Returns the tasks, each of the kind that it is trained as."""
        return list(tasks)

    def most_gates(self, num_tasks: int) -> int:
        """Returns how many gates a level has at most."""
        return 0

    def expert_names(self, tasks: Sequence[str]) -> list[str]:
        """Names the experts of a level, all levels alike: without a pool, one bottom.

        A frozen part and a warm start find experts by their names, and a report groups them.
        """
        return ["bottom"]


class SharedBottomConfig(ModelConfig):
    """Shared bottom: one network for all tasks."""

    title: ClassVar[str] = "Shared-Bottom"
    of_experts: ClassVar[str] = "1 shared network"
    kind: Literal["shared_bottom"] = "shared_bottom"


class SingleTaskConfig(ModelConfig):
    """A network for each task."""

    title: ClassVar[str] = "Single-task"
    of_experts: ClassVar[str] = "1 network a task"
    kind: Literal["single_task"] = "single_task"

    def expert_names(self, tasks: Sequence[str]) -> list[str]:
        """Names the experts: the tasks'."""
        return list(tasks)


class GatedModelConfig(ModelConfig):
    """Base of models whose tasks weigh experts by gates."""

    has_gates: ClassVar[bool] = True

    gate: GateConfig = Field(default=GateConfig(), description="every gate")

    @property
    def common_experts(self) -> int:
        """Number of experts that all tasks' gates see."""
        return self.visible_experts

    def most_gates(self, num_tasks: int) -> int:
        """Returns how many gates a level has at most."""
        return num_tasks

    def _ensure_k_within_what_a_gate_sees(self) -> None:
        picks, gate = self.gate.picks, self.gate
        if isinstance(gate, SelectingGateConfig):
            gate.check_experts(self.kind, self.visible_experts, self.common_experts)
            self._check_always(gate)
        if picks is not None and picks > self.visible_experts:
            raise ValueError(
                f"gate.k is {picks}, but a gate of {self.kind} sees {self.visible_experts} "
                f"expert(s); lower gate.k or add experts"
            )

    def _check_always(self, gate: SelectingGateConfig) -> None:
        if gate.always and not self.has_one_pool:
            raise ValueError(
                f"gate.always is {gate.always}, but {self.kind} has no one pool whose first "
                "experts all tasks see; set kind: mmoe, or remove it (shared_experts are such)"
            )
        if gate.always and self.capacity is not None:
            raise ValueError(
                f"gate.always is {gate.always}, but no capacity holds all rows; remove one of them"
            )


class PoolModelConfig(GatedModelConfig):
    """Base of models whose gates see all experts of one pool."""

    has_one_pool: ClassVar[bool] = True

    num_experts: ExpertCount = Field(
        default=8,
        ge=1,
        description="experts in the pool; {request: 4, row: 4} is short for 8, of which "
        "request_experts are 4",
    )
    request_experts: ExpertCount = Field(
        default=0,
        ge=0,
        description="with data.requests: so many of num_experts, the first ones, read the features "
        "of the request alone, and are computed once for all its candidates",
    )
    experts: list[ExpertConfig] | None = Field(
        default=None,
        min_length=1,
        description="experts of several kinds in one pool, each kind with its count; num_experts "
        "and expert are then left out",
    )

    @property
    def visible_experts(self) -> int:
        """Number of experts that a task sees: all."""
        return self.num_experts

    @property
    def experts_of_requests(self) -> int:
        """Number of experts that are computed once for all candidates of a request."""
        return self.request_experts

    @property
    def pool_title(self) -> str:
        """Returns what a report says of its experts."""
        text = f"{self.num_experts} expert{'s' * (self.num_experts > 1)}"
        return text + (f", {self.request_experts} of the request" if self.request_experts else "")

    @property
    def expert_kinds(self) -> list[tuple[ExpertConfig, int | None]]:
        """Kinds of experts, and how many of each; None: all are alike."""
        return [(expert, expert.count) for expert in self.experts or [self.expert]]

    @model_validator(mode="before")
    @classmethod
    def _experts_are_numbers(cls, raw: Any) -> Any:
        if not isinstance(raw, Mapping):
            return raw
        raw = _split_counts(raw)
        counts = [] if "num_experts" in raw else _counts_of(raw.get("experts"))
        return {**raw, "num_experts": sum(counts)} if counts else raw

    def _ensure_kinds_of_experts_make_one_pool(self) -> None:
        if self.experts is None:
            return
        for i, expert in enumerate(self.experts):
            if expert.count is None:
                raise ValueError(f"experts.{i}.count is missing: how many such experts; add it")
        total = sum(expert.count or 0 for expert in self.experts)
        if self.num_experts != total:
            raise ValueError(
                f"num_experts is {self.num_experts}, but the counts under experts add up to "
                f"{total}; remove num_experts"
            )
        if self.expert != ExpertConfig():
            raise ValueError("expert and experts both say what experts are; remove one of them")

    def _ensure_experts_of_requests_are_possible(self) -> None:
        count = self.request_experts
        if not count:
            return
        if self.experts is not None:
            raise ValueError(
                f"request_experts is {count}, but experts lists kinds of experts; use expert and "
                "num_experts"
            )
        if count >= self.num_experts:
            raise ValueError(
                f"request_experts is {count} of num_experts {self.num_experts}, but candidates of "
                "a request differ by experts of the row alone; raise num_experts"
            )
        if self.interaction.replaces_inputs:
            raise ValueError(
                f"request_experts is {count}, but interaction {self.interaction.kind} takes the "
                "place of the inputs, and all it gives is the row's; remove one of them"
            )

    def expert_names(self, tasks: Sequence[str]) -> list[str]:
        """Names the experts of the pool, kind by kind.

        Example:
            >>> kinds = [{"kind": "mlp", "count": 2}, {"kind": "mlp", "count": 1, "norm": "layer"}]
            >>> MMoEConfig(experts=kinds).expert_names(["click"])
            ['mlp 1 expert 1', 'mlp 1 expert 2', 'mlp 2 expert 1']
            >>> MMoEConfig(num_experts=2).expert_names(["click"])
            ['expert 1', 'expert 2']
        """
        if of_request := self.experts_of_requests:
            of_row = _numbered("row expert", self.num_experts - of_request)
            return _numbered("request expert", of_request) + of_row
        if self.experts is None:
            return _numbered("expert", self.num_experts)
        kinds = [expert.kind for expert in self.experts]
        names: list[str] = []
        for i, expert in enumerate(self.experts):
            turn = f" {kinds[: i + 1].count(expert.kind)}" if kinds.count(expert.kind) > 1 else ""
            names += _numbered(f"{expert.kind}{turn} expert", expert.count or 0)
        return names


class MMoEConfig(PoolModelConfig):
    """MMoE: every task has a gate of its own over one pool of experts."""

    title: ClassVar[str] = "MMoE"
    kind: Literal["mmoe"] = "mmoe"


class OMoEConfig(PoolModelConfig):
    """OMoE: one gate for all tasks."""

    title: ClassVar[str] = "OMoE"
    kind: Literal["omoe"] = "omoe"

    def most_gates(self, num_tasks: int) -> int:
        """Returns how many gates there are: one."""
        return 1


class CGCConfig(GatedModelConfig):
    """Own experts of each task beside shared ones."""

    title: ClassVar[str] = "CGC"
    kind: Literal["cgc"] = "cgc"
    shared_experts: ExpertCount = Field(default=4, ge=1, description="experts that every task sees")
    task_experts: ExpertCount = Field(default=2, ge=1, description="own experts of each task")
    pruned: list[PrunedExpert] = Field(
        default=[], description="experts that it does without; mmoe prune writes them here"
    )

    @property
    def visible_experts(self) -> int:
        """Number of experts that a task's gate sees: its own and the shared ones."""
        return self.shared_experts + self.task_experts

    @property
    def common_experts(self) -> int:
        """Number of experts that all tasks' gates see: the shared ones."""
        return self.shared_experts

    @property
    def pool_title(self) -> str:
        """Returns what a report says of its experts."""
        return f"{self.shared_experts} shared + {self.task_experts} own experts a task"

    def expert_names(self, tasks: Sequence[str]) -> list[str]:
        """Names the experts of a level, all levels alike: each task's own, then the shared ones.

        Example:
            >>> PLEConfig(task_experts=1, shared_experts=1).expert_names(["click"])
            ['click expert 1', 'shared expert 1']
        """
        own = [name for task in tasks for name in _numbered(f"{task} expert", self.task_experts)]
        return own + _numbered("shared expert", self.shared_experts)

    def left_experts(self, level: int, names: Sequence[str]) -> list[int]:
        """Returns the places, among all that a level would have, of experts that are not pruned.

        Args:
            level: From 1 on.
            names: Of all of them.

        Raises:
            ValueError: One that is pruned is not among them.
        """
        gone = [one.name for one in self.pruned if one.level == level]
        unknown = [name for name in gone if name not in names]
        if unknown or any(one.level > self.depth for one in self.pruned):
            what = repr(unknown[0]) if unknown else f"on a level above {self.depth}"
            raise ValueError(
                f"model.pruned: there is no expert {what}; level {level} has {', '.join(names)}"
            )
        return [e for e, name in enumerate(names) if name not in gone]


class PLEConfig(CGCConfig):
    """The same on several levels."""

    title: ClassVar[str] = "PLE"
    kind: Literal["ple"] = "ple"  # type: ignore[assignment]  # another kind than its parent
    levels: int = Field(default=2, ge=1, le=16, description="extraction levels")

    @property
    def depth(self) -> int:
        """Number of levels, as many as were asked for."""
        return self.levels

    def most_gates(self, num_tasks: int) -> int:
        """Returns how many gates a level has: below the last one more, that of the shared."""
        return num_tasks + (self.levels > 1)

    @property
    def pool_title(self) -> str:
        """Returns what a report says of its experts."""
        return f"{self.levels} levels of {super().pool_title}"


class ESMMConfig(PoolModelConfig):
    """MMoE for an event and its consequence."""

    title: ClassVar[str] = "ESMM"
    kind: Literal["esmm"] = "esmm"

    def check_tasks(self, tasks: Sequence[TaskConfig]) -> None:
        """Refuses other tasks than an event and its consequence.

        Raises:
            ValueError: They are not two binary ones, the second observed when the first one is 1,
                or negatives of the second one are sampled.
        """
        funnel = len(tasks) == 2 and tasks[1].observed_when == tasks[0].name
        if not funnel or not all(isinstance(task, BinaryTask) for task in tasks):
            raise ValueError(
                "model.kind esmm needs exactly two binary tasks, the second with "
                "`observed_when:` the first one's name (click, then purchase)"
            )
        refuse_sampled(tasks[1], "model.kind esmm", tasks[0].name)

    def trained_tasks(self, tasks: Sequence[TaskConfig]) -> list[TaskConfig]:
        """Returns the tasks, the second of kind entire_space: ESMM is a spelling of it."""
        return entire_space_tasks(tasks)


def _split_counts(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a `model` section whose `num_experts` is a number.

    Example:
        >>> _split_counts({"num_experts": {"request": 2, "row": 4}})
        {'num_experts': 6, 'request_experts': 2}
    """
    counts = raw.get("num_experts")
    if not isinstance(counts, Mapping):
        return raw
    numbers = [counts.get(level) for level in ("request", "row")]
    whole = [n for n in numbers if isinstance(n, int) and not isinstance(n, bool) and n >= 1]
    if len(whole) != 2 or len(counts) != 2:
        raise ValueError(
            "num_experts: expected a number, or how many of the request and how many of the row, "
            f"such as {{request: 4, row: 4}}, got {dict(counts)}"
        )
    if raw.get("request_experts", whole[0]) != whole[0]:
        raise ValueError(
            f"num_experts says {whole[0]} experts of the request, but request_experts is "
            f"{raw['request_experts']}; remove request_experts"
        )
    return {**raw, "num_experts": sum(whole), "request_experts": whole[0]}


def _counts_of(experts: Any) -> list[int]:
    """Returns the counts of a raw list of kinds of experts.

    None where one cannot be told, for the errors of its own.

    Example:
        >>> _counts_of([{"kind": "mlp", "count": 2}, {"kind": "fm", "count": 1}])
        [2, 1]
    """
    if not isinstance(experts, list | tuple):
        return []
    if not all(isinstance(expert, Mapping | ExpertConfig) for expert in experts):
        return []
    counts = [str(e.get("count") if isinstance(e, Mapping) else e.count) for e in experts]
    if not all(count.isdecimal() and int(count) > 0 for count in counts):
        return []
    return [int(count) for count in counts]


# Config class → what builds the network, as `mmoe.models.sections.build_network` calls it
MODELS = Kinds("model", ModelConfig, default="mmoe")
MODELS.add("mmoe", MMoEConfig, "mmoe.models.mmoe:build_mmoe")
MODELS.add("shared_bottom", SharedBottomConfig, "mmoe.models.shared_bottom:build_shared_bottom")
MODELS.add("single_task", SingleTaskConfig, "mmoe.models.single_task:build_single_task")
MODELS.add("omoe", OMoEConfig, "mmoe.models.omoe:build_omoe")
MODELS.add("cgc", CGCConfig, "mmoe.models.ple:build_cgc")
MODELS.add("ple", PLEConfig, "mmoe.models.ple:build_ple")
MODELS.add("esmm", ESMMConfig, "mmoe.models.esmm:build_esmm")


def _numbered(name: str, count: int) -> list[str]:
    return [f"{name} {number}" for number in range(1, count + 1)]
