"""Sources of a run's rows: the user's files or a bundled source."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from mmoe.config import DataConfig, RunConfig, SplitConfig
from mmoe.datasets.files.data_file import CsvForm, is_address
from mmoe.datasets.files.lake import at_version
from mmoe.datasets.files.readers import Paths, column_names, read_table
from mmoe.datasets.files.resolve import AsRead, Source, describe, kind_of, resolve_files
from mmoe.datasets.labels.maturity import row_times, time_of
from mmoe.datasets.rows.frames import TableLike, as_rows, holds_rows, origin_of
from mmoe.datasets.rows.locations import (
    HIDDEN,
    REQUEST_COLUMN,
    MissingColumnError,
    find_column,
    is_of_request,
    visible_columns,
)
from mmoe.datasets.rows.projection import column_uses, text_cells
from mmoe.datasets.rows.repeats import hashes_of, later_copies
from mmoe.datasets.rows.requests import find_requests
from mmoe.datasets.rows.splits import (
    NO_SPLIT,
    Splits,
    assign_splits,
    refuse_empty,
    request_splits,
    split_table,
)
from mmoe.datasets.values.text import TextCells

# Imported only when asked for, so that one source's needs are not everybody's.
_BUNDLED = MappingProxyType(
    {
        "synthetic-funnel": "mmoe.datasets.bundled.synthetic",
        "census-income": "mmoe.datasets.bundled.census_income",
        "hillstrom": "mmoe.datasets.bundled.hillstrom",
    }
)


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Rows to evaluate a finished run on."""

    table: pa.Table  # the rows, with labels
    # Task name → float64 [N] true probabilities, where the source knows them
    oracle: dict[str, np.ndarray] | None
    origin: str  # what the user calls the data; starts error messages


def source_names() -> list[str]:
    """Lists the values of `data.source`."""
    return ["files", *_BUNDLED]


def load_splits(config: RunConfig, data: str | Path | TableLike | None = None) -> Splits:
    """Reads and splits the rows that a run trains on.

    Args:
        config: `data.source` says where from; `files` reads `data.path` and splits it, or, with
            `split.by: file`, reads `data.train`, `data.validation` and `data.test`.
        data: Instead of `data.path`; with `split.by: file` the folder that holds the files; for a
            bundled source the folder of its raw files. Or rows in memory, which are split.

    Raises:
        ValueError: The source is not known, no path is given, a setting would not be read, a column
            is missing, or the rows cannot be read or split.
    """
    if holds_rows(data):
        # Settings that rows in memory would leave unread are mistakes
        given, wrong = config.data, None
        if given.source != "files":
            wrong = f"data.source: {given.source} makes its own rows, or reads them; set files"
        elif given.split.by == "file":
            wrong = (
                "data.split.by: file reads data.train and data.test; set random, hash, time or day"
            )
        elif given.input == "stream":
            wrong = "data.input: stream reads files; set auto or memory"
        if wrong is not None:
            what = origin_of(data)
            raise ValueError(f"{wrong}: the rows to train on are a {what} in memory")
        table, origin = _held_table(config, data)
        return _cut(config, table, origin)
    if config.data.source != "files":
        load = _bundled(config.data.source, "load")
        return load(config, None if data is None else Path(data))
    if config.data.split.by == "file":
        return _by_file(config, data)
    paths = one_path(config, data)
    origin = describe(paths)
    uses = column_uses(config, column_names(paths))
    table = _with_rows(_read(paths, uses, text_cells(config)), origin)
    return _cut(config, table, origin)


def _cut(config: RunConfig, table: pa.Table, origin: str) -> Splits:
    """The splits of a table; where days are left out, with the newest time of all."""
    newest = None
    if config.delayed_tasks and config.data.split.by == "day" and table.num_rows:
        newest = int(row_times(table, time_of(config), origin).max())
    train, validation, test = split_table(
        table,
        config.data.split,
        config.split_seed,
        origin,
        config.data.requests,
        config.data.repeated_rows,
    )
    return Splits(train=train, validation=validation, test=test, origin=origin, newest=newest)


def source_paths(config: RunConfig, data: str | Path | None = None) -> dict[str, Paths]:
    """Returns the files that a run's rows come from, by split; none where generated.

    Args:
        config: Of the run.
        data: As for `load_splits`.

    Raises:
        ValueError: The source is not known, no path is given, or a setting would not be read.
    """
    if config.data.source != "files":
        files = _bundled(config.data.source, "files")
        return files(config, None if data is None else Path(data))
    if config.data.split.by == "file":
        return files_by_split(config, data)
    return {"all": one_path(config, data)}


def at_versions(config: RunConfig, versions: Mapping[str, object]) -> RunConfig:
    """Returns the config with lake tables at these versions, where it names none.

    Args:
        config: Of a run.
        versions: By the path of a table, as the config says it.
    """
    if not versions:
        return config

    def pinned(paths: Any) -> Any:
        if isinstance(paths, list):
            return [pinned(path) for path in paths]
        return at_version(paths, versions[paths]) if paths in versions else paths

    data = config.data
    named = {n: pinned(getattr(data, n)) for n in ("path", "train", "validation", "test")}
    return config.model_copy(update={"data": data.model_copy(update=named)})


