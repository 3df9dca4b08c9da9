"""Types, and checks that the public operators share: every failure is a ValueError on one line."""

from collections.abc import Sequence

import torch

FLOAT_DTYPES = (torch.float32, torch.bfloat16, torch.float64)


def accumulate_dtype(dtype: torch.dtype) -> torch.dtype:
    """Returns the dtype sums are taken in, which is also the one kernels expect of weights."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def host_is_near(tensor: torch.Tensor) -> bool:
    """Returns whether a value can be read without waiting: on the CPU, not in a trace."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def for_autocast(tensor: torch.Tensor) -> torch.Tensor:
    """Casts once what autocast would cast for each product; float16 is left to who computes."""
    device = tensor.device.type
    if tensor.dtype != torch.float32 or not torch.is_autocast_enabled(device):
        return tensor
    dtype = torch.get_autocast_dtype(device)
    return tensor.to(dtype) if dtype == torch.bfloat16 else tensor


def check_dims(name: str, tensor: torch.Tensor, letters: Sequence[str]) -> None:
    """Refuses a tensor whose number of dimensions is not that of its shape letters."""
    if tensor.dim() != len(letters):
        dimensions = "1 dimension" if len(letters) == 1 else f"{len(letters)} dimensions"
        raise ValueError(
            f"{name}: expected {dimensions} [{', '.join(letters)}], got shape {list(tensor.shape)}"
        )


def check_int32(name: str, tensor: torch.Tensor) -> None:
    """Refuses index tensors of another dtype than int32."""
    if tensor.dtype != torch.int32:
        raise ValueError(
            f"{name}: expected dtype torch.int32, got {tensor.dtype}; use .to(torch.int32)"
        )


def check_float(name: str, tensor: torch.Tensor) -> None:
    """Refuses dtypes the kernels do not know."""
    if tensor.dtype not in FLOAT_DTYPES:
        names = ", ".join(str(dtype) for dtype in FLOAT_DTYPES)
        raise ValueError(f"{name}: expected one of {names}, got {tensor.dtype}")


def check_shape(name: str, tensor: torch.Tensor, expected: Sequence[int], like: str) -> None:
    """Refuses a shape that does not fit another argument's."""
    if list(tensor.shape) != list(expected):
        raise ValueError(
            f"{name}: expected shape {list(expected)} to fit {like}, got {list(tensor.shape)}"
        )


def check_device(name: str, tensor: torch.Tensor, device: torch.device, like: str) -> None:
    """Refuses tensors on two devices."""
    if tensor.device != device:
        raise ValueError(
            f"{name}: expected device {device} as {like}, got {tensor.device}; move one with .to()"
        )
