"""A first config from the data itself, and as YAML: the engine of `mmoe init` and the estimator."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import yaml
from pydantic import BaseModel

from mmoe.config import (
    DataConfig,
    Feature,
    FeatureConfig,
    RequestsConfig,
    RunConfig,
    SplitConfig,
    TableSettings,
)
from mmoe.config.data import MISSING_WORDS
from mmoe.config.effects import without_unused
from mmoe.config.kinds import HasKinds
from mmoe.datasets.infer.coded import draw
from mmoe.datasets.infer.guess_features import group_column, offered
from mmoe.datasets.infer.guess_tasks import GuessedTask, consequence_notes, guess_task
from mmoe.datasets.infer.inputs import Inputs, Names
from mmoe.datasets.infer.padding import with_padding
from mmoe.datasets.infer.profile import ColumnProfile, guess_times, time_like
from mmoe.datasets.infer.reading import read_column
from mmoe.datasets.infer.sizes import MOST_MULTIPLIED, POOL_ROWS, Log, model_for, training_for
from mmoe.datasets.infer.told import Told
from mmoe.datasets.rows.locations import distinct_names, find_column, visible_columns
from mmoe.datasets.rows.repeats import RepeatCounter, hashes_of, later_copies, widest_columns
from mmoe.datasets.rows.requests import RowRequests, find_requests
from mmoe.datasets.rows.splits import assign_splits
from mmoe.datasets.values.arrow import plain
from mmoe.datasets.values.columns import to_times
from mmoe.datasets.values.keys import column_part, row_hashes
from mmoe.datasets.values.text import cleaned, words_met

_THIN = 1 / 3  # of the rows that a part should have: ties of a coarse time take the others
_JUDGED = 10  # rows of an event's rarer outcome: an AUC on fewer is uncertain by .15 or more
_FEW = 0.05  # of the rows; more that repeat are judged by chance alone


def without_copies(table: pa.Table, *, sampled: bool = False) -> tuple[pa.Table, str]:
    """Leaves out rows that come before already, unless chance alone explains them.

    Args:
        table: A log, with all its columns.
        sampled: It is a part of the log.

    Returns:
        The other rows, and how many there were of these; "" where they are the log's own.

    Example:
        >>> rows = pa.table({"row": [*range(500), *range(200)], "x": [*range(500), *range(200)]})
        >>> without_copies(rows)[0].num_rows
        500
    """
    names = visible_columns(table)
    if not names:
        return table, ""
    widest = widest_columns(table, names)
    copies_N = _copies(table, widest)
    count = int(copies_N.sum())
    if not count:
        return table, ""
    kept = table.filter(pa.array(~copies_N))
    # Whether a column tells all rows apart: who has one of them twice has a row twice
    row_ids = count <= _FEW * table.num_rows and any(
        len(np.unique(column_part(kept[name], 0))) == kept.num_rows for name in widest
    )
    if not row_ids:
        counter = RepeatCounter(table.num_rows, names)
        counter.add(0, table)
        if not counter.finish().unusual:
            return table, ""
    of = f"{'the ' * sampled}{table.num_rows:,} rows{' that were looked at' * sampled}"
    return kept, f"{count:,} of {of} ({count / table.num_rows:.1%}) are copies of others"


def _copies(table: pa.Table, widest: list[str]) -> np.ndarray:
    """Marks rows that repeat an earlier one, bool [N]."""
    again_N = np.zeros(table.num_rows, bool)
    _, place_N, times_K = np.unique(
        row_hashes(table, widest), return_inverse=True, return_counts=True
    )
    rows = np.flatnonzero(times_K[place_N] > 1)
    if len(rows):
        again_N[rows] = later_copies([hashes_of(table.take(pa.array(rows)))])[0]
    return again_N


_SEEDS = 50  # split seeds tried until each split has both classes of each label


@dataclass(frozen=True)
class ChosenSplit:
    """A split, its seed, and the reason; a split by time names the column of the event's time."""

    config: SplitConfig
    seed: int
    reason: str


