"""What is trained on: two sizes, their logs, configs, and batches of tensors; imports no mmoe."""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn

# What is trained: columns, tables and sizes

BATCH = 4096
DIM = 16
EXPERTS = 8
HIDDEN = (256, 128)
TOWER = 64
LEARNING_RATE = 1e-3  # Adam, over everything dense
EMBEDDING_LEARNING_RATE = 0.05  # row-wise Adagrad
EMBEDDING_EPS = 1e-8
# Of `big`, forward and backward: 3 · 2 · (8 · (330 · 256 + 256 · 128) + gates + towers), as in the
# measurements that the targets come from.
BIG_FLOPS_PER_ROW = 5.77e6


@dataclass(frozen=True)
class Ids:
    """A column of ids `0 … rows − 1`, Zipf-distributed."""

    column: str
    rows: int  # Of the embedding table
    length: int | None = None  # Ids of a row on average; None: exactly one, and no list
    table: str = ""  # Shared by all columns that name it; the column's own by default

    @property
    def table_name(self) -> str:
        return self.table or self.column


@dataclass(frozen=True)
class Workload:
    """A log and the sizes of the model that is trained on it."""

    name: str  # As in the keys
    share: float  # Of the rows that were asked for; wide logs are shorter
    ids: Sequence[Ids]  # Columns of ids, single ones first
    dense: int  # Number of dense columns
    # Labels; the first is the click, without which there is none of the others
    tasks: Sequence[str]
    steps: int  # Of a window

    @property
    def single(self) -> list[Ids]:
        return [column for column in self.ids if column.length is None]

    @property
    def lists(self) -> list[Ids]:
        return [column for column in self.ids if column.length is not None]

    @property
    def dense_columns(self) -> list[str]:
        return [f"d{number}" for number in range(self.dense)]

    @property
    def tables(self) -> dict[str, int]:
        return {column.table_name: column.rows for column in self.ids}

    @property
    def input_dim(self) -> int:
        return self.dense + DIM * len(self.ids)


def _singles(*groups: tuple[int, int]) -> list[Ids]:
    sizes = chain.from_iterable(repeat(rows, count) for count, rows in groups)
    return [Ids(f"c{number}", rows) for number, rows in enumerate(sizes)]


TASKS = ("click", "conversion")
WORKLOADS = {
    "big": Workload(
        name="big",
        share=1.0,
        ids=_singles((2, 1_000_000), (4, 100_000), (6, 10_000), (8, 1_000)),
        dense=10,
        tasks=TASKS,
        steps=20,
    ),
    "small": Workload(
        name="small", share=1.0, ids=_singles((20, 1_000)), dense=10, tasks=TASKS, steps=20
    ),
    # 200 features: 30 numbers, 148 ids, 20 lists and 2 sequences that share a table
    "ranker": Workload(
        name="ranker",
        share=0.25,
        ids=[
            *_singles((2, 1_000_000), (16, 100_000), (50, 10_000), (80, 1_000)),
            *(Ids(f"list{number}", 10_000, length=20) for number in range(20)),
            *(Ids(f"sequence{number}", 100_000, 50, table="item") for number in range(2)),
        ],
        dense=30,
        tasks=("click", "finish", "like", "share", "cart", "conversion"),
        steps=6,
    ),
    # For the tests
    "tiny": Workload(
        name="tiny",
        share=1.0,
        ids=[
            *_singles((2, 100)),
            *(Ids(f"sequence{number}", 50, 3, table="item") for number in range(2)),
        ],
        dense=3,
        tasks=TASKS,
        steps=2,
    ),
}


def mlp(width: int, hidden: Sequence[int]) -> nn.Sequential:
    """Linear layers with a ReLU after each."""
    sizes = zip((width, *hidden), hidden, strict=False)
    return nn.Sequential(*(layer for a, b in sizes for layer in (nn.Linear(a, b), nn.ReLU())))


# The hidden truth behind the labels: effects and factors of ids, functions of the numbers

FACTORS = 4
SIGNALS = 3  # main effects, products of factors, functions of the numbers
CARRIERS = 24  # columns of ids that matter; a wide log has many that do not
ZIPF = 1.05
SPREAD = 1.5  # standard deviation of every logit
RATES = (-1.0, 0.0)  # intercepts of the click and of what follows it
REFERENCE_ROWS = 20_000


@dataclass(frozen=True)
class Columns:
    """N rows: ids and, for lists, where each row's begin; numbers [N, F]."""

    ids: Mapping[str, np.ndarray]
    offsets: Mapping[str, np.ndarray]
    dense_NF: np.ndarray


