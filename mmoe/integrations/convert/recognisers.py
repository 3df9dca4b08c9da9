"""Recognition of a layer's feed-forward part, to put a mixture in its place.

A recogniser looks at one module, its holder: `match` says what the feed-forward part is, `replace`
puts a mixture there and returns what then stands in the holder's place.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from mmoe.integrations.convert.feed_forward import FeedForward, Replace
from mmoe.integrations.convert.forms import (
    fc,
    gated,
    into_fc,
    into_gated,
    into_sequential,
    into_torch_layer,
    into_two_modules,
    sequential,
    torch_layer,
    two_modules,
)

Match = Callable[[nn.Module], FeedForward | None]


@dataclass(frozen=True)
class Recogniser:
    """One form of feed-forward part.

    Attributes:
        name: For messages.
        match: The part of a module; None: the module has none of this form. It leaves the module as
            it is.
        replace: `(module, mixture)`: puts the mixture in, and returns what stands in the module's
            place from now on: the module itself, or the mixture.
        makes_new: Whether that is another module, so that a network that is nothing but the part
            cannot be converted in place.
    """

    name: str
    match: Match
    replace: Replace
    makes_new: bool = False


def _instead(module: nn.Module, mixture: nn.Module) -> nn.Module:
    return mixture


class Recognisers:
    """The recognisers there are; those that came last are asked first."""

    def __init__(self, *shipped: Recogniser) -> None:
        self._all = list(shipped)

    def add(self, recogniser: Recogniser) -> None:
        """Adds one; in place of the one of its name, if there is one."""
        self._all = [recogniser, *(each for each in self._all if each.name != recogniser.name)]

    def remove(self, name: str) -> None:
        """Forgets one that was added."""
        self._all = [each for each in self._all if each.name != name]

    def names(self) -> list[str]:
        """Lists their names."""
        return [each.name for each in self._all]

    def find(self, module: nn.Module) -> tuple[Recogniser, FeedForward] | None:
        """Returns the first one that takes the module, and what it found."""
        for recogniser in self._all:
            part = recogniser.match(module)
            if part is not None:
                return recogniser, part
        return None


RECOGNISERS = Recognisers(
    Recogniser("torch's Transformer layers", torch_layer, into_torch_layer),
    Recogniser("Sequential(Linear, activation, Linear)", sequential, into_sequential),
    Recogniser("gate_proj, up_proj, down_proj", gated, into_gated, makes_new=True),
    Recogniser("fc1, act, fc2", fc, into_fc),
    Recogniser("intermediate, output", two_modules, into_two_modules),
)


def register(
    recogniser: Recogniser | str, match: Match | None = None, replace: Replace | None = None
) -> None:
    """Adds a form of feed-forward part of your own, which is asked before those that there are.

    Args:
        recogniser: The `Recogniser`, or its name beside what it does.
        match: Module → its `FeedForward`, or None.
        replace: `(module, mixture)` → what stands in the module's place; default: the mixture.

    Raises:
        ValueError: A name without `match`, or a `Recogniser` beside it.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from mmoe.integrations.convert import RECOGNISERS, FeedForward, convert, register
        >>> class Own(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.wi, self.wo = nn.Linear(8, 32), nn.Linear(32, 8)
        ...
        ...     def forward(self, x):
        ...         return self.wo(self.wi(x).relu())
        >>> def match(module):
        ...     if isinstance(module, Own):
        ...         return FeedForward(module.wi, module.wo, torch.relu)
        >>> register("own", match)
        >>> type(convert(nn.ModuleDict({"mlp": Own()}))["mlp"]).__name__
        'ConvertedMoE'
        >>> RECOGNISERS.remove("own")
    """
    if isinstance(recogniser, Recogniser) and match is None and replace is None:
        RECOGNISERS.add(recogniser)
        return
    if not isinstance(recogniser, str) or not callable(match):
        raise ValueError(
            "recogniser: expected a Recogniser alone, or a name with match(module), got "
            f"{recogniser!r} with {match!r}; use register('name', match, replace)"
        )
    new = replace is None
    RECOGNISERS.add(Recogniser(recogniser, match, replace or _instead, makes_new=new))
