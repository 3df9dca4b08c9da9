"""One run: data, features, tasks, model, training."""

from collections.abc import Callable
from difflib import get_close_matches
from typing import Any, Self

from pydantic import Field

from mmoe.config.data import DataConfig
from mmoe.config.experts import FrozenExpertConfig
from mmoe.config.features import DatetimeFeature, FeatureConfig, IdFeature, NumericFeature
from mmoe.config.kinds import ModuleName, Name, Strict
from mmoe.config.model import ModelConfig, check_domains
from mmoe.config.parallel import ParallelConfig
from mmoe.config.relations import check_relations
from mmoe.config.scoring import ScoreConfig
from mmoe.config.tables import TableConfig, TableSettings, VectorTable
from mmoe.config.tasks import METRICS, TaskConfig, group_of, prediction_columns
from mmoe.config.training import ENCODER, TrainingConfig, check_stages, frozen_tables
from mmoe.metrics import KINDS, first_of
from mmoe.metrics.columns import WITH_BIAS

_WITHOUT_IDS = (NumericFeature, DatetimeFeature)  # what these look up are buckets and parts


class RunConfig(Strict):
    """Everything `mmoe train` needs. The resolved copy is stored with the run as config.yaml."""

    name: Name = Field(default="run", description="of the run, in what it prints and in its report")
    seed: int = Field(default=0, ge=0, lt=2**32, description="weights, batch order, dropout")
    split_seed: int = Field(default=1, ge=0, lt=2**32, description="which rows are held out")
    imports: list[ModuleName] = Field(
        default_factory=list,
        description="modules with kinds of your own, imported before the rest is read; of a run's "
        "folder only those that --import or an installed package allows",
    )
    data: DataConfig = Field(
        default=DataConfig(), description="where the rows come from, and how they are split"
    )
    tables: list[TableConfig] = Field(
        default_factory=list, description="embedding tables that several features share, by name"
    )
    features: list[FeatureConfig] = Field(min_length=1, description="what the model reads")
    tasks: list[TaskConfig] = Field(min_length=1, description="what it predicts")
    model: ModelConfig = Field(default=ModelConfig(), description="experts, gates and towers")
    training: TrainingConfig = Field(
        default=TrainingConfig(), description="epochs, batches, optimizers, checkpoints"
    )
    parallel: ParallelConfig = Field(
        default=ParallelConfig(), description="what each rank holds; one process ignores it"
    )
    score: ScoreConfig = Field(
        default=ScoreConfig(), description="what `mmoe score` writes beside the predictions"
    )

    def _ensure_names_agree(self) -> None:
        _unique("feature", [feature.name for feature in self.features])
        _unique("task", [task.name for task in self.tasks])
        _unique("table", [table.name for table in self.tables])
        shared = {table.name for table in self.tables}
        for feature in self.features:
            feature.check_tables(shared)
            feature.check_among(self.features)

    def _ensure_features_of_requests_have_some(self) -> None:
        if self.data.requests is not None:
            self.data.requests.check_among(self.features)
            return
        for feature in self.features:
            if feature.asked_level == "request":
                raise ValueError(
                    f"feature {feature.name!r}: level is request, but nothing says which rows are "
                    "one; set data.requests: {column: request_id}, or remove level"
                )

    def _ensure_derived_names_are_free(self) -> None:
        taken = {table.name for table in self.tables} | {feature.name for feature in self.features}
        for feature in self.features:
            for name in feature.derived_names:
                if name in taken:
                    raise ValueError(
                        f"the {feature.derived_are} of feature {feature.name!r} are called {name}; "
                        "give the feature or table of that name another name"
                    )
                taken.add(name)

    def _ensure_placed_tables_exist(self) -> None:
        known = {table for feature in self.features for table in feature.table_names}
        for name in self.parallel.per_table:
            if name not in known:
                close = get_close_matches(name, known, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"there: {sorted(known)}"
                raise ValueError(
                    f"parallel.per_table names {name!r}, but no feature looks up such a table; "
                    + hint
                )

    def _ensure_tables_are_of_one_sort(self) -> None:
        """Ids of a cross are pairs, triples, …: never those of a column, or of a longer cross."""
        users: dict[str, tuple[str, int]] = {}
        for feature in self.features:
            width = feature.id_columns
            for table in feature.table_names:
                other, expected = users.setdefault(table, (feature.name, width))
                if width != expected:
                    raise ValueError(
                        f"features {other!r} and {feature.name!r} share the table {table!r}, but "
                        f"their ids are made of {expected} and {width} columns; give one of them "
                        "another table"
                    )

    def _ensure_vectors_have_rows_that_stay(self) -> None:
        """Refuses vectors for rows that are no one id's, and keys without effect beside them."""
        for where, item in self._with_tables:
            if not isinstance(item, VectorTable) or item.vectors is None:
                continue
            encoding = item.table_encoding.encoding
            if encoding != "vocabulary":
                raise ValueError(
                    f"{where} has vectors and encoding {encoding}, whose rows are shared or change "
                    "hands, so that no vector stays one's own; say encoding: vocabulary, or remove "
                    "vectors"
                )
            if item.vectors.frozen and item.learning_rate is not None:
                raise ValueError(
                    f"{where}: learning_rate is {item.learning_rate}, but vectors.frozen is true, "
                    "so that its rows are never moved; remove learning_rate, or say frozen: false"
                )
        begun = {table.name for table in self.tables if table.vectors is not None}
        for feature in self.features:
            if feature.id_columns > 1 and begun.intersection(feature.table_names):
                raise ValueError(
                    f"features.{feature.name} is a {feature.kind} of {feature.id_columns} columns "
                    f"and uses the table {feature.table_names[0]!r}, but vectors are those of the "
                    "ids of one column; give it another table"
                )

    def _ensure_some_task_is_trained(self) -> None:
        if not any(task.weight for task in self.tasks):
            raise ValueError("tasks: the weight of every task is 0, so nothing would be trained")

    def _ensure_monitor_names_a_task(self) -> None:
        task_name, _, metric = self.training.monitor.rpartition(".")
        names = [task.name for task in self.tasks]
        if task_name not in ("mean", *names):
            raise ValueError(
                f"training.monitor is {self.training.monitor!r}, but there is no task "
                f"{task_name!r}; tasks: {', '.join(names)} (or mean)"
            )
        watched = [task for task in self.tasks if task_name in ("mean", task.name)]
        if not any(metric in task.monitored for task in watched):
            having = [f"a {name} task" for name, kind in KINDS.items() if metric in kind.monitored]
            needs = having[0] if having else "a task that names it under `metrics`"
            headline = first_of(task.kind for task in watched).headline
            raise ValueError(
                f"training.monitor is {self.training.monitor!r}, but {metric} needs {needs}; set "
                f"training.monitor: mean.{headline}"
            )

    def _ensure_monitor_has_its_groups(self) -> None:
        metric = self.training.monitor.rpartition(".")[2].removesuffix(WITH_BIAS)
        if metric == "gauc" and self.data.group_column is None:
            raise ValueError(
                f"training.monitor is {self.training.monitor!r}, which is computed by group; say "
                "data.group_column, such as the column of users or searches, or monitor auc"
            )

    def _ensure_metrics_have_their_groups(self) -> None:
        for task in self.tasks:
            for metric in task.metrics:
                grouped = METRICS.implementation(metric).needs_groups
                if grouped and self.data.group_column is None:
                    raise ValueError(
                        f"task {task.name!r}: metrics: {metric.kind} is computed by group; say "
                        "data.group_column, such as the column of users or searches, or remove it"
                    )

    def _ensure_spread_experts_run_grouped(self) -> None:
        if self.parallel.experts == "spread" and self.model.execution in ("dense", "padded"):
            raise ValueError(
                f"parallel.experts is spread, but model.execution {self.model.execution} runs "
                "every expert on every rank; set execution: auto, or experts: replicated"
            )

    def _ensure_every_chunk_has_a_row(self) -> None:
        if self.parallel.chunks > self.training.batch_size:
            raise ValueError(
                f"parallel.chunks is {self.parallel.chunks}, but a batch has "
                f"{self.training.batch_size} rows (training.batch_size), of which each rank has "
                "its part; set fewer chunks"
            )

    def _ensure_frozen_experts_stay(self) -> None:
        if self.parallel.rebalance == "epoch" and self.training.freeze:
            raise ValueError(
                "parallel.rebalance is epoch, but training.freeze holds parts of the model still, "
                "which do not change ranks; set parallel.rebalance: off"
            )

    def _ensure_experts_of_requests_have_some(self) -> None:
        of_requests = self.model.experts_of_requests
        if of_requests and self.data.requests is None:
            raise ValueError(
                f"model.request_experts is {of_requests}, but nothing says which "
                "rows are one request; set data.requests, or do without experts of the request"
            )

    def _ensure_wide_part_has_rows_that_stay(self) -> None:
        for where, item in self._with_tables if self.model.wide else ():
            if isinstance(item, TableSettings) and item.table_encoding.managed is not None:
                raise ValueError(
                    f"model.wide is true, but {where} has encoding managed, whose "
                    "rows pass from id to id, so that no fitted weight stays one's own; set "
                    "encoding: vocabulary or hash there, or model.wide: false"
                )

    def _ensure_compared_rows_have_their_group(self) -> None:
        if self.compared_group is not None and self.data.input == "stream":
            raise ValueError(
                "data.input is stream, but tasks of kinds bpr, softmax and jrc need the rows of a "
                "group in one batch, wherever they lie in the files; set data.input: memory"
            )

    def _ensure_bias_has_its_features(self) -> None:
        bias, metric = self.model.bias, self.training.monitor.rpartition(".")[2]
        if bias is not None:
            bias.check(self.features, [task.name for task in self.tasks])
        elif metric.endswith(WITH_BIAS):
            raise ValueError(
                f"training.monitor is {self.training.monitor!r}, but there is no model.bias; set "
                f"training.monitor: {self.training.monitor.removesuffix(WITH_BIAS)}"
            )

    def _ensure_products_have_two_features(self) -> None:
        if not self.model.interaction.pairs_ids:
            return
        dim, shared = self.model.embedding_dim, {table.name: table.dim for table in self.tables}
        biased = [] if self.model.bias is None else self.model.bias.features
        ids = [f for f in self.features if isinstance(f, IdFeature) and f.name not in biased]
        wide = [f.name for f in ids if (f.dim or shared.get(f.table_name) or dim) == dim]
        # What a feature of one's own kind looks up is known where the model is built
        own = [f for f in self.features if not isinstance(f, _WITHOUT_IDS) and f.table_names]
        own = [f for f in own if f.name not in biased]
        if len(wide) < 2 and len(own) == len(ids):
            others = ", ".join(feature.name for feature in ids if feature.name not in wide)
            raise ValueError(
                f"model.interaction is {self.model.interaction.kind}, which multiplies embeddings "
                "of two features of ids or more of width model.embedding_dim "
                f"({dim}); there is {wide[0] if wide else 'none'}"
                f"{' alone' if wide else ''}{f' (of another dim: {others})' if others else ''}; "
                "set interaction: none, or add such features"
            )

    def _ensure_tasks_go_with_the_model_and_one_another(self) -> None:
        if any(task.after for task in self.tasks):
            check_relations(self.tasks)
        if self.model.transfer.kind != "none":
            self.model.transfer.check_tasks(self.tasks)
        self.model.check_tasks(self.tasks)
        check_domains(self.model, self.trained_tasks)
        for task in self.tasks:
            task.check_among(self.tasks)
        _unique("predictions column", prediction_columns(self.tasks))

    def _ensure_voters_are_named(self) -> None:
        """Tasks that are added to the config of a run have no vote in what its gates decide."""
        names, model = [task.name for task in self.tasks], self.model
        if model.has_gates:
            most, grows = model.most_gates(len(names)), bool(self.training.freeze)
            gate = model.gate.with_voters(names, most, grows=grows)
            if gate is not model.gate:
                object.__setattr__(self, "model", model.model_copy(update={"gate": gate}))

    def scored_within(self, budget: int) -> Self:
        """Returns the same with `score.budget`.

        Raises:
            ValueError: The model has no gates to bound, or not so many experts.
        """
        if budget < 1:
            raise ValueError(
                f"score.budget is {budget}, but a row needs an expert; set 1 or more, or remove "
                "score.budget to compute all of them"
            )
        score = self.score.model_copy(update={"budget": budget})
        config = self.model_copy(update={"score": score})
        config._ensure_scoring_has_experts_to_choose_from()
        return config

    def _ensure_scoring_has_experts_to_choose_from(self) -> None:
        if (budget := self.score.budget) is None:
            return
        if not self.model.has_gates:
            raise ValueError(
                f"score.budget is {budget}, but model.kind {self.model.kind} has no gates that "
                "choose among experts; remove score.budget, or set model.kind: mmoe"
            )
        there = len(self.model.expert_names([task.name for task in self.tasks]))
        if budget > there:
            raise ValueError(
                f"score.budget is {budget}, but a level has {there} expert(s); set {there} or "
                "less, or remove score.budget to compute all of them"
            )

    def _ensure_labels_that_mature_have_times(self) -> None:
        delayed = self.delayed_tasks
        if not delayed and self.data.time is not None:
            raise ValueError(
                "data.time is read for tasks with matures_after alone, and there is none; give a "
                "task matures_after, such as 7d, or remove data.time"
            )
        if delayed and self.data.row_time is None:
            raise ValueError(
                f"task {delayed[0].name!r}: matures_after needs each row's time; set "
                "data.time.column, or split by time"
            )
        weighted = {task.name for task in delayed if task.immature == "weight"}
        for task in self.trained_tasks:
            if task.kind == "entire_space" and task.observed_when in weighted:
                raise ValueError(
                    f"task {task.observed_when!r}: immature is weight, but it is the event of "
                    f"{task.name!r} (entire_space), which learns from labels that are 0 or 1; set "
                    "immature: mask"
                )

    def _ensure_stages_are_of_this_model(self) -> None:
        tasks, features = ([item.name for item in items] for items in (self.tasks, self.features))
        check_stages(self.model.stages, tasks, features)

    @property
    def _with_tables(self) -> list[tuple[str, Any]]:
        """Tables and features, each with its place."""
        items = {"tables": self.tables, "features": self.features}
        return [(f"{key}.{item.name}", item) for key, some in items.items() for item in some]

    @property
    def delayed_tasks(self) -> list[TaskConfig]:
        """Tasks whose labels mature."""
        return [task for task in self.tasks if task.matures_after is not None]

    @property
    def compared_group(self) -> str | None:
        """Column whose groups stay together in a training batch; None: rows are on their own."""
        return group_of(self.tasks, self.data.group_column)

    @property
    def unread_when_scoring(self) -> set[str]:
        """Names of features that only training reads: those of `model.bias`, if not all."""
        return set() if self.model.bias is None else self.model.bias.unread(self.features)

    def without_weight_files(self) -> "RunConfig":
        """Returns the config for a network that a checkpoint fills: nothing else is read.

        Example:
            >>> from mmoe.config import config_from_dict
            >>> config = config_from_dict({
            ...     "features": [{"kind": "numeric", "name": "age"}],
            ...     "tasks": [{"name": "click", "label": "click"}]})
            >>> config.without_weight_files() is config
            True
        """
        return self.with_weight_files(lambda path: None)

    def with_weight_files(self, change: Callable[[str], str | None]) -> "RunConfig":
        """Returns the config with every path of a frozen expert's weights changed."""
        model = self.model
        kinds = [expert for expert, _ in model.expert_kinds]
        if not any(isinstance(e, FrozenExpertConfig) and e.weights is not None for e in kinds):
            return self

        def changed(expert: Any) -> Any:
            if not isinstance(expert, FrozenExpertConfig) or expert.weights is None:
                return expert
            return expert.model_copy(update={"weights": change(expert.weights)})

        update: dict[str, Any] = {"expert": changed(model.expert)}
        if len(kinds) > 1 or kinds[0] is not model.expert:
            update["experts"] = [changed(expert) for expert in kinds]
        return self.model_copy(update={"model": model.model_copy(update=update)})

    @property
    def frozen_tables(self) -> set[str]:
        """Names of embedding tables of an earlier run that stay as they are."""
        freeze = self.training.freeze
        return frozen_tables(freeze, self.model.stages) if freeze else set()

    @property
    def keeps_encoder(self) -> bool:
        """Whether all that the earlier run's encoder had learnt stays, ids included."""
        return ENCODER in self.training.freeze and bool(self.model.stages)

    @property
    def trained_tasks(self) -> list[TaskConfig]:
        """Tasks, each of the kind it is trained as: `model.kind: esmm` spells entire_space."""
        return self.model.trained_tasks(self.tasks)


def _unique(what: str, names: list[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"{what} {name!r} is defined twice; rename one of them")
        seen.add(name)


def with_vector_paths(config: RunConfig, change: Callable[[str], str]) -> RunConfig:
    """Returns the config with another path for each file of vectors."""
    update = {}
    for section in ("tables", "features"):
        items = list(getattr(config, section))
        for n, item in enumerate(items):
            if isinstance(item, VectorTable) and item.vectors is not None:
                vectors = item.vectors.model_copy(update={"path": change(item.vectors.path)})
                items[n] = item.model_copy(update={"vectors": vectors})
                update[section] = items
    return config.model_copy(update=update) if update else config
