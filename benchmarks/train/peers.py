"""Other libraries with their own training loops; runs where they are installed, without mmoe."""

from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.train.worker import Pacer
from benchmarks.train.workloads import (
    BATCH,
    DIM,
    EXPERTS,
    HIDDEN,
    LEARNING_RATE,
    TOWER,
    Spec,
    Tensors,
    Workload,
    read_batches,
)


class PacedLoader:
    """In place of a `DataLoader`: tensors made beforehand, round and round.

    A loop asks for the next batch when it is done with the last one, so that is when a step ends.
    """

    def __init__(self, batches: Sequence[tuple[Any, Tensor]], pacer: Pacer) -> None:
        self.batches, self.pacer = batches, pacer

    def __iter__(self) -> Iterator[tuple[Any, Tensor]]:
        self.pacer.started()
        for batch in cycle(self.batches):
            yield batch
            self.pacer.stepped(len(batch[1]))


def torch_rechub_trainer(work: Workload) -> tuple[Any, Any]:
    """torch-rechub's `MTLTrainer`, weight decay off, which is quicker, and its model."""
    from torch_rechub.basic.features import DenseFeature, SparseFeature  # pyright: ignore[reportMissingImports]
    from torch_rechub.models.multi_task import MMOE  # pyright: ignore[reportMissingImports]
    from torch_rechub.trainers import MTLTrainer  # pyright: ignore[reportMissingImports]

    kinds = ["classification"] * len(work.tasks)
    model = MMOE(
        [
            *(DenseFeature(name) for name in work.dense_columns),
            *(SparseFeature(c.column, c.rows, embed_dim=DIM) for c in work.single),
        ],
        kinds,
        EXPERTS,
        {"dims": list(HIDDEN), "activation": "relu"},
        [{"dims": [TOWER], "activation": "relu"} for _ in kinds],
    )
    rates = {"lr": LEARNING_RATE, "weight_decay": 0.0}
    return MTLTrainer(model, kinds, optimizer_params=rates, n_epoch=1), model


def run_torch_rechub(spec: Spec, pacer: Pacer) -> None:
    trainer, _ = torch_rechub_trainer(spec.sizes)
    batches = [(_by_name(spec, batch), batch.labels_BT) for batch in _batches(spec)]
    trainer.train_one_epoch(PacedLoader(batches, pacer))


def deepctr_model(work: Workload) -> Any:
    """DeepCTR-Torch's; penalties on weights off, which is quicker, and linear gates."""
    from deepctr_torch.inputs import DenseFeat, SparseFeat  # pyright: ignore[reportMissingImports]
    from deepctr_torch.models import MMOE  # pyright: ignore[reportMissingImports]

    return MMOE(
        [
            *(SparseFeat(c.column, c.rows, embedding_dim=DIM) for c in work.single),
            *(DenseFeat(name) for name in work.dense_columns),
        ],
        num_experts=EXPERTS,
        expert_dnn_hidden_units=HIDDEN,
        gate_dnn_hidden_units=(),
        tower_dnn_hidden_units=(TOWER,),
        l2_reg_linear=0,
        l2_reg_embedding=0,
        task_types=["binary"] * len(work.tasks),
        task_names=list(work.tasks),
    )


def run_deepctr(spec: Spec, pacer: Pacer) -> None:
    from deepctr_torch.models import basemodel  # pyright: ignore[reportMissingImports]

    model = deepctr_model(spec.sizes)
    model.compile(
        torch.optim.Adam(model.parameters(), lr=LEARNING_RATE),
        loss=["binary_crossentropy"] * len(spec.sizes.tasks),
    )

    def paced(dataset: Any, **_: Any) -> PacedLoader:
        return PacedLoader(
            list(zip(*(t.split(BATCH) for t in dataset.tensors), strict=True)), pacer
        )

    basemodel.DataLoader = paced
    batches = _batches(spec)
    named = [_by_name(spec, batch) for batch in batches]
    # Everything in one float matrix is how `fit` takes it; ids below 2 ** 24 are exact
    columns = {
        name: np.concatenate([batch[name].numpy().astype(np.float32) for batch in named])
        for name in named[0]
    }
    labels_NT = np.concatenate([batch.labels_BT.numpy() for batch in batches])
    model.fit(columns, labels_NT, batch_size=BATCH, epochs=1, verbose=0)


def _batches(spec: Spec) -> list[Tensors]:
    if spec.sizes.lists:
        raise ValueError(f"{spec.workload}: lists are not compared with {spec.kind}")
    return read_batches(spec.sizes, spec.log.train, seed=0)


def _by_name(spec: Spec, batch: Tensors) -> dict[str, Tensor]:
    ids = {c.column: batch.single_CB[n] for n, c in enumerate(spec.sizes.single)}
    numbers = {
        name: batch.dense_BF[:, n].contiguous() for n, name in enumerate(spec.sizes.dense_columns)
    }
    return {**ids, **numbers}


PEERS = {"torch_rechub": run_torch_rechub, "deepctr": run_deepctr}