class World:
    """Draws rows and labels of a workload; the same seed is the same truth, whatever is drawn.

    `logit_t = intercept + SPREAD · Σ_s m_ts · z_s`, m_t of length 1, with the signals z brought to
    mean 0 and variance 1: `z_0 = Σ_c effect_c(id_c)`, `z_1 = Σ_c <factor_c, factor_c+1>`,
    `z_2 = Σ_f w_f x_f + x_f x_f+1 + sin(2 x_f)`. Lists count with the mean of their ids.
    """

    def __init__(self, workload: Workload, seed: int) -> None:
        self.workload, self.seed = workload, seed
        self.carriers = _carriers(workload)
        # By table: a shared one means the same in all its columns
        self.latent = {
            column.table_name: _latents(column.rows, [seed, 1, number])
            for number, column in enumerate(self.carriers)
        }
        rng = np.random.default_rng([seed, 2])
        self.number_weights_F = rng.normal(size=workload.dense)
        mix_TS = rng.normal(size=(len(workload.tasks), SIGNALS))
        mix_TS[:, 0] += 1.5  # tasks are related
        self.mix_TS = mix_TS / np.linalg.norm(mix_TS, axis=1, keepdims=True)
        reference_NS = self._signals(self.draw(REFERENCE_ROWS, [seed, 3]))
        self.mean_S, self.scale_S = reference_NS.mean(axis=0), reference_NS.std(axis=0)

    def draw(self, rows: int, seed: Sequence[int]) -> Columns:
        rng = np.random.default_rng(seed)
        ids, offsets = {}, {}
        for column in self.workload.ids:
            count = rows
            if column.length is not None:
                lengths_N = rng.integers(1, 2 * column.length, rows)
                offsets[column.column] = np.concatenate([[0], lengths_N.cumsum()])
                count = int(lengths_N.sum())
            ids[column.column] = zipf_ids(rng, column.rows, count)
        dense_NF = rng.standard_normal((rows, self.workload.dense), np.float32)
        return Columns(ids, offsets, dense_NF)

    def labels(self, columns: Columns, seed: Sequence[int]) -> np.ndarray:
        """int8 [N, T]; whatever follows the click is 0 without one."""
        signals_NS = (self._signals(columns) - self.mean_S) / self.scale_S
        intercept_T = np.full(len(self.mix_TS), RATES[1])
        intercept_T[0] = RATES[0]
        logits_NT = intercept_T + SPREAD * signals_NS @ self.mix_TS.T
        dice_NT = np.random.default_rng(seed).random(logits_NT.shape)
        drawn_NT = dice_NT < 1 / (1 + np.exp(-logits_NT))
        drawn_NT[:, 1:] &= drawn_NT[:, :1]
        return drawn_NT.astype(np.int8)

    def _signals(self, columns: Columns) -> np.ndarray:
        x_NF, w_F = columns.dense_NF.astype(np.float64), self.number_weights_F
        signals_NS = np.zeros((len(x_NF), SIGNALS))
        before: np.ndarray | None = None
        for column in self.carriers:
            latent_NL = self.latent[column.table_name][columns.ids[column.column]]
            if column.length is not None:
                offsets = columns.offsets[column.column]
                lengths_N1 = np.diff(offsets)[:, None]
                latent_NL = np.add.reduceat(latent_NL, offsets[:-1]) / np.sqrt(lengths_N1)
            signals_NS[:, 0] += latent_NL[:, 0]
            if before is not None:
                signals_NS[:, 1] += (before[:, 1:] * latent_NL[:, 1:]).sum(axis=1)
            before = latent_NL
        signals_NS[:, 2] = (w_F * x_NF + np.sin(2 * x_NF)).sum(axis=1)
        signals_NS[:, 2] += (x_NF[:, 1:] * x_NF[:, :-1]).sum(axis=1)
        return signals_NS


def zipf_ids(rng: np.random.Generator, rows: int, count: int) -> np.ndarray:
    """int32 ids below `rows`, of probability ∝ rank ** -1.05, popular ones all over the table.

    By the inverse of the continuous distribution: a draw costs a power, not a search.
    """
    top = (rows + 1.0) ** (1 - ZIPF) - 1
    ranks = (1 + rng.random(count) * top) ** (1 / (1 - ZIPF))
    ranks = np.minimum(ranks.astype(np.int64) - 1, rows - 1)
    # A prime that divides no table's size: every rank has an id of its own
    return (ranks * 2_654_435_761 % rows).astype(np.int32)


