"""Library of operators: defined here, with kernels from the extension where it is built.

Each operator's file defines it, once: schema, shapes, gradient. The extension holds kernels for CPU
and CUDA, and no schemas; the reference in plain PyTorch is the kernel of every other device, and of
all of them without the extension. Either way `torch.compile` and `opcheck` see the same thing.
"""

import functools
import importlib
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

FOLDER = Path(__file__).parents[1]  # which of several mmoe: a clone's, an installed one's
REBUILD = "in the clone, pip install --no-build-isolation --no-deps --editable ."


@dataclass(frozen=True)
class ExtensionStatus:
    """State of this installation's compiled extension: built or not, with CUDA or not.

    Attributes:
        built: The extension was found and loaded, so CPU kernels are there.
        cuda: It holds CUDA kernels as well.
        detail: One line for people: what is used, and why.
    """

    built: bool
    cuda: bool
    detail: str


def extension_status() -> ExtensionStatus:
    """Says whether the compiled operators are in use, and whether they include CUDA kernels.

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
    """Finds an operator's specification."""
    own = exchange_reference if hasattr(exchange_reference, name) else reference
    return getattr(own, name)


def _open_library() -> Library:
    problem = _load_extension()
    library = Library("mmoe", "FRAGMENT")
    if problem is not None:
        warnings.warn(
            f"mmoe: the compiled operators are missing from {FOLDER} ({problem}); the slower ones "
            f"in plain PyTorch are used. To build them, with torch and a C++ compiler: {REBUILD}",
            RuntimeWarning,
            stacklevel=2,
        )
    return library


LIBRARY = _open_library()


def define(schema: str, fake: Callable[..., Any]) -> None:
    """Defines `torch.ops.mmoe.NAME`, which the reference computes where no kernel does.

    PyTorch chooses `fake` also where only one of an operator's tensors has no values, and the
    result would be memory that nobody has written; so it checks first that all are on one device.

    Args:
        schema: `NAME(arguments) -> results`; kernels in `csrc` and the reference go by it.
        fake: The kernel for tensors without values, which computes shapes alone; gets all arguments
            by their names in the schema.

    Raises:
        ImportError: The extension is older than this file, and defines another operator.
    """
    name = schema.partition("(")[0]
    try:
        LIBRARY.define(schema)
    except RuntimeError as error:
        # Extensions that were built before schemas stood in Python alone brought their own
        if str(getattr(torch.ops.mmoe, name).default._schema) != f"mmoe::{schema}":
            raise ImportError(
                f"mmoe: the compiled operators in {FOLDER} are older than its Python files, and "
                f"{name} is another one in them; build them again: {REBUILD}"
            ) from error
    # A kernel for a backend (CPU, CUDA) is preferred over this one.
    LIBRARY.impl(name, _without_autocast(reference_of(name)), "CompositeExplicitAutograd")
    names = [argument.name for argument in getattr(torch.ops.mmoe, name).default._schema.arguments]

    def checked(*arguments: Any, **named: Any) -> Any:
        named |= zip(names, arguments, strict=False)
        tensors: list[tuple[str, torch.Tensor]] = []
        for argument in names:
            value = named[argument]
            parts = value if isinstance(value, list | tuple) else [value]
            tensors += [(argument, part) for part in parts if isinstance(part, torch.Tensor)]
        # As the kernels do: a traced program must not hide two devices until it runs
        like, first = tensors[0]
        for argument, tensor in tensors:
            check_device(argument, tensor, first.device, like)
        return fake(**named)

    torch.library.register_fake(f"mmoe::{name}", checked, lib=LIBRARY)
