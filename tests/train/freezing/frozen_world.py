"""One rank of a gloo world that adds a task to a frozen model; run by test_frozen_ranks.py.

FOLDER holds a run to begin with and a config for each case.
"""

from pathlib import Path

from mmoe.config import load_config
from mmoe.train import WarmStart, train_run

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


def main(rank: int, ranks: int, _: Path, given: str) -> dict:
    found, folder = {}, Path(given)
    for name in CASES:
        out = folder / f"{name}-{ranks}"
        config = load_config(folder / f"{name}.yaml")
        run = train_run(config, out, warm_start=WarmStart(folder / BEFORE.get(name, "before")))
        found[name] = run.metrics["train"]["frozen"]
    return found
