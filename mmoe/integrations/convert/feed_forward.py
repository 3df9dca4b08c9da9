"""`FeedForward`: what a recogniser found, the two products and what stands between them."""

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass

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
