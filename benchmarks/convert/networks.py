"""Networks that are converted, and what they are trained on: text of a grammar, drawn pictures."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmoe.integrations.convert import FeedForward

# Text from a small stochastic grammar whose entropy is known

LETTERS = "abcdefghijklmnopqrstuvwxyz"
ALPHABET = LETTERS + " "
SPACE = len(LETTERS)


@dataclass(frozen=True)
class Grammar:
    """States, words and how likely they are."""

    words: tuple[tuple[int, ...], ...]  # As numbers of letters, without the space
    words_SM: np.ndarray  # The words that each state may write, by number
    p_SM: np.ndarray  # How likely each of them is; each row adds up to 1
    next_V: np.ndarray  # The state that follows each word

    @property
    def lengths_V(self) -> np.ndarray:
        return np.array([len(word) + 1 for word in self.words])

    def stationary_S(self) -> np.ndarray:
        """Shares of the states over words of an endless text."""
        states = len(self.p_SM)
        step_SS = np.zeros((states, states))
        rows = np.repeat(np.arange(states), self.p_SM.shape[1])
        np.add.at(step_SS, (rows, self.next_V[self.words_SM].ravel()), self.p_SM.ravel())
        # pi (P - 1) = 0 with sum(pi) = 1; least squares, as one row of the system is redundant
        system = np.vstack([step_SS.T - np.eye(states), np.ones(states)])
        return np.linalg.lstsq(system, np.append(np.zeros(states), 1.0), rcond=None)[0]

    def entropy(self) -> float:
        """Nats of a character: `Σ_s π_s H(p_s) / Σ_s π_s Σ_w p_s(w) (|w| + 1)`."""
        share_S = self.stationary_S()
        nats_S = -(self.p_SM * np.log(self.p_SM)).sum(1)
        length_S = (self.p_SM * self.lengths_V[self.words_SM]).sum(1)
        return float(share_S @ nats_S / (share_S @ length_S))

    def text(self, characters: int, seed: int, streams: int = 512) -> np.ndarray:
        """Draws texts side by side, each from a state of its own.

        Returns numbers of characters, uint8 `[streams, characters // streams]`.
        """
        rng, length = np.random.default_rng(seed), characters // streams
        state_N = rng.choice(len(self.p_SM), size=streams, p=_clean(self.stationary_S()))
        edges_SM = np.cumsum(self.p_SM, axis=1)
        table_VC = self._spelled()
        lengths_V, text_NC = self.lengths_V, np.empty((streams, length), np.uint8)
        at_N, columns = np.zeros(streams, np.int64), np.arange(table_VC.shape[1])
        while (at_N < length).any():
            above_NM = rng.random(streams)[:, None] >= edges_SM[state_N, :-1]
            word_N = self.words_SM[state_N, above_NM.sum(1)]
            place_NC = at_N[:, None] + columns
            written_NC = (columns < lengths_V[word_N][:, None]) & (place_NC < length)
            rows, _ = np.nonzero(written_NC)
            text_NC[rows, place_NC[written_NC]] = table_VC[word_N][written_NC]
            at_N += lengths_V[word_N]
            state_N = self.next_V[word_N]
        return text_NC

    def _spelled(self) -> np.ndarray:
        table_VC = np.full((len(self.words), self.lengths_V.max()), SPACE, np.uint8)
        for word, letters in enumerate(self.words):
            table_VC[word, : len(letters)] = letters
        return table_VC


def draw_grammar(
    seed: int,
    *,
    words: int,  # V; all different
    states: int,
    of_state: int,  # M, words that one state may write; the r-th is 1 / r as likely as the first
    letters: int = len(LETTERS),  # How many the words are made of
    lengths: tuple[int, int] = (2, 6),  # Letters of the shortest and the longest word
) -> Grammar:
    """Draws a grammar."""
    rng = np.random.default_rng(seed)
    spelled: dict[tuple[int, ...], None] = {}
    while len(spelled) < words:
        length = rng.integers(lengths[0], lengths[1], endpoint=True)
        spelled[tuple(rng.integers(letters, size=length).tolist())] = None
    weight_M = 1 / np.arange(1, of_state + 1)
    return Grammar(
        words=tuple(spelled),
        words_SM=np.stack([rng.permutation(words)[:of_state] for _ in range(states)]),
        p_SM=np.tile(weight_M / weight_M.sum(), (states, 1)),
        next_V=rng.integers(states, size=words),
    )


def _clean(p_S: np.ndarray) -> np.ndarray:
    p_S = np.clip(p_S, 0, None)
    return p_S / p_S.sum()


# What the best reader of a text could reach, who knows the grammar and sees a window alone


def best_loss(grammar: Grammar, windows_WL: np.ndarray) -> float:
    """Nats of a character for Bayes' rule over all places of the grammar.

    Places are the characters of each word of each state. A window may begin at any of them; its
    first character only tells where it may have begun, and is not counted.

    Args:
        grammar: What wrote the windows.
        windows_WL: Numbers of characters.
    """
    characters_H, starts_SM, ends_H, arrives_H = _places(grammar)
    states = len(grammar.p_SM)
    belief_WH = np.tile(_first_belief(grammar), (len(windows_WL), 1))
    nats = 0.0
    for column, read_W in enumerate(windows_WL.T):
        belief_WH = belief_WH * (characters_H == read_W[:, None])
        likely_W = belief_WH.sum(1)
        nats -= np.log(likely_W).sum() if column else 0.0
        belief_WH /= likely_W[:, None]
        # On to the next character of the word, or to the first of each word of the next state
        state_WS = belief_WH[:, ends_H] @ np.eye(states)[arrives_H]
        belief_WH[:, ends_H] = 0.0
        belief_WH = np.roll(belief_WH, 1, axis=1)
        belief_WH[:, starts_SM.ravel()] = (state_WS[:, :, None] * grammar.p_SM).reshape(
            len(windows_WL), -1
        )
    return float(nats / windows_WL[:, 1:].size)


def _places(grammar: Grammar) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Each place's character; where words start; which places end one, and the state after it."""
    words = [(*grammar.words[word], SPACE) for word in grammar.words_SM.ravel()]
    lengths = np.array([len(word) for word in words])
    ends = np.cumsum(lengths)
    starts_SM = (ends - lengths).reshape(grammar.words_SM.shape)
    return (
        np.concatenate([np.array(word) for word in words]),
        starts_SM,
        ends - 1,
        grammar.next_V[grammar.words_SM.ravel()],
    )


