"""Rows of a table that is only looked up, stored as they were trained or in fewer bits."""

from typing import Literal, Protocol

import torch
from torch import Tensor

RowPrecision = Literal["fp32", "fp16", "int8"]

_SCALE_AND_BIAS = 8  # bytes at the end of an int8 row: two fp32


class StoredRows(Protocol):
    """Interface of rows stored in some precision; sums are fp32."""

    stored: Tensor

    def fill(self, start: int, block_HD: Tensor) -> Tensor:
        """Stores fp32 rows as rows `start`, `start + 1`, …

        Returns:
            `fits_H`: False where a row has a number that is not finite, or not in this precision.
        """
        ...

    def pool(self, ids_V: Tensor, bounds: Tensor, weights_V: Tensor | None) -> Tensor:
        """Returns `sums_BD`: Σ e, or Σ w·e, over each bag's ids; zeros where it has none.

        Args:
            ids_V: int64, bag after bag.
            bounds: Where each bag begins, and where the last one ends, int64 [B + 1].
            weights_V: float32.
        """
        ...


class Int8Rows:
    """Rows in int8: `e ≈ scale · q + bias`, q in 0 … 255, scale and bias in fp32 for each row.

    `bias = min(e)`, `scale = (max(e) - min(e)) / 255`, so that a number is off by no more
    than half a scale (and 1e-8, which torch adds to a row's range so that none divides by zero).
    FBGEMM's own inference tables keep scale and bias in fp16, which below 6e-5 has few bits left:
    too few for rows of large tables, which begin within ±1/√rows.

    Args:
        rows, dim: Of the table.
        device: The CPU, or `meta`: where it has no memory yet.

    Example:
        >>> import torch
        >>> rows = Int8Rows(2, 4)
        >>> rows.fill(0, torch.tensor([[0.0, 0.0, 0.0, 0.0], [0.0, 25.5, 5.1, 10.2]]))
        tensor([True, True])
        >>> rows.pool(torch.tensor([1, 1]), torch.tensor([0, 0, 2]), None)
        tensor([[ 0.0000,  0.0000,  0.0000,  0.0000],
                [ 0.0000, 51.0000, 10.2000, 20.4000]])

    Source: Guan et al. 2019, Post-Training 4-bit Quantization on Embedding Tables ("ASYM");
    torch's `quantized::embedding_bag_byte` operators, which are FBGEMM's kernels.
    """

    def __init__(self, rows: int, dim: int, device: torch.device | None = None) -> None:
        self.stored = torch.empty(rows, row_bytes(dim, "int8"), dtype=torch.uint8, device=device)

    def fill(self, start: int, block_HD: Tensor) -> Tensor:
        """Stores fp32 rows from `start` on; returns which of them fit."""
        packed_HP = torch.ops.quantized.embedding_bag_byte_prepack(block_HD)
        self.stored[start : start + len(block_HD)] = packed_HP
        tails_H8 = packed_HP[:, -_SCALE_AND_BIAS:].clone(memory_format=torch.contiguous_format)
        scales_H2 = tails_H8.view(torch.float32)
        return block_HD.isfinite().all(dim=1) & scales_H2.isfinite().all(dim=1)

    def pool(self, ids_V: Tensor, bounds: Tensor, weights_V: Tensor | None) -> Tensor:
        """Returns `sums_BD`: Σ e, or Σ w·e, over each bag's ids."""
        return torch.ops.quantized.embedding_bag_byte_rowwise_offsets(
            self.stored,
            ids_V,
            bounds,
            mode=0,  # sum
            per_sample_weights=weights_V,
            include_last_offset=True,
        )


class Fp16Rows:
    """Rows rounded to fp16; sums are taken in fp32.

    Args:
        rows, dim: Of the table.
        device: Where it lies.
    """

    def __init__(self, rows: int, dim: int, device: torch.device | None = None) -> None:
        self.stored = torch.empty(rows, dim, dtype=torch.float16, device=device)

    def fill(self, start: int, block_HD: Tensor) -> Tensor:
        """Stores fp32 rows from `start` on; returns which of them fit."""
        block16_HD = block_HD.to(torch.float16)
        self.stored[start : start + len(block_HD)] = block16_HD
        return block16_HD.isfinite().all(dim=1)

    def pool(self, ids_V: Tensor, bounds: Tensor, weights_V: Tensor | None) -> Tensor:
        """Returns `sums_BD`: Σ e, or Σ w·e, over each bag's ids."""
        # A bag of fp16 rows is summed into fp16; so its rows are widened first
        rows_VD = self.stored[ids_V].float()
        return _sums(
            rows_VD if len(ids_V) else rows_VD.new_zeros(1, rows_VD.shape[1]),
            torch.arange(len(ids_V), device=ids_V.device),
            bounds,
            weights_V,
        )


class Fp32Rows:
    """Rows as they were trained.

    Args:
        rows, dim: Of the table.
        device: Where it lies.
    """

    def __init__(self, rows: int, dim: int, device: torch.device | None = None) -> None:
        self.stored = torch.empty(rows, dim, device=device)

    def fill(self, start: int, block_HD: Tensor) -> Tensor:
        """Stores fp32 rows from `start` on; returns which of them fit."""
        self.stored[start : start + len(block_HD)] = block_HD
        return block_HD.isfinite().all(dim=1)

    def pool(self, ids_V: Tensor, bounds: Tensor, weights_V: Tensor | None) -> Tensor:
        """Returns `sums_BD`: Σ e, or Σ w·e, over each bag's ids."""
        return _sums(self.stored, ids_V, bounds, weights_V)


def stored_rows(
    rows: int, dim: int, precision: RowPrecision, device: torch.device | None = None
) -> StoredRows:
    """Makes room for so many rows, not filled; int8 lies on the CPU, where torch has kernels."""
    if precision == "int8":
        return Int8Rows(rows, dim, device if device is not None and device.type == "meta" else None)
    return (Fp16Rows if precision == "fp16" else Fp32Rows)(rows, dim, device)


def row_bytes(dim: int, precision: str) -> int:
    """Returns the bytes of one row.

    Example:
        >>> row_bytes(64, "fp32"), row_bytes(64, "fp16"), row_bytes(64, "int8")
        (256, 128, 72)
    """
    return dim + _SCALE_AND_BIAS if precision == "int8" else dim * {"fp16": 2, "fp32": 4}[precision]


def _sums(table_RD: Tensor, ids_V: Tensor, bounds: Tensor, weights_V: Tensor | None) -> Tensor:
    """One id after the other, as FBGEMM's fused tables add them up: to the same bits on the CPU."""
    # Not F.embedding_bag, whose checks take longer than one row's sum
    scale_by_frequency, sum_of_ids, sparse, last_offset = False, 0, False, True
    return torch.embedding_bag(
        table_RD, ids_V, bounds, scale_by_frequency, sum_of_ids, sparse, weights_V, last_offset
    )[0]