def choose_split(
    table: pa.Table, tasks: list[GuessedTask], profiles: list[ColumnProfile], origin: str
) -> ChosenSplit:
    """Splits by time if there is a time by which each part can be judged, else at random."""
    times, complaint = guess_times(profiles), ""
    for profile, why in times:
        split = SplitConfig(by="time", column=profile.name, format=profile.keys.get("format"))
        try:
            split_N = assign_splits(table, split, 1, origin)
            lacking = _one_class(tasks, split_N == 0) or _too_thin(tasks, split_N, split)
        except ValueError as error:
            lacking = str(error)
        if not lacking:
            reason = f"{profile.name!r} holds {why}: train on the past, test on the future"
            return ChosenSplit(split, 1, complaint + reason)
        complaint += f"not by time ({profile.name!r} holds {why}): {lacking}; "
    split = SplitConfig()
    if table.num_rows < 3:
        raise ValueError(f"{origin}: {table.num_rows} row(s) cannot be split into three parts")
    seed, full = _choose_seed(table, tasks, split, origin)
    others = ", ".join(repr(profile.name) for profile in profiles if time_like(profile))
    no_time = f"no column holds each event's time (not {others}); "
    no_time = no_time if others else "no column holds times; "
    reason = f"{complaint or no_time}rows drawn at random"
    if not full:
        reason += "; too few rows for both classes of each label in every part"
    return ChosenSplit(split, seed, reason)


def _choose_seed(
    table: pa.Table, tasks: list[GuessedTask], split: SplitConfig, origin: str
) -> tuple[int, bool]:
    """The first seed with both classes everywhere, or at least in training."""
    trainable = None
    for seed in range(1, _SEEDS + 1):
        split_N = assign_splits(table, split, seed, origin)
        if _one_class(tasks, split_N == 0):
            continue
        if not any(_one_class(tasks, split_N == part) for part in (1, 2)):
            return seed, True
        trainable = trainable or seed
    if trainable is None:
        lacking = _one_class(tasks, assign_splits(table, split, 1, origin) == 0)
        raise ValueError(f"{origin}: {lacking}, however the rows are drawn; give more rows")
    return trainable, False


def _one_class(tasks: list[GuessedTask], rows_N: np.ndarray) -> str:
    """Says what is wrong with these rows as training rows, if anything."""
    for task in tasks:
        values = task.values_N[rows_N & task.observed_N]
        if not len(values):
            return f"{task.task.name!r} would have no label in training"
        if task.is_event and values.min() == values.max():
            return f"{task.task.name!r} would have one class only in training ({values[0]:g})"
    return ""


def _too_thin(tasks: list[GuessedTask], split_N: np.ndarray, split: SplitConfig) -> str:
    """Says what is too little in validation or test rows to judge by, though the log has enough.

    Rows, or those of an event's rarer outcome, of which a random split would have twice as many.
    """
    for part, name, share in ((1, "validation", split.validation), (2, "test", split.test)):
        rows_N = split_N == part
        rows, expected = int(rows_N.sum()), share * len(split_N)
        if rows < _THIN * expected:
            return f"{name} would have {rows:,} of {len(split_N):,} rows"
        for task in tasks:
            values = task.values_N[rows_N & task.observed_N]
            if not len(values) and share * task.observed_N.sum() >= 2:
                return f"{name} would have no label of {task.task.name!r}"
            if not task.is_event or share * task.rarer < 2:
                continue  # no split has enough
            rarer = int(min(values.sum(), len(values) - values.sum()))
            if rarer < min(_JUDGED, share * task.rarer / 2):
                return (
                    f"{name} would have {rarer} row(s) of the rarer outcome of {task.task.name!r}"
                )
    return ""


