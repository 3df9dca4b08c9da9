"""`FeedForward`: what a recogniser found, the two products and what stands between them."""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from mmoe.mixture.experts.mlp_experts import ExpertActivation
from mmoe.ops import FLOAT_DTYPES

Activation = Callable[[Tensor], Tensor]

# Those that a pool of equal MLPs computes within its products
_KNOWN: dict[ExpertActivation, Activation] = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu}


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
        for name, function in _KNOWN.items():
            if found is not None and torch.allclose(found, function(x), rtol=0, atol=1e-12):
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
        """What does not fit, if anything."""
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
        units = self.first(x)
        return (
            self.activation(units) if self.gate is None else self.activation(self.gate(x)) * units
        )

    def compute(self, x: Tensor) -> Tensor:
        """Computes it without dropout."""
        return self.second(self.hidden(x))


def agree(
    module: nn.Module, call: Activation, expected: Activation, like: Tensor, width: int
) -> bool:
    """Returns whether `call`, the module or a method of it, gives what is expected of a few rows.

    A class tells by its names what it might compute; its code decides. In training too, but for
    modules that drop out. Draws no number of the caller's generators; a module without values (on
    the device `meta`) is taken at its word.

    Args:
        module: Whose mode is changed meanwhile.
        call: Rows → rows.
        expected: Likewise.
        like: Of the type and on the device that rows are to have.
        width: Of the rows.
    """
    if like.is_meta:
        return True
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 2, 3, width, generator=generator).to(like)
    tolerance = 1e-2 if like.dtype == torch.bfloat16 else 1e-4
    modes = [(each, each.training) for each in module.modules()]
    devices = [like.device] if like.device.type == "cuda" else []
    try:
        with torch.no_grad(), torch.random.fork_rng(devices):
            for training in (False, True):
                for each, _ in modes:
                    each.training = training and not isinstance(each, _DropoutNd)
                found, wanted = call(x), expected(x)
                if not _close(found, wanted, tolerance):
                    return False
        return True
    except Exception:  # whatever it wants, it is not one tensor of rows
        return False
    finally:
        for each, training in modes:
            each.training = training


@contextmanager
def without_zeros(part: FeedForward) -> Iterator[None]:
    """Draws weights that are all zero, as some start, meanwhile: they would hide what a block does.

    Args:
        part: Its products get their own weights back.
    """
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


def _value(function: Activation, x: Tensor) -> Tensor | None:
    """What it gives, as a scorer would have it; None: it does not take it."""
    training = isinstance(function, nn.Module) and function.training
    if isinstance(function, nn.Module):
        function.eval()
    try:
        with torch.no_grad():
            return function(x.clone())
    except Exception:
        return None
    finally:
        if isinstance(function, nn.Module):
            function.train(training)
