"""Checks of the reference that look at values, in the kernels' words: a ValueError on one line.

They look only where that costs nothing: on a GPU the host would have to wait for the values, and
the tensors of a trace have none.
"""

from itertools import pairwise

import torch
from torch import Tensor

from mmoe.errors import NotFinite


def _readable(tensor: Tensor) -> bool:
    """Says whether a look at the values costs nothing."""
    plain = type(tensor) in (Tensor, torch.nn.Parameter)
    return plain and tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def check_indices(name: str, noun: str, indices: Tensor, limit: int) -> None:
    """Refuses an index outside [-1, limit)."""
    if not _readable(indices):
        return
    wrong = (indices < -1) | (indices >= limit)
    if wrong.any():
        got = int(indices[wrong][0])
        raise ValueError(f"{name}: expected {noun} in [0, {limit}) or -1, got {got}")


def check_visible(visibility_GE: Tensor, k: int) -> None:
    """Refuses more picks than a gate sees experts."""
    if not _readable(visibility_GE):
        return
    for gate, seen in enumerate(visibility_GE.sum(1).tolist()):
        if seen < k:
            raise ValueError(f"k: expected at most {seen}, what gate {gate} sees, got {k}")


def check_no_nan(logits_BGE: Tensor) -> None:
    """Refuses NaN, and says in which gate and how often."""
    if not _readable(logits_BGE):
        return
    for gate, rows in enumerate(logits_BGE.isnan().any(-1).sum(0).tolist()):
        if rows:
            raise NotFinite(
                f"logits_BGE: expected numbers, got gate {gate}: {rows} rows have NaN logits; "
                "look for NaN in the gate's input and parameters"
            )


def check_samples(rows_P: Tensor, slots_BGK: Tensor) -> None:
    """Refuses a slot whose pair is not its own sample's."""
    if not _readable(slots_BGK) or rows_P.numel() == 0:
        return
    samples_B11 = torch.arange(slots_BGK.shape[0]).view(-1, 1, 1)
    owners_BGK = rows_P[slots_BGK.clamp(min=0).long()]
    wrong_BGK = (slots_BGK >= 0) & (owners_BGK != samples_B11)
    if wrong_BGK.any():
        b, g, k = (int(index) for index in wrong_BGK.nonzero()[0])
        raise ValueError(
            f"slots_BGK: expected pairs of sample {b}, got pair {int(slots_BGK[b, g, k])} of "
            f"sample {int(owners_BGK[b, g, k])} in rows_P"
        )


def check_lengths(name: str, lengths_B: Tensor, rows: int, like: str, total: int, of: str) -> None:
    """Refuses lengths that are no whole numbers, one for each row, or sum to another number."""
    if lengths_B.dtype not in (torch.int32, torch.int64):
        raise ValueError(
            f"{name}: expected dtype torch.int32 or torch.int64, got {lengths_B.dtype}"
        )
    if list(lengths_B.shape) != [rows]:
        raise ValueError(
            f"{name}: expected shape {[rows]} to fit {like}, got {list(lengths_B.shape)}"
        )
    if not _readable(lengths_B):
        return
    if rows and int(lengths_B.min()) < 0:
        raise ValueError(f"{name}: expected lengths of at least 0, got {int(lengths_B.min())}")
    # A sum of large ones may come round to the right number
    if (rows and int(lengths_B.max()) > total) or int(lengths_B.sum()) != total:
        raise ValueError(
            f"{name}: expected lengths that sum to {total}, the rows of {of}, got "
            f"{int(lengths_B.sum())}"
        )


def check_bounds(name: str, offsets_B1: Tensor, total: int) -> None:
    """Refuses offsets that do not rise from 0 to the number of all rows."""
    if not _readable(offsets_B1):
        return
    if offsets_B1[0] != 0:
        raise ValueError(f"{name}: expected the first offset to be 0, got {int(offsets_B1[0])}")
    if offsets_B1[-1] != total:
        raise ValueError(
            f"{name}: expected the last offset to be {total}, got {int(offsets_B1[-1])}"
        )
    for row, (low, high) in enumerate(pairwise(offsets_B1.tolist())):
        if low > high:
            raise ValueError(
                f"{name}: expected offsets that rise, got {low} and then {high} for row {row}"
            )
