"""Scores a Spark DataFrame: `score(df, run)`, with the bits of `mmoe score`.

Each Python worker opens the run once; weights are pages of one file in the host's cache, which all
workers of a host share.
"""

import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path
from typing import Any

import pyarrow as pa

from mmoe.config import RequestsConfig, ScoringPrecision
from mmoe.datasets.files.data_file import absolute, without_protocol
from mmoe.datasets.rows.locations import refuse_repeated
from mmoe.integrations.spark_daemon import load_once
from mmoe.plugins import import_extra
from mmoe.run import open_run
from mmoe.score import ScoreRequest
from mmoe.score.provenance import model_of

_JAVA = 17


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
    sql = import_extra("pyspark.sql")
    home = os.environ.get("JAVA_HOME")
    if not (home and (Path(home) / "bin" / "java").exists()) and shutil.which("java") is None:
        raise ValueError(
            f"Spark needs Java {_JAVA}, and there is no `java` in JAVA_HOME or on the PATH; "
            f"install it (Debian, Ubuntu: apt-get install openjdk-{_JAVA}-jre-headless; Fedora: "
            f"dnf install java-{_JAVA}-openjdk-headless; macOS: brew install openjdk@{_JAVA})"
        )
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = sql.SparkSession.builder.master(f"local[{cores}]").appName("mmoe")
    own = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.python.daemon.module": "mmoe.integrations.spark_daemon",
    }
    for key, value in {**own, **(settings or {})}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _check_frame(df: Any, requests: RequestsConfig | None) -> None:
    """Refuses what is no DataFrame of Spark, and requests with their candidates in a list."""
    sql = import_extra("pyspark.sql")
    if not isinstance(df, sql.DataFrame):
        raise ValueError(
            f"df: expected a DataFrame of Spark, got {type(df).__module__}.{type(df).__name__}; "
            "rows in memory are scored by mmoe.load(run).predict"
        )
    if requests is not None and requests.candidates in df.columns:
        raise ValueError(
            f"df: column {requests.candidates!r} holds candidates "
            f"(data.requests.candidates), but Spark gets a row for a row; explode it with "
            f"selectExpr('*', 'inline({requests.candidates})').drop({requests.candidates!r}), or "
            "use mmoe score"
        )


def _types_of(df: Any, read: Sequence[str], kept: Sequence[str], added: pa.Schema) -> Any:
    """Returns the `StructType` of a DataFrame's kept columns and, behind them, of what is added."""
    names = dict.fromkeys([*kept, *read])
    refuse_repeated(names, df.columns, "df")
    types, fields = import_extra("pyspark.sql.pandas.types"), {f.name: f for f in df.schema.fields}
    # Later versions want the zone of timestamps; any will do, to ask whether there is a type
    zone = {"timezone": "UTC"} if "timezone" in signature(types.to_arrow_type).parameters else {}
    for name in names:
        kind = fields[name].dataType
        try:
            types.to_arrow_type(kind, **zone)
        except TypeError:  # of PySpark's own
            raise ValueError(
                f"df: column {name!r} is {kind.simpleString()}, which Spark does not hand "
                "to Python as Arrow; leave it out (keep=[…]), or cast it"
            ) from None
    written = import_extra("pyspark.sql.types").StructType([fields[name] for name in kept])
    for field in added:
        written = written.add(field.name, types.from_arrow_type(field.type))
    return written


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
    _check_frame(df, config.data.requests)
    request = ScoreRequest("df", keep, False, tasks, fused, None, "auto", table_precision)
    columns, there = request.columns(config), list(df.columns)
    needed, kept = columns.needs(there, "df"), columns.kept(there)
    read = [name for name in there if name in needed]
    types = _types_of(df, read, kept, columns.schema)
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
