"""A device "cuda" that is emulated: its tensors are on the host, its kernels the emulated ones.

`EmulatedDevice` makes "cuda" mean it for as long as it is open: `x.cuda()`, `x.to("cuda")`,
`torch.zeros(3, device="cuda")`, `torch.cuda.is_available()`. Operators of mmoe run the rewritten
CUDA sources, operators of PyTorch the CPU's kernels. Streams, graphs, events and the allocator are
not emulated: what needs them is marked `real_gpu`.
"""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch._dynamo  # before torch.cuda's functions are replaced, which it lists
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from mmoe.ops._library import reference_of
from tests.emulated_cuda.build import build
from tests.emulated_cuda.guarded import Guarded, guard
from tests.emulated_cuda.libraries import LibraryOperators

CUDA = torch.device("cuda", 0)
# For PyTorch itself a tensor of the device is one of `meta`: a type that has everything but kernels
_META = torch.device("meta")
_CPU = torch.device("cpu")
ORDERS = ("forward", "backward", "shuffled")


@dataclass(frozen=True)
class Settings:
    """What the emulation varies.

    Attributes:
        order: Of threads and blocks: forward, backward or shuffled.
        seed: Of the shuffled order.
        copies: When asynchronous copies land: late (when they are waited for) or early (at once).
        capability: The major one: with 8 all products are the library's own, with 9 those in
            bfloat16 go to PyTorch's grouped product.
    """

    order: str = "forward"
    seed: int = 0
    copies: str = "late"
    capability: int = 8


class OnDevice(Tensor):
    """A tensor of the emulated device; its numbers are in `held`."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "OnDevice":
        settings: dict[str, Any] = {"dtype": held.dtype, "device": _META, "layout": held.layout}
        settings["strides"], settings["storage_offset"] = held.stride(), held.storage_offset()
        return Tensor._make_wrapper_subclass(cls, held.shape, **settings)

    def __init__(self, held: Tensor) -> None:
        self.held = held

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        return _run(func, args, kwargs or {})

    device: Any = property(lambda self: CUDA)
    is_cuda: Any = property(lambda self: True)
    is_cpu: Any = property(lambda self: False)
    is_meta: Any = property(lambda self: False)

    def get_device(self) -> int:
        """Its number."""
        return 0

    def tolist(self) -> Any:
        """Torch has it for no subclass."""
        return self.held.tolist()

    def numpy(self, **kwargs: Any) -> Any:
        """Refuses, as tensors on a GPU do."""
        raise TypeError("can't convert cuda:0 device type tensor to numpy; use .cpu() first")

    def data_ptr(self) -> int:
        """Of the memory on the host."""
        return self.held.data_ptr()

    def __repr__(self, **_: Any) -> str:
        return f"{self.held!r} on the emulated device"


class _Devices(TorchFunctionMode):
    """Puts the emulated device in the place of "cuda" in every call."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.device:
            return func(*args, **kwargs)
        if func is Tensor.cuda:
            return args[0] if isinstance(args[0], OnDevice) else args[0].to(_META)
        if func is Tensor.pin_memory:
            return args[0]
        if func in (torch.tensor, torch.as_tensor) and _placed(kwargs.get("device")) == _META:
            # For these PyTorch makes a tensor without numbers, and dispatches nothing
            made = func(*args, **{**kwargs, "device": _CPU, "requires_grad": False})
            return made.to(_META).requires_grad_(kwargs.get("requires_grad", False))
        kwargs.pop("pin_memory", None)
        if func in _NARROWED and torch.is_autocast_enabled("cuda"):
            args, kwargs = _narrowed((args, kwargs), torch.get_autocast_dtype("cuda"))
        return func(*map(_placed, args), **{name: _placed(value) for name, value in kwargs.items()})


# Products, which autocast computes in the narrow type
_NARROWED = (
    *(torch.nn.functional.linear, torch.matmul, torch.mm, torch.bmm, torch.addmm, torch.baddbmm),
    *(Tensor.matmul, Tensor.__matmul__, Tensor.mm, Tensor.bmm, Tensor.addmm, Tensor.baddbmm),
)


def _narrowed(tree: Any, dtype: torch.dtype) -> Any:
    def narrow(tensor: OnDevice) -> Tensor:
        return tensor.to(dtype) if tensor.dtype == torch.float32 else tensor

    return pytree.tree_map_only(OnDevice, narrow, tree)


def _placed(value: Any) -> Any:
    if isinstance(value, torch.device):
        return _META if value.type == "cuda" else value
    if isinstance(value, str) and (value == "cuda" or value.startswith("cuda:")):
        return _META
    return value


class _Made(TorchDispatchMode):
    """Makes what is asked for on the device; sees operators before the tensors do."""

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if kwargs.get("device") != _META:
            return func(*args, **kwargs)
        return _run(func, args, kwargs)


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    if func.namespace == "mmoe":
        return _wrap(_active().call(func.overloadpacket.__name__, args, kwargs))
    to_cpu = kwargs.get("device") == _CPU
    if kwargs.get("device") is not None:
        kwargs = {**kwargs, "device": _CPU}
    _refuse_two_devices(func, args)
    result = func(*_inner(args), **_inner(kwargs))
    if to_cpu:
        return result.clone()
    name = func.overloadpacket.__name__
    if name in ("copy_", "_foreach_copy_") and not isinstance(args[0], OnDevice | list):
        return args[0]
    if func._schema.name.endswith("_") and isinstance(args[0], OnDevice):
        return args[0]
    return _wrap(result)


_COPIES = ("_to_copy", "copy_", "_foreach_copy_", "index", "index_put_", "_index_put_impl_")


