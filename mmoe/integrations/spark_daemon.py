"""Spark's Python daemon, with what scores imported before it forks its workers.

With `spark.python.daemon.module=mmoe.integrations.spark_daemon` the workers of a host share those
pages (some 200 MiB less for each), and score from their first moment on.
"""

import gc
from importlib import import_module

from mmoe.run.allocator import return_freed_memory


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


if __name__ == "__main__":
    main()
