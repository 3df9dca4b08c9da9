"""Scores files: Parquet or CSV in, Parquet out, in bounded memory."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mmoe.datasets.data_file import DataFile
from mmoe.datasets.encoded import EncodedData
from mmoe.datasets.files import resolve_files
from mmoe.datasets.formats import file_types
from mmoe.datasets.projection import required_columns
from mmoe.datasets.readers import column_names, iter_tables, widen
from mmoe.datasets.rows import is_text, missing_column
from mmoe.score.console import Reporter, SilentReporter
from mmoe.score.predictor import load_predictor
from mmoe.score.run_directory import RunDirectory

# Rows decoded and held at a time: 64k rows of 200 columns are some 100 MB.
ROWS_PER_CHUNK = 65_536


def score_files(
    run: RunDirectory,
    source: str | Path,
    output: str | Path,
    *,
    keep: Sequence[str] = (),
    overwrite: bool = False,
    reporter: Reporter | None = None,
) -> int:
    """Writes one Parquet file with a column `pred_<task>` for each task.

    Rows keep their order. The file is written beside its final name and moved there when complete.

    Args:
        run: A trained run; its best checkpoint scores.
        source: Parquet or CSV: a file, a folder or a glob.
        output: The Parquet file to write.
        keep: Input columns to copy, in this order, before the predictions.
        overwrite: Replace `output` where it exists.
        reporter: Told of progress.

    Returns:
        The number of rows written.

    Raises:
        ValueError: The input lacks a column, the output exists, or a value cannot be used.
    """
    output, reporter = Path(output), reporter or SilentReporter()
    _check_output(output, overwrite)
    predictor, encoder, config = load_predictor(run)
    tasks = [f"pred_{task.name}" for task in config.tasks]
    _check_kept(keep, tasks, column_names(str(source)), str(source))
    kept_types = _kept_types(source, keep)
    needed = [*dict.fromkeys([*required_columns(config, labels=False), *keep])]
    output.parent.mkdir(parents=True, exist_ok=True)
    temporary = output.with_name(f".{output.name}.{os.getpid()}.tmp")
    rows = 0
    try:
        with _Writer(temporary) as writer, reporter.track("scoring", None, "rows") as tracker:
            for table in iter_tables(str(source), needed, ROWS_PER_CHUNK):
                data = EncodedData(features=encoder.encode(table, str(source)))
                predictions_NT = predictor.predict(data, tracker=tracker)
                writer.write(_result(table, kept_types, tasks, predictions_NT))
                rows += table.num_rows
        temporary.replace(output)
    finally:
        temporary.unlink(missing_ok=True)
    reporter.say(f"{rows:,} rows scored into {output}")
    return rows


def _kept_types(source: str | Path, keep: Sequence[str]) -> dict[str, pa.DataType]:
    """One type for each kept column over all files, found before anything is written.

    CSV cells are kept as text: what they look like may change from file to file.
    """
    types: dict[str, pa.DataType] = {}
    first: dict[str, DataFile] = {}
    for file in resolve_files(str(source)):
        schema = file_types(file)
        for name in keep:
            here = _plain_type(schema, name)
            there = types.setdefault(name, here)
            known = [kind for kind in (there, here) if not pa.types.is_null(kind)]
            mixed = len({pa.types.is_boolean(kind) for kind in known}) > 1  # would make true 1.0
            both = None if mixed else widen(there, here)
            if both is None:
                raise ValueError(
                    f"{file}: column {name!r}, to be kept, holds {here}, but {there} in "
                    f"{first[name]}; write the column with one type, or do not --keep it"
                )
            types[name] = both
            first.setdefault(name, file)
    return types


def _plain_type(schema: pa.Schema, name: str) -> pa.DataType:
    kind = schema.field(name).type
    kind = kind.value_type if isinstance(kind, pa.DictionaryType) else kind
    return pa.string() if is_text(kind) else kind


def _result(
    table: pa.Table,
    kept_types: Mapping[str, pa.DataType],
    tasks: Sequence[str],
    predictions_NT: np.ndarray,
) -> pa.Table:
    kept = table.select(list(kept_types))
    for i, (name, kind) in enumerate(kept_types.items()):
        if kept.column(i).type != kind:
            kept = kept.set_column(i, name, kept.column(i).cast(kind, safe=False))
    for t, name in enumerate(tasks):
        kept = kept.append_column(name, pa.array(predictions_NT[:, t], pa.float32()))
    return kept.replace_schema_metadata(None)


def _check_output(output: Path, overwrite: bool) -> None:
    if output.suffix.lower() in (".csv", ".gz", ".tsv", ".txt", ".json"):
        raise ValueError(
            f"--output {output}: scores are written as Parquet; end the name in .parquet"
        )
    for parent in output.parents:
        if parent.exists() and not parent.is_dir():
            raise ValueError(
                f"--output {output}: {parent} is a file; name a folder that can be made"
            )
    if output.is_dir():
        raise ValueError(f"--output {output}: is a folder; name a file, such as scores.parquet")
    if output.exists() and not overwrite:
        raise ValueError(
            f"--output {output}: exists already; remove it, choose another name, or say --overwrite"
        )


def _check_kept(
    keep: Sequence[str], tasks: Sequence[str], columns: Sequence[str], origin: str
) -> None:
    for name in keep:
        if name not in columns:
            raise ValueError(missing_column(name, columns, origin, "--keep"))
        if name in tasks:
            raise ValueError(
                f"--keep {name}: the predictions are called that; rename the column in {origin}"
            )


class _Writer:
    """A Parquet file whose schema is that of the first table written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.writer: pq.ParquetWriter | None = None

    def __enter__(self) -> "_Writer":
        return self

    def write(self, table: pa.Table) -> None:
        if self.writer is None:
            self.writer = pq.ParquetWriter(self.path, table.schema, compression="zstd")
        self.writer.write_table(table)

    def __exit__(self, *_: object) -> None:
        if self.writer is not None:
            self.writer.close()
