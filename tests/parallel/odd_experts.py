"""Experts of somebody's: modules that are not alike, and do not say how wide their output is."""

from typing import ClassVar, Literal

import torch

import mmoe.register
from mmoe.config import ExpertConfig
from mmoe.mixture import ExpertPool


class OddConfig(ExpertConfig):
    """Two layers, the first of each expert of another width."""

    makes_pools: ClassVar = True
    kind: Literal["odd"] = "odd"
    width: int = 6


class Odd(torch.nn.Module):
    """`scale · W_2 gelu(W_1 x)`, and a number of its own."""

    def __init__(self, input_dim, hidden, width):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(input_dim, hidden), torch.nn.GELU(), torch.nn.Linear(hidden, width)
        )
        self.scale = torch.nn.Parameter(torch.tensor(1.5))
        self.register_buffer("hidden", torch.tensor(hidden))

    def forward(self, x):
        return self.scale * self.layers(x)


@mmoe.register.expert("odd", OddConfig)
def make_pool(num_experts, input_dim, *, width):
    return ExpertPool([Odd(input_dim, 3 + e, width) for e in range(num_experts)])
