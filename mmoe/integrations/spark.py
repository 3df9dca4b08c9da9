"""Scores a Spark DataFrame: `score(df, run)`, with the bits of `mmoe score`.

Each Python worker opens the run once; weights are pages of one file in the host's cache, which all
workers of a host share.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from inspect import signature
from pathlib import Path
from typing import Any

import pyarrow as pa

from mmoe.config import ScoringPrecision
from mmoe.datasets.files.data_file import is_address, without_protocol
from mmoe.integrations.spark_daemon import local_session
from mmoe.plugins import import_extra, import_modules
from mmoe.run import open_run
from mmoe.score.provenance import model_of
from mmoe.score.scorer import Scorer, ScoreRequest

__all__ = ["local_session", "schema", "score"]

_ORIGIN = "df"  # what messages call the rows


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
    request = ScoreRequest(tasks=tasks, keep=keep, fused=fused, table_precision=table_precision)
    job, types = _planned(df, run, request)
    # What is not selected is not read; `mapInArrow` itself would read a dot in a name as a field
    quoted = (name.replace("`", "``") for name in job.read)
    return df.selectExpr(*(f"`{n}` as c{i}" for i, n in enumerate(quoted))).mapInArrow(job, types)


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
    return _planned(df, run, ScoreRequest(tasks=tasks, keep=keep, fused=fused))[1]


@dataclass(frozen=True)
class _Job:
    """What a Python worker runs; Spark sends it there."""

    run: str
    model: str
    request: ScoreRequest
    imports: tuple[str, ...]
    read: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        loaded = _loaded(self.run, self.model, self.imports, self.request.table_precision)
        columns = self.request.columns(loaded.config)
        scorer = Scorer(loaded.predictor, loaded.encoder, loaded.config, columns)
        for batch in batches:
            rows = pa.Table.from_batches([batch]).rename_columns(list(self.read))
            yield from scorer.score(rows, _ORIGIN).to_batches()


@lru_cache(maxsize=2)
def _loaded(
    address: str, model: str, imports: tuple[str, ...], precision: ScoringPrecision | None
) -> Scorer:
    """Once per worker process, which Spark keeps for further tasks and jobs."""
    import torch

    torch.set_num_threads(1)  # as many workers as cores are beside this one
    import_modules(imports, f"{address}: the run")
    run = open_run(address)
    found = model_of(run)
    if found != model:
        raise ValueError(
            f"{address}: holds the model {found} on this host, and {model} when the job was made; "
            "make it again when the run's training is over"
        )
    return ScoreRequest(table_precision=precision).load(run, mapped=True)


def _planned(df: Any, address: str | Path, request: ScoreRequest) -> tuple[_Job, Any]:
    """What workers run, and the `StructType` of what comes of it."""
    sql = import_extra("pyspark.sql")
    if not isinstance(df, sql.DataFrame):
        raise ValueError(
            f"df: expected a DataFrame of Spark, got {type(df).__module__}.{type(df).__name__}; "
            "rows in memory are scored by mmoe.load(run).predict"
        )
    place = str(without_protocol(address))
    if not is_address(place):  # workers run in other folders than the driver does
        place = str(Path(place).absolute())
    run = open_run(place, tensors=())
    config, there = run.config(), list(df.columns)
    columns, requests = request.columns(config), config.data.requests
    if requests is not None and requests.candidates in there:
        raise ValueError(
            f"{_ORIGIN}: column {requests.candidates!r} holds candidates "
            f"(data.requests.candidates), but Spark gets a row for a row; explode it with "
            f"selectExpr('*', 'inline({requests.candidates})').drop({requests.candidates!r}), or "
            "use mmoe score"
        )
    needed, kept = columns.needs(there, _ORIGIN), columns.kept(there)
    read = [name for name in there if name in needed]
    types = import_extra("pyspark.sql.pandas.types")
    _check_columns(df, [*dict.fromkeys([*kept, *read])], types.to_arrow_type)
    of_arrow = types.from_arrow_type
    written = import_extra("pyspark.sql.types").StructType([df.schema[name] for name in kept])
    for field in columns.schema:
        written = written.add(field.name, of_arrow(field.type))
    request = replace(request, keep=tuple(kept))
    return _Job(place, model_of(run), request, tuple(config.imports), tuple(read)), written


def _check_columns(df: Any, names: Sequence[str], to_arrow: Any) -> None:
    """Refuses names that two columns have, and types that Arrow has not."""
    # Later versions want the zone of timestamps; any will do, to ask whether there is a type
    zone = {"timezone": "UTC"} if "timezone" in signature(to_arrow).parameters else {}
    for name in names:
        fields = [field for field in df.schema.fields if field.name == name]
        if len(fields) > 1:
            raise ValueError(
                f"{_ORIGIN}: {len(fields)} columns are called {name!r}; rename all of them but one"
            )
        kind = fields[0].dataType
        try:
            to_arrow(kind, **zone)
        except TypeError:  # of PySpark's own
            raise ValueError(
                f"{_ORIGIN}: column {name!r} is {kind.simpleString()}, which Spark does not hand "
                "to Python as Arrow; leave it out (keep=[…]), or cast it"
            ) from None
