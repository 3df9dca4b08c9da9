"""A small SwinV2-like classifier: attention in windows that shift, on maps `[B, H, W, C]`."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WINDOW, HEADS, PATCH = 4, 4, 4


class WindowAttention(nn.Module):
    """Attention of cosines within windows, biased by how far two places are from each other.

    Args:
        channels: C.
        shift: By how many places windows are moved; what would look across the map's edge does not.

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
        """`[B, H, W, C]` → as large."""
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
        """Queries, keys and values of each head, `[3, P, heads, T, C / heads]`."""
        return x_PTC.unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)


class SwinBlock(nn.Module):
    """Attention and a feed-forward part, each normed before it is added.

    Args:
        channels: C.
        shift: Of the windows.
    """

    def __init__(self, channels: int, shift: int) -> None:
        super().__init__()
        self.attn, self.norm1 = WindowAttention(channels, shift), nn.LayerNorm(channels)
        hidden = 4 * channels
        self.mlp = nn.Sequential(
            nn.Linear(channels, hidden), nn.GELU(), nn.Linear(hidden, channels), nn.Dropout(0.0)
        )
        self.norm2 = nn.LayerNorm(channels)

    def forward(self, x_BHWC: Tensor) -> Tensor:
        """`[B, H, W, C]` → as large."""
        x_BHWC = x_BHWC + self.norm1(self.attn(x_BHWC))
        return x_BHWC + self.norm2(self.mlp(x_BHWC))


class SwinClassifier(nn.Module):
    """Patches, two blocks, four places merged into one, two blocks, the mean, and a logit a class.

    Args:
        width: Channels of the first stage; the second has twice as many.
        classes: Of pictures.
    """

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
        """Pictures `[B, H, W, 3]` → logits `[B, classes]`."""
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
    """What `windows` took apart."""
    x = x_PTC.view(batch, height // WINDOW, width // WINDOW, WINDOW, WINDOW, channels)
    return x.transpose(2, 3).reshape(batch, height, width, channels)


def _apart(height: int, width: int, shift: int, device: torch.device) -> Tensor:
    """Which places of a window lie at opposite edges of the map, `[windows, T, T]`."""
    rows, columns = (_edge(length, shift, device) for length in (height, width))
    region_PT1 = windows((rows[:, None] + 2 * columns)[None, :, :, None])
    return region_PT1 != region_PT1.mT


def _edge(length: int, shift: int, device: torch.device) -> Tensor:
    """1 at places that came from the other edge."""
    return (torch.arange(length, device=device) >= length - shift).long()
