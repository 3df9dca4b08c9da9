"""Gradients of the operators: attached beside the wrappers, and taken once."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import _functions
from torch.utils import _pytree as pytree

from mmoe.ops._library import LIBRARY


def register_autograd(
    name: str, backward: Callable[..., Any], setup_context: Callable[..., Any]
) -> None:
    """Attaches an operator's gradient, which cannot be differentiated again.

    Kernels of gradients have none themselves: without this, a gradient of a gradient would be 0.
    `torch.autograd.function.once_differentiable` does not serve here: it raises only where the
    incoming gradient needs one, and knows no lists of tensors.
    """
    torch.library.register_autograd(
        f"mmoe::{name}", _once(name, backward), setup_context=setup_context, lib=LIBRARY
    )


def _once(name: str, backward: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(backward)
    def checked(ctx: Any, *grads: Any) -> Any:
        with torch.no_grad():
            results = backward(ctx, *grads)
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
