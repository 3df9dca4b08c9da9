"""One rank of a gloo world that trains gates of domains; run by test_domain_gates.py.

    python tests/train/domain_gates_world.py RANK WORLD_SIZE STORE REPORT FOLDER

FOLDER holds a config for each kind of gate.
"""

import json
import sys
from pathlib import Path

import torch.distributed as dist

from mmoe.config import load_config
from mmoe.parallel import rank, world_size
from mmoe.train import train_run
from tests.parallel.joining import join_world

BALANCED = "balance_loss: 0.01, z_loss: 0.01"
# By name: `model.gate`
GATES = {
    "cosine": f"{{kind: cosine, k: 2, projection_dim: 8, {BALANCED}}}",
    "switch": f"{{kind: switch, {BALANCED}}}",
    "gshard": f"{{kind: gshard, {BALANCED}}}",
    "dselect_k": f"{{kind: dselect_k, k: 2, {BALANCED}}}",
    "dselect_k_per_task": f"{{kind: dselect_k, k: 2, per_sample: false, {BALANCED}}}",
    "static": f"{{kind: static, {BALANCED}}}",
}
# Each rank draws which second picks stay for its own rows
OF_RANKS = [name for name in GATES if name != "gshard"]


def main(folder: Path) -> dict:
    found = {}
    for name in OF_RANKS:
        run = train_run(load_config(folder / f"{name}.yaml"), folder / f"{name}-{world_size()}")
        found[name] = run.metrics["domains"]["each"]
    return found


if __name__ == "__main__":
    join_world(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
    Path(sys.argv[4]).write_text(json.dumps(main(Path(sys.argv[5]))))
    assert rank() == int(sys.argv[1])
    dist.destroy_process_group()