@dataclass(kw_only=True)
class Reasons:
    """Reasons of the inferred config, which become its comments."""

    split: str = ""  # of the split
    group: str = ""  # of data.group_column
    features: dict[str, str] = field(default_factory=dict)  # feature name → reason
    tasks: dict[str, list[str]] = field(default_factory=dict)  # task name → reasons
    # Column and reason, in the file's order
    left_out: list[tuple[str, str]] = field(default_factory=list)
    # Column that is left out → features of which it may become one
    offered: dict[str, list[FeatureConfig]] = field(default_factory=dict)
    sizes: str = ""  # of the model's and batches' sizes
    repeated: str = ""  # how many rows are copies of others; "" where chance explains them
    # Task name → the task without which it never happens, or is 0
    consequences: dict[str, str] = field(default_factory=dict)
    # Columns whose kind the rows are too few to tell
    unsure: list[str] = field(default_factory=list)
    # Column of text → words in it that mean a missing value, and their rows
    missing: dict[str, dict[str, int]] = field(default_factory=dict)
    unclear: list[str] = field(default_factory=list)  # what else is not clear, a line each


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
    sampled = (rows or 0) > table.num_rows
    distinct, repeated = without_copies(table, sampled=sampled)
    total = (rows or table.num_rows) * distinct.num_rows // table.num_rows
    found = _Look(distinct, labels, told or Told(), origin, splits=split, sampled=sampled)
    run = found.config(name, None if path is None else str(path), repeated, total)
    return run, found.reasons(repeated, total)


class _Look:
    """Findings about a table without copies."""

    def __init__(
        self,
        table: pa.Table,
        labels: Sequence[str],
        told: Told,
        origin: str,
        *,
        splits: bool,
        sampled: bool,
    ) -> None:
        self.names = names = Names()
        self.tasks = [guess_task(table, label, names.task(label), origin) for label in labels]
        used = {column for task in self.tasks for column in task.columns}
        told.check(table, used, origin)
        columns = [column for column in visible_columns(table) if column not in used]
        self.missing = {name: words_met(plain(table[name]), MISSING_WORDS) for name in columns}
        self.table = table = cleaned(table, columns, MISSING_WORDS)
        profiles = told.apply(table, [read_column(name, table[name]) for name in columns], origin)
        self.profiles, self.unclear = with_padding(table, profiles)
        drawn = told.split == "random"
        times = self.profiles if splits and not drawn else []
        self.chosen = choose_split(table, self.tasks, times, origin)
        if drawn:
            self.chosen = replace(self.chosen, reason="--split random: rows drawn at random")
        by, times_N = self.chosen.config, None
        if by.column is not None:
            times_N = to_times(table, by.column, origin, by.format)
        group = group_column(self.profiles)
        self.inputs = Inputs(
            table=table,
            profiles=self.profiles,
            sample=draw(self.tasks, times_N),
            told=told,
            group=group.name if group else None,
            time_column=by.column,
            splits=splits,
            sampled=sampled,
        )
        self.inputs.choose(names, origin)
        dropped = [(column, "--drop") for column in columns if column in told.drop]
        order = {column: index for index, column in enumerate(columns)}
        self.left_out = sorted(dropped + self.inputs.left_out, key=lambda one: order[one[0]])
        if not self.inputs.features:
            why = "; ".join(f"{name}: {reason}" for name, reason in self.left_out) or "none there"
            raise ValueError(f"{origin}: no column is left to learn from ({why})")

    @property
    def _multiplies(self) -> bool:
        """Whether a factorization machine is to find the products of two columns."""
        tables = sum(len(feature.table_names) for feature in self.inputs.features)
        return self.inputs.product is not None and tables <= MOST_MULTIPLIED

    def config(self, name: str, path: str | None, repeated: str, total: int) -> RunConfig:
        """Returns what trains as it is; `total` rows there are."""
        outcomes = [task.rarer for task in self.tasks if task.is_event]
        log = Log(
            rows=total,
            ids=self.inputs.most_ids,
            rarest=min(outcomes) * total // self.table.num_rows if outcomes else None,
            products=self._multiplies,
        )
        tasks, features = [task.task for task in self.tasks], self.inputs.features
        model = model_for(log)
        if not any(feature.table_names for feature in features):  # no tables: no width of them
            default = type(model).model_fields["embedding_dim"].default
            model = model.model_copy(update={"embedding_dim": default})
        run = RunConfig(
            name=self.names.run(name),
            split_seed=self.chosen.seed,
            data=DataConfig(
                path=path,
                split=self.chosen.config,
                repeated_rows="together" if repeated else "keep",
                group_column=self.inputs.group,
            ),
            features=features,
            tasks=tasks,
            model=model,
            training=training_for(log, tasks),
        )
        return without_unused(run)

    def reasons(self, repeated: str, total: int) -> Reasons:
        """Returns why the config is what it is."""
        inputs, flattery = self.inputs, self.inputs.together.flattered()
        about = "about " * (total > self.table.num_rows)
        sizes = f"sizes for {about}{total} rows"
        if (product := inputs.product) is not None:
            sizes += (
                f"; the combination of {' with '.join(product.columns)} predicts {product.task!r} "
                f"(z {product.z:.0f}): interaction: fm, a factorization machine, "
            )
            sizes += "learns it" if self._multiplies else "would learn it, but of few tables alone"
        if total >= POOL_ROWS:
            sizes += (
                "; where kinds of rows differ, a pool of 64 experts of which a row computes 8 may "
                "lose less: num_experts: 64, gate: {kind: top_k, select: joint, shared_k: 8, "
                "private_k: 0, shared_logits: true}"
            )
        return Reasons(
            split="; ".join(filter(None, (self.chosen.reason, flattery))),
            group="who the rows belong to, for GAUC" if inputs.group else "",
            features=inputs.reasons,
            tasks={task.task.name: task.reasons for task in self.tasks},
            left_out=self.left_out,
            offered={one.name: offered(one, Names().feature(one.name)) for one in self.profiles},
            sizes=sizes,
            repeated=repeated,
            consequences=consequence_notes(self.tasks),
            unsure=inputs.unsure,
            missing={column: words for column, words in self.missing.items() if words},
            unclear=self.unclear,
        )


