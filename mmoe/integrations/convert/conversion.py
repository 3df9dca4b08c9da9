"""`convert`: a network's feed-forward parts become mixtures of experts."""

import copy
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import get_args

from torch import nn

from mmoe.errors import warn_caller
from mmoe.integrations.convert.experts import Init, expert_width, make_pool, slices_of
from mmoe.integrations.convert.gates import (
    GateMaker,
    GateSetting,
    check_sums,
    gate_maker,
    make_gate,
)
from mmoe.integrations.convert.layer import ConvertedMoE
from mmoe.integrations.convert.places import Place, Targets, choose, find_places, put_in_place
from mmoe.mixture import Capacity
from mmoe.mixture.checks import check_capacity


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
    form = _Form(gate_maker(gate, k, num_experts), num_experts, init, check_capacity(capacity))
    chosen = choose(module, find_places(module), target_modules)
    widths = [expert_width(p.name, p.part.widths[1], num_experts, init, hidden) for p in chosen]
    if inplace:
        _check_inplace(chosen)
    else:
        module, chosen = copy.deepcopy((module, chosen))  # at once, so that places stay its own
    return _replaced(module, chosen, widths, form)


@dataclass(frozen=True)
class _Form:
    """Settings that all mixtures of a network have in common."""

    maker: GateMaker
    num_experts: int
    init: Init
    capacity: Capacity | None

    def mixture(self, place: Place, width: int) -> ConvertedMoE:
        """Makes the mixture for one part; `width` is that of its experts."""
        part, like = place.part, place.part.first.weight
        pool = make_pool(part, self.num_experts, self.init, width)
        slices = slices_of(part, self.init, width)
        gate = make_gate(self.maker, part.widths[0], self.num_experts, slices)
        if self.init == "copy":
            check_sums(gate, part.widths[0], self.num_experts)
        layer = ConvertedMoE(
            part.widths[0], pool, gate=gate.to(like.device, like.dtype), capacity=self.capacity
        )
        return layer.to(like.device).train(part.first.training)


def _replaced(
    module: nn.Module, places: Sequence[Place], widths: Sequence[int], form: _Form
) -> nn.Module:
    """Puts mixtures in these places; returns the network, or what stands in its place."""
    hooked = _hooked(module)
    mixtures: dict[Hashable, ConvertedMoE] = {}
    # All are made before one is put in: where one cannot be, the network is as it was
    for place, width in zip(places, widths, strict=True):
        if place.part.key not in mixtures:
            mixtures[place.part.key] = form.mixture(place, width)
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
