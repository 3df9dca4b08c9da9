"""Pictures of shapes filled with textures; a class is a shape with a texture."""

import math

import torch
from torch import Tensor

SIZE = 32  # pixels a side
SHAPES = ("disc", "square", "triangle", "ring", "cross")
TEXTURES = ("stripes", "checks", "dots", "rings")
CLASSES = len(SHAPES) * len(TEXTURES)
_NOISE = 0.35


def draw_pictures(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Draws pictures: place, size, turn, colours, and what is behind, are chance.

    Args:
        count: B.
        seed: Of the draw.

    Returns:
        Pictures `[B, SIZE, SIZE, 3]`, and their classes `[B]`, texture first.
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
    """Inside of each shape, whose radius is about 1."""
    r, u_abs, v_abs = (u * u + v * v).sqrt(), u.abs(), v.abs()
    return [
        r < 0.95,
        torch.maximum(u_abs, v_abs) < 0.85,
        (v > -0.6) & (v < 1.1 - 1.7 * u_abs),
        (r < 1) & (r > 0.5),
        (torch.minimum(u_abs, v_abs) < 0.35) & (torch.maximum(u_abs, v_abs) < 1),
    ]


def _textures(x: Tensor, y: Tensor, frequency: Tensor) -> list[Tensor]:
    """Where each texture has its first colour."""
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
