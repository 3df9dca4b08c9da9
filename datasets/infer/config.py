"""A first config from the data itself: the engine of `mmoe init` and of the estimator."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from mmoe.config import (
    DataConfig,
    FeatureConfig,
    ModelConfig,
    RunConfig,
)
from mmoe.config.data import MISSING_WORDS
from mmoe.config.effects import without_unused
from mmoe.datasets.infer.choose_split import choose_split
from mmoe.datasets.infer.guess_features import group_column
from mmoe.datasets.infer.guess_tasks import consequence_notes, guess_task
from mmoe.datasets.infer.inputs import Inputs
from mmoe.datasets.infer.measured.coded import draw
from mmoe.datasets.infer.measured.drift import flattered
from mmoe.datasets.infer.measured.products import Product
from mmoe.datasets.infer.moments import offered
from mmoe.datasets.infer.padding import with_padding
from mmoe.datasets.infer.reading import read_column
from mmoe.datasets.infer.repeated import without_copies
from mmoe.datasets.infer.sizes import Log, model_for, training_for
from mmoe.datasets.infer.told import Told
from mmoe.datasets.infer.unique_names import Names
from mmoe.datasets.rows.locations import distinct_names, visible_columns
from mmoe.datasets.values.arrow import plain
from mmoe.datasets.values.columns import to_times
from mmoe.datasets.values.missing_words import cleaned, words_met


@dataclass(kw_only=True)
class Reasons:
    """Why the inferred config is what it is; becomes its comments.

    Attributes:
        split: Of the split.
        group: Of data.group_column.
        features: Feature name → reason.
        tasks: Task name → reasons.
        left_out: Column and reason, in the file's order.
        offered: Column that is left out → features of which it may become one.
        sizes: Of the model's and batches' sizes.
        repeated: How many rows are copies of others; "" where chance explains them.
        consequences: Task name → the task without which it never happens, or is 0.
        unsure: Columns whose kind the rows are too few to tell.
        missing: Column of text → words in it that mean a missing value, and their rows.
        unclear: What else is not clear, a line each.
    """

    split: str = ""
    group: str = ""
    features: dict[str, str] = field(default_factory=dict)
    tasks: dict[str, list[str]] = field(default_factory=dict)
    left_out: list[tuple[str, str]] = field(default_factory=list)
    offered: dict[str, list[FeatureConfig]] = field(default_factory=dict)
    sizes: str = ""
    repeated: str = ""
    consequences: dict[str, str] = field(default_factory=dict)
    unsure: list[str] = field(default_factory=list)
    missing: dict[str, dict[str, int]] = field(default_factory=dict)
    unclear: list[str] = field(default_factory=list)


def infer_config(
    table: pa.Table,
    labels: Sequence[str],
    *,
    name: str = "run",
    path: str | Path | None = None,
    origin: str = "data",
    split: bool = True,
    told: Told | None = None,
    rows: int | None = None,
) -> tuple[RunConfig, Reasons]:
    """Infers a config that trains as it is, from a look at every column.

    Args:
        table: All rows, or a sample of them; the labels and everything else.
        labels: Label columns, or expressions over columns; one task each, in this order.
        name: Of the run.
        path: `data.path` of the config.
        origin: What the user calls the data; starts error messages.
        split: Whether the config's split is made; if not, a datetime stays an input.
        told: Which columns are ids, numbers, or nothing, as somebody knows who knows better.
        rows: How many there are, where the table is a sample of them.

    Returns:
        The config, and for each of its lines the reason.

    Raises:
        ValueError: A label is missing, constant or ambiguous, no column is left to learn from, or
            columns are not what they are said to be.

    Example:
        >>> table = pa.table({"user": [1, 2, 1, 2] * 10, "price": [0.5, 1.5, 2.5, 0.5] * 10,
        ...                   "row": list(range(40)), "click": [0, 1, 1, 0, 1, 0, 0, 1] * 5})
        >>> config, reasons = infer_config(table, ["click"])
        >>> [feature.name for feature in config.features], reasons.left_out
        (['user', 'price'], [('row', 'its value is different in every row')])
    """
    if table.num_rows == 0:
        raise ValueError(f"{origin}: holds no rows to look at")
    if distinct_names(table.column_names) != table.column_names:
        raise ValueError(f"{origin}: columns without a name, or with one name; rename them")
    if not labels:
        raise ValueError("labels: expected at least one label column, got none")
    names, told = Names(), told or Told()
    sampled = (rows or 0) > table.num_rows
    distinct = without_copies(table, sampled=sampled)
    total = (rows or table.num_rows) * distinct.table.num_rows // table.num_rows
    table = distinct.table
    tasks = [guess_task(table, label, names.task(label), origin) for label in labels]
    used = {column for task in tasks for column in task.columns}
    told.check(table, used, origin)
    columns = [column for column in visible_columns(table) if column not in used]
    met = {column: words_met(plain(table[column]), MISSING_WORDS) for column in columns}
    table = cleaned(table, columns, MISSING_WORDS)
    dropped = [(column, "--drop") for column in columns if column in told.drop]
    profiles = [read_column(column, table[column]) for column in columns]
    profiles, unclear = with_padding(table, told.apply(table, profiles, origin))
    chosen = choose_split(table, tasks, profiles if split else [], origin)
    group = group_column(profiles)
    inputs = Inputs(
        table=table,
        profiles=profiles,
        sample=draw(tasks),
        told=told,
        group=group.name if group else None,
        time_column=chosen.time_column,
        splits=split,
        sampled=sampled,
    )
    inputs.choose(names, origin)
    order = {column: place for place, column in enumerate(columns)}
    left_out = sorted(dropped + inputs.left_out, key=lambda one: order[one[0]])
    if not inputs.features:
        why = "; ".join(f"{column}: {reason}" for column, reason in left_out) or "none there"
        raise ValueError(f"{origin}: no column is left to learn from ({why})")
    outcomes = [task.rarer for task in tasks if task.is_event]
    log = Log(
        rows=total,
        ids=inputs.most_ids,
        rarest=min(outcomes) * total // table.num_rows if outcomes else None,
        products=inputs.product is not None,
    )
    run = RunConfig(
        name=names.run(name),
        split_seed=chosen.seed,
        data=DataConfig(
            path=str(path) if path is not None else None,
            split=chosen.config,
            repeated_rows="together" if distinct.said else "keep",
            group_column=inputs.group,
        ),
        features=inputs.features,
        tasks=[task.task for task in tasks],
        model=_sized(model_for(log), inputs.features),
        training=training_for(log, [task.task for task in tasks]),
    )
    config = without_unused(run)
    flattery = ""
    if chosen.config.by == "time" and chosen.time_column:
        form = chosen.config.format
        times_N = to_times(table, chosen.time_column, origin, form)[inputs.sample.rows_S]
        flattery = flattered(inputs.strongest, inputs.numbers, inputs.sample, times_N)
    reasons = Reasons(
        split="; ".join(filter(None, (chosen.reason, flattery))),
        group="who the rows belong to, for GAUC" if group else "",
        features=inputs.reasons,
        tasks={task.task.name: task.reasons for task in tasks},
        left_out=left_out,
        offered={one.name: offered(one, Names().feature(one.name)) for one in profiles},
        sizes=f"sizes for {'about ' * (total > table.num_rows)}{total} rows" + _of(inputs.product),
        repeated=distinct.said,
        consequences=consequence_notes(tasks),
        unsure=inputs.unsure,
        missing={column: words for column, words in met.items() if words},
        unclear=unclear,
    )
    return config, reasons


def _sized(model: ModelConfig, features: Sequence[FeatureConfig]) -> ModelConfig:
    """Leaves the width of tables at its default where there are none."""
    if any(feature.table_names for feature in features):
        return model
    default = type(model).model_fields["embedding_dim"].default
    return model.model_copy(update={"embedding_dim": default})


def _of(product: Product | None) -> str:
    if product is None:
        return ""
    pair = " with ".join(product.columns)
    return (
        f"; the combination of {pair} predicts {product.task!r} (z {product.z:.0f}): "
        "interaction: fm, a factorization machine, learns it"
    )
