"""Feed-forward parts of torch's own modules: its Transformer layers, and Sequentials."""

from typing import Any, cast

from torch import nn

from mmoe.integrations.convert.agree import if_computed
from mmoe.integrations.convert.feed_forward import FeedForward
from mmoe.integrations.convert.plain_layers import into_chain, plain_linear, probability

# What may stand around the two products of a Sequential, and stays
_AROUND = (nn.LayerNorm, nn.RMSNorm, nn.Dropout, nn.Identity)


def torch_layer(layer: nn.Module) -> FeedForward | None:
    """Finds `linear1, activation, dropout, linear2` of a layer of a Transformer."""
    if not isinstance(layer, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
        return None
    first, second = plain_linear(layer.linear1), plain_linear(layer.linear2)
    drops = probability(layer.dropout)
    if first is None or second is None or drops is None:
        return None
    part = FeedForward(first, second, layer.activation, dropout=drops)
    # A subclass may have another one
    return if_computed(layer, part, into_torch_layer, "_ff_block")


def into_torch_layer(layer: nn.Module, mixture: nn.Module) -> nn.Module:
    """Keeps its `_ff_block`; torch's fused layer, which reads two weights, is turned off."""
    into_chain("linear1", "activation", "dropout", "linear2")(layer, mixture)
    cast(Any, layer).activation_relu_or_gelu = 0
    return layer


def sequential(module: nn.Module) -> FeedForward | None:
    """Finds `Linear, activation, [Dropout,] Linear` with norms and dropouts around them."""
    span = _span(module)
    if span is None:
        return None
    layers = list(cast(nn.Sequential, module))
    start, stop = span
    between = layers[start + 1 : stop]
    first, second = cast(nn.Linear, layers[start]), cast(nn.Linear, layers[stop])
    kinds = [layer for layer in between if probability(layer) is None]
    drops = [p for p in map(probability, between) if p]
    if len(kinds) != 1 or len(drops) > 1:
        return None
    if drops and probability(between[0]):  # dropped before the activation
        return None
    part = FeedForward(first, second, kinds[0], dropout=sum(drops))
    return part if part.is_pointwise or not part.fits else None


def into_sequential(module: nn.Module, mixture: nn.Module) -> nn.Module:
    """Puts it at the place of the first product; what comes up to the second does nothing."""
    span = _span(module)
    assert span is not None, "it has matched"
    start, stop = span
    sequence = cast(nn.Sequential, module)
    sequence[start] = mixture
    for place in range(start + 1, stop + 1):
        sequence[place] = nn.Identity()
    return module


def _span(module: nn.Module) -> tuple[int, int] | None:
    """The places of the two linear layers, where beside them are only norms and dropouts."""
    if not isinstance(module, nn.Sequential) or type(module).forward is not nn.Sequential.forward:
        return None
    layers = list(module)
    places = [i for i, layer in enumerate(layers) if plain_linear(layer) is not None]
    if len(places) != 2:
        return None
    start, stop = places
    around = layers[:start] + layers[stop + 1 :]
    return (start, stop) if all(isinstance(layer, _AROUND) for layer in around) else None
