"""Steps with a sequence: DIN beside mean pooling, and beside DIN as it is written padded."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import torch.nn.functional as F
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)
from torch import Tensor, nn

from benchmarks.inputs.section import Measured, Section
from benchmarks.racing.clock import Clock
from benchmarks.racing.results import Target
from benchmarks.train.plain_torch import Model
from benchmarks.train.workloads import (
    BATCH,
    DIM,
    EMBEDDING_EPS,
    EMBEDDING_LEARNING_RATE,
    EXPERTS,
    HIDDEN,
    LEARNING_RATE,
    TOWER,
    WORKLOADS,
)
from mmoe.config import RunConfig, config_from_dict
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.rows.batch import Batch
from mmoe.datasets.rows.batch_source import BatchSource
from mmoe.models.build import build_ranker
from mmoe.parallel import ensure_process_group
from mmoe.train.optim import build_average, build_optimizer
from mmoe.train.state import Position, TrainingState
from mmoe.train.step import Step, StepProgram

_BIG = WORKLOADS["big"]
_ITEM = 2  # the candidate's column, whose table has 100,000 rows
_ITEMS = _BIG.ids[_ITEM].rows
_MOST, _MEAN = 50, 15
_HIDDEN = (36,)  # of DIN's activation unit, here and there
_STEPS, _SECONDS = 2, 40.0


@dataclass(frozen=True)
class _Steps:
    """Trains `_STEPS` steps of ours when it is called."""

    program: StepProgram
    batches: Sequence[Batch]

    def __call__(self) -> None:
        for batch in self.batches:
            self.program.train(Step.of([batch]))


def _config(encoder: str | None) -> RunConfig:
    """`big` and a sequence of its items; `encoder` None: a list feature in its place."""
    seen: dict[str, Any] = {"kind": "list", "name": "seen", "table": "items"}
    if encoder is not None:
        kind = {"kind": encoder, **({"hidden": list(_HIDDEN)} if encoder == "din" else {})}
        seen = {"kind": "sequence", "name": "seen", "columns": ["seen"], "target": ["item"],
                "max_length": _MOST, "encoder": kind}  # fmt: skip
    singles = [
        {"kind": "categorical", "name": ids.column, "encoding": "hash", "hash_size": ids.rows}
        for ids in _BIG.single
    ]
    singles[_ITEM] = {"kind": "categorical", "name": "item", "table": "items"}
    return config_from_dict(
        {
            "tables": [{"name": "items", "encoding": "hash", "hash_size": _ITEMS}],
            "features": [
                *({"kind": "numeric", "name": name} for name in _BIG.dense_columns),
                *singles,
                seen,
            ],
            "tasks": [{"name": task, "label": task} for task in _BIG.tasks],
            "model": {
                "embedding_dim": DIM,
                "num_experts": EXPERTS,
                "expert": {"hidden": list(HIDDEN)},
                "tower": {"hidden": [TOWER]},
            },
            "training": {
                "batch_size": BATCH,
                "optimizer": {"kind": "adam", "learning_rate": LEARNING_RATE},
                "embedding_optimizer": {
                    "kind": "rowwise_adagrad",
                    "learning_rate": EMBEDDING_LEARNING_RATE,
                    "eps": EMBEDDING_EPS,
                },
            },
        }
    )


def _log(lengths_N: np.ndarray) -> pa.Table:
    """Rows of `big`, and as many events of each."""
    rng, rows = np.random.default_rng(0), len(lengths_N)
    names = [ids.column for ids in _BIG.single]
    names[_ITEM] = "item"
    events_V = _zipf(rng, _ITEMS, int(lengths_N.sum()))
    offsets = np.concatenate([[0], np.cumsum(lengths_N)])
    columns: dict[str, Any] = {name: rng.normal(size=rows) for name in _BIG.dense_columns}
    columns |= {
        name: _zipf(rng, ids.rows, rows) for name, ids in zip(names, _BIG.single, strict=True)
    }
    columns["seen"] = pa.LargeListArray.from_arrays(offsets, pa.array(events_V))
    return pa.table(columns | {task: rng.integers(0, 2, rows) for task in _BIG.tasks})


def _zipf(rng: np.random.Generator, ids: int, count: int) -> np.ndarray:
    """Ids of which a few are met often: uniform in the logarithm."""
    return np.exp(rng.random(count) * np.log(ids)).astype(np.int64) - 1


def _ours(encoder: str | None, log: pa.Table) -> _Steps:
    ensure_process_group()
    config = _config(encoder)
    fitted = FeatureEncoder.fit(config, log, "log")
    data = BatchSource.of_table(log, fitted, "log", config).held
    assert data is not None
    torch.manual_seed(0)
    ranker = build_ranker(config, fitted).train()
    optimizer = build_optimizer(ranker.network, config.training.optimizer)
    average = build_average(ranker.network, config.training.ema_decay)
    state = TrainingState(ranker, optimizer, average, Position())
    batches = [data.batch(slice(n * BATCH, (n + 1) * BATCH)) for n in range(_STEPS)]
    return _Steps(StepProgram(state, config, total_steps=1_000_000), batches)


class _PaddedDIN(nn.Module):
    """The rival's: events padded to the longest of all, `[e, q, e − q, e ⊙ q]` of each."""

    def __init__(self) -> None:
        super().__init__()
        self.items = SplitTableBatchedEmbeddingBagsCodegen(
            [(_ITEMS, DIM, EmbeddingLocation.HOST, ComputeDevice.CPU)],
            optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
            learning_rate=EMBEDDING_LEARNING_RATE,
            eps=EMBEDDING_EPS,
            pooling_mode=PoolingMode.NONE,
        )
        self.unit = nn.Sequential(
            nn.Linear(4 * DIM, _HIDDEN[0]), nn.ReLU(), nn.Linear(_HIDDEN[0], 1)
        )

    def forward(self, item_B: Tensor, seen_BL: Tensor, there_BL: Tensor) -> Tensor:
        ids = torch.cat([item_B, seen_BL.flatten()])
        e_VD = self.items(ids, torch.arange(len(ids) + 1))
        q_BD, e_BLD = e_VD[: len(item_B)], e_VD[len(item_B) :].view(*seen_BL.shape, DIM)
        q_BLD = q_BD[:, None].expand_as(e_BLD)
        a_BL = self.unit(torch.cat([e_BLD, q_BLD, e_BLD - q_BLD, e_BLD * q_BLD], dim=2))[..., 0]
        pooled_BD = torch.bmm((a_BL * there_BL)[:, None], e_BLD)[:, 0]
        return torch.cat([q_BD, pooled_BD], dim=1)


