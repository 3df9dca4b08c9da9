"""Another library scores a file: `python -m benchmarks.score.peer JSON`, where it is installed.

Parquet is read and written by pandas, everything else is the library's own, in fp32; weights are as
they are drawn, which costs what trained ones do. The last line printed: `seconds` from Parquet to
Parquet, `rows`, and of the model alone, whose tensors are there already, `forward_seconds` and
`forward_rows`. Imports, and making the model, are not counted.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from benchmarks.racing.child import private_stdout
from benchmarks.train.peers import deepctr_model, torch_rechub_trainer
from benchmarks.train.workloads import BATCH, WORKLOADS

# Of the model alone: as many batches as a median needs
FORWARD_BATCHES = 12
Columns = Mapping[str, np.ndarray]


class Batches:
    """In place of a `DataLoader` over dicts, which collects them row by row: slices, quicker."""

    def __init__(self, columns: Columns) -> None:
        self.columns = {name: torch.from_numpy(values) for name, values in columns.items()}
        self.rows = len(next(iter(columns.values())))

    def __len__(self) -> int:
        return -(-self.rows // BATCH)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        for start in range(0, self.rows, BATCH):
            yield {name: values[start : start + BATCH] for name, values in self.columns.items()}


class TorchRechub:
    def __init__(self) -> None:
        self.trainer, self.model = torch_rechub_trainer(WORKLOADS["big"])

    def predict(self, columns: Columns) -> np.ndarray:
        return np.array(self.trainer.predict(self.model, Batches(columns)), np.float32)

    def forward(self, columns: Columns) -> list[Callable[[], Tensor]]:
        return [lambda batch=batch: self.model(batch) for batch in Batches(columns)]


class DeepCtr:
    def __init__(self) -> None:
        self.model = deepctr_model(WORKLOADS["big"])

    def predict(self, columns: Columns) -> np.ndarray:
        """Its own loop, over batches as high as in training instead of 256."""
        floats = {name: values.astype(np.float32) for name, values in columns.items()}
        return self.model.predict(floats, batch_size=BATCH).astype(np.float32)

    def forward(self, columns: Columns) -> list[Callable[[], Tensor]]:
        in_order = [columns[name].astype(np.float32) for name in self.model.feature_index]
        batches = torch.from_numpy(np.stack(in_order, axis=1)).split(BATCH)
        return [lambda batch=batch: self.model(batch) for batch in batches]


PEERS = {"torch_rechub": TorchRechub, "deepctr": DeepCtr}


def main() -> None:
    answers = private_stdout()
    asked = json.loads(sys.argv[1])
    torch.set_num_threads(asked["threads"])
    peer = PEERS[asked["kind"]]()
    peer.model.eval()
    answer = _score(peer, asked["source"], asked["output"])
    answers.write(json.dumps({**answer, **_forward(peer, asked["source"])}) + "\n")
    answers.close()


def _score(peer: Any, source: str, output: str) -> dict[str, Any]:
    started = time.perf_counter()
    predicted_NT = peer.predict(_read(source))
    names = [f"pred_{task}" for task in WORKLOADS["big"].tasks]
    pd.DataFrame(predicted_NT, columns=pd.Index(names)).to_parquet(output, index=False)
    return {"seconds": time.perf_counter() - started, "rows": len(predicted_NT)}


def _forward(peer: Any, source: str) -> dict[str, Any]:
    rows = FORWARD_BATCHES * BATCH
    columns = {name: values[:rows] for name, values in _read(source).items()}
    seconds = []
    with torch.no_grad():
        for call in peer.forward(columns):
            started = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - started)
    first = next(iter(columns.values()))
    return {"forward_seconds": sum(seconds), "forward_rows": len(first)}


def _read(source: str) -> Columns:
    work = WORKLOADS["big"]
    names = [*(column.column for column in work.single), *work.dense_columns]
    frame = pd.read_parquet(source, columns=names)
    return {name: frame[name].to_numpy(copy=True) for name in names}


if __name__ == "__main__":
    main()