def generated_splits(config: RunConfig, data: str | Path | None = None) -> Splits | None:
    """Generates the splits of a run whose rows are in no file; None: they are."""
    return None if source_paths(config, data) else load_splits(config, data)


def one_path(config: RunConfig, data: str | Path | None) -> Paths:
    """Returns the files that are read and then split.

    Raises:
        ValueError: No path is given, or a setting would not be read.
    """
    _refuse_unread(config.data)
    paths = data if data is not None else config.data.path
    if not paths:
        raise ValueError("data.path: is missing; set it, or give --data PATH")
    return _of_config(config, paths)


def files_by_split(config: RunConfig, folder: str | Path | None) -> dict[str, Paths]:
    """Returns the files of each split, where the split is by file.

    Raises:
        ValueError: Training or test has no files, or a setting would not be read.
    """
    _refuse_unread(config.data)
    by_split = {
        name: below(folder, paths)
        for name in ("train", "validation", "test")
        if (paths := getattr(config.data, name))
    }
    for name in ("train", "test"):
        if name not in by_split:
            raise ValueError(f"data.{name}: is missing, but the split is by file; set it")
    return {name: _of_config(config, paths) for name, paths in by_split.items()}


def refuse_shared_files(by_split: Mapping[str, Paths]) -> None:
    """Refuses a file that training has and another split, too, whatever it is called there.

    Raises:
        ValueError: Names both keys and the file.
    """
    trained = {file.identity(): file for file in resolve_files(by_split["train"])}
    for name in by_split.keys() - {"train"}:
        for file in resolve_files(by_split[name]):
            if (known := trained.get(file.identity())) is not None:
                same = "" if str(file) == str(known) else f" (there {known})"
                raise ValueError(
                    f"data.{name}: {file} is also in data.train{same}, so its metrics would be of "
                    "rows that were trained on; name it in one of them (mmoe evaluate RUN --data "
                    "FILE gives metrics of any rows)"
                )


def with_names(config: RunConfig, paths: Source | list[str]) -> Source | list[str]:
    """Returns paths as the run reads them.

    CSV files are written as `data` says; candidates of requests are rows.
    """
    form, requests = _csv_form(config.data), config.data.requests
    form = None if form == CsvForm() else form
    if requests is not None and requests.candidates is not None:
        return AsRead(paths, form, requests.candidates, tuple(column_uses(config)))
    return paths if form is None else AsRead(paths, form)


def _csv_form(data: DataConfig) -> CsvForm:
    names = None if data.column_names is None else tuple(data.column_names)
    return CsvForm(names, data.delimiter, data.encoding, data.header)


def as_csv(paths: Source | list[str], form: CsvForm, key: str) -> AsRead:
    """Returns CSV files as files that are written so.

    Args:
        paths: Files, folders or globs.
        form: What is told about them.
        key: What told it, for refusals.

    Raises:
        ValueError: There is no such file, or none is CSV.
    """
    if "csv" not in [kind_of(file) for file in resolve_files(paths)]:
        raise ValueError(
            f"{key}: is for CSV files, but {describe(paths)} names its columns itself; remove it"
        )
    return AsRead(paths, form)


def _of_config(config: RunConfig, paths: Source | list[str]) -> Source | list[str]:
    """Files of the config itself: what none of them needs is a mistake."""
    if keys := config.data.csv_keys:
        as_csv(paths, _csv_form(config.data), f"data.{keys[0]}")
    return with_names(config, paths)


def below(folder: str | Path | None, paths: str | list[str]) -> str | list[str]:
    """Returns the paths as seen from a folder; absolute ones stay as they are."""
    if folder is None:
        return paths
    if not isinstance(paths, str):
        return [str(below(folder, path)) for path in paths]
    if is_address(paths):
        return paths
    at = str(folder)
    return f"{at.rstrip('/')}/{paths}" if is_address(at) else str(Path(at) / paths)


def load_test(config: RunConfig, data: str | Path | TableLike | None = None) -> HeldOut:
    """Loads the rows that `mmoe evaluate` reports on.

    Args:
        config: The run's config.
        data: None: the run's own test split. For `files`: every row of this file, folder or glob.
            For a bundled source: the folder of its raw files, whose test split is taken. Or rows
            in memory, all of them.
    """
    # The split's column is not needed: nothing is split here.
    unsplit = config.model_copy(update={"data": config.data.unsplit()})
    if holds_rows(data):
        table, origin = _held_table(unsplit, data)
        return HeldOut(table=table, oracle=None, origin=origin)
    if data is None or config.data.source != "files":
        splits = load_splits(config, data)
        return HeldOut(table=splits.test, oracle=splits.oracle, origin=splits.origin)
    origin, rows = describe(data), with_names(config, data)
    there = column_names(rows)
    # Text stays text: types guessed from these rows might differ from those of training.
    table = _read(rows, column_uses(unsplit, there), text_cells(unsplit), infer_types=False)
    return HeldOut(table=_with_rows(table, origin), oracle=None, origin=origin)