OPTION = "--request"


def with_requests(
    config: RunConfig, reasons: Reasons, table: pa.Table, column: str, origin: str
) -> RunConfig:
    """Returns the config with `data.requests`, and the level of each feature that can read them.

    Args:
        config: Inferred without the column.
        reasons: Gets those of levels and of the split.
        table: What it was inferred of.
        column: That says of which request a row is.
        origin: What the user calls the data; starts error messages.

    Raises:
        ValueError: The column never repeats, or nothing is the same inside its requests.
    """
    requests = RequestsConfig(column=column)
    found = find_requests(requests, table, origin)
    if len(found.first_M) == table.num_rows:
        raise ValueError(
            f"{origin}: {OPTION} {column}: never repeats among {table.num_rows:,} rows; name the "
            "column that says which rows were candidates of one request"
        )
    readable = [feature for feature in config.features if not feature.of_single_rows]
    features = [_with_level(feature, found, table, origin) for feature in readable]
    shared = [feature.name for feature in features if feature.asked_level == "request"]
    if not shared:
        raise ValueError(
            f"{origin}: {OPTION} {column}: no feature is the same for all rows of a request, so "
            "nothing would be computed once; leave it out"
        )
    for name in shared:
        reasons.features[name] = "; ".join(
            filter(None, (reasons.features.get(name), "the same inside each request"))
        )
    left_out = [(name, why) for name, why in reasons.left_out if name != column]
    reasons.left_out[:] = left_out
    split = _split(config, requests, reasons, table, origin)
    data = config.data.model_copy(update={"requests": requests, "split": split})
    return config.model_copy(update={"data": data, "features": features})


def _with_level(feature: Feature, found: RowRequests, table: pa.Table, origin: str) -> Feature:
    """A feature of the request, where all its columns are the same inside each."""
    if "level" not in type(feature).model_fields:
        return feature
    for name in feature.source_columns:
        column = find_column(table, name, origin, f"feature {feature.name!r}")
        if found.differing(column) is not None:
            return feature
    return feature.model_copy(update={"level": "request"})


def _split(
    config: RunConfig, requests: RequestsConfig, reasons: Reasons, table: pa.Table, origin: str
) -> SplitConfig:
    """The same where it keeps requests whole, else one by their hash."""
    split = config.data.split
    try:
        assign_splits(table, split, config.split_seed, origin, requests)
    except ValueError:
        reasons.split = "requests stay whole"
        return SplitConfig(
            by="hash", column=requests.column, validation=split.validation, test=split.test
        )
    return split


_WIDEST = 10**6  # one line for a feature, however long its column's name


