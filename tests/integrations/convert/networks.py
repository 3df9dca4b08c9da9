"""Small networks with every form of feed-forward part that is shipped, and inputs for them."""

import torch
from torch import nn

D, H = 8, 12
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


class Gated(nn.Module):
    """As Llama's."""

    def __init__(self, act_fn=None, bias=False):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(D, H, bias), nn.Linear(D, H, bias)
        self.down_proj = nn.Linear(H, D, bias)
        self.act_fn = nn.SiLU() if act_fn is None else act_fn

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class Mlp(nn.Module):
    """As SwinV2's and ViT's."""

    def __init__(self, act=None, drop=0.0):
        super().__init__()
        self.fc1, self.act, self.drop1 = nn.Linear(D, H), act or nn.GELU(), nn.Dropout(drop)
        self.fc2, self.drop2 = nn.Linear(H, D), nn.Dropout(drop)

    def forward(self, x):
        return self.drop2(self.fc2(self.drop1(self.act(self.fc1(x)))))


class Windowed(nn.Module):
    """A SwinV2-like block: `[B, H, W, C]`, with a table of positions made by an MLP."""

    def __init__(self):
        super().__init__()
        self.cpb_mlp = nn.Sequential(nn.Linear(2, H), nn.ReLU(), nn.Linear(H, 1, bias=False))
        self.proj, self.norm1, self.norm2 = nn.Linear(D, D), nn.LayerNorm(D), nn.LayerNorm(D)
        self.mlp = Mlp()

    def forward(self, x_BHWC):
        steps = torch.linspace(-1, 1, x_BHWC.shape[2], dtype=x_BHWC.dtype)
        bias_W1 = self.cpb_mlp(torch.stack([steps, -steps], 1)).softmax(0)
        mixed = (self.proj(x_BHWC) * bias_W1).sum(2, keepdim=True)
        x_BHWC = x_BHWC + self.norm1(mixed.expand_as(x_BHWC))
        return x_BHWC + self.norm2(self.mlp(x_BHWC))


class Intermediate(nn.Module):
    def __init__(self):
        super().__init__()
        self.dense, self.intermediate_act_fn = nn.Linear(D, H), nn.GELU()

    def forward(self, x):
        return self.intermediate_act_fn(self.dense(x))


class Output(nn.Module):
    def __init__(self):
        super().__init__()
        self.dense, self.LayerNorm = nn.Linear(H, D), nn.LayerNorm(D)

    def forward(self, hidden, x):
        return self.LayerNorm(self.dense(hidden) + x)


class Pair(nn.Module):
    """As BERT's layer."""

    def __init__(self):
        super().__init__()
        self.intermediate, self.output = Intermediate(), Output()

    def forward(self, x):
        return self.output(self.intermediate(x), x)


class Encoded(nn.Module):
    """A decoder's layer reads the encoder's output too."""

    def __init__(self, **settings):
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(D, 2, H, 0.0, **settings)

    def forward(self, x):
        return self.layer(x, x.flip(1))


def encoder(layers=2, **settings):
    layer = nn.TransformerEncoderLayer(D, 2, H, 0.0, **settings)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


def sequential(*between, bias=True, after=()):
    return nn.Sequential(nn.Linear(D, H, bias), *between, nn.Linear(H, D, bias), *after)


# Of each: what makes it, the shape it reads, how many parts it has
NETWORKS = {
    "encoder": (encoder, (3, 5, D), 2),
    "encoder, batch first": (lambda: encoder(batch_first=True), (3, 5, D), 2),
    "encoder, norm first": (lambda: encoder(norm_first=True, activation="gelu"), (3, 5, D), 2),
    "encoder, tanh": (lambda: encoder(activation=torch.tanh), (3, 5, D), 2),
    "encoder, no bias": (lambda: encoder(bias=False), (3, 5, D), 2),
    "decoder": (Encoded, (3, 5, D), 1),
    "decoder, norm first": (lambda: Encoded(norm_first=True, batch_first=True), (3, 5, D), 1),
    "sequential": (lambda: sequential(nn.ReLU()), (7, D), 1),
    "sequential, dropouts": (
        lambda: sequential(nn.GELU(), nn.Dropout(0.0), after=[nn.Dropout(0.0)]),
        (2, 3, D),
        1,
    ),
    "sequential, norm": (
        lambda: nn.Sequential(nn.LayerNorm(D), *sequential(nn.SiLU(), bias=False)),
        (2, 3, D),
        1,
    ),
    "sequential, PReLU": (lambda: sequential(nn.PReLU()), (7, D), 1),
    "gated": (lambda: nn.Sequential(Gated()), (2, 3, D), 1),
    "gated, bias": (lambda: nn.Sequential(Gated(bias=True)), (2, 3, D), 1),
    "gated, gelu": (lambda: nn.Sequential(Gated(nn.GELU("tanh"))), (2, 3, D), 1),
    "fc": (Mlp, (2, 3, D), 1),
    "SwinV2-like": (lambda: nn.Sequential(Windowed(), Windowed()), (2, 4, 4, D), 2),
    "pair": (Pair, (2, 3, D), 1),
}


def make(name, dtype=torch.float32):
    """The dense network of a name, and an input."""
    torch.manual_seed(0)
    network, shape, _ = NETWORKS[name]
    return network().to(dtype), torch.randn(*shape, dtype=dtype)


def difference(found, expected):
    """Largest, over the largest number."""
    found, expected = found.detach(), expected.detach()
    return float((found - expected).abs().max() / expected.abs().max())
