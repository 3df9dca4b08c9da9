"""Trained modules of somebody's, which tests name as frozen experts."""

import torch
from torch import nn


class Squares(nn.Module):
    """With dropout, which a frozen expert must not feel, a buffer, and a count."""

    def __init__(self, input_dim: int, output_dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(input_dim, output_dim)
        chance = torch.Generator().manual_seed(1)
        for weight in self.linear.parameters():
            weight.data = torch.randn(weight.shape, generator=chance) / 4
        self.dropout = nn.Dropout(0.5)
        self.register_buffer("shift", torch.full((output_dim,), 0.25))
        self.register_buffer("count", torch.tensor(7))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dropout(self.linear(x).square()) + self.shift


def make_six(input_dim: int) -> nn.Module:
    return Squares(input_dim, 6)


@torch.no_grad()
def make_four(input_dim: int) -> nn.Module:
    return Squares(input_dim, 4)


def make_eight(input_dim: int) -> nn.Module:
    return Squares(input_dim, 8)


def make_for_ten(input_dim: int) -> nn.Module:
    """Trained on rows of width 10, whatever reads it now."""
    return Squares(10, 6)


class Doubles(Squares):
    """Returns what the rest of the network cannot take."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).double()


class InPlace(Squares):
    """Changes the rows that it is given."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.relu_())


def make_doubles(input_dim: int) -> nn.Module:
    return Doubles(input_dim, 6)


def make_in_place(input_dim: int) -> nn.Module:
    return InPlace(input_dim, 6)


def make_nothing(input_dim: int) -> int:
    return input_dim


def fail(input_dim: int) -> nn.Module:
    raise RuntimeError("the file of weights is gone")


A_NUMBER = 3


def draw_six(input_dim: int) -> nn.Module:
    """Draws from torch's own generator, as whoever loads weights next may."""
    return nn.Linear(input_dim, 6)
