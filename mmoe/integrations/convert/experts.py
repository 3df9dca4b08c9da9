"""Pools of experts made from one feed-forward part: copied, cut up, or drawn anew."""

import copy
from typing import Literal

import torch
from torch import Tensor, nn

from mmoe.integrations.convert.feed_forward import FeedForward, hidden_units
from mmoe.mixture import ExpertPool, MLPExperts
from mmoe.mixture.experts.mlp import ExpertActivation

Init = Literal["copy", "split", "fresh"]

# What the pool calls such units that a gate multiplies
_GATED: dict[ExpertActivation, ExpertActivation] = {"silu": "swiglu"}


class FeedForwardExpert(nn.Module):
    """One expert whose activation no pool of equal MLPs has: `second(drop(act(first(x))))`.

    Args:
        part: Its layers, which it takes over.
    """

    def __init__(self, part: FeedForward) -> None:
        super().__init__()
        self.first, self.second, self.gate = part.first, part.second, part.gate
        self.activation = part.activation
        self.dropout = nn.Dropout(part.dropout)
        self.output_dim = part.second.out_features

    def forward(self, x_BD: Tensor) -> Tensor:
        """Computes `y_BO`."""
        h_BH = hidden_units(x_BD, self.first, self.activation, self.gate)
        return self.second(self.dropout(h_BH))


def expert_width(name: str, width: int, num_experts: int, init: Init, hidden: int | None) -> int:
    """Returns H of one expert.

    Args:
        name: Of the layer, for messages.
        width: H of the dense layer.
        num_experts: E.
        init: `copy`, `split` or `fresh`.
        hidden: What the caller wants; None: the dense layer's, or with `split` an E-th of it.

    Raises:
        ValueError: Units that cannot be cut into equal parts.
    """
    where = name or "module"
    if init != "split":
        return width if hidden is None else hidden
    if hidden is None and width % num_experts:
        fitting = [n for n in range(2, 2 * num_experts) if width % n == 0]
        near = min(fitting, key=lambda n: abs(n - num_experts), default=1)
        raise ValueError(
            f"num_experts: expected a divisor of the {width} hidden units of {where}, which "
            f"init='split' cuts up, got {num_experts}; take {near}, or pass hidden"
        )
    each = width // num_experts if hidden is None else hidden
    if width % each or num_experts % (width // each):
        raise ValueError(
            f"hidden: expected a width that cuts the {width} hidden units of {where} into equal "
            f"parts, whose number divides num_experts ({num_experts}), got {each}; take another, "
            "or init='fresh'"
        )
    return each


def make_pool(
    part: FeedForward, num_experts: int, init: Init, width: int
) -> MLPExperts | ExpertPool:
    """Makes the experts, in the type and on the device of the part.

    Args:
        part: The dense layer's.
        num_experts: E.
        init: `copy`: each expert is the part. `split`: expert e is the part's e-th `width` units,
            counted round, its second product times their number S = H / width; the mean over all
            experts is then the dense output, and the second bias counts once. `fresh`: drawn anew,
            as torch draws a linear layer.
        width: H of an expert.
    """
    biased = {layer.bias is not None for layer in part.products}
    known = part.known_activation
    name = known if part.gate is None or known is None else _GATED.get(known)
    if name is None or len(biased) > 1:
        parts = (_expert(part, e, init, width) for e in range(num_experts))
        return ExpertPool([FeedForwardExpert(each).train(part.first.training) for each in parts])
    input_dim, _, output_dim = part.widths
    with torch.device("meta"):  # no number is drawn
        pool = MLPExperts(
            num_experts,
            input_dim,
            [width, output_dim],
            activation=name,
            output_activation=None,
            dropout=part.dropout,
            output_dropout=0.0,
            bias=biased.pop(),
        )
    pool = pool.to(part.first.weight.dtype).to_empty(device=part.first.weight.device)
    for e in range(num_experts):
        _fill(pool, e, _expert(part, e, init, width))
    _require_gradients(pool, part)
    return pool.train(part.first.training)


@torch.no_grad()
def _fill(pool: MLPExperts, e: int, expert: FeedForward) -> None:
    """Fills in one expert's layers; a gate's units come first, as SwiGLU has them."""
    first = [expert.first] if expert.gate is None else [expert.gate, expert.first]
    for layer, linears in enumerate((first, [expert.second])):
        pool.weights[layer][e].copy_(torch.cat([linear.weight for linear in linears]).T)
        if pool.biases:
            pool.biases[layer][e].copy_(torch.cat([linear.bias for linear in linears]))


def _require_gradients(pool: MLPExperts, part: FeedForward) -> None:
    """Keeps frozen what was frozen."""
    first = [part.first] if part.gate is None else [part.gate, part.first]
    for layer, linears in enumerate((first, [part.second])):
        pool.weights[layer].requires_grad_(any(each.weight.requires_grad for each in linears))
        if pool.biases:
            pool.biases[layer].requires_grad_(any(each.bias.requires_grad for each in linears))


def _expert(part: FeedForward, e: int, init: Init, width: int) -> FeedForward:
    """The layers of expert e."""
    slices = part.first.out_features // width
    units = slice(e % slices * width, (e % slices + 1) * width) if init == "split" else slice(None)

    def rows(layer: nn.Linear) -> nn.Linear:
        if init == "fresh":
            return _drawn(layer, layer.in_features, width)
        return _linear(
            layer, layer.weight[units], None if layer.bias is None else layer.bias[units]
        )

    def columns(layer: nn.Linear) -> nn.Linear:
        if init == "fresh":
            return _drawn(layer, width, layer.out_features)
        return _linear(
            layer, layer.weight[:, units] * (slices if init == "split" else 1), layer.bias
        )

    return FeedForward(
        rows(part.first),
        columns(part.second),
        copy.deepcopy(part.activation),
        None if part.gate is None else rows(part.gate),
        part.dropout,
    )


def _drawn(like: nn.Linear, before: int, after: int) -> nn.Linear:
    """A new layer, drawn on the CPU, so that a seed gives the same numbers on every device."""
    new = nn.Linear(before, after, like.bias is not None, device="cpu", dtype=torch.float32)
    return _as(new.to(like.weight), like)


def _linear(like: nn.Linear, weight: Tensor, bias: Tensor | None) -> nn.Linear:
    with torch.device("meta"):
        new = nn.Linear(weight.shape[1], weight.shape[0], bias is not None)
    new.weight = nn.Parameter(weight.detach().clone())
    if bias is not None:
        new.bias = nn.Parameter(bias.detach().clone())
    return _as(new, like)


def _as(new: nn.Linear, like: nn.Linear) -> nn.Linear:
    for mine, its in zip(new.parameters(), like.parameters(), strict=True):
        mine.requires_grad_(its.requires_grad)
    return new


def slices_of(part: FeedForward, init: Init, width: int) -> int:
    """Returns S, how many experts make one dense layer: 1 but of `split`."""
    return part.first.out_features // width if init == "split" else 1
