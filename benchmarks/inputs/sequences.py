"""What a model gains by sequences, and how long a step with one takes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import torch.nn.functional as F
from fbgemm_gpu.split_table_batched_embeddings_ops_common import PoolingMode
from torch import Tensor, nn

from benchmarks.inputs.section import Measured, Section, log_loss, predictions, split_rows
from benchmarks.racing.harness import Clock, Target
from benchmarks.train.ours import LogSteps
from benchmarks.train.plain_torch import Model, tables_of
from benchmarks.train.workloads import BATCH, DIM, LEARNING_RATE, WORKLOADS, Ids, Log, raw_config
from mmoe.config import RunConfig, config_from_dict
from mmoe.datasets.rows.batch import Batch
from mmoe.metrics.auc import auc
from mmoe.parallel import ensure_process_group

# A generated log of people who look at items, and what they looked at before

_ITEMS, _CATEGORIES, _INTERESTS = 2_000, 40, 4
_MEAN_LENGTH, _MOST = 15, 50
_HOUR = 3600.0
_FADES_AFTER = 72 * _HOUR


def sequence_log(rows: int, seed: int, *, interest: bool) -> tuple[pa.Table, np.ndarray]:
    """Generates rows: a candidate, the events before it with their times, and a click.

    Everybody has a few interests, categories, and looks at items of these most of the time. Where
    `interest` is set, what is clicked is what goes with recent events of the candidate's own
    category, `1.5 ln(1 + Σ exp(−age / 72 h))`; else people click what is popular, whatever they saw
    before.

    Returns the rows, and the probability of each click.
    """
    rng = np.random.default_rng(seed)
    category_I = rng.integers(0, _CATEGORIES, _ITEMS)
    by_category = [np.flatnonzero(category_I == c) for c in range(_CATEGORIES)]
    appeal_I = rng.normal(scale=0.7, size=_ITEMS)
    interests = rng.integers(0, _CATEGORIES, (rows, _INTERESTS))
    lengths_N = np.minimum(rng.geometric(1 / _MEAN_LENGTH, rows) - 1, _MOST)
    candidate_N = _items(rng, interests, np.arange(rows), by_category, share=0.4)
    row_V = np.repeat(np.arange(rows), lengths_N)
    event_V = _items(rng, interests, row_V, by_category, share=0.8)
    age_V = rng.exponential(_FADES_AFTER, len(row_V))
    order_V = np.lexsort((-age_V, row_V))  # the oldest first
    age_V = age_V[order_V]
    same_V = category_I[event_V] == category_I[candidate_N[row_V]]
    felt_N = np.bincount(row_V, same_V * np.exp(-age_V / _FADES_AFTER), minlength=rows)
    logit_N = -1.6 + appeal_I[candidate_N] + (1.5 * np.log1p(felt_N) if interest else 0.0)
    probability_N = 1 / (1 + np.exp(-logit_N))
    now_N = rng.integers(1_700_000_000, 1_710_000_000, rows)
    offsets = np.concatenate([[0], np.cumsum(lengths_N)])

    def lists(values_V: np.ndarray) -> pa.Array:
        return pa.LargeListArray.from_arrays(offsets, pa.array(values_V))

    table = pa.table({
        "item": candidate_N, "category": category_I[candidate_N], "hour": (now_N // 3600) % 24,
        "now": now_N, "seen_items": lists(event_V), "seen_categories": lists(category_I[event_V]),
        "seen_times": lists((now_N[row_V] - age_V).astype(np.int64)),
        "click": (rng.random(rows) < probability_N).astype(np.int64),
    })  # fmt: skip
    return table, probability_N


def _items(
    rng: np.random.Generator,
    interests: np.ndarray,
    row_V: np.ndarray,
    by_category: list[np.ndarray],
    share: float,
) -> np.ndarray:
    """Items for these rows: so large a share of one of the row's interests, the others anything."""
    own_V = interests[row_V, rng.integers(0, interests.shape[1], len(row_V))]
    any_V = rng.integers(0, len(by_category), len(row_V))
    category_V = np.where(rng.random(len(row_V)) < share, own_V, any_V)
    place_V = rng.random(len(row_V))
    sizes = np.array([len(items) for items in by_category])
    starts = np.cumsum(sizes) - sizes
    in_order = np.concatenate(by_category)
    return in_order[starts[category_V] + (place_V * sizes[category_V]).astype(np.int64)]


