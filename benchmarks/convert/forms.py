"""A small network for each form of feed-forward part that `convert` knows, and one's own."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmarks.convert.swin import SwinClassifier
from mmoe.integrations.convert import FeedForward

WIDTH, HIDDEN = 32, 64


@dataclass(frozen=True)
class Form:
    """A network and what it reads.

    Attributes:
        recogniser: Whose form it is.
        make: Makes the dense network.
        shapes: Of its inputs.
    """

    recogniser: str
    make: Callable[[], nn.Module]
    shapes: tuple[tuple[int, ...], ...]


class Gated(nn.Module):
    """As in Llama: `down(silu(gate(x)) · up(x))`, without biases."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(WIDTH, HIDDEN, bias=False) for _ in range(2))
        self.down_proj, self.act_fn = nn.Linear(HIDDEN, WIDTH, bias=False), nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        """`[..., D]` → as large."""
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class FullyConnected(nn.Module):
    """As in ViT: `fc2(act(fc1(x)))`."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """`[..., D]` → as large."""
        return self.fc2(self.act(self.fc1(x)))


class Intermediate(nn.Module):
    """The first half of BERT's."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.intermediate_act_fn = nn.Linear(WIDTH, HIDDEN), nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        """`[..., D]` → `[..., H]`."""
        return self.intermediate_act_fn(self.dense(x))


class Output(nn.Module):
    """The second half of BERT's."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.LayerNorm = nn.Linear(HIDDEN, WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, hidden: Tensor, x: Tensor) -> Tensor:
        """`[..., H]` and what is added, `[..., D]` → `[..., D]`."""
        return self.LayerNorm(self.dense(hidden) + x)


class BertLayer(nn.Module):
    """Both halves, without the attention."""

    def __init__(self) -> None:
        super().__init__()
        self.intermediate, self.output = Intermediate(), Output()

    def forward(self, x: Tensor) -> Tensor:
        """`[..., D]` → as large."""
        return self.output(self.intermediate(x), x)


class Own(nn.Module):
    """What no shipped recogniser knows by its names."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """`[..., D]` → as large."""
        return self.narrow(torch.relu(self.wide(x)))


def own_part(module: nn.Module) -> FeedForward | None:
    """Its feed-forward part, for `register`."""
    if not isinstance(module, Own):
        return None
    return FeedForward(module.wide, module.narrow, torch.relu)


def _encoder(**settings) -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, 2, HIDDEN, dropout=0.0, batch_first=True, **settings)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def _decoder() -> nn.Module:
    layer = nn.TransformerDecoderLayer(WIDTH, 2, HIDDEN, dropout=0.0, batch_first=True)
    return nn.TransformerDecoder(layer, 1)


def _sequential() -> nn.Module:
    return nn.Sequential(
        nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, WIDTH), nn.Dropout(0.0)
    )


_ROWS = (2, 12, WIDTH)
OWN = "one's own"
FORMS: Mapping[str, Form] = {
    "encoder": Form("torch's Transformer layers", _encoder, (_ROWS,)),
    "encoder, norm first": Form(
        "torch's Transformer layers",
        lambda: _encoder(norm_first=True, activation="gelu"),
        (_ROWS,),
    ),
    "decoder": Form("torch's Transformer layers", _decoder, (_ROWS, _ROWS)),
    "sequential": Form("Sequential(Linear, activation, Linear)", _sequential, (_ROWS,)),
    "SwinV2-like": Form(
        "Sequential(Linear, activation, Linear)",
        lambda: SwinClassifier(WIDTH, 10),
        ((2, 32, 32, 3),),
    ),
    "gated": Form("gate_proj, up_proj, down_proj", Gated, (_ROWS,)),
    "fc1, fc2": Form("fc1, act, fc2", FullyConnected, (_ROWS,)),
    "BERT's": Form("intermediate, output", BertLayer, (_ROWS,)),
    OWN: Form(OWN, Own, (_ROWS,)),
}
