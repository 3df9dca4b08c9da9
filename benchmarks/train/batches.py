"""A log as tensors, ready before the first step: what alternatives are given for nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from benchmarks.train.workloads import BATCH, Ids, Workload


@dataclass(frozen=True)
class Tensors:
    """B rows.

    Attributes:
        dense_BF: float32.
        single_CB: int64 [C, B], columns of one id.
        lists: Ids, int64 [V], and offsets, int64 [B + 1], of every list column.
        labels_BT: float32.
    """

    dense_BF: Tensor
    single_CB: Tensor
    lists: list[tuple[Tensor, Tensor]]
    labels_BT: Tensor


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
