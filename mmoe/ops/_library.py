"""Where the operators come from: the compiled extension, or the reference when it is not built.

The extension defines the operators and their CPU and CUDA kernels. The reference in plain PyTorch
is registered for every other device, and defines the operators itself where there is no extension.
Either way the names `torch.ops.mmoe.*` exist, so `torch.compile` and `opcheck` see the same thing.
"""

import functools
import importlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.library import Library

from mmoe.ops import reference

# The same text as in csrc/library.cpp; a test compares the two.
SCHEMAS = {
    "route_plan": "(Tensor experts_BGK, int num_experts) -> (Tensor, Tensor, Tensor)",
    "gated_combine": "(Tensor y_PO, Tensor slots_BGK, Tensor weights_BGK) -> Tensor",
    "gated_combine_backward": (
        "(Tensor grad_BGO, Tensor y_PO, Tensor slots_BGK, Tensor weights_BGK) -> (Tensor, Tensor)"
    ),
    "dense_combine": "(Tensor[] y, Tensor weights_BGE) -> Tensor",
    "dense_combine_backward": (
        "(Tensor grad_BGO, Tensor[] y, Tensor weights_BGE) -> (Tensor[], Tensor)"
    ),
}

_REBUILD = "in a clone, pip install --no-build-isolation --no-deps --force-reinstall ."


@dataclass(frozen=True)
class ExtensionStatus:
    """What the compiled extension of this installation can do.

    Attributes:
        built: The extension was found and loaded, so CPU kernels are there.
        cuda: It holds CUDA kernels as well.
        detail: One line for people: what is used, and why.
    """

    built: bool
    cuda: bool
    detail: str


def extension_status() -> ExtensionStatus:
    """Say whether the compiled operators are in use, and whether they include CUDA kernels.

    Returns:
        The status; without an extension `detail` says what is used instead.

    Example:
        >>> from mmoe.ops import extension_status
        >>> isinstance(extension_status().built, bool)
        True
    """
    built = _has_kernel("CPU")
    cuda = built and _has_kernel("CUDA")
    if not built:
        detail = "mmoe._C is not built or does not load: operators run as plain PyTorch"
    elif not cuda:
        detail = "CPU kernels; on a GPU the operators run as plain PyTorch"
    else:
        detail = "CPU and CUDA kernels"
    return ExtensionStatus(built, cuda, detail)


def _has_kernel(dispatch_key: str) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key("mmoe::route_plan", dispatch_key)


def _load_extension() -> str | None:
    """Load mmoe._C, whose static initialisers register the operators; return why it failed."""
    try:
        importlib.import_module("mmoe._C")
    except ImportError as error:
        return str(error)
    return None


def _without_autocast(function: Callable[..., Any]) -> Callable[..., Any]:
    """Keep autocast out of the reference: kernels take sums in float32, and so must it."""

    @functools.wraps(function)
    def kernel(first: Any, *others: Any) -> Any:
        tensor = first[0] if isinstance(first, list | tuple) else first
        with torch.autocast(tensor.device.type, enabled=False):
            return function(first, *others)

    return kernel


def _open_library() -> Library:
    problem = _load_extension()
    # DEF would clash with the extension's own block, so Python always adds a fragment.
    library = Library("mmoe", "FRAGMENT")
    if problem is not None:
        warnings.warn(
            f"mmoe: the compiled operators are missing ({problem}); the slower ones in plain "
            f"PyTorch are used. To build them, with torch and a C++ compiler: {_REBUILD}",
            RuntimeWarning,
            stacklevel=2,
        )
        for name, schema in SCHEMAS.items():
            library.define(name + schema)
    for name in SCHEMAS:
        # A kernel for a backend (CPU, CUDA) is preferred over this one.
        library.impl(name, _without_autocast(getattr(reference, name)), "CompositeExplicitAutograd")
    return library


LIBRARY = _open_library()