def _bundled(name: str, function: str) -> Callable[[RunConfig, Path | None], Any]:
    """`load` makes the splits, `files` names what it reads, by split."""
    if name not in _BUNDLED:
        raise ValueError(f"data.source: expected one of {', '.join(source_names())}, got {name!r}")
    return getattr(import_module(_BUNDLED[name]), function)


def _by_file(config: RunConfig, folder: str | Path | None) -> Splits:
    """Training and test files; without validation files its share is drawn from training."""
    by_split = files_by_split(config, folder)
    refuse_shared_files(by_split)
    origins = {name: describe(paths) for name, paths in by_split.items()}
    uses = column_uses(config, column_names(by_split["train"]))
    tables = {
        name: _with_rows(
            _read(paths, uses, text_cells(config), infer_types=name == "train"), origins[name]
        )
        for name, paths in by_split.items()
    }
    origin = f"{origins['train']} (and {', '.join(o for n, o in origins.items() if n != 'train')})"
    split_N = {name: np.zeros(table.num_rows, np.int8) for name, table in tables.items()}
    if "validation" not in tables:
        share = SplitConfig(by="random", validation=config.data.split.validation, test=1e-9)
        split_N["train"] = _carved(tables["train"], share, config, origins["train"])
        tables["validation"] = tables["train"]
        split_N["validation"] = np.where(split_N["train"] == 1, 0, 1).astype(np.int8)
    if config.data.repeated_rows == "drop":
        copies = later_copies([hashes_of(tables[name]) for name in by_split])
        for name, copies_N in zip(by_split, copies, strict=True):
            split_N[name][copies_N] = NO_SPLIT
        if "validation" not in by_split:
            split_N["validation"][copies[0]] = NO_SPLIT
    tables = {
        name: table if not split_N[name].any() else table.filter(pa.array(split_N[name] == 0))
        for name, table in tables.items()
    }
    counts = [tables[name].num_rows for name in ("train", "validation", "test")]
    refuse_empty(counts, config.data.split, origin)
    return Splits(
        train=tables["train"], validation=tables["validation"], test=tables["test"], origin=origin
    )


def _held_table(config: RunConfig, data: TableLike) -> tuple[pa.Table, str]:
    """The columns that the run uses of rows in memory, and what errors call them."""
    table = as_rows(
        data,
        config.data.requests,
        lambda there: column_uses(config, there),
        known=column_uses(config),
    )
    origin = origin_of(data)
    uses = column_uses(config, visible_columns(table))
    hidden = [name for name in table.column_names if name in HIDDEN]
    columns = {
        name: table[name] if is_of_request(table, name) else find_column(table, name, origin, used)
        for name, used in uses.items()
    }
    columns |= {name: table[name] for name in hidden}
    table = pa.table(columns, metadata=table.schema.metadata)
    return text_cells(config).cleaned(table), origin


def _read(
    paths: Paths, uses: dict[str, str], cells: TextCells, *, infer_types: bool = True
) -> pa.Table:
    """The columns that the run uses; where one is missing, the message says what for."""
    try:
        names = list(uses)
        return read_table(paths, names, infer_types=infer_types, cells=cells, numbered=True)
    except MissingColumnError as error:
        raise error.needed_by(uses[error.name]) from None


def _refuse_unread(data: DataConfig) -> None:
    """Settings that source files would leave unread are mistakes."""
    if data.options:
        raise ValueError(
            f"data.options: source files takes no options; remove {', '.join(data.options)}"
        )
    by_file = data.split.by == "file"
    if by_file and data.path is not None:
        raise ValueError(
            f"data.path: {data.path!r} is not read when the split is by file (data.train, "
            "data.validation and data.test are); remove it, or split by random, hash or time"
        )
    for name in ("train", "validation", "test"):
        if not by_file and getattr(data, name) is not None:
            raise ValueError(
                f"data.{name}: is read only when the split is by file, but it is by "
                f"{data.split.by}; set data.split.by: file, or remove data.{name}"
            )


def _carved(table: pa.Table, share: SplitConfig, config: RunConfig, origin: str) -> np.ndarray:
    """A random validation share (1) out of the training rows (0), of whole requests: int8 [N]."""
    if config.data.requests is not None:
        found = find_requests(config.data.requests, table, origin)
        split_N = request_splits(found, share, config.split_seed)
        refuse_empty(np.bincount(split_N == 1, minlength=2), share, origin)
    else:
        split_N = assign_splits(table, share, config.split_seed, origin)
    return (split_N == 1).astype(np.int8)


def _with_rows(table: pa.Table, origin: str) -> pa.Table:
    if table.num_rows == 0 and REQUEST_COLUMN in table.column_names:
        raise ValueError(
            f"{origin}: holds no candidates, as every list of them is empty; expected one at least"
        )
    if table.num_rows == 0:
        raise ValueError(f"{origin}: holds no rows; expected a header and data")
    return table
