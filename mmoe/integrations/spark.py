"""Scores a Spark DataFrame: `score(df, run)`, with the bits of `mmoe score`.

Each Python worker opens the run once; weights are pages of one file in the host's cache, which all
workers of a host share.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from mmoe.config import ScoringPrecision
from mmoe.datasets.files.data_file import absolute, without_protocol
from mmoe.integrations.spark_daemon import load_once
from mmoe.integrations.spark_session import check_frame, local_session, types_of
from mmoe.run import open_run
from mmoe.score.provenance import model_of
from mmoe.score.scorer import ScoreRequest

__all__ = ["local_session", "schema", "score"]


def score(
    df: Any,
    run: str | Path,
    tasks: Sequence[str] | None = None,
    keep: Sequence[str] | None = None,
    fused: Mapping[str, str] | None = None,
    table_precision: ScoringPrecision | None = None,
) -> Any:
    """Returns a Spark DataFrame of kept columns and, behind them, predictions.

    Nothing is scored before Spark runs it. A row's bits are those that `mmoe score` writes, however
    the rows lie in partitions and batches.

    Args:
        df: A Spark DataFrame with the columns that the run's features read; others may be there.
        run: A trained run: an address that all hosts reach (`s3://…`), which each copies once into
            its cache, or a folder that all of them have under this path.
        tasks: Those whose predictions are returned; None: all.
        keep: Columns to return before them, of any type; None: all there are.
        fused: Further columns, such as `{"value": "click^0.7 * purchase"}`; beside those of the
            config.
        table_precision: int8 or fp16: tables in fewer bits; None: as they were trained.

    Raises:
        ValueError: Columns are missing, or of types that Arrow has not; a task is not there, or a
            name is taken; there is no such run, or no PySpark.
    """
    place = absolute(without_protocol(run))  # workers run in other folders than the driver does
    opened = open_run(place, tensors=())
    config = opened.config()
    check_frame(df, config.data.requests)
    request = ScoreRequest("df", keep, False, tasks, fused, None, "auto", table_precision)
    columns, there = request.columns(config), list(df.columns)
    needed, kept = columns.needs(there, "df"), columns.kept(there)
    read = [name for name in there if name in needed]
    types = types_of(df, read, kept, columns.schema)
    job = _Job(place, model_of(opened), replace(request, keep=kept), tuple(config.imports), read)
    # What is not selected is not read; `mapInArrow` itself would read a dot in a name as a field
    quoted = (name.replace("`", "``") for name in read)
    handed = df.selectExpr(*(f"`{name}` as c{i}" for i, name in enumerate(quoted)))
    return handed.mapInArrow(job, types)


def schema(
    df: Any,
    run: str | Path,
    tasks: Sequence[str] | None = None,
    keep: Sequence[str] | None = None,
    fused: Mapping[str, str] | None = None,
) -> Any:
    """Returns the `StructType` of what `score` returns for the same arguments; raises what it does.

    Only the run's config is read.
    """
    return score(df, run, tasks, keep, fused).schema


@dataclass(frozen=True)
class _Job:
    """Job that Spark sends to a Python worker."""

    run: str
    model: str
    request: ScoreRequest
    imports: tuple[str, ...]
    read: list[str]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        loaded = load_once(self.run, self.model, self.imports, self.request.table_precision)
        scorer = loaded.with_columns(self.request)
        for batch in batches:
            rows = pa.Table.from_batches([batch]).rename_columns(self.read)
            yield from scorer.score(rows, self.request.source).to_batches()