def _carriers(workload: Workload) -> list[Ids]:
    """Every n-th column of ids, lists and sequences among them."""
    step = max(1, len(workload.ids) // CARRIERS)
    return list(workload.ids[::-step][::-1])


def _latents(rows: int, seed: Sequence[int]) -> np.ndarray:
    """Effect and factors of every id, float32 [rows, 1 + FACTORS]."""
    return np.random.default_rng(seed).standard_normal((rows, 1 + FACTORS), np.float32)


# Writes a workload as Parquet, once, and says where it lies

ROWS_PER_GROUP = 50_000
GROUPS_PER_FILE = 8
# Of the training rows of a full-sized log
VALIDATION_SHARE, TEST_SHARE = 1 / 40, 1 / 4


@dataclass(frozen=True)
class Log:
    workload: Workload
    folder: Path
    rows: int

    @property
    def train(self) -> Path:
        return self.folder / "train"

    @property
    def validation(self) -> Path:
        return self.folder / "validation"

    @property
    def test(self) -> Path:
        return self.folder / "test"


def write_log(workload: Workload, rows: int, cache: Path, *, held_out: int | None = None) -> Log:
    """Writes the log, unless the folder has it; a longer one begins like a shorter one.

    Validation and test rows are as many as for a log of `held_out` rows.
    """
    kept = max(1, round(rows * workload.share))
    base = round((held_out or rows) * workload.share)
    log = Log(workload, cache / f"{workload.name}-{kept}-{base}-0", kept)
    if not log.folder.exists():
        partial = log.folder.with_suffix(".part")
        shutil.rmtree(partial, ignore_errors=True)
        world = World(workload, seed=0)
        sizes = (kept, max(200, int(base * VALIDATION_SHARE)), max(200, int(base * TEST_SHARE)))
        for number, (part, size) in enumerate(
            zip(("train", "validation", "test"), sizes, strict=True)
        ):
            _write_part(world, partial / part, size, [0, 10 + number])
        partial.rename(log.folder)  # a killed run leaves no half log
    return log


def _write_part(world: World, folder: Path, rows: int, seed: list[int]) -> None:
    folder.mkdir(parents=True)
    starts = range(0, rows, ROWS_PER_GROUP)
    for file_number in range(0, len(starts), GROUPS_PER_FILE):
        path = folder / f"part-{file_number // GROUPS_PER_FILE:03d}.parquet"
        writer: pq.ParquetWriter | None = None
        for group in range(file_number, min(file_number + GROUPS_PER_FILE, len(starts))):
            size = min(ROWS_PER_GROUP, rows - starts[group])
            # A whole group is drawn and cut, so that a shorter log begins like a longer one
            seeds = [*seed, group, 0], [*seed, group, 1]
            table = draw_table(world, ROWS_PER_GROUP, seeds).slice(0, size)
            writer = writer or pq.ParquetWriter(path, table.schema)
            writer.write_table(table)
        if writer is not None:
            writer.close()


def draw_table(world: World, rows: int, seeds: Sequence[Sequence[int]]) -> pa.Table:
    columns = world.draw(rows, seeds[0])
    labels_NT = world.labels(columns, seeds[1])
    arrays = {c.column: _ids(columns, c.column) for c in world.workload.ids}
    for number, name in enumerate(world.workload.dense_columns):
        arrays[name] = pa.array(np.ascontiguousarray(columns.dense_NF[:, number]))
    for number, task in enumerate(world.workload.tasks):
        arrays[task] = pa.array(np.ascontiguousarray(labels_NT[:, number]))
    return pa.table(arrays)


def _ids(columns: Columns, name: str) -> pa.Array:
    values = pa.array(columns.ids[name])
    if name not in columns.offsets:
        return values
    return pa.ListArray.from_arrays(pa.array(columns.offsets[name].astype(np.int32)), values)


# The config with which our side trains a workload

FOREVER = 1_000_000  # epochs, and epochs without gain
Encoding = Literal["hash", "vocabulary"]


def raw_config(
    log: Log, *, precision: str, encoding: Encoding = "hash", epochs: int = FOREVER, seed: int = 0
) -> dict[str, Any]:
    """A config as YAML has it."""
    workload = log.workload
    return {
        "name": workload.name, "seed": seed,
        "data": {
            "split": {"by": "file"}, "train": str(log.train), "validation": str(log.validation),
            "test": str(log.test),
        },
        "tables": _shared_tables(workload, encoding),
        "features": [
            *({"kind": "numeric", "name": name} for name in workload.dense_columns),
            *(_feature(column, encoding) for column in workload.ids),
        ],
        "tasks": [{"name": task, "label": task} for task in workload.tasks],
        "model": {
            "kind": "mmoe", "embedding_dim": DIM, "num_experts": EXPERTS,
            "expert": {"hidden": list(HIDDEN), "activation": "relu"}, "gate": {"kind": "softmax"},
            "tower": {"hidden": [TOWER], "activation": "relu"},
        },
        "training": {
            "epochs": epochs, "patience": FOREVER, "batch_size": BATCH, "eval_batch_size": BATCH,
            "precision": precision, "optimizer": {"kind": "adam", "learning_rate": LEARNING_RATE},
            "embedding_optimizer": {
                "kind": "rowwise_adagrad", "learning_rate": EMBEDDING_LEARNING_RATE,
                "eps": EMBEDDING_EPS,
            },
        },
    }  # fmt: skip


def _feature(column: Ids, encoding: Encoding) -> dict[str, Any]:
    kind = "categorical" if column.length is None else "list"
    feature: dict[str, Any] = {"kind": kind, "name": column.column}
    if kind == "list":
        feature["pooling"] = "mean"
    if column.table:
        return {**feature, "table": column.table}
    return {**feature, **_rows(column, encoding)}


def _shared_tables(workload: Workload, encoding: Encoding) -> list[Mapping[str, Any]]:
    shared = {column.table: column for column in workload.ids if column.table}
    return [{"name": name, **_rows(column, encoding)} for name, column in shared.items()]


def _rows(column: Ids, encoding: Encoding) -> dict[str, Any]:
    if encoding == "vocabulary":
        return {"encoding": "vocabulary"}
    return {"encoding": "hash", "hash_size": column.rows}


# Which contestant a process is


@dataclass(frozen=True, kw_only=True)
class Spec:
    """A contestant."""

    kind: str  # mmoe, plain, torch_rechub or deepctr
    workload: str
    folder: str  # Of its log
    rows: int  # Of its log
    precision: str  # fp32 or bf16
    threads: int  # Of torch, in each process
    out: str  # An empty folder for what it writes
    ranks: int = 1  # Processes that train together
    onednn: bool = False  # fp32 products through oneDNN
    overrides: tuple[str, ...] = ()  # `key.path=value` for our config
    steps: int = 0  # Of a window; 0: as the workload says

    @property
    def log(self) -> Log:
        return Log(self.sizes, Path(self.folder), self.rows)

    @property
    def sizes(self) -> Workload:
        return WORKLOADS[self.workload]

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Spec":
        raw: Mapping[str, Any] = json.loads(text)
        return cls(**{**raw, "overrides": tuple(raw["overrides"])})


# A log as tensors, ready before the first step: what alternatives are given for nothing


@dataclass(frozen=True)
class Tensors:
    """B rows."""

    dense_BF: Tensor  # float32
    single_CB: Tensor  # int64 [C, B], columns of one id
    # Ids, int64 [V], and offsets, int64 [B + 1], of every list column
    lists: list[tuple[Tensor, Tensor]]
    labels_BT: Tensor  # float32


def read_batches(
    workload: Workload, folder: Path, *, seed: int | Sequence[int] | None = None
) -> list[Tensors]:
    """Every row once in batches of `BATCH`, the last one shorter; a seed shuffles them."""
    table = pq.read_table(folder)
    order = np.arange(table.num_rows)
    if seed is not None:
        order = np.random.default_rng(seed).permutation(order)
    dense_NF = _matrix(table, workload.dense_columns, np.float32)
    labels_NT = _matrix(table, list(workload.tasks), np.float32)
    single_NC = _matrix(table, [column.column for column in workload.single], np.int32)
    lists = [_ragged(table, column) for column in workload.lists]
    batches = []
    for start in range(0, len(order), BATCH):
        rows_B = order[start : start + BATCH]
        batches.append(
            Tensors(
                torch.from_numpy(dense_NF[rows_B]),
                torch.from_numpy(np.ascontiguousarray(single_NC[rows_B].T, np.int64)),
                [_gather(values, offsets, rows_B) for values, offsets in lists],
                torch.from_numpy(labels_NT[rows_B]),
            )
        )
    return batches


def _matrix(table: pa.Table, names: list[str], dtype: type) -> np.ndarray:
    columns = [table[name].to_numpy().astype(dtype, copy=False) for name in names]
    return np.stack(columns, axis=1) if columns else np.zeros((table.num_rows, 0), dtype)


def _ragged(table: pa.Table, column: Ids) -> tuple[np.ndarray, np.ndarray]:
    lists = table[column.column].combine_chunks()
    lists = lists if isinstance(lists, pa.ListArray) else pa.concat_arrays(lists.chunks)
    offsets = lists.offsets.to_numpy().astype(np.int64)
    return lists.values.to_numpy(), offsets


def _gather(values: np.ndarray, offsets: np.ndarray, rows_B: np.ndarray) -> tuple[Tensor, Tensor]:
    starts_B, lengths_B = offsets[rows_B], offsets[rows_B + 1] - offsets[rows_B]
    ends_B1 = np.concatenate([[0], lengths_B.cumsum()])
    index = np.repeat(starts_B - ends_B1[:-1], lengths_B) + np.arange(ends_B1[-1])
    return torch.from_numpy(values[index].astype(np.int64)), torch.from_numpy(ends_B1)
