"""Types, and checks that the operators share: every failure is a ValueError on one line.

Checks of values are those of the reference, in the kernels' words. They look only where that costs
nothing: on a GPU the host would have to wait for the values, and tensors of a trace have none.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from mmoe.errors import NotFinite

FLOAT_DTYPES = (torch.float32, torch.bfloat16, torch.float64)


def accumulate_dtype(dtype: torch.dtype) -> torch.dtype:
    """Returns the dtype sums are taken in, which is also the one kernels expect of weights."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def host_is_near(tensor: Tensor) -> bool:
    """Returns whether a value can be read without waiting: on the CPU, not in a trace."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def has_values(tensor: Tensor) -> bool:
    """Returns whether a look at the values costs nothing; fake and traced tensors have none."""
    plain = type(tensor) in (Tensor, torch.nn.Parameter)
    return plain and tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def for_autocast(tensor: Tensor) -> Tensor:
    """Casts once what autocast would cast for each product; float16 is left to who computes."""
    device = tensor.device.type
    if tensor.dtype != torch.float32 or not torch.is_autocast_enabled(device):
        return tensor
    dtype = torch.get_autocast_dtype(device)
    return tensor.to(dtype) if dtype == torch.bfloat16 else tensor


def check_dims(name: str, tensor: Tensor, letters: Sequence[str]) -> None:
    """Refuses a tensor whose number of dimensions is not that of its shape letters."""
    if tensor.dim() != len(letters):
        dimensions = "1 dimension" if len(letters) == 1 else f"{len(letters)} dimensions"
        raise ValueError(
            f"{name}: expected {dimensions} [{', '.join(letters)}], got shape {list(tensor.shape)}"
        )


def check_int32(name: str, tensor: Tensor, letters: Sequence[str]) -> None:
    """Refuses index tensors of other dimensions, or of another dtype than int32."""
    check_dims(name, tensor, letters)
    if tensor.dtype != torch.int32:
        raise ValueError(
            f"{name}: expected dtype torch.int32, got {tensor.dtype}; use .to(torch.int32)"
        )


def check_float(name: str, tensor: Tensor, letters: Sequence[str] | None = None) -> None:
    """Refuses other dimensions, where their letters are given, and dtypes kernels do not know."""
    if letters is not None:
        check_dims(name, tensor, letters)
    if tensor.dtype not in FLOAT_DTYPES:
        names = ", ".join(str(dtype) for dtype in FLOAT_DTYPES)
        raise ValueError(f"{name}: expected one of {names}, got {tensor.dtype}")


def check_shape(name: str, tensor: Tensor, expected: Sequence[int], like: str) -> None:
    """Refuses a shape that does not fit another argument's."""
    if list(tensor.shape) != list(expected):
        raise ValueError(
            f"{name}: expected shape {list(expected)} to fit {like}, got {list(tensor.shape)}"
        )


def check_device(name: str, tensor: Tensor, device: torch.device, like: str) -> None:
    """Refuses tensors on two devices."""
    if tensor.device != device:
        raise ValueError(
            f"{name}: expected device {device} as {like}, got {tensor.device}; move one with .to()"
        )


def check_alike(name: str, tensors: Sequence[Tensor]) -> None:
    """Refuses tensors that are not of the first one's shape, device and dtype."""
    first, like = tensors[0], f"{name}[0]"
    for number, tensor in enumerate(tensors[1:], start=1):
        own = f"{name}[{number}]"
        check_shape(own, tensor, first.shape, like)
        check_device(own, tensor, first.device, like)
        if tensor.dtype != first.dtype:
            raise ValueError(f"{own}: expected dtype {first.dtype} as {like}, got {tensor.dtype}")


def check_indices(name: str, noun: str, indices: Tensor, limit: int) -> None:
    """Refuses an index outside [-1, limit)."""
    if not has_values(indices):
        return
    wrong = (indices < -1) | (indices >= limit)
    if wrong.any():
        got = int(indices[wrong][0])
        raise ValueError(f"{name}: expected {noun} in [0, {limit}) or -1, got {got}")


def check_visible(visibility_GE: Tensor, k: int) -> None:
    """Refuses more picks than a gate sees experts."""
    if not has_values(visibility_GE):
        return
    for gate, seen in enumerate(visibility_GE.sum(1).tolist()):
        if seen < k:
            raise ValueError(f"k: expected at most {seen}, what gate {gate} sees, got {k}")


def check_no_nan(logits_BGE: Tensor) -> None:
    """Refuses NaN, and says in which gate and how often."""
    if not has_values(logits_BGE):
        return
    for gate, rows in enumerate(logits_BGE.isnan().any(-1).sum(0).tolist()):
        if rows:
            raise NotFinite(
                f"logits_BGE: expected numbers, got gate {gate}: {rows} rows have NaN logits; "
                "look for NaN in the gate's input and parameters"
            )


def check_samples(rows_P: Tensor, slots_BGK: Tensor) -> None:
    """Refuses a slot whose pair is not its own sample's."""
    if not has_values(slots_BGK) or rows_P.numel() == 0:
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
    if not has_values(lengths_B):
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
    if not has_values(offsets_B1):
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
