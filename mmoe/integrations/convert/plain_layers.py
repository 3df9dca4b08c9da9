"""Layers that are what their class says, and how a mixture takes the place of several."""

from collections.abc import Callable

from torch import nn

# `(module, mixture)`: puts the mixture in, and returns what then stands in the module's place
Replace = Callable[[nn.Module, nn.Module], nn.Module]


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


def probability(module: object) -> float | None:
    """Returns how much a dropout drops, 0 where there is none; None: it is something else."""
    if module is None or isinstance(module, nn.Identity):
        return 0.0
    return module.p if type(module) is nn.Dropout else None


def into_chain(*names: str) -> Replace:
    """Returns what puts a mixture in place of the first of these; the others then do nothing."""

    def replace(holder: nn.Module, mixture: nn.Module) -> nn.Module:
        first, *others = names
        setattr(holder, first, mixture)
        for name in others:
            if getattr(holder, name, None) is not None:
                setattr(holder, name, nn.Identity())
        return holder

    return replace
