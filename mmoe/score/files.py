"""Scores files: Parquet or CSV in, Parquet out, in bounded memory."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mmoe.datasets.encoded import EncodedData
from mmoe.datasets.projection import required_columns
from mmoe.datasets.readers import column_names, iter_tables
from mmoe.datasets.rows import missing_column
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
    needed = [*dict.fromkeys([*required_columns(config, labels=False), *keep])]
    output.parent.mkdir(parents=True, exist_ok=True)
    temporary = output.with_name(f".{output.name}.{os.getpid()}.tmp")
    rows = 0
    try:
        with _Writer(temporary) as writer, reporter.track("scoring", None, "rows") as tracker:
            for table in iter_tables(str(source), needed, ROWS_PER_CHUNK):
                data = EncodedData(features=encoder.encode(table, str(source)))
                predictions_NT = predictor.predict(data, tracker=tracker)
                writer.write(_result(table, keep, tasks, predictions_NT))
                rows += table.num_rows
        temporary.replace(output)
    finally:
        temporary.unlink(missing_ok=True)
    reporter.say(f"{rows:,} rows scored into {output}")
    return rows


def _result(
    table: pa.Table, keep: Sequence[str], tasks: Sequence[str], predictions_NT: np.ndarray
) -> pa.Table:
    kept = table.select(list(keep))
    for i, column in enumerate(kept.schema):
        if column.type == pa.large_string():  # how the readers hold text; files have plain strings
            kept = kept.set_column(i, column.name, kept.column(i).cast(pa.string()))
    for t, name in enumerate(tasks):
        kept = kept.append_column(name, pa.array(predictions_NT[:, t], pa.float32()))
    return kept.replace_schema_metadata(None)


def _check_output(output: Path, overwrite: bool) -> None:
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
        if table.schema != self.writer.schema:
            table = table.cast(self.writer.schema)  # an int column whose later file holds floats
        self.writer.write_table(table)

    def __exit__(self, *_: object) -> None:
        if self.writer is not None:
            self.writer.close()
