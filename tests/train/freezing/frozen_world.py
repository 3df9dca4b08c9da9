"""One rank of a gloo world that adds a task to a frozen model; run by test_frozen_ranks.py.

    python tests/train/freezing/frozen_world.py RANK WORLD_SIZE STORE REPORT FOLDER

FOLDER holds a run to begin with and a config for each case.
"""

import json
import sys
from pathlib import Path

import torch.distributed as dist

from mmoe.config import load_config
from mmoe.parallel import rank, world_size
from mmoe.train import WarmStart, train_run
from tests.parallel.joining import join_world

# By name: what is set, beside tables of TorchRec's
CASES = {
    "replicated, accumulated": [
        "parallel.experts=replicated",
        "training.accumulate_batches=2",
        "training.gradient_clip=0.5",
    ],
    "one new expert, spread": ["parallel.experts=spread", "model.num_experts=4"],
    "copies of tables that decay": [
        "training.embedding_optimizer.weight_decay=0.01",
        "training.embedding_backend=auto",
        "training.freeze=[experts, gates, towers, tables.user, tables.item, encoder]",
    ],
    "domains": ["tasks.2.domains=[shop, radio]", "parallel.experts=spread"],
    "tables that learn": ["training.freeze=[experts, gates, towers, encoder]"],
}
# The run to begin with, where it is not `before`
BEFORE = {"domains": "before-domains"}


def main(folder: Path) -> dict:
    found = {}
    for name in CASES:
        out = folder / f"{name}-{world_size()}"
        config = load_config(folder / f"{name}.yaml")
        run = train_run(config, out, warm_start=WarmStart(folder / BEFORE.get(name, "before")))
        found[name] = run.metrics["train"]["frozen"]
    return found


if __name__ == "__main__":
    join_world(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
    Path(sys.argv[4]).write_text(json.dumps(main(Path(sys.argv[5]))))
    assert rank() == int(sys.argv[1])
    dist.destroy_process_group()
