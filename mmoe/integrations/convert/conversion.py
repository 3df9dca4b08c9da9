"""`convert`: a network's feed-forward parts, found or named, become mixtures of experts."""

import copy
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from itertools import islice
from typing import get_args

from torch import nn

from mmoe.errors import warn_caller
from mmoe.integrations.convert.feed_forward import FeedForward, plain_linear
from mmoe.integrations.convert.layer import (
    ConvertedMoE,
    GateSetting,
    Init,
    converted,
    gate_maker,
    make_mixture,
)
from mmoe.integrations.convert.recognisers import RECOGNISERS, Recogniser
from mmoe.mixture import Capacity, MoE, MultiGateMixture
from mmoe.mixture.checks import check_capacity

Filter = Callable[[nn.Module, str], bool]
Targets = str | Iterable[str] | Filter | None

# Of names and types in a message
_SHOWN = 5


@dataclass(frozen=True, eq=False)
class Place:
    """A feed-forward part in a network.

    Attributes:
        name: Of its holder, as in `named_modules`; empty: the network itself.
        holder: The module that a recogniser took.
        recogniser: That one.
        part: What it found.
    """

    name: str
    holder: nn.Module
    recogniser: Recogniser
    part: FeedForward

    def names_it(self) -> Iterator[nn.Module]:
        """Yields the modules by which it may be named: the holder, and what holds a product."""
        products = set(self.part.products)
        for module in self.holder.modules():
            if module is self.holder or not products.isdisjoint(module.modules()):
                yield module


def _find_places(network: nn.Module) -> list[Place]:
    """The feed-forward parts of a network, each once, in the order of its modules."""
    places = []
    for name, module in _outside_mixtures(network):
        if any(name.startswith(f"{p.name}.") if p.name else True for p in places):
            continue
        found = RECOGNISERS.find(module)
        if found is not None:
            recogniser, part = found
            part.check(name)
            places.append(Place(name, module, recogniser, part))
    return places


