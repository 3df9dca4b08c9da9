"""One rank of a gloo world that trains a task of every kind; run by test_task_kinds_ranks.py.

FOLDER=… python tests/train/kinds_world.py RANK WORLD_SIZE STORE REPORT
"""

import json
import os
import sys
from pathlib import Path

import numpy as np
import torch.distributed as dist

from mmoe.config import config_from_dict
from mmoe.train import train_run
from tests.parallel.joining import join_world
from tests.tasks.kinds_log import TASKS, kinds_splits, raw_config


def trained(folder: Path) -> dict:
    """Metrics by task, and the sum of the test predictions of each column."""
    seen = []
    raw = raw_config(list(TASKS), epochs=1, batch_size=150, embedding_backend="torchrec")
    run = train_run(
        config_from_dict(raw),
        folder,
        splits=kinds_splits(1500),
        on_test=lambda predictions_NP, _: seen.append(np.abs(predictions_NP).mean(axis=0)),
    )
    return {"tasks": run.metrics["tasks"], "means": [each.tolist() for each in seen]}


def main() -> None:
    rank, ranks, store, report = sys.argv[1:]
    join_world(int(rank), int(ranks), store)
    found = trained(Path(os.environ["FOLDER"]) / "ranks")
    Path(report).write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
