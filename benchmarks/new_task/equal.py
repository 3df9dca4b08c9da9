"""Are old tasks' scores the same bits, whatever the model is made of?"""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from benchmarks.new_task.models import FREEZE, NEW, OLD, config_of, scores, splits_by_time
from mmoe.config import config_from_dict, set_values
from mmoe.embeddings import torchrec_problem
from mmoe.train import WarmStart, train_run

SMALL = (
    "model.expert.hidden=[16, 8]",
    "model.tower.hidden=[8]",
    "model.num_experts=4",
    "training.epochs=1",
    "training.ema_decay=0.9",
)
GATES = {
    "softmax": ("model.gate.kind=softmax",),
    "top_k": ("model.gate.kind=top_k", "model.gate.k=2"),
    "noisy_top_k": ("model.gate.kind=noisy_top_k", "model.gate.k=2"),
    "cosine": ("model.gate.kind=cosine", "model.gate.k=2"),
    "sigmoid": ("model.gate.kind=sigmoid", "model.gate.k=2"),
}
BATCH_NORM = ("model.expert.norm=batch", "model.expert.activation=silu")
MANAGED = ("features.0.encoding=managed", "features.0.rows=300", "features.0.min_count=1")


def unequal(table: pa.Table, folder: Path, say: Callable[[str], None]) -> list[str]:
    """Names the cases whose old tasks score otherwise after the new task has come.

    Each with an average of weights, batch norm, managed ids (where TorchRec is installed), a new
    feature and new experts, on rows with ids that training has not seen.
    """
    splits = splits_by_time(table)
    wrong = []
    managed = () if torchrec_problem() else MANAGED
    for name, gate in GATES.items():
        values = [*SMALL, *gate, *BATCH_NORM, *managed]
        before = config_of(OLD, values, 0).model_dump(mode="json", exclude_none=True)
        *features, new = before["features"]
        first = config_from_dict({**before, "features": features})
        one = train_run(first, folder / f"{name}-before", splits=splits)
        raw = config_of([*OLD, NEW], values, 0).model_dump(mode="json", exclude_none=True)
        raw = set_values({**raw, "features": [new, *features]}, ["model.num_experts=6"])
        raw["training"]["freeze"] = FREEZE
        two = train_run(
            config_from_dict(raw),
            folder / f"{name}-after",
            splits=splits,
            warm_start=WarmStart(one.directory.path),
        )
        pair = [scores(run.directory, table).tobytes() for run in (one, two)]
        say(f"  {name}: {'equal' if pair[0] == pair[1] else 'other'} bits")
        if pair[0] != pair[1]:
            wrong.append(name)
    return wrong
