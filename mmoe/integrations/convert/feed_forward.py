"""`FeedForward`: a layer's two products and what stands between them; what code computes them."""

import copy
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from mmoe.mixture.batch_invariant import activate
from mmoe.mixture.checks import trial_run
from mmoe.mixture.experts.mlp import ExpertActivation
from mmoe.ops import FLOAT_DTYPES

Activation = Callable[[Tensor], Tensor]
# `(module, mixture)`: puts the mixture in, and returns what then stands in the module's place
Replace = Callable[[nn.Module, nn.Module], nn.Module]

# Those that a pool of equal MLPs computes within its products
_KNOWN: tuple[ExpertActivation, ...] = ("relu", "gelu", "silu")


@dataclass(frozen=True, eq=False)
class FeedForward:
    """The feed-forward part of a layer: `second(drop(act(first(x))))`.

    With a gate, as in Llama, `second(drop(act(gate(x)) · first(x)))`.

    Attributes:
        first: `D → H`.
        second: `H → O`.
        activation: A module or a function, of each number alone.
        gate: `D → H`; None: there is none.
        dropout: Probability that a hidden unit is zeroed while training.

    Example:
        >>> from torch import nn
        >>> from mmoe.integrations.convert import FeedForward
        >>> part = FeedForward(nn.Linear(8, 32), nn.Linear(32, 8), nn.GELU())
        >>> part.widths, part.known_activation
        ((8, 32, 8), 'gelu')
    """

    first: nn.Linear
    second: nn.Linear
    activation: Activation
    gate: nn.Linear | None = None
    dropout: float = 0.0

    @property
    def products(self) -> Iterator[nn.Linear]:
        """The linear layers, those that read x first."""
        yield from (layer for layer in (self.gate, self.first, self.second) if layer is not None)

    @property
    def widths(self) -> tuple[int, int, int]:
        """D, H and O."""
        return self.first.in_features, self.first.out_features, self.second.out_features

    @property
    def key(self) -> Hashable:
        """Parts that share all parameters, and do the same with them, are one part."""
        modules = [*self.products, self.activation]
        modules = [module for module in modules if isinstance(module, nn.Module)]
        weights = tuple(id(weight) for module in modules for weight in module.parameters())
        y = _value(self.activation, torch.linspace(-6, 6, 97, dtype=self.first.weight.dtype))
        does = id(self.activation) if y is None else tuple(y.flatten().tolist())
        return weights, does, self.dropout

    @property
    def known_activation(self) -> ExpertActivation | None:
        """The activation by the name that `MLPExperts` has for it; None: it has none.

        Told by what it computes, not by its class, of which every library has its own.
        """
        inside = self.activation.modules() if isinstance(self.activation, nn.Module) else ()
        if any(isinstance(each, _DropoutNd) or [*each.parameters()] for each in inside):
            return None
        x = torch.linspace(-6, 6, 97, dtype=torch.float64)
        found = _value(self.activation, x)
        if found is None:
            return None
        for name in _KNOWN:
            expected = activate(x, name, training=True)
            if torch.allclose(found, expected, rtol=0, atol=1e-12):
                return name
        return None

    @property
    def is_pointwise(self) -> bool:
        """Whether the activation looks at each number alone, not at the others of a row."""
        weight = self.first.weight
        if weight.is_meta:
            return True
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(2, 3, self.first.out_features, generator=generator).to(weight)
        whole, rows = _value(self.activation, x), _value(self.activation, x.flatten(0, 1))
        part = _value(self.activation, x[..., :1])
        if whole is None or rows is None or part is None or whole.shape != x.shape:
            return False
        same = [whole.flatten(0, 1).allclose(rows), whole[..., :1].allclose(part)]
        return part.shape == x[..., :1].shape and all(same)

    def check(self, name: str) -> None:
        """Refuses products that do not fit one another, or that no pool computes.

        Args:
            name: Of the layer, for the message.

        Raises:
            ValueError: Names the layer, and what does not fit.
        """
        where = name or "module"
        if not self.fits:
            raise ValueError(self._misfit(where))
        if not self.is_pointwise:
            raise ValueError(
                f"{where}: expected an activation of each number alone, which experts can share "
                f"out, got {self.activation!r}; leave the layer out of target_modules"
            )

    @property
    def fits(self) -> bool:
        """Whether the products fit one another in widths and types."""
        return not self._misfit("")

    def _misfit(self, where: str) -> str:
        """Says what does not fit, if anything."""
        width, reads = self.first.out_features, self.second.in_features
        if width != reads:
            return (
                f"{where}: expected a second product that reads the {width} units of the first, "
                f"got one that reads {reads}; give both the same width"
            )
        gate = self.gate
        if gate is not None and (gate.in_features, gate.out_features) != self.widths[:2]:
            return (
                f"{where}: expected a gate of {self.widths[0]} to {width} units as the first "
                f"product, got {gate.in_features} to {gate.out_features}; give both the same widths"
            )
        types = {weight.dtype for layer in self.products for weight in layer.parameters()}
        if len(types) > 1 or not types <= set(FLOAT_DTYPES):
            known = ", ".join(map(str, FLOAT_DTYPES))
            return (
                f"{where}: expected weights of one type of {known}, got "
                f"{', '.join(sorted(map(str, types)))}; cast the module first, as module.float()"
            )
        return ""

    def hidden(self, x: Tensor) -> Tensor:
        """Computes the hidden units."""
        return hidden_units(x, self.first, self.activation, self.gate)

    def compute(self, x: Tensor) -> Tensor:
        """Computes it without dropout."""
        return self.second(self.hidden(x))


