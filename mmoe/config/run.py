"""One run: data, features, tasks, model, training."""

from difflib import get_close_matches

from pydantic import Field, model_validator

from mmoe.config.base import Strict
from mmoe.config.data import DataConfig
from mmoe.config.features import FeatureConfig, Name, TableConfig
from mmoe.config.model import ModelConfig
from mmoe.config.parallel import ParallelConfig
from mmoe.config.tasks import TaskConfig
from mmoe.config.training import TrainingConfig


class RunConfig(Strict):
    """Everything `mmoe train` needs. The resolved copy is stored with the run as config.yaml."""

    name: Name = "run"
    seed: int = Field(default=0, ge=0, lt=2**32, description="weights, batch order, dropout")
    split_seed: int = Field(default=1, ge=0, lt=2**32, description="which rows are held out")
    data: DataConfig = DataConfig()
    tables: list[TableConfig] = Field(default_factory=list)
    features: list[FeatureConfig] = Field(min_length=1)
    tasks: list[TaskConfig] = Field(min_length=1)
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    parallel: ParallelConfig = ParallelConfig()

    @model_validator(mode="after")
    def _names_agree(self) -> "RunConfig":
        _unique("feature", [feature.name for feature in self.features])
        _unique("task", [task.name for task in self.tasks])
        _unique("table", [table.name for table in self.tables])
        shared = {table.name for table in self.tables}
        for feature in self.features:
            feature.check_tables(shared)
        return self

    @model_validator(mode="after")
    def _derived_names_are_free(self) -> "RunConfig":
        taken = {table.name for table in self.tables} | {feature.name for feature in self.features}
        for feature in self.features:
            for name in feature.derived_names:
                if name in taken:
                    raise ValueError(
                        f"the {feature.derived_are} of feature {feature.name!r} are called {name}; "
                        "give the feature or table of that name another name"
                    )
                taken.add(name)
        return self

    @model_validator(mode="after")
    def _placed_tables_exist(self) -> "RunConfig":
        known = {table for feature in self.features for table in feature.table_names}
        for name in self.parallel.per_table:
            if name not in known:
                close = get_close_matches(name, known, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"there: {sorted(known)}"
                raise ValueError(
                    f"parallel.per_table names {name!r}, but no feature looks up such a table; "
                    + hint
                )
        return self

    @model_validator(mode="after")
    def _tables_are_of_one_sort(self) -> "RunConfig":
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
        return self

    @model_validator(mode="after")
    def _some_task_is_trained(self) -> "RunConfig":
        if not any(task.weight for task in self.tasks):
            raise ValueError("tasks: the weight of every task is 0, so nothing would be trained")
        return self

    @model_validator(mode="after")
    def _monitor_names_a_task(self) -> "RunConfig":
        task_name, _, metric = self.training.monitor.rpartition(".")
        kinds = {task.name: task.kind for task in self.tasks}
        if task_name != "mean" and task_name not in kinds:
            raise ValueError(
                f"training.monitor is {self.training.monitor!r}, but there is no task "
                f"{task_name!r}; tasks: {', '.join(kinds)} (or mean)"
            )
        wanted = "regression" if metric in ("rmse", "mae") else "binary"
        watched = kinds.values() if task_name == "mean" else [kinds[task_name]]
        if wanted not in watched:
            raise ValueError(
                f"training.monitor is {self.training.monitor!r}, but {metric} needs a {wanted} "
                f"task; set training.monitor: {'mean.rmse' if wanted == 'binary' else 'mean.auc'}"
            )
        return self

    @model_validator(mode="after")
    def _spread_experts_run_grouped(self) -> "RunConfig":
        if self.parallel.experts == "spread" and self.model.execution in ("dense", "padded"):
            raise ValueError(
                f"parallel.experts is spread, but model.execution {self.model.execution} runs "
                "every expert on every rank; set execution: auto, or experts: replicated"
            )
        return self

    @model_validator(mode="after")
    def _esmm_needs_a_funnel(self) -> "RunConfig":
        if self.model.kind == "esmm":
            funnel = len(self.tasks) == 2 and self.tasks[1].observed_when == self.tasks[0].name
            if not funnel or any(task.kind != "binary" for task in self.tasks):
                raise ValueError(
                    "model.kind esmm needs exactly two binary tasks, the second with "
                    "`observed_when:` the first one's name (click, then purchase)"
                )
            rate = self.tasks[1].negative_sampling_rate
            if rate != 1:
                # Rows with the event would then be missing too, and P(event) be wrong
                raise ValueError(
                    f"task {self.tasks[1].name!r}: negative_sampling_rate is {rate}, which "
                    f"model.kind esmm cannot correct; only negatives of {self.tasks[0].name!r} may "
                    "be sampled (its product then needs no rate of its own)"
                )
        return self


def _unique(what: str, names: list[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"{what} {name!r} is defined twice; rename one of them")
        seen.add(name)