def _first_belief(grammar: Grammar) -> np.ndarray:
    share_SM = grammar.stationary_S()[:, None] * grammar.p_SM
    belief_H = np.repeat(share_SM.ravel(), grammar.lengths_V[grammar.words_SM.ravel()])
    belief_H = np.clip(belief_H, 0, None)
    return belief_H / belief_H.sum()


# A small Transformer that predicts the next character


class CharTransformer(nn.Module):
    """Characters, their places, `nn.TransformerEncoderLayer`s that look back alone, and logits."""

    def __init__(self, width: int, layers: int, hidden: int, context: int, heads: int = 4) -> None:
        super().__init__()
        self.characters = nn.Embedding(len(ALPHABET), width)
        self.places_LD = nn.Parameter(0.02 * torch.randn(context, width))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, heads, hidden, 0.0, F.gelu, batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.logits = nn.Linear(width, len(ALPHABET))
        nn.init.normal_(self.characters.weight, std=0.02)
        self.register_buffer("past_LL", nn.Transformer.generate_square_subsequent_mask(context))

    def forward(self, text_BL: Tensor) -> Tensor:
        x_BLD = self.characters(text_BL) + self.places_LD
        for layer in self.layers:
            x_BLD = layer(x_BLD, src_mask=self.past_LL, is_causal=True)
        return self.logits(self.norm(x_BLD))


# A small SwinV2-like classifier: attention in windows that shift, on maps `[B, H, W, C]`

WINDOW, HEADS, PATCH = 4, 4, 4