class _Padded:
    """`big` in plain PyTorch on FBGEMM's tables, with DIN over padded events."""

    def __init__(self, batches: Sequence[Batch], lengths_N: np.ndarray) -> None:
        torch.manual_seed(0)
        singles = [ids for number, ids in enumerate(_BIG.ids) if number != _ITEM]
        # Two more columns of the input, the item and what was seen, as a workload's dense ones
        self.model = Model(replace(_BIG, ids=singles, dense=_BIG.dense + 2 * DIM))
        self.din = _PaddedDIN()
        dense = [*self.model.dense_parameters(), *self.din.unit.parameters()]
        self.optimizer = torch.optim.Adam(dense, lr=LEARNING_RATE, fused=True)
        self.inputs = [
            _padded(batch, lengths_N[n * BATCH : (n + 1) * BATCH])
            for n, batch in enumerate(batches)
        ]

    def __call__(self) -> None:
        for dense_BF, single, item_B, seen_BL, there_BL, labels_BT in self.inputs:
            x_BD = torch.cat([dense_BF, self.din(item_B, seen_BL, there_BL)], dim=1)
            logits_BT = self.model(x_BD, [single])
            losses = F.binary_cross_entropy_with_logits(logits_BT, labels_BT, reduction="none")
            losses.mean(dim=0).sum().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()


def _padded(batch: Batch, lengths_B: np.ndarray) -> tuple[Any, ...]:
    """A batch of ours in the rival's form."""
    singles = len(_BIG.ids) * BATCH
    ids_CB = batch.values[:singles].view(-1, BATCH)
    others = [number for number in range(len(_BIG.ids)) if number != _ITEM]
    flat = ids_CB[others].flatten()
    lengths = torch.from_numpy(lengths_B)
    there_BL = torch.arange(_MOST)[None] < lengths[:, None]
    seen_BL = torch.zeros(BATCH, _MOST, dtype=torch.int64)
    seen_BL[there_BL] = batch.values[singles:]
    seen_BL, item_B = seen_BL % _ITEMS, ids_CB[_ITEM] % _ITEMS
    single = (flat % torch.tensor([_BIG.ids[n].rows for n in others]).repeat_interleave(BATCH),
              torch.arange(len(flat) + 1))  # fmt: skip
    return batch.dense_BF, single, item_B, seen_BL, there_BL.float(), batch.labels_BT


def _measure(seeds: Sequence[int], say: Callable[[str], None]) -> Measured:
    clock = Clock(device="cpu", rounds=None, seconds=_SECONDS, say=say)
    rows = _STEPS * BATCH
    full = _log(np.full(rows, _MOST))
    times = clock.race(
        "a step with 50 events a row",
        {name: _ours(encoder, full) for name, encoder in
         (("din", "din"), ("mean", "mean"), ("list", None))},
    )  # fmt: skip
    draws = np.random.default_rng(1).geometric(1 / (_MEAN + 1), rows) - 1
    lengths_N = np.minimum(draws, _MOST)
    short = _log(lengths_N)
    ours = _ours("din", short)
    rivals = clock.race(
        f"a step with {lengths_N.mean():.1f} events a row, at most {_MOST}",
        {"din": ours, "padded": _Padded(ours.batches, lengths_N)},
    )
    seconds = {**times.seconds, **{f"{k}, short": v for k, v in rivals.seconds.items()}}
    return Measured(
        {
            "sequence_step_share": times.ratio("mean", "din").median,
            "sequence_step_share_of_list": times.ratio("list", "din").median,
            "vs_padded_din": rivals.ratio("padded", "din").median,
        },
        {
            "rows_per_second": {
                name: round(rows / float(np.median(one))) for name, one in seconds.items()
            },
            "mean_length": round(float(lengths_N.mean()), 2),
        },
    )


SECTION = Section(
    "sequence_speed",
    {
        "sequence_step_share": Target(0.6),
        "sequence_step_share_of_list": None,
        "vs_padded_din": Target(1.5),
    },
    _measure,
)
