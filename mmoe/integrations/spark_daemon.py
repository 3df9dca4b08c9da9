"""Processes of Spark: a session on this machine, and a daemon that has imported what scores.

With `spark.python.daemon.module=mmoe.integrations.spark_daemon` the workers of a host share those
pages (some 200 MiB less for each), and score from their first moment on.
"""

import gc
import os
import shutil
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from mmoe.plugins import import_extra
from mmoe.run.allocator import return_freed_memory

_JAVA = 17


def main() -> None:
    """What Spark starts; it ends with its executor."""
    import_what_scores()
    import_module("pyspark.daemon").manager()


def import_what_scores() -> None:
    """Imports torch and what workers need of this library, and opens no run.

    PySpark's own daemon imports as good as nothing, lest threads run when it forks. Here no Python
    thread does, and those of OpenBLAS and jemalloc are stopped for a fork and begun again in the
    worker by handlers of their own.
    """
    import torch

    import_module("mmoe.integrations.spark")
    return_freed_memory()
    torch.set_num_threads(1)  # each worker has a core to itself
    # A collection writes into the head of each object that it looks at, and so copies its page
    gc.collect()
    gc.freeze()


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
    _check_java()
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


if __name__ == "__main__":
    main()