class WindowAttention(nn.Module):
    """Attention of cosines within windows, biased by how far two places are from each other.


    Source: Liu et al., "Swin Transformer V2" (CVPR 2022).
    """

    def __init__(self, channels: int, shift: int) -> None:
        super().__init__()
        self.shift = shift
        self.qkv, self.out = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)
        self.scale_N11 = nn.Parameter(torch.full((HEADS, 1, 1), 10.0).log())
        self.distance = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, HEADS))
        place = torch.stack(
            torch.meshgrid(torch.arange(WINDOW), torch.arange(WINDOW), indexing="ij"), dim=-1
        ).view(-1, 2)
        apart_TT2 = (place[:, None] - place).float()
        # As its authors: the logarithm, so that larger windows would extrapolate less
        self.register_buffer("apart_TT2", apart_TT2.sign() * apart_TT2.abs().log1p())

    def forward(self, x_BHWC: Tensor) -> Tensor:
        batch, height, width, channels = x_BHWC.shape
        # One window has no edge to look across
        shift = self.shift if height > WINDOW else 0
        x_BHWC = x_BHWC.roll((-shift, -shift), (1, 2))
        q, k, v = self._heads(windows(self.qkv(x_BHWC))).unbind(0)
        bias_NTT = 16 * self.distance(self.apart_TT2).permute(2, 0, 1).sigmoid()
        scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT
        scores = scores * self.scale_N11.clamp(max=4.6).exp() + bias_NTT
        if shift:
            apart_WTT = _apart(height, width, shift, x_BHWC.device)
            scores = scores.view(batch, -1, *scores.shape[1:])
            scores = scores.masked_fill(apart_WTT[:, None], -torch.inf).flatten(0, 1)
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        out_BHWC = _maps(self.out(mixed), batch, height, width, channels)
        return out_BHWC.roll((shift, shift), (1, 2))

    def _heads(self, x_PTC: Tensor) -> Tensor:
        return x_PTC.unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)


class SwinBlock(nn.Module):
    """Attention and a feed-forward part, each normed before it is added."""

    def __init__(self, channels: int, shift: int) -> None:
        super().__init__()
        self.attn, self.norm1 = WindowAttention(channels, shift), nn.LayerNorm(channels)
        hidden = 4 * channels
        self.mlp = nn.Sequential(
            nn.Linear(channels, hidden), nn.GELU(), nn.Linear(hidden, channels), nn.Dropout(0.0)
        )
        self.norm2 = nn.LayerNorm(channels)

    def forward(self, x_BHWC: Tensor) -> Tensor:
        x_BHWC = x_BHWC + self.norm1(self.attn(x_BHWC))
        return x_BHWC + self.norm2(self.mlp(x_BHWC))


class SwinClassifier(nn.Module):
    """Patches, two blocks, four places merged into one, two blocks, the mean, a logit a class."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.patches = nn.Sequential(nn.Linear(3 * PATCH**2, width), nn.LayerNorm(width))
        self.first = nn.Sequential(SwinBlock(width, 0), SwinBlock(width, WINDOW // 2))
        self.merge = nn.Sequential(
            nn.Linear(4 * width, 2 * width, bias=False), nn.LayerNorm(2 * width)
        )
        self.second = nn.Sequential(SwinBlock(2 * width, 0), SwinBlock(2 * width, WINDOW // 2))
        self.norm, self.logits = nn.LayerNorm(2 * width), nn.Linear(2 * width, classes)

    def forward(self, x_BHW3: Tensor) -> Tensor:
        x_BHWC = self.first(self.patches(merged(x_BHW3, PATCH)))
        x_BHWC = self.second(self.merge(merged(x_BHWC, 2)))
        return self.logits(self.norm(x_BHWC).mean((1, 2)))


def merged(x_BHWC: Tensor, side: int) -> Tensor:
    """The places of each square as one, `[B, H / side, W / side, side² · C]`."""
    x = x_BHWC.unflatten(2, (-1, side)).unflatten(1, (-1, side))
    return x.transpose(2, 3).flatten(3)


def windows(x_BHWC: Tensor) -> Tensor:
    """The places of each window as a row of tokens, `[windows, T, C]`."""
    return merged(x_BHWC, WINDOW).unflatten(-1, (WINDOW**2, -1)).flatten(0, 2)


def _maps(x_PTC: Tensor, batch: int, height: int, width: int, channels: int) -> Tensor:
    x = x_PTC.view(batch, height // WINDOW, width // WINDOW, WINDOW, WINDOW, channels)
    return x.transpose(2, 3).reshape(batch, height, width, channels)


def _apart(height: int, width: int, shift: int, device: torch.device) -> Tensor:
    """Which places of a window lie at opposite edges of the map, `[windows, T, T]`."""
    rows, columns = (_edge(length, shift, device) for length in (height, width))
    region_PT1 = windows((rows[:, None] + 2 * columns)[None, :, :, None])
    return region_PT1 != region_PT1.mT


def _edge(length: int, shift: int, device: torch.device) -> Tensor:
    return (torch.arange(length, device=device) >= length - shift).long()


# Pictures of shapes filled with textures; a class is a shape with a texture

SIZE = 32  # pixels a side
SHAPES = ("disc", "square", "triangle", "ring", "cross")
TEXTURES = ("stripes", "checks", "dots", "rings")
CLASSES = len(SHAPES) * len(TEXTURES)
_NOISE = 0.35


def draw_pictures(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Draws pictures: place, size, turn, colours, and what is behind, are chance.

    Returns pictures `[B, SIZE, SIZE, 3]`, and their classes `[B]`, texture first.
    """
    generator = torch.Generator().manual_seed(seed)

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(count, *shape, generator=generator)

    shape_B = torch.randint(len(SHAPES), (count,), generator=generator)
    texture_B = torch.randint(len(TEXTURES), (count,), generator=generator)
    line = torch.linspace(-1, 1, SIZE)
    y_HW, x_HW = torch.meshgrid(line, line, indexing="ij")
    x, y = x_HW - uniform(-0.3, 0.3, 1, 1), y_HW - uniform(-0.3, 0.3, 1, 1)
    u, v = _turned(x, y, uniform(0, 2 * math.pi, 1, 1))
    size = uniform(0.4, 0.7, 1, 1)
    inside_BHW = _choose(_shapes(u / size, v / size), shape_B)
    turned = _turned(x, y, uniform(0, 2 * math.pi, 1, 1))
    filled_BHW = _choose(_textures(*turned, uniform(9, 16, 1, 1)), texture_B)
    bright, dark, behind = (uniform(at - 0.4, at + 0.4, 1, 1, 3) for at in (1.0, -1.0, 0.0))
    filled = torch.where(filled_BHW[..., None], bright, dark)
    picture = torch.where(inside_BHW[..., None], filled, behind)
    noise = _NOISE * torch.randn(picture.shape, generator=generator)
    return picture + noise, texture_B * len(SHAPES) + shape_B