def put_in_place(network: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Puts a module at every place of a network at which another one stands."""
    for parent in list(network.modules()):
        for name, child in parent._modules.items():  # named_children leaves repetitions out
            if child is old:
                setattr(parent, name, new)


def _choose(network: nn.Module, places: list[Place], targets: Targets) -> list[Place]:
    """The places that are meant, by their holder or by what holds their products.

    Where no target is named: all parts; where some give back the width that they read, these alone
    (others are heads, or tables of positions).
    """
    if targets is None:
        same = [place for place in places if place.part.widths[0] == place.part.widths[2]]
        if not places:
            raise ValueError(_nothing(network))
        return same or places
    named = _named(network, targets)
    by_module = {module: place for place in places for module in place.names_it()}
    strange = [(name, module) for name, module in named if module not in by_module]
    # A function may look at modules of any kind
    if strange and (not callable(targets) or len(strange) == len(named)):
        raise ValueError(_not_taken(*strange[0]))
    chosen = {by_module[module] for _, module in named if module in by_module}
    return [place for place in places if place in chosen]


def _named(network: nn.Module, targets: Targets) -> list[tuple[str, nn.Module]]:
    modules = list(_outside_mixtures(network, with_mixtures=True))
    if callable(targets):
        named = [(name, module) for name, module in modules if targets(module, name)]
        what = "the function"
    elif isinstance(targets, str):
        try:
            pattern = re.compile(targets)
        except re.error as error:
            raise ValueError(
                f"target_modules: expected a regular expression, got {targets!r} ({error})"
            ) from None
        named, what = [each for each in modules if pattern.fullmatch(each[0])], repr(targets)
    else:
        return _by_names(modules, targets)
    if not named:
        ends = isinstance(targets, str) and any(name.endswith(f".{targets}") for name, _ in modules)
        mend = f"; as an end of names it is [{targets!r}]" if ends else ""
        raise ValueError(_no_match(what, modules) + mend)
    return named


def _by_names(
    modules: list[tuple[str, nn.Module]], targets: Iterable[str] | None
) -> list[tuple[str, nn.Module]]:
    wanted = list(targets) if isinstance(targets, Iterable) else []
    if not wanted or not all(isinstance(each, str) for each in wanted):
        raise ValueError(
            "target_modules: expected names as ['linear1'], a regular expression, a function "
            f"(module, name) or None, got {targets!r}"
        )
    named = []
    for target in wanted:
        found = [each for each in modules if f".{each[0]}".endswith(f".{target}")]
        if not found:
            raise ValueError(_no_match(repr(target), modules, target))
        named += found
    return named


def _outside_mixtures(
    network: nn.Module, *, with_mixtures: bool = False
) -> Iterator[tuple[str, nn.Module]]:
    """The modules of a network that are no parts of a mixture of experts."""
    inside: list[str] = []
    # By every name that a module has, where they are asked for by name
    for name, module in network.named_modules(remove_duplicate=not with_mixtures):
        if any(name.startswith(prefix) for prefix in inside):
            continue
        if isinstance(module, MoE | MultiGateMixture):
            inside.append(f"{name}." if name else "")
            if not with_mixtures:
                continue
        yield name, module


def _nothing(network: nn.Module) -> str:
    done = [name for name, _ in converted(network)]
    if done:
        return (
            f"module: it has been converted already: {_list(done)} are mixtures, and there is no "
            "other feed-forward part; convert the dense network, with inplace=False to keep it"
        )
    modules = list(network.named_modules())
    names = [name for name, module in modules if name and not next(module.children(), None)]
    types = dict.fromkeys(type(module).__name__ for _, module in modules)
    linears = [name for name, module in modules if isinstance(module, nn.Linear)]
    strange = [name for name in linears if plain_linear(network.get_submodule(name)) is None]
    left = (
        "linear layers with hooks, parametrizations or code of their own are no parts "
        f"({_list(strange)}); "
    )
    return (
        f"module: found no feed-forward part among {len(modules)} modules of the types "
        f"{_list(types)} (as {_list(names) or 'the module itself'}); "
        f"{left if strange else ''}known forms are {'; '.join(RECOGNISERS.names())}; "
        "add yours with mmoe.integrations.convert.register"
    )


def _no_match(what: str, modules: list[tuple[str, nn.Module]], target: str | None = None) -> str:
    names = [name for name, _ in modules if name]
    ends = dict.fromkeys([*(name.rpartition(".")[2] for name in names), *names])
    near = get_close_matches(target or what.strip("'"), list(ends), n=3, cutoff=0.5)
    hint = f"nearest are {', '.join(near)}" if near else f"there are {_list(names)}"
    return f"target_modules: {what} matches no module; {hint}"


def _not_taken(name: str, module: nn.Module) -> str:
    if isinstance(module, ConvertedMoE):
        return f"target_modules: {name} has been converted already; leave it out"
    what = f"{name or 'the module itself'} ({type(module).__name__})"
    return (
        f"target_modules: {what} is no feed-forward part that a recogniser takes, nor in one; "
        f"known forms are {'; '.join(RECOGNISERS.names())}; name a layer that has one, or add "
        "yours with mmoe.integrations.convert.register"
    )


def _list(names: Iterable[str]) -> str:
    names = list(names)
    shown = ", ".join(islice(names, _SHOWN))
    return shown if len(names) <= _SHOWN else f"{shown}, … ({len(names)})"


def convert(
    module: nn.Module,
    num_experts: int = 8,
    k: int = 2,
    gate: GateSetting = "top_k",
    target_modules: Targets = None,
    init: Init = "copy",
    capacity: Capacity | None = None,
    inplace: bool = False,
    *,
    hidden: int | None = None,
) -> nn.Module:
    """Makes a network's feed-forward parts mixtures of experts: `y = Σ_e w_e(x) · expert_e(x)`.

    Parts are found by structure (mmoe/integrations/README.md lists the forms; `register` adds one).
    All else stays, dtype, device, mode and frozen parameters too. A part used twice is one mixture.

    Args:
        module: The network, or one layer.
        num_experts: E.
        k: Experts of a row, for gates that take it (top_k, noisy_top_k, cosine, sigmoid, …).
        gate: A kind (`top_k`), a config's section (`{"kind": "top_k", "balance_loss": 0.01}`), or a
            function `(input_dim, num_gates, num_experts)` that makes each layer's gate.
        target_modules: Names of modules or their ends (`["linear1"]`), a regular expression for the
            whole name, or a function of a module and its name; they may name the layer that holds a
            part, or a product of it. None: all parts except heads and tables of positions.
        init: `copy`: every expert starts as the dense part, so that outputs are the dense network's
            (without dropout and capacity); gates' weights have to add up to 1. `split`: expert e
            gets the e-th `hidden` units (counted round, S = H / hidden slices), the second product
            times S: exact where k is a multiple of S, else an estimate. `fresh`: drawn anew.
        capacity: How many rows an expert may compute in a training step; default: any number.
        inplace: Change the network itself; default: a copy.
        hidden: Units of an expert. Default: the dense part's, and for `split` an E-th of it.

    Returns:
        The network with a `ConvertedMoE` for each part; its losses are read by `auxiliary_losses`.

    Raises:
        ValueError: Nothing to convert, products that do not fit, or settings that do not.

    Example:
        >>> import torch
        >>> from mmoe.integrations.convert import convert
        >>> dense = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
        >>> moe, x = convert(dense, num_experts=4), torch.randn(2, 5, 16)
        >>> torch.allclose(moe(x), dense(x), atol=1e-5)
        True

    Source: Komatsuzaki et al., "Sparse upcycling" (ICLR 2023); for `split` He et al., "Upcycling
        large language models into mixture of experts" (arXiv 2410.07524).
    """
    _check(module, num_experts, k, init, hidden)
    maker = gate_maker(gate, k, num_experts)
    make = partial(make_mixture, num_experts, init, hidden, maker, check_capacity(capacity))
    chosen = _choose(module, _find_places(module), target_modules)
    if inplace:
        _check_inplace(chosen)
    else:
        module, chosen = copy.deepcopy((module, chosen))  # at once, so that places stay its own
    return _replaced(module, chosen, make)


def _replaced(
    module: nn.Module, places: Sequence[Place], make: Callable[[str, FeedForward], ConvertedMoE]
) -> nn.Module:
    """Puts mixtures in these places; returns the network, or what stands in its place."""
    hooked = _hooked(module)
    mixtures: dict[Hashable, ConvertedMoE] = {}
    # All are made before one is put in: where one cannot be, the network is as it was
    for place in places:
        if place.part.key not in mixtures:
            mixtures[place.part.key] = make(place.name, place.part)
    for place in places:
        module = _put(module, place, mixtures[place.part.key])
    _forget_nested_tensors(module)
    _tell_of_lost_hooks(hooked, module)
    return module


def _put(network: nn.Module, place: Place, mixture: nn.Module) -> nn.Module:
    """Puts a mixture in; returns the network, or what stands in its place."""
    new = place.recogniser.replace(place.holder, mixture)
    if new is place.holder:
        return network
    put_in_place(network, place.holder, new)
    return new if network is place.holder else network


def _forget_nested_tensors(network: nn.Module) -> None:
    """Torch's encoder asks its first layer alone whether padding can be left out for all."""
    for module in network.modules():
        if isinstance(module, nn.TransformerEncoder) and any(
            isinstance(inner, ConvertedMoE) for inner in module.modules()
        ):
            module.use_nested_tensor = False


def _hooked(network: nn.Module) -> dict[str, nn.Module]:
    return {
        name or "the module itself": module
        for name, module in network.named_modules()
        if module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    }


def _tell_of_lost_hooks(hooked: dict[str, nn.Module], network: nn.Module) -> None:
    there = set(network.modules())
    lost = [name for name, module in hooked.items() if module not in there]
    if lost:
        warn_caller(
            f"convert: hooks of {', '.join(lost)} are gone with the layers that had them; "
            "register them anew, on the mixtures"
        )


def _check(module: object, num_experts: int, k: int, init: str, hidden: int | None) -> None:
    if not isinstance(module, nn.Module):
        raise ValueError(
            f"module: expected an nn.Module, got a {type(module).__name__}; several go into an "
            "nn.ModuleList"
        )
    for name, value in (("num_experts", num_experts), ("k", k), ("hidden", hidden)):
        whole = isinstance(value, int) and not isinstance(value, bool) and value >= 1
        if not whole and not (name == "hidden" and value is None):
            raise ValueError(f"{name}: expected a whole number of 1 or more, got {value!r}")
    if init not in get_args(Init):
        raise ValueError(f"init: expected one of {', '.join(get_args(Init))}, got {init!r}")
    if init == "copy" and hidden is not None:
        raise ValueError(
            f"hidden: init='copy' keeps the dense width, got {hidden}; leave it out, or take "
            "init='split' or 'fresh'"
        )


def _check_inplace(places: Sequence[Place]) -> None:
    for place in places:
        if not place.name and place.recogniser.makes_new:
            raise ValueError(
                "inplace: the module itself is the feed-forward part, and would be another module; "
                "use what convert(module, inplace=False) returns"
            )
