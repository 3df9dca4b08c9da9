"""Library of operators: defined here, with kernels from the extension where it is built.

Each operator's file defines it, once: schema, shapes, gradient. The extension holds kernels for CPU
and CUDA, and no schemas; the reference in plain PyTorch is the kernel of every other device, and of
all of them without the extension. Either way `torch.compile` and `opcheck` see the same thing.

Gradients are attached here too, and can be taken once.
"""

import functools
import importlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import _functions
from torch.library import Library
from torch.utils import _pytree as pytree

from mmoe.ops import exchange_reference, reference
from mmoe.ops._checks import check_device

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
    """Opens the library; the static initialisers of mmoe._C, where it loads, register kernels."""
    try:
        importlib.import_module("mmoe._C")
    except ImportError as error:
        warnings.warn(
            f"mmoe: the compiled operators are missing from {FOLDER} ({error}); the slower ones "
            f"in plain PyTorch are used. To build them, with torch and a C++ compiler: {REBUILD}",
            RuntimeWarning,
            stacklevel=2,
        )
    return Library("mmoe", "FRAGMENT")


LIBRARY = _open_library()


def define(schema: str, fake: Callable[..., Any]) -> None:
    """Defines `torch.ops.mmoe.NAME`, which the reference computes where no kernel does.

    PyTorch chooses `fake` also where only one of an operator's tensors has no values, and the
    result would be memory that nobody has written; so it checks first that all are on one device.

    Args:
        schema: `NAME(arguments) -> results`; kernels in `csrc` and the reference go by it.
        fake: The kernel for tensors without values, which computes shapes alone; gets all arguments
            by their names in the schema.
    """
    name = schema.partition("(")[0]
    LIBRARY.define(schema)
    # A kernel for a backend (CPU, CUDA) is preferred over this one.
    LIBRARY.impl(name, _without_autocast(reference_of(name)), "CompositeExplicitAutograd")
    names = [argument.name for argument in getattr(torch.ops.mmoe, name).default._schema.arguments]

    def checked(*arguments: Any, **named: Any) -> Any:
        named |= zip(names, arguments, strict=False)
        tensors: list[tuple[str, Tensor]] = []
        for argument in names:
            value = named[argument]
            parts = value if isinstance(value, list | tuple) else [value]
            tensors += [(argument, part) for part in parts if isinstance(part, Tensor)]
        # As the kernels do: a traced program must not hide two devices until it runs
        like, first = tensors[0]
        for argument, tensor in tensors:
            check_device(argument, tensor, first.device, like)
        return fake(**named)

    torch.library.register_fake(f"mmoe::{name}", checked, lib=LIBRARY)


def empties_like(*names: str) -> Callable[..., Any]:
    """Makes the `fake` of an operator whose results are as some of its arguments, lists too."""

    def fake(**arguments: Any) -> Any:
        given = [arguments[name] for name in names]
        found = [
            [part.new_empty(part.shape) for part in value]
            if isinstance(value, list | tuple)
            else value.new_empty(value.shape)
            for value in given
        ]
        return found[0] if len(found) == 1 else tuple(found)

    return fake


def save_tensors(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Keeps all tensors that went in for the gradient: a `setup_context`."""
    ctx.save_for_backward(*[value for value in inputs if isinstance(value, Tensor)])


def any_needed(needs: Any) -> bool:
    """Returns whether a gradient is asked for; of a list of tensors there is an answer for each."""
    return any(needs) if isinstance(needs, list | tuple) else needs


def register_autograd(
    name: str, backward: Callable[..., Any], setup_context: Callable[..., Any]
) -> None:
    """Attaches an operator's gradient, which cannot be differentiated again.

    Kernels of gradients have none themselves: without this, a gradient of a gradient would be 0.
    `torch.autograd.function.once_differentiable` does not serve here: it raises only where the
    incoming gradient needs one, and knows no lists of tensors. Gradients that nobody asks for,
    which kernels leave empty, become None.
    """
    torch.library.register_autograd(
        f"mmoe::{name}", _once(name, backward), setup_context=setup_context, lib=LIBRARY
    )


def _once(name: str, backward: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(backward)
    def checked(ctx: Any, *grads: Any) -> Any:
        with torch.no_grad():
            results = backward(ctx, *grads)
        if isinstance(results, tuple):  # for a list of tensors there is a list of answers
            pairs = zip(results, ctx.needs_input_grad, strict=True)
            results = tuple([None if needed is False else grad for grad, needed in pairs])
        # Grad mode is on in a backward pass only with create_graph=True.
        return _refuse_second(name, results) if torch.is_grad_enabled() else results

    return checked


def _refuse_second(name: str, results: Any) -> Any:
    """Ties the gradients to a node that raises when someone differentiates them."""
    leaves, structure = pytree.tree_flatten(results)
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    message = (
        f"mmoe.ops.{name}: its gradient cannot be differentiated (create_graph=True); "
        "double backward is not supported"
    )
    raise_later = _functions.DelayedError(message.encode(), len(places))
    tied = raise_later(*(leaves[i].detach().requires_grad_() for i in places))
    for place, leaf in zip(places, tied if isinstance(tied, tuple | list) else [tied], strict=True):
        leaves[place] = leaf
    return pytree.tree_unflatten(leaves, structure)