def _turned(x: Tensor, y: Tensor, angle: Tensor) -> tuple[Tensor, Tensor]:
    return x * angle.cos() + y * angle.sin(), y * angle.cos() - x * angle.sin()


def _shapes(u: Tensor, v: Tensor) -> list[Tensor]:
    r, u_abs, v_abs = (u * u + v * v).sqrt(), u.abs(), v.abs()
    return [
        r < 0.95,
        torch.maximum(u_abs, v_abs) < 0.85,
        (v > -0.6) & (v < 1.1 - 1.7 * u_abs),
        (r < 1) & (r > 0.5),
        (torch.minimum(u_abs, v_abs) < 0.35) & (torch.maximum(u_abs, v_abs) < 1),
    ]


def _textures(x: Tensor, y: Tensor, frequency: Tensor) -> list[Tensor]:
    waves_x, waves_y = (frequency * x).sin(), (frequency * y).sin()
    return [
        waves_x > 0,
        waves_x * waves_y > 0,
        waves_x + waves_y > 0.7,
        (frequency * (x * x + y * y).sqrt()).sin() > 0,
    ]


def _choose(options: list[Tensor], which_B: Tensor) -> Tensor:
    """Of B pictures in each of several ways, each one's own."""
    return torch.stack(options)[which_B, torch.arange(len(which_B))]


# A small network for each form of feed-forward part that `convert` knows, and one's own

WIDTH, HIDDEN = 32, 64


@dataclass(frozen=True)
class Form:
    """A network and what it reads."""

    recogniser: str  # Whose form it is
    make: Callable[[], nn.Module]  # Makes the dense network
    shapes: tuple[tuple[int, ...], ...]  # Of its inputs


class Gated(nn.Module):
    """As in Llama: `down(silu(gate(x)) · up(x))`, without biases."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(WIDTH, HIDDEN, bias=False) for _ in range(2))
        self.down_proj, self.act_fn = nn.Linear(HIDDEN, WIDTH, bias=False), nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class FullyConnected(nn.Module):
    """As in ViT: `fc2(act(fc1(x)))`."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.act(self.fc1(x)))


class Intermediate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense, self.intermediate_act_fn = nn.Linear(WIDTH, HIDDEN), nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        return self.intermediate_act_fn(self.dense(x))


class Output(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense, self.LayerNorm = nn.Linear(HIDDEN, WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, hidden: Tensor, x: Tensor) -> Tensor:
        return self.LayerNorm(self.dense(hidden) + x)


class BertLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.intermediate, self.output = Intermediate(), Output()

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.intermediate(x), x)


class Own(nn.Module):
    """What no shipped recogniser knows by its names."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.narrow(torch.relu(self.wide(x)))


def own_part(module: nn.Module) -> FeedForward | None:
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
        "torch's Transformer layers", lambda: _encoder(norm_first=True, activation="gelu"), (_ROWS,)
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
