"""The honest rival: plain torch, FBGEMM's tables, a loop over `nn.Linear` experts."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)
from torch import Tensor, nn

from benchmarks.train.workloads import (
    DIM,
    EMBEDDING_EPS,
    EMBEDDING_LEARNING_RATE,
    EXPERTS,
    HIDDEN,
    LEARNING_RATE,
    TOWER,
    Ids,
    Tensors,
    Workload,
    mlp,
)


class Model(nn.Module):
    """MMoE as it is written by hand: tables, a loop of experts, linear softmax gates, towers.

    Experts' outputs are stacked once and one batched product serves all gates, which is a few per
    cent ahead of `einsum` and of one product per gate.
    """

    def __init__(self, workload: Workload) -> None:
        super().__init__()
        self.columns = workload
        self.single = tables_of(workload.single, PoolingMode.SUM)
        self.lists = tables_of(workload.lists, PoolingMode.MEAN) if workload.lists else None
        width, tasks = workload.input_dim, range(len(workload.tasks))
        self.experts = nn.ModuleList(mlp(width, HIDDEN) for _ in range(EXPERTS))
        self.gates = nn.ModuleList(nn.Linear(width, EXPERTS, bias=False) for _ in tasks)
        self.towers = nn.ModuleList(
            nn.Sequential(*mlp(HIDDEN[-1], (TOWER,)), nn.Linear(TOWER, 1)) for _ in tasks
        )

    def forward(self, dense_BF: Tensor, lookups: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        embedded = [self.single(*lookups[0])]
        if self.lists is not None:
            embedded.append(self.lists(*lookups[1]))
        x_BD = torch.cat([dense_BF, *embedded], dim=1)
        y_BEO = torch.stack([expert(x_BD) for expert in self.experts], dim=1)
        weights_BGE = torch.stack([gate(x_BD).softmax(-1) for gate in self.gates], dim=1)
        mixed_BGO = torch.bmm(weights_BGE.to(y_BEO.dtype), y_BEO)
        logits = [tower(mixed_BGO[:, t]) for t, tower in enumerate(self.towers)]
        return torch.cat(logits, dim=1)

    @torch.no_grad()
    def start_from(self, network: Mapping[str, Tensor], tables: Mapping[str, Tensor]) -> None:
        """Takes over the first weights of ours, by name, and rows of tables, an id each."""
        pool = "levels.0.mixture.experts"
        expert: Any
        gate: Any
        tower: Any
        module: Any
        for layer, position in enumerate(range(0, 2 * len(HIDDEN), 2)):
            for number, expert in enumerate(self.experts):
                weight_DH = network[f"{pool}.weights.{layer}"][number]
                _copy(expert[position], weight_DH.T, network[f"{pool}.biases.{layer}"][number])
        weights_GED = network["levels.0.mixture.gate.logits.weights.0"]
        for gate, weight_ED in zip(self.gates, weights_GED, strict=True):
            gate.weight.copy_(weight_ED)
        for number, tower in enumerate(self.towers):
            for position, name in ((0, "mlp.layers.0"), (2, "logit")):
                ours = (network[f"towers.{number}.{name}.{kind}"] for kind in ("weight", "bias"))
                _copy(tower[position], *ours)
        groups = ((self.single, self.columns.single), (self.lists, self.columns.lists))
        for module, columns in groups:
            names = dict.fromkeys(column.table_name for column in columns)
            weights = module.split_embedding_weights() if module is not None else ()
            for name, weight in zip(names, weights, strict=True):
                weight.copy_(tables[name])

    def dense_parameters(self) -> Iterator[nn.Parameter]:
        """All but the tables, which update themselves in the backward pass."""
        for module in (self.experts, self.gates, self.towers):
            yield from module.parameters()


class PlainTorch:
    """Model and optimizer; `step` trains on one batch."""

    def __init__(self, workload: Workload, *, bf16: bool, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.model = Model(workload)
        self.optimizer = torch.optim.Adam(
            self.model.dense_parameters(), lr=LEARNING_RATE, fused=True
        )
        self.bf16 = bf16

    def step(self, batch: "Lookups") -> None:
        with self._autocast():
            logits_BT = self.model(batch.dense_BF, batch.lookups)
        losses = F.binary_cross_entropy_with_logits(
            logits_BT.float(), batch.labels_BT, reduction="none"
        )
        losses.mean(dim=0).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    @torch.no_grad()
    def predict(self, batch: "Lookups") -> Tensor:
        with self._autocast():
            logits_BT = self.model(batch.dense_BF, batch.lookups)
        return logits_BT.float().sigmoid()

    def _autocast(self) -> AbstractContextManager:
        return torch.autocast("cpu", torch.bfloat16) if self.bf16 else nullcontext()


class Lookups:
    def __init__(self, batch: Tensors) -> None:
        self.dense_BF, self.labels_BT = batch.dense_BF, batch.labels_BT
        offsets = torch.arange(batch.single_CB.numel() + 1)
        self.lookups = [(batch.single_CB.flatten(), offsets)]
        if batch.lists:
            self.lookups.append(_joined(batch.lists))

    def __len__(self) -> int:
        return len(self.dense_BF)


def _joined(lists: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    ends, start = [], 0
    for values, offsets in lists:
        ends.append(offsets[:-1] + start)
        start += len(values)
    ends.append(torch.tensor([start]))
    return torch.cat([values for values, _ in lists]), torch.cat(ends)


def tables_of(columns: Sequence[Ids], pooling: PoolingMode) -> nn.Module:
    rows = {column.table_name: column.rows for column in columns}
    names = list(rows)
    module = SplitTableBatchedEmbeddingBagsCodegen(
        [(n, DIM, EmbeddingLocation.HOST, ComputeDevice.CPU) for n in rows.values()],
        feature_table_map=[names.index(column.table_name) for column in columns],
        optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
        learning_rate=EMBEDDING_LEARNING_RATE,
        eps=EMBEDDING_EPS,
        pooling_mode=pooling,
    )
    for weight in module.split_embedding_weights():
        bound = len(weight) ** -0.5
        weight.uniform_(-bound, bound)
    return module


def _copy(linear: nn.Linear, weight: Tensor, bias: Tensor) -> None:
    linear.weight.copy_(weight)
    linear.bias.copy_(bias)
