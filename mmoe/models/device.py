"""Chooses where a model computes: the one place that turns `auto | cpu | cuda` into a device."""

from typing import Literal

import torch

from mmoe.config import DeviceKind
from mmoe.embeddings import torchrec_problem
from mmoe.parallel.launch.launcher import local_rank, local_ranks


def resolve_device(
    asked: DeviceKind = "auto", backend: Literal["auto", "torchrec", "plain"] = "auto"
) -> torch.device:
    """Returns the device that was asked for, or the best there is.

    Args:
        asked: `auto` takes a GPU where the model can run on it, else the CPU.
        backend: `training.embedding_backend`. On a GPU `torchrec` needs an FBGEMM with CUDA; `auto`
            runs without it.

    Returns:
        `cpu`, or `cuda:N` with N the rank on this machine as torchrun numbers it (0 without it).

    Raises:
        ValueError: `cuda` was asked for and cannot be had; says why, and the way out.

    Example:
        >>> from mmoe.models.device import resolve_device
        >>> resolve_device("cpu")
        device(type='cpu')
    """
    if asked == "cpu":
        return torch.device("cpu")
    problem = _cuda_problem(backend)
    if problem is None:
        return torch.device("cuda", local_rank())
    if asked == "cuda":
        raise ValueError(
            f"device is cuda, but {problem}; or use the CPU: training.device: cpu in the config, "
            "--device cpu on the command line"
        )
    return torch.device("cpu")


def describe_device(device: torch.device) -> str:
    """Returns a device's name for people: `cpu`, or `cuda:0 (NVIDIA H100)`."""
    if device.type != "cuda":
        return str(device)
    return f"{device} ({torch.cuda.get_device_name(device)})"


def _cuda_problem(backend: str) -> str | None:
    """Why no GPU can be used, and what to do about it; or None."""
    if not torch.cuda.is_available():
        if torch.version.cuda is None and torch.version.hip is None:
            return f"torch {torch.__version__} is built without CUDA: install a build with it"
        return "torch sees no CUDA device: look at nvidia-smi and CUDA_VISIBLE_DEVICES"
    ranks, devices = local_ranks(1), torch.cuda.device_count()
    if max(ranks, local_rank() + 1) > devices:
        return (
            f"this machine has {devices} CUDA device(s) for {ranks} ranks: start no more ranks on "
            "it than it has devices (torchrun --nproc-per-node)"
        )
    problem = torchrec_problem(torch.device("cuda")) if backend == "torchrec" else None
    if problem is not None:
        return (
            f"embedding_backend is torchrec and {problem}: install fbgemm-gpu and torchrec for "
            "CUDA (see the README), or set embedding_backend: auto"
        )
    return None
