"""Where the operators come from: the compiled extension, or the reference when it is not built.

The extension defines the operators and their CPU and CUDA kernels. The reference in plain PyTorch
is registered for every other device, and defines the operators itself where there is no extension.
Either way the names `torch.ops.mmoe.*` exist, so `torch.compile` and `opcheck` see the same thing.
"""

import functools
import importlib
import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.library import Library

from mmoe.ops import reference
from mmoe.ops._checks import check_device
from mmoe.ops.exchange import exchange_reference

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
    "topk_gate": (
        "(Tensor logits_BGE, Tensor visibility_GE, int k, bool softmax_after) -> (Tensor, Tensor)"
    ),
    "topk_gate_backward": (
        "(Tensor grad_BGK, Tensor logits_BGE, Tensor visibility_GE, Tensor experts_BGK,"
        " bool softmax_after) -> Tensor"
    ),
    "permute": "(Tensor x_BD, Tensor rows_P, Tensor slots_BGK) -> Tensor",
    "unpermute": "(Tensor y_PD, Tensor rows_P, Tensor slots_BGK) -> Tensor",
    "grouped_mm": (
        "(Tensor x_PD, Tensor offsets_E1, Tensor weight_EDH, Tensor? bias_EH, str activation)"
        " -> (Tensor, Tensor)"
    ),
    "grouped_mm_backward": (
        "(Tensor grad_PH, Tensor x_PD, Tensor offsets_E1, Tensor weight_EDH, Tensor y_PH,"
        " Tensor z_PH, str activation, bool need_x, bool need_weight, bool need_bias)"
        " -> (Tensor, Tensor, Tensor)"
    ),
    "dense_mm": (
        "(Tensor[] x, Tensor weight_EDH, Tensor? bias_EH, str activation) -> (Tensor[], Tensor[])"
    ),
    "dense_mm_backward": (
        "(Tensor[] grad, Tensor[] x, Tensor weight_EDH, Tensor[] y, Tensor[] z, str activation,"
        " bool need_x, bool need_weight, bool need_bias) -> (Tensor[], Tensor, Tensor)"
    ),
    "gate_mm": "(Tensor x_BD, Tensor weight_DN, Tensor? bias_N) -> Tensor",
    "gate_mm_backward": (
        "(Tensor grad_BN, Tensor x_BD, Tensor weight_DN, bool need_x, bool need_weight,"
        " bool need_bias) -> (Tensor, Tensor, Tensor)"
    ),
    "outbound_plan": (
        "(Tensor experts_BGK, Tensor homes_E3, int num_ranks, int num_sources)"
        " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
    ),
    "pack_rows": (
        "(Tensor[] sources, Tensor weights_BGK, Tensor rows_M, Tensor entries_Q, Tensor codes_Q,"
        " Tensor links_WL, ScalarType wire, int num_bytes) -> Tensor"
    ),
    "pack_rows_backward": (
        "(Tensor message, Tensor rows_M, Tensor rows_BGK, Tensor entries_Q, Tensor links_WL,"
        " int num_sources, int width, ScalarType dtype, ScalarType wire) -> (Tensor, Tensor)"
    ),
    "decode_picks": (
        "(Tensor message, Tensor links_WL, int num_rows, int num_picks, int num_gates, int k,"
        " int num_experts, int width, ScalarType dtype, ScalarType wire)"
        " -> (Tensor, Tensor, Tensor)"
    ),
    "unpack_rows": (
        "(Tensor message, Tensor rows_R, Tensor links_WL, int width, ScalarType dtype,"
        " ScalarType wire) -> Tensor"
    ),
    "unpack_rows_backward": (
        "(Tensor grad_RD, Tensor grad_weights_NGK, Tensor slots_NGK, Tensor places_Q,"
        " Tensor links_WL, ScalarType wire, int num_bytes) -> Tensor"
    ),
    "return_plan": (
        "(Tensor rows_R, Tensor offsets_E1, Tensor slots_NGK, Tensor links_WL) -> (Tensor, Tensor)"
    ),
    "pack_returns": (
        "(Tensor y_RO, Tensor weights_NGK, Tensor back_R, Tensor back_NG, Tensor slots_NGK,"
        " int num_rows, ScalarType wire) -> Tensor"
    ),
    "pack_returns_backward": (
        "(Tensor grad_ZO, Tensor y_RO, Tensor weights_NGK, Tensor back_R, Tensor back_NG,"
        " Tensor slots_NGK) -> (Tensor, Tensor)"
    ),
    "mix_returns": (
        "(Tensor back_ZO, Tensor weights_BGK, Tensor rows_BGK, Tensor pairs_BGK, Tensor sums_BGK,"
        " Tensor links_WL, ScalarType dtype) -> Tensor"
    ),
    "mix_returns_backward": (
        "(Tensor grad_BGO, Tensor back_ZO, Tensor weights_BGK, Tensor rows_BGK, Tensor pairs_BGK,"
        " Tensor sums_BGK, Tensor links_WL) -> (Tensor, Tensor)"
    ),
}

REBUILD = "in the clone, pip install --no-build-isolation --no-deps --editable ."


@dataclass(frozen=True)
class ExtensionStatus:
    """What the compiled extension of this installation can do: built, with CUDA or not.

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


def reference_of(name: str) -> Callable[..., Any]:
    """Find an operator's specification."""
    own = exchange_reference if hasattr(exchange_reference, name) else reference
    return getattr(own, name)


def _open_library() -> Library:
    problem = _load_extension()
    # DEF would clash with the extension's own block, so Python always adds a fragment.
    library = Library("mmoe", "FRAGMENT")
    if problem is not None:
        folder = Path(__file__).parents[1]  # which of several mmoe: a clone's, an installed one's
        warnings.warn(
            f"mmoe: the compiled operators are missing from {folder} ({problem}); the slower ones "
            f"in plain PyTorch are used. To build them, with torch and a C++ compiler: {REBUILD}",
            RuntimeWarning,
            stacklevel=2,
        )
        for name, schema in SCHEMAS.items():
            library.define(name + schema)
    for name in SCHEMAS:
        # A kernel for a backend (CPU, CUDA) is preferred over this one.
        library.impl(name, _without_autocast(reference_of(name)), "CompositeExplicitAutograd")
    return library


LIBRARY = _open_library()


def register_fake(name: str, fake: Callable[..., Any]) -> None:
    """Attach the kernel for tensors without values, which computes shapes alone.

    PyTorch also chooses it where only one of an operator's tensors has no values, and the result
    would be memory that nobody has written; so it first checks that all are on one device.
    """
    signature = inspect.signature(fake)

    @functools.wraps(fake)
    def checked(*arguments: Any, **named: Any) -> Any:
        tensors: list[tuple[str, torch.Tensor]] = []
        for argument, value in signature.bind(*arguments, **named).arguments.items():
            parts = value if isinstance(value, list | tuple) else [value]
            tensors += [(argument, part) for part in parts if isinstance(part, torch.Tensor)]
        # As the kernels do: a traced program must not hide two devices until it runs
        like, first = tensors[0]
        for argument, tensor in tensors:
            check_device(argument, tensor, first.device, like)
        return fake(*arguments, **named)

    torch.library.register_fake(f"mmoe::{name}", checked, lib=LIBRARY)
