"""What runs in Spark's Python workers: a daemon that has imported what scores, and the model.

With `spark.python.daemon.module=mmoe.integrations.spark_daemon` the workers of a host share those
pages (some 200 MiB less for each), and score from their first moment on.
"""

import gc
from functools import lru_cache
from importlib import import_module

from mmoe.config import ScoringPrecision
from mmoe.plugins import import_modules
from mmoe.run import open_run
from mmoe.run.memory import return_freed_memory
from mmoe.score import ScoreRequest
from mmoe.score.provenance import model_of
from mmoe.score.scorer import Scorer


def main() -> None:
    """Runs the daemon that Spark starts; it ends with its executor."""
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


@lru_cache(maxsize=2)
def load_once(
    address: str, model: str, imports: tuple[str, ...], precision: ScoringPrecision | None
) -> Scorer:
    """Loads a run's model, once per worker process, which Spark keeps for further tasks and jobs.

    Raises:
        ValueError: It is another model than this one, or cannot be loaded.
    """
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


if __name__ == "__main__":
    main()