def commented_yaml(config: RunConfig, reasons: Reasons) -> str:
    """Returns the config as commented YAML; read back it gives the same config."""
    lines = [
        "# Inferred from the data; change what you know better. Keys that are not here keep their",
        "# defaults, and a misspelt key is refused.",
        f"name: {_inline(config.name)}",
        f"split_seed: {config.split_seed}",
        *([f"imports: {_inline(config.imports)}"] if config.imports else []),
        *_data(config, reasons),
        "",
        "features:",
        *(_feature(feature, reasons) for feature in config.features),
        *_left_out(reasons),
        "",
        "tasks:",
    ]
    for task in config.tasks:
        lines += [f"  # {_one_line(reason)}" for reason in reasons.tasks.get(task.name, [])]
        lines.append(f"  - {_inline(_changed(task))}")
        if task.name in reasons.consequences:
            cause = reasons.consequences[task.name]
            lines.append(
                f"  # {task.name} is 0 except where {cause} is 1: with `observed_when: {cause}` it "
                "is learned from those rows alone"
            )
    lines += ["", f"# {reasons.sizes}" if reasons.sizes else "#"]
    for section in ("model", "training"):
        changed = _changed(getattr(config, section))
        if changed:
            lines += [f"{section}:", *(f"  {key}: {_inline(v)}" for key, v in changed.items())]
    return "\n".join(lines) + "\n"


def _data(config: RunConfig, reasons: Reasons) -> list[str]:
    lines = ["data:"]
    if config.data.path is not None:
        lines.append(f"  path: {_inline(config.data.path)}")
    lines += [f"  {key}: {_inline(getattr(config.data, key))}" for key in config.data.csv_keys]
    if reasons.split:
        lines.append(f"  # {_one_line(reasons.split)}")
    lines.append(f"  split: {_inline({'by': config.data.split.by} | _changed(config.data.split))}")
    if reasons.repeated:
        mend = "copies stay in one split; drop counts each row once"
        lines.append(f"  # {_one_line(reasons.repeated)}: {mend}")
        lines.append(f"  repeated_rows: {config.data.repeated_rows}")
    if config.data.group_column is not None:
        comment = f"  # {_one_line(reasons.group)}" if reasons.group else ""
        lines.append(f"  group_column: {_inline(config.data.group_column)}{comment}")
    if config.data.requests is not None:
        lines.append(f"  requests: {_inline(_changed(config.data.requests))}")
    return lines


def _feature(feature: FeatureConfig, reasons: Reasons) -> str:
    changed = _changed(feature)
    first = {key: changed[key] for key in ("name", "column") if key in changed}
    values = {"kind": feature.kind} | first | changed
    comment = reasons.features.get(feature.name, "")
    return f"  - {_inline(values)}" + (f"  # {_one_line(comment)}" if comment else "")


def _left_out(reasons: Reasons) -> list[str]:
    if not reasons.left_out:
        return []
    lines = ["  # left out:"]
    for column, reason in reasons.left_out:
        lines.append(f"  #   {_one_line(column)}: {_one_line(reason)}")
        offered = reasons.offered.get(column, [])
        lines += [f"  #   {_feature(feature, reasons).strip()}" for feature in offered]
    return lines


def _changed(section: BaseModel) -> dict[str, Any]:
    """Returns what differs from the defaults, in nested sections too."""
    fields, found = type(section).model_fields, section.model_dump(mode="json")
    defaults = {key: field.get_default(call_default_factory=True) for key, field in fields.items()}
    if isinstance(section, HasKinds):
        defaults[section.registry.key] = section.registry.default
    values = {key: getattr(section, key) for key in fields}
    first = _changed(section.table_encoding) if isinstance(section, TableSettings) else {}
    return first | {
        key: _changed(value) if isinstance(value, BaseModel) else found[key]
        for key, value in values.items()
        if value != defaults[key]
    }


def _inline(value: Any) -> str:
    """YAML in one line: `{kind: numeric, name: age}`."""
    plain = yaml.safe_dump(
        value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=_WIDEST
    )
    plain = plain.strip().removesuffix("...").strip()
    if plain.isprintable():
        return plain
    # A name with line breaks or control characters: JSON is YAML too, and escapes them.
    return _printable(json.dumps(value, ensure_ascii=False))


def _one_line(text: str) -> str:
    return _printable(" ".join(str(text).split()))


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in text)