# Steps with a sequence: DIN beside mean pooling, and beside DIN as it is written padded

_BIG = WORKLOADS["big"]
_ITEM = 2  # the candidate's column, whose table has 100,000 rows
_SPEED_ITEMS = _BIG.ids[_ITEM].rows
_SPEED_MOST, _MEAN = 50, 15
_HIDDEN = (36,)  # of DIN's activation unit, here and there
_STEPS, _SECONDS = 2, 40.0


def _config(encoder: str | None) -> RunConfig:
    """`big` and a sequence of its items; `encoder` None: a list feature in its place."""
    seen: dict[str, Any] = {"kind": "list", "name": "seen", "table": "items"}
    if encoder is not None:
        kind = {"kind": encoder, **({"hidden": list(_HIDDEN)} if encoder == "din" else {})}
        seen = {"kind": "sequence", "name": "seen", "columns": ["seen"], "target": ["item"],
                "max_length": _SPEED_MOST, "encoder": kind}  # fmt: skip
    raw = raw_config(Log(_BIG, Path("unused"), 0), precision="fp32")
    numbers, singles = raw["features"][: _BIG.dense], raw["features"][_BIG.dense :]
    singles[_ITEM] = {"kind": "categorical", "name": "item", "table": "items"}
    return config_from_dict({
        **raw, "data": {},
        "tables": [{"name": "items", "encoding": "hash", "hash_size": _SPEED_ITEMS}],
        "features": [*numbers, *singles, seen],
    })  # fmt: skip


def _log(lengths_N: np.ndarray) -> pa.Table:
    rng, rows = np.random.default_rng(0), len(lengths_N)
    names = [ids.column for ids in _BIG.single]
    names[_ITEM] = "item"
    events_V = _zipf(rng, _SPEED_ITEMS, int(lengths_N.sum()))
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


class _PaddedDIN(nn.Module):
    """The rival's: events padded to the longest of all, `[e, q, e − q, e ⊙ q]` of each."""

    def __init__(self) -> None:
        super().__init__()
        self.items = tables_of([Ids("item", _SPEED_ITEMS)], PoolingMode.NONE)
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
    singles = len(_BIG.ids) * BATCH
    ids_CB = batch.values[:singles].view(-1, BATCH)
    others = [number for number in range(len(_BIG.ids)) if number != _ITEM]
    flat = ids_CB[others].flatten()
    lengths = torch.from_numpy(lengths_B)
    there_BL = torch.arange(_SPEED_MOST)[None] < lengths[:, None]
    seen_BL = torch.zeros(BATCH, _SPEED_MOST, dtype=torch.int64)
    seen_BL[there_BL] = batch.values[singles:]
    seen_BL, item_B = seen_BL % _SPEED_ITEMS, ids_CB[_ITEM] % _SPEED_ITEMS
    single = (flat % torch.tensor([_BIG.ids[n].rows for n in others]).repeat_interleave(BATCH),
              torch.arange(len(flat) + 1))  # fmt: skip
    return batch.dense_BF, single, item_B, seen_BL, there_BL.float(), batch.labels_BT


def _measure(seeds: Sequence[int], say: Callable[[str], None]) -> Measured:
    ensure_process_group()
    clock = Clock(device="cpu", rounds=None, seconds=_SECONDS, say=say)
    rows = _STEPS * BATCH
    full = _log(np.full(rows, _SPEED_MOST))
    times = clock.race(
        "a step with 50 events a row",
        {name: LogSteps(_config(encoder), full) for name, encoder in
         (("din", "din"), ("mean", "mean"), ("list", None))},
    )  # fmt: skip
    draws = np.random.default_rng(1).geometric(1 / (_MEAN + 1), rows) - 1
    lengths_N = np.minimum(draws, _SPEED_MOST)
    short = _log(lengths_N)
    ours = LogSteps(_config("din"), short)
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


