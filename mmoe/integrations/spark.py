"""Scores a Spark DataFrame: `score(df, run)`, with the bits of `mmoe score`.

Each Python worker opens the run once; weights are pages of one file in the host's cache, which all
workers of a host share.
"""

import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import pyarrow as pa

from mmoe.config import ScoringPrecision
from mmoe.datasets.files.data_file import is_address, without_protocol
from mmoe.plugins import import_modules
from mmoe.run import open_run
from mmoe.score.columns import ScoreColumns
from mmoe.score.provenance import provenance_of
from mmoe.score.scorer import Scorer

_ORIGIN = "df"  # what messages call the rows
_JAVA = 17
_DAEMON = "mmoe.integrations.spark_daemon"


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
    job, types = _planned(df, run, tasks, keep, fused, table_precision)
    # What is not selected is not read; `mapInArrow` itself would read a dot in a name as a field
    rows = df.selectExpr(*(f"{_quoted(name)} as c{n}" for n, name in enumerate(job.read)))
    return rows.mapInArrow(job, types)


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
    return _planned(df, run, tasks, keep, fused)[1]


def local_session(cores: int = 2, settings: Mapping[str, str] | None = None) -> Any:
    """Starts Spark on this machine alone, to try things: no cluster, no ports for others, no UI.

    Args:
        cores: Tasks at a time.
        settings: Of Spark, such as `{"spark.driver.memory": "4g"}`.

    Returns:
        A `SparkSession`; the one that is there already, where one is.

    Raises:
        ValueError: There is no PySpark, or no Java.
    """
    sql = _pyspark()
    _check_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = sql.SparkSession.builder.master(f"local[{cores}]").appName("mmoe")
    own = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.python.daemon.module": _DAEMON,
    }
    for key, value in {**own, **(settings or {})}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


@dataclass(frozen=True)
class _Job:
    """What a Python worker runs; Spark sends it there."""

    run: str
    model: str
    imports: tuple[str, ...]
    tasks: tuple[str, ...] | None
    read: tuple[str, ...]
    keep: tuple[str, ...]
    fused: tuple[tuple[str, str], ...]
    table_precision: ScoringPrecision | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        scorer = _scorer(self)
        for batch in batches:
            rows = pa.Table.from_batches([batch]).rename_columns(list(self.read))
            yield from scorer.score(rows, _ORIGIN).to_batches()


@lru_cache(maxsize=8)
def _scorer(job: _Job) -> Scorer:
    """Once per worker process, which Spark keeps for further tasks and jobs."""
    loaded = _loaded(job.run, job.model, job.imports, job.table_precision)
    return Scorer(
        loaded.predictor,
        loaded.encoder,
        loaded.config,
        tasks=job.tasks,
        keep=job.keep,
        fused=dict(job.fused),
    )


@lru_cache(maxsize=2)
def _loaded(
    address: str, model: str, imports: tuple[str, ...], precision: ScoringPrecision | None
) -> Scorer:
    import torch

    torch.set_num_threads(1)  # as many workers as cores are beside this one
    import_modules(imports, f"{address}: the run")
    run = open_run(address)
    found = _model_of(run)
    if found != model:
        raise ValueError(
            f"{address}: holds the model {found} on this host, and {model} when the job was made; "
            "make it again when the run's training is over"
        )
    return Scorer.load(run, table_precision=precision, mapped=True)


def _planned(
    df: Any,
    address: str | Path,
    tasks: Sequence[str] | None,
    keep: Sequence[str] | None,
    fused: Mapping[str, str] | None,
    table_precision: ScoringPrecision | None = None,
) -> tuple[_Job, Any]:
    """What workers run, and the `StructType` of what comes of it."""
    sql = _pyspark()
    if not isinstance(df, sql.DataFrame):
        raise ValueError(
            f"df: expected a DataFrame of Spark, got {type(df).__module__}.{type(df).__name__}; "
            "rows in memory are scored by mmoe.load(run).predict"
        )
    place = _for_all_hosts(address)
    run = open_run(place, tensors=())
    config = run.config()
    columns = ScoreColumns(config, tasks=tasks, keep=keep, fused=fused or {})
    there = list(df.columns)
    requests = config.data.requests
    if requests is not None and requests.candidates in there:
        raise ValueError(
            f"{_ORIGIN}: column {requests.candidates!r} holds candidates "
            f"(data.requests.candidates), but Spark gets a row for a row; explode it with "
            f"selectExpr('*', 'inline({requests.candidates})').drop({requests.candidates!r}), or "
            "use mmoe score"
        )
    needed = columns.needs(there, _ORIGIN)
    read = [name for name in there if name in needed]
    kept = columns.kept(there)
    _check_columns(df, [*dict.fromkeys([*kept, *read])])
    job = _Job(
        run=place,
        model=_model_of(run),
        imports=tuple(config.imports),
        tasks=None if tasks is None else tuple(tasks),
        read=tuple(read),
        keep=tuple(kept),
        fused=tuple((fused or {}).items()),
        table_precision=table_precision,
    )
    return job, _schema(df, kept, columns)


def _check_columns(df: Any, names: Sequence[str]) -> None:
    """Refuses names that two columns have, and types that Arrow has not."""
    to_arrow = import_module("pyspark.sql.pandas.types").to_arrow_type
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


def _schema(df: Any, kept: Sequence[str], columns: ScoreColumns) -> Any:
    types = import_module("pyspark.sql.types")
    of_arrow = import_module("pyspark.sql.pandas.types").from_arrow_type
    predicted = [types.StructField(field.name, of_arrow(field.type)) for field in columns.schema]
    return types.StructType([*(df.schema[name] for name in kept), *predicted])


def _model_of(run: Any) -> str:
    return provenance_of(run, None, [])["the model"]


def _for_all_hosts(run: str | Path) -> str:
    """Workers run in other folders than the driver does."""
    text = str(without_protocol(run))
    return text if is_address(text) else str(Path(text).absolute())


def _quoted(name: str) -> str:
    """A name as Spark reads it, dots and all."""
    return f"`{name.replace('`', '``')}`"


def _pyspark() -> Any:
    try:
        return import_module("pyspark.sql")
    except ImportError as error:
        raise ValueError(
            f"pyspark cannot be imported ({error}); pip install 'mmoe[spark]'"
        ) from None


def _check_java() -> None:
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").exists():
        return
    if shutil.which("java") is None:
        raise ValueError(
            f"Spark needs Java {_JAVA}, and there is no `java` in JAVA_HOME or on the PATH; "
            f"install it (Debian, Ubuntu: apt-get install openjdk-{_JAVA}-jre-headless; Fedora: "
            f"dnf install java-{_JAVA}-openjdk-headless; macOS: brew install openjdk@{_JAVA})"
        )