def hidden_units(
    x: Tensor, first: nn.Module, activation: Activation, gate: nn.Module | None
) -> Tensor:
    """Computes `act(first(x))`, with a gate `act(gate(x)) · first(x)`."""
    units = first(x)
    return activation(units) if gate is None else activation(gate(x)) * units


def _value(function: Activation, x: Tensor) -> Tensor | None:
    """Returns what it gives, as a scorer would have it; None: it does not take it."""
    try:
        with trial_run(function, x.device):
            if isinstance(function, nn.Module):
                function.eval()
            value = function(x.clone())
    except Exception:  # of somebody's code, any: it wants other things than numbers
        return None
    return value if isinstance(value, Tensor) else None


def plain_linear(module: object) -> nn.Linear | None:
    """Returns a linear layer with a plain weight, and nothing else (quantised, parametrised).

    One with hooks neither: they may change what it gives (`spectral_norm`, pruning), and a mixture
    has no place to call them.
    """
    if not isinstance(module, nn.Linear) or type(module).forward is not nn.Linear.forward:
        return None
    if module._forward_hooks or module._forward_pre_hooks:
        return None
    return None if nn.utils.parametrize.is_parametrized(module) else module


def if_computed(
    block: nn.Module, part: FeedForward, replace: Replace, method: str = "__call__"
) -> FeedForward | None:
    """Returns the part, where the block's code does that; what does not fit is told of later.

    Asked of a copy with the part replaced as well: some code reads the weights of its layers.

    Args:
        block: The part's holder; it stays as it is.
        part: Its layers.
        replace: Of the recogniser.
        method: Of the block, which computes the part.
    """
    if not part.fits:
        return part
    trial = copy.copy(block)
    trial._modules = dict(block._modules)
    trial = replace(trial, _Whole(part))
    with _without_zeros(part):
        same = all(
            agree(each, getattr(each, method), part.compute, part.first) for each in (block, trial)
        )
    return part if same and part.is_pointwise else None


class _Whole(nn.Module):
    """Stands for the mixture."""

    def __init__(self, part: FeedForward) -> None:
        super().__init__()
        self.compute = part.compute

    def forward(self, x: Tensor) -> Tensor:
        return self.compute(x)