SEQUENCE_SPEED_SECTION = Section(
    "sequence_speed",
    {
        "sequence_step_share": Target(0.6),
        "sequence_step_share_of_list": None,
        "vs_padded_din": Target(1.5),
    },
    _measure,
)


# What attention to the events that matter is worth, and what it costs where none does

_ROWS, _TEST_ROWS = 120_000, 20_000
_HARM_ROWS = 180_000  # of the logs on which there is nothing to find
ENCODERS = ("mean", "din", "transformer")


def config(encoder: str) -> Mapping[str, Any]:
    """The same model whatever the encoder: of the sizes that `mmoe init` gives so many rows.

    Beside these the tables decay, without which events are learnt by heart, the mean's as well.
    """
    return {
        "features": [
            {"kind": "categorical", "name": "item"}, {"kind": "categorical", "name": "category"},
            {"kind": "categorical", "name": "hour"},
            {
                "kind": "sequence", "name": "seen", "columns": ["seen_items", "seen_categories"],
                "target": ["item", "category"], "times": "seen_times", "now": "now",
                "max_length": 50, "encoder": encoder,
            },
        ],
        "tasks": [{"name": "click", "label": "click"}],
        "model": {
            "embedding_dim": 8, "num_experts": 4,
            "expert": {"hidden": [256, 128], "dropout": 0.3}, "tower": {"hidden": [32]},
        },
        "training": {
            "epochs": 4, "batch_size": 512, "patience": 4, "monitor": "mean.logloss",
            "ema_decay": 0.99,
            "optimizer": {
                "kind": "adamw", "learning_rate": 0.003, "weight_decay": 0.5,
                "schedule": "cosine",
            },
            "embedding_optimizer": {
                "kind": "rowwise_adagrad", "learning_rate": 0.1, "weight_decay": 4e-4,
            },
        },
    }  # fmt: skip


def _sequences_measure(seeds: Sequence[int], say: Callable[[str], None]) -> Measured:
    gaps: dict[str, list[float]] = {name: [] for name in ENCODERS}
    harms: list[float] = []
    for seed in seeds:
        log, probability_N = sequence_log(_ROWS + _TEST_ROWS, seed, interest=True)
        splits, truth = split_rows(log.slice(0, _ROWS), log.slice(_ROWS)), probability_N[_ROWS:]
        oracle = log_loss(truth, truth)
        for name in ENCODERS:
            found = predictions(config(name), splits, seed)["click"]
            gaps[name].append(log_loss(truth, found) - oracle)
        harms.append(_harm(seed))
        shown = ", ".join(f"{name} +{gaps[name][-1]:.4f}" for name in ENCODERS)
        say(f"seed {seed}: log-loss {oracle:.4f} at best, {shown}; harm {harms[-1]:+.5f} AUC")
    mean = np.mean(gaps["mean"])
    return Measured(
        {
            "din_gap_ratio": float(np.mean(gaps["din"]) / mean),
            "transformer_gap_ratio": float(np.mean(gaps["transformer"]) / mean),
            "din_harm": float(np.mean(harms)),
        },
        {"log_loss_above_oracle": gaps, "din_harm": harms},
    )


def _harm(seed: int) -> float:
    """AUC of DIN less that of the mean where events say nothing of the click."""
    log, _ = sequence_log(_HARM_ROWS + _TEST_ROWS, 1000 + seed, interest=False)
    splits = split_rows(log.slice(0, _HARM_ROWS), log.slice(_HARM_ROWS))
    labels = np.asarray(log["click"])[_HARM_ROWS:]
    din, mean = (predictions(config(name), splits, seed)["click"] for name in ("din", "mean"))
    aucs = auc(labels, din), auc(labels, mean)
    assert aucs[0] is not None and aucs[1] is not None, "the test rows have clicks, and others"
    return aucs[0] - aucs[1]


SEQUENCES_SECTION = Section(
    "sequences",
    {
        "din_gap_ratio": Target(0.5, at_most=True),
        "transformer_gap_ratio": Target(0.5, at_most=True),
        "din_harm": Target(-0.0005),
    },
    _sequences_measure,
)
