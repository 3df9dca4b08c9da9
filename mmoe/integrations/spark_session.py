"""Spark where a job is made: a session on this machine, and columns that Python can be handed."""

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import pyarrow as pa

from mmoe.config import RequestsConfig
from mmoe.datasets.rows.locations import refuse_repeated
from mmoe.plugins import import_extra

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


def check_frame(df: Any, requests: RequestsConfig | None) -> None:
    """Refuses what is no DataFrame of Spark, and one of requests with their candidates in a list.

    Raises:
        ValueError: Says which; or there is no PySpark.
    """
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


def types_of(df: Any, read: Sequence[str], kept: Sequence[str], added: pa.Schema) -> Any:
    """Returns the `StructType` of a DataFrame's kept columns and, behind them, of what is added.

    Raises:
        ValueError: Of those that are read or kept, two have one name, or Arrow has not one's type.
    """
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
