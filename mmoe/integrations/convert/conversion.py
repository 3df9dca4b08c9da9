"""`convert`: a network's feed-forward parts become mixtures of experts."""

import copy
from collections.abc import Hashable, Sequence
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

    Parts are found by structure: torch's Transformer layers, `Sequential(Linear, act, Linear)`,
    gated MLPs (`gate_proj`, `up_proj`, `down_proj`), `fc1, act, fc2`, `intermediate` and `output`;
    more by `register`. A class's code is asked whether it computes what its names say. Norms,
    residuals and the dropout of outputs stay where they are. A part that is used twice becomes one
    mixture. Type, device, mode and frozen parameters are kept; gates are new, and train.

    Args:
        module: The network, or one layer.
        num_experts: E.
        k: Experts of a row, for gates that take it (top_k, noisy_top_k, cosine, sigmoid, …).
        gate: A kind (`top_k`), a config's section (`{"kind": "top_k", "balance_loss": 0.01}`), or a
            function `(input_dim, num_gates, num_experts)` that makes each layer's gate.
        target_modules: Names of modules or their ends (`["linear1"]`), a regular expression for the
            whole name, or a function of a module and its name; they may name the layer that holds a
            part, or a product of it. None: every part there is, but for those that change the width
            where others do not (heads, tables of positions).
        init: `copy`: every expert starts as the dense part, so that the outputs are the dense
            network's where gates' weights add up to 1 (others are refused), without dropout and
            without a capacity. `split`: expert e gets the e-th `hidden` units (counted round, S = H
            / hidden slices) with the second product times S; where k is a multiple of S, or all
            experts are on, that is the dense network at the start, else an estimate of it.
            `fresh`: experts of the same form, drawn anew.
        capacity: How many rows an expert may compute in a training step; default: any number.
        inplace: Change the network itself; default: a copy.
        hidden: Units of an expert. Default: the dense part's, and for `split` an E-th of it. With
            k · hidden = the dense width a row costs as much as before.

    Returns:
        The network with a `ConvertedMoE` for each part; its losses are read by `auxiliary_losses`.

    Raises:
        ValueError: Nothing to convert, or nothing left; a part whose products do not fit; a setting
            that does not go with the others, by its name.

    Example:
        >>> import torch
        >>> from mmoe.integrations.convert import convert
        >>> layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        >>> dense = torch.nn.TransformerEncoder(layer, num_layers=2).eval()
        >>> moe = convert(dense, num_experts=4)
        >>> x = torch.randn(2, 5, 16)
        >>> torch.allclose(moe(x), dense(x), atol=1e-5)
        True

    Source: Komatsuzaki et al., "Sparse upcycling" (ICLR 2023), for `copy`; He et al., "Upcycling
        large language models into mixture of experts" (arXiv 2410.07524), for slices whose gates
        start alike.
    """
    _check(module, num_experts, k, init, hidden)
    limit = check_capacity(capacity)
    maker = gate_maker(gate, k, num_experts)
    chosen = choose(module, find_places(module), target_modules)
    widths = [expert_width(p.name, p.part.widths[1], num_experts, init, hidden) for p in chosen]
    if inplace:
        _check_inplace(chosen)
    else:
        module, chosen = copy.deepcopy((module, chosen))  # at once, so that places stay its own
    hooked = _hooked(module)
    mixtures: dict[Hashable, ConvertedMoE] = {}
    for place, width in zip(chosen, widths, strict=True):
        if place.part.key not in mixtures:
            mixtures[place.part.key] = _mixture(place, maker, num_experts, init, width, limit)
    for place in chosen:
        module = _put(module, place, mixtures[place.part.key])
    _forget_nested_tensors(module)
    _tell_of_lost_hooks(hooked, module)
    return module


def _mixture(
    place: Place,
    maker: GateMaker,
    num_experts: int,
    init: Init,
    width: int,
    capacity: Capacity | None,
) -> ConvertedMoE:
    part = place.part
    like = part.first.weight
    pool = make_pool(part, num_experts, init, width)
    gate = make_gate(maker, part.widths[0], num_experts, slices_of(part, init, width))
    if init == "copy":
        check_sums(gate, part.widths[0], num_experts)
    layer = ConvertedMoE(
        part.widths[0], pool, gate=gate.to(like.device, like.dtype), capacity=capacity
    )
    return layer.to(like.device).train(part.first.training)


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