def _refuse_two_devices(func: Any, args: Any) -> None:
    """As CUDA does; a number may be on the host."""
    if func.overloadpacket.__name__ in _COPIES:
        return
    tensors = [leaf for leaf in pytree.tree_leaves(args) if isinstance(leaf, Tensor)]
    here = [t for t in tensors if not isinstance(t, OnDevice) and t.dim() > 0]
    if here and len(here) < len(tensors):
        raise RuntimeError(
            f"Expected all tensors to be on the same device, got cuda:0 and cpu in {func}"
        )


def _inner(tree: Any) -> Any:
    return pytree.tree_map_only(OnDevice, lambda t: t.held, tree)


def _wrap(tree: Any) -> Any:
    def wrap(tensor: Tensor) -> Tensor:
        return tensor if isinstance(tensor, OnDevice) else OnDevice(tensor)

    return pytree.tree_map_only(Tensor, wrap, tree)


class Kernels:
    """The library of emulated kernels; compiled where it is not said where it lies."""

    def __init__(self, variant: str = "plain", library: Path | str | None = None) -> None:
        self.path = library or build(variant)
        self.sanitized = variant == "asan"
        torch.ops.load_library(str(self.path))
        self.library = ctypes.CDLL(str(self.path))
        self.operators = LibraryOperators(self.library)
        self.configure(Settings())

    def configure(self, settings: Settings) -> None:
        """Takes effect with the next launch."""
        self.settings = settings
        self.library.emulated_configure(
            ORDERS.index(settings.order),
            settings.seed,
            int(settings.copies == "early"),
            settings.capability,
        )

    def capability_asked(self) -> bool:
        """Whether anybody asked for the capability since the last call."""
        return bool(self.library.emulated_capability_asked())

    def call(self, name: str, args: Any, kwargs: Any = None) -> Any:
        """Runs an operator on tensors of the device; what else is among them is on the host.

        Raises:
            RuntimeError: The kernel stopped, or wrote where it must not.
        """
        kernel = self.operators.find(name)
        if kernel is None:  # PyTorch has no kernel for CUDA either, and runs the specification
            with torch.autocast("cpu", enabled=False):
                return reference_of(name)(*_inner(args), **_inner(kwargs or {}))
        memory: list[Guarded] = []
        guarded = pytree.tree_map_only(OnDevice, lambda t: guard(t.held, memory), (args, kwargs))
        here = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        pointers = [t.data_ptr() for t in here if not isinstance(t, OnDevice)]
        self.library.emulated_begin_call(
            (ctypes.c_void_p * len(pointers))(*pointers), len(pointers)
        )
        self._tell(self.library.emulated_close, memory)
        try:
            result = kernel(*guarded[0], **(guarded[1] or {}))
        finally:
            self.library.emulated_end_call()
            self._tell(self.library.emulated_open, memory)
        for part in memory:
            part.check(name)
        return result

    def _tell(self, function: Callable[..., Any], memory: Sequence[Guarded]) -> None:
        """What lies beside the inputs; for AddressSanitizer alone."""
        if self.sanitized:
            for part in memory:
                for place, size in part.beside():
                    function(ctypes.c_void_p(place), ctypes.c_size_t(size))


_REAL_AUTOCAST = torch.autocast


def _autocast(device_type: str, *args: Any, **kwargs: Any) -> Any:
    """What `torch.autocast` is while the device is open."""
    if device_type not in ("cuda", "meta"):
        return _REAL_AUTOCAST(device_type, *args, **kwargs)
    return _autocast_here(*args, **kwargs)


@contextmanager
def _autocast_here(
    dtype: torch.dtype | None = None, enabled: bool = True, cache_enabled: bool | None = None
) -> Iterator[None]:
    """Says that it is on; what it narrows is narrowed by `_Devices`, from the list of CUDA."""
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", enabled)
    torch.set_autocast_dtype("cuda", dtype or torch.float16)
    try:
        with _REAL_AUTOCAST("cpu", enabled=False):
            yield
    finally:
        torch.set_autocast_enabled("cuda", before[0])
        torch.set_autocast_dtype("cuda", before[1])


class EmulatedDevice:
    """Makes "cuda" mean the emulated device while it is open.

    Example:
        >>> with EmulatedDevice(Kernels()):  # doctest: +SKIP
        ...     torch.ops.mmoe.route_plan(torch.zeros(4, 1, 1).int().cuda(), 3)
    """

    open_one: "EmulatedDevice | None" = None

    def __init__(self, kernels: Kernels) -> None:
        self.kernels = kernels
        self.stack = ExitStack()

    def __enter__(self) -> "EmulatedDevice":
        for name, replacement in _TORCH_CUDA.items():
            self.stack.enter_context(mock.patch.object(torch.cuda, name, replacement))
        self.stack.enter_context(mock.patch.object(torch, "autocast", _autocast))
        self.stack.enter_context(_Made())
        self.stack.enter_context(_Devices())
        EmulatedDevice.open_one = self
        return self

    def __exit__(self, *error: object) -> None:
        EmulatedDevice.open_one = None
        self.stack.close()


def _active() -> Kernels:
    device = EmulatedDevice.open_one
    if device is None:
        raise RuntimeError("a tensor of the emulated device outlived it")
    return device.kernels


def _nothing(*_: Any, **__: Any) -> None:
    """What has no meaning here."""


_TORCH_CUDA: dict[str, Callable[..., Any]] = {
    "is_available": lambda: True,
    "device_count": lambda: 1,
    "current_device": lambda: 0,
    "synchronize": _nothing,
    "empty_cache": _nothing,
    "set_device": _nothing,
    "manual_seed": _nothing,
    "manual_seed_all": _nothing,
    "get_device_capability": lambda *_: (_active().library.emulated_capability(), 0),
    "get_device_name": lambda *_: "emulated",
}