def agree(module: nn.Module, call: Activation, expected: Activation, reader: nn.Linear) -> bool:
    """Returns whether `call`, the module or a method of it, gives what is expected of a few rows.

    A class tells by its names what it might compute; its code decides. In training too, but for
    modules that drop out. Draws no number of the caller's generators; a module without values (on
    the device `meta`) is taken at its word.

    Args:
        module: Runs in both modes; it gets its own back.
        call: Rows → rows.
        expected: Likewise.
        reader: A layer that reads such rows: of their width, in their type and on their device.
    """
    like = reader.weight
    if like.is_meta:
        return True
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 2, 3, reader.in_features, generator=generator).to(like)
    tolerance = 1e-2 if like.dtype == torch.bfloat16 else 1e-4
    parts = list(module.modules())
    try:
        with trial_run(module, like.device):
            for training in (False, True):
                for each in parts:
                    each.training = training and not isinstance(each, _DropoutNd)
                if not _close(call(x), expected(x), tolerance):
                    return False
        return True
    except Exception:  # of somebody's code, any: it wants other things than one tensor of rows
        return False


@contextmanager
def _without_zeros(part: FeedForward) -> Iterator[None]:
    """Draws weights that start as zeros meanwhile, which would hide what a block does."""
    generator = torch.Generator().manual_seed(2)
    zeros = [
        (layer, layer.weight)
        for layer in part.products
        if not layer.weight.is_meta and not layer.weight.any()
    ]
    try:
        for layer, weight in zeros:
            drawn = torch.randn(weight.shape, generator=generator).to(weight)
            layer.weight = nn.Parameter(drawn, requires_grad=False)
        yield
    finally:
        for layer, weight in zeros:
            layer.weight = weight


def _close(found: object, wanted: Tensor, tolerance: float) -> bool:
    if not isinstance(found, Tensor) or found.shape != wanted.shape:
        return False
    return bool((found - wanted).abs().max() <= tolerance * wanted.abs().max())


class Dropouts(NamedTuple):
    """The dropouts of a block, in the order of their calls.

    Attributes:
        between: Those of hidden units, at most one.
        after: Those of the output; one that the block calls at both places is in both.
    """

    between: list[nn.Dropout]
    after: list[nn.Dropout]


def seen_dropouts(block: nn.Module, part: FeedForward) -> Dropouts | None:
    """Runs a block on a few rows, and says where it drops out.

    Args:
        block: The part's holder.
        part: Its layers, whose `dropout` is not read.

    Returns:
        None where experts cannot do the same: it drops its input, its hidden units twice or before
        the activation, or in a way of its own; or the block does not compute the part at all.
    """
    with _without_zeros(part), _watched(block, part) as calls:
        if not _runs(block, part, calls):
            return None
    places = [place for place, _ in calls]
    plain = all(type(module) is nn.Dropout for _, module in calls)
    if not plain or "before" in places or places.count("between") > 1:
        return None
    found: dict[str, list[Any]] = {"between": [], "after": []}
    for place, module in calls:
        found[place].append(module)
    return Dropouts(**found)


Calls = list[tuple[str, nn.Module]]


@contextmanager
def _watched(block: nn.Module, part: FeedForward) -> Iterator[Calls]:
    """Lists the dropouts called in a run, and where; those of hidden units double them."""
    calls: Calls = []
    place = "before"

    def set_place(new: str) -> Any:
        def hook(*_: object) -> None:
            nonlocal place
            place = new
            if new == "before":
                calls.clear()

        return hook

    def dropped(module: nn.Module, _: object, output: Tensor) -> Tensor | None:
        calls.append((place, module))
        return output * 2 if place == "between" else None

    first = [layer for layer in (part.first, part.gate) if layer is not None]
    drops = [module for module in block.modules() if isinstance(module, _DropoutNd)]
    hooks = [
        block.register_forward_pre_hook(set_place("before")),
        *(layer.register_forward_hook(set_place("between")) for layer in first),
        part.second.register_forward_hook(set_place("after")),
        *(drop.register_forward_hook(dropped) for drop in drops),
    ]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def _runs(block: nn.Module, part: FeedForward, calls: Calls) -> bool:
    """Whether the tensor between two layers is the hidden units, after the activation."""
    weight = part.first.weight
    if weight.is_meta:
        try:
            block(torch.zeros(1, 2, 3, part.widths[0], dtype=weight.dtype, device="meta"))
        except Exception:  # of somebody's code, any; it is then taken at its word
            calls.clear()
        return True

    def expected(x: Tensor) -> Tensor:
        doubled = 2 ** [place for place, _ in calls].count("between")
        return part.second(doubled * part.hidden(x))

    return agree(block, block, expected, part.first)
