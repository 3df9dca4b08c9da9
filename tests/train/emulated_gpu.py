"""A GPU that is not there: tensors on the CPU that say they are elsewhere, and computed with care.

The device is called `meta`, for which torch has everything but kernels. Its tensors hold real
numbers, so a step can be compared with the CPU's; whatever mixes tensors of both sides as CUDA
would not allow raises; and what the host would have to wait for is noted. (CUDA's autocast, streams
and pinned memory are not emulated.)
"""

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

GPU = torch.device("meta")
_CPU = torch.device("cpu")
_COPIES = ("_to_copy", "copy_", "_foreach_copy_")
# A tensor on the CPU may say which rows of one on a GPU are meant: it is copied there, a wait
_INDEXING = ("index", "index_put_", "_index_put_impl_")
# What comes out has a size that the host has to know
_SIZED_BY_VALUES = ("nonzero", "_unique2", "unique_dim", "_coalesce", "masked_select")


class OnGPU(Tensor):
    """Stands on the GPU; its numbers are in `inner`."""

    inner: Tensor
    waits: list[str]

    @staticmethod
    def __new__(cls, inner: Tensor, waits: list[str]) -> "OnGPU":
        settings: dict[str, Any] = {"dtype": inner.dtype, "device": GPU, "layout": inner.layout}
        if inner.layout == torch.strided:
            settings["strides"], settings["storage_offset"] = inner.stride(), inner.storage_offset()
        return Tensor._make_wrapper_subclass(cls, inner.shape, **settings)

    def __init__(self, inner: Tensor, waits: list[str]) -> None:
        self.inner, self.waits = inner, waits

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        return _run(func, args, kwargs or {})

    def tolist(self) -> Any:
        """Torch has it for no subclass."""
        self.waits.append("tolist")
        return self.inner.tolist()


class _Placed(TorchDispatchMode):
    """Makes what is asked for on the GPU; sees operators before the tensors do."""

    def __init__(self, waits: list[str]) -> None:
        super().__init__()
        self.waits = waits

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if kwargs.get("device") != GPU:
            return func(*args, **kwargs)
        return _run(func, args, kwargs, self.waits)


def _run(func: Any, args: Any, kwargs: dict[str, Any], waits: list[str] | None = None) -> Any:
    name = func.overloadpacket.__name__
    tensors = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
    there = [t for t in tensors if isinstance(t, OnGPU)]
    here = [t for t in tensors if not isinstance(t, OnGPU)]
    waits = there[0].waits if waits is None else waits
    to_cpu = torch.device(kwargs.get("device") or GPU) == _CPU
    if there and name not in _COPIES:
        own = func.namespace == "mmoe"
        indices = _indices(name, args)
        left = [t for t in here if (own or t.dim()) and not any(t is index for index in indices)]
        if left:
            raise AssertionError(f"{func}: tensors on both devices, {[t.shape for t in left]}")
        waits += [f"{name} by the CPU"] * any(t.dim() for t in here)
    if name in ("_local_scalar_dense", *_SIZED_BY_VALUES) or (there and to_cpu):
        waits.append(name)
    elif name in _COPIES and (here or not there) and not _is_asynchronous(args, kwargs):
        waits.append(f"{name} without non_blocking")
    if kwargs.get("device") is not None:
        kwargs = {**kwargs, "device": _CPU}
    unwrapped = [_inner(args), _inner(kwargs)]
    result = func(*unwrapped[0], **unwrapped[1])
    if to_cpu:
        return result.clone()
    if name in ("copy_", "_foreach_copy_") and not isinstance(args[0], OnGPU | list):
        return args[0]
    return pytree.tree_map_only(Tensor, lambda t: OnGPU(t, waits), result)


def _indices(name: str, args: Any) -> list[Tensor]:
    indexed = name in _INDEXING and isinstance(args[0], OnGPU)
    return [index for index in args[1] if index is not None] if indexed else []


def _inner(tree: Any) -> Any:
    return pytree.tree_map_only(OnGPU, lambda t: t.inner, tree)


def _is_asynchronous(args: Any, kwargs: dict[str, Any]) -> bool:
    return bool(kwargs.get("non_blocking")) or any(arg is True for arg in args)


@contextmanager
def emulated_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Inside, tensors on `GPU` compute; gives what the host waited for so far."""
    waits: list[str] = []
    real: Callable[..., Any] = torch.autocast

    def autocast(device_type: str, *args: Any, enabled: bool = True, **kwargs: Any) -> Any:
        assert not enabled, "autocast is not emulated"
        return real("cpu" if device_type == GPU.type else device_type, *args, enabled=False)

    enabled = torch.is_autocast_enabled
    monkeypatch.setattr(torch, "autocast", autocast)
    monkeypatch.setattr(
        torch, "is_autocast_enabled", lambda device="cpu": device != GPU.type and enabled(device)
    )
    devices = [GPU.type, "cpu"]
    optimizers = importlib.import_module("torch.optim.optimizer")
    monkeypatch.setattr(optimizers, "_get_fused_kernels_supported_devices", lambda: devices)
    with _Placed(waits):
        yield waits
