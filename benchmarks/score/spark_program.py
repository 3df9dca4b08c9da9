"""Spark of some slots scores a file: `python -m benchmarks.score.spark_program JSON`.

The last line printed: `peak`, the most that its Python processes (workers, and the daemon that they
are forked from) took together, shared pages counted once (PSS), as it was sampled meanwhile;
`workers`, how many there were then; `rows`, and `seconds` of the job.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.racing.child import descendants

SECONDS_BETWEEN_SAMPLES = 0.25
PARTS_OF_A_SLOT = 4
DAEMON = "mmoe.integrations.spark_daemon"  # on the command line of it and of all that it forks


class Sampler:
    def __init__(self, of: int | None = None) -> None:
        self.of, self.peak, self.workers = of, 0, 0

    def look(self) -> None:
        processes = python_processes(self.of)
        total = sum(map(pss_bytes, processes))
        if total > self.peak:
            self.peak, self.workers = total, len(processes) - 1  # less the daemon

    @contextmanager
    def looking(self) -> Iterator[None]:
        over = threading.Event()

        def look() -> None:
            while not over.wait(SECONDS_BETWEEN_SAMPLES):
                self.look()

        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def python_processes(of: int | None = None) -> list[int]:
    """Spark's daemon and workers among the descendants of a process; None: of this one."""
    below = descendants(of or os.getpid())
    # The JVM's command line has the name within a setting
    return [process for process, command in below.items() if DAEMON in command.split("\0")]


def pss_bytes(process: int) -> int:
    """Its pages, of each that is shared as much as its share; 0: it has ended."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((int(x.split()[1]) * 1024 for x in lines if x.startswith("Pss:")), 0)


def main() -> None:
    asked = json.loads(sys.argv[1])
    session = _session(asked["slots"], Path(asked["room"]))
    from mmoe.integrations.spark import score

    rows = session.read.parquet(asked["source"]).repartition(asked["slots"] * PARTS_OF_A_SLOT)
    sampler, started = Sampler(), time.perf_counter()
    with sampler.looking():
        found = score(rows, asked["run"], keep=[]).selectExpr(
            "count(*)", *(f"sum(pred_{task})" for task in ("click", "conversion"))
        )
        counted = found.collect()[0][0]
    seconds = time.perf_counter() - started
    session.stop()
    print(json.dumps(_answer(asked["slots"], sampler, counted, seconds)))


def _answer(slots: int, sampler: Sampler, rows: int, seconds: float) -> dict[str, Any]:
    return {
        "slots": slots, "workers": sampler.workers, "peak": sampler.peak, "rows": rows,
        "seconds": seconds,
    }  # fmt: skip


def _session(slots: int, room: Path) -> Any:
    from pyspark.sql import SparkSession  # pyright: ignore[reportMissingImports]

    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.driver.memory": "2g",
        "spark.local.dir": str(room / "local"),
        "spark.sql.warehouse.dir": str(room / "warehouse"),
        "spark.python.daemon.module": DAEMON,
        # Every slot gets its own rows at once: none is left out for the size of the file
        "spark.sql.adaptive.enabled": "false",
    }
    builder = SparkSession.builder.master(f"local[{slots}]").appName("benchmarks.score")
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


if __name__ == "__main__":
    main()
