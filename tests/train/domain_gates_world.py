"""One rank of a gloo world that trains gates of domains; run by test_domain_gates.py.

FOLDER holds a config for each kind of gate.
"""

from pathlib import Path

from mmoe.config import load_config
from mmoe.train import train_run

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


def main(rank: int, ranks: int, _: Path, given: str) -> dict:
    found, folder = {}, Path(given)
    for name in OF_RANKS:
        run = train_run(load_config(folder / f"{name}.yaml"), folder / f"{name}-{ranks}")
        found[name] = run.metrics["domains"]["each"]
    return found
