"""DIN's attention unit beside the ways to write it in plain PyTorch, for `bench_ops`."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from mmoe.ops import target_attention
from mmoe.ops.jagged_sum import jagged_sum, sample_of_rows

ROWS, EVENTS, WIDTH, HIDDEN = 4096, 50, 32, 36


def step_by_step(e_VD: Tensor, lengths_B: Tensor, q_BD: Tensor, *layer: Tensor) -> Tensor:
    """Without padding: the products are torch's, as are the passes around them."""
    weight_2DH, bias_BH, score_H = layer
    row_V = sample_of_rows(lengths_B, len(e_VD))
    x_VD = F.rms_norm(e_VD, e_VD.shape[1:], eps=1e-6)
    both_V2D = torch.cat([x_VD, x_VD * q_BD.index_select(0, row_V)], dim=1)
    h_VH = both_V2D @ weight_2DH + bias_BH.index_select(0, row_V)
    return jagged_sum(e_VD, lengths_B, h_VH.relu() @ score_H)


def padded(e_VD: Tensor, _: Tensor, q_BD: Tensor, *layer: Tensor) -> Tensor:
    """On rows that are all as long, so that padding costs nothing: the best that it can do."""
    weight_2DH, bias_BH, score_H = layer
    e_BLD = e_VD.view(len(q_BD), -1, e_VD.shape[1])
    x_BLD = F.rms_norm(e_BLD, e_BLD.shape[2:], eps=1e-6)
    z_BLH = torch.cat([x_BLD, x_BLD * q_BD[:, None]], dim=2) @ weight_2DH + bias_BH[:, None]
    return torch.einsum("blh,h,bld->bd", z_BLH.relu(), score_H, e_BLD)


def contests(
    dtype: torch.dtype, device: str
) -> dict[str, tuple[dict[str, Callable[[], object]], int]]:
    """Makes the calls that race, with the operations that ours needs: half of the others'."""
    torch.manual_seed(0)
    leaves = [
        torch.randn(shape, device=device).to(dtype).requires_grad_()
        for shape in (
            (ROWS * EVENTS, WIDTH), (ROWS, WIDTH), (2 * WIDTH, HIDDEN), (ROWS, HIDDEN), (HIDDEN,),
        )
    ]  # fmt: skip
    lengths_B = torch.full((ROWS,), EVENTS, dtype=torch.int32, device=device)
    no_bias, grad_BD = torch.zeros(1, device=device), torch.ones_like(leaves[1])
    functions: dict[str, Callable[..., Tensor]] = {
        "mmoe": lambda e, lengths, q, weight, bias, score: (
            target_attention(e, lengths, q, weight, bias, score, no_bias).out_BD
        ),
        "step by step": step_by_step,
        "padded": padded,
    }

    def forward(function: Callable[..., Tensor]) -> Callable[[], object]:
        return torch.no_grad()(lambda: function(leaves[0], lengths_B, *leaves[1:]))

    def train(function: Callable[..., Tensor]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(
            function(leaves[0], lengths_B, *leaves[1:]), leaves, grad_BD
        )

    flops = 2 * ROWS * EVENTS * WIDTH * HIDDEN
    return {
        name: ({words: make(function) for words, function in functions.items()}, products * flops)
        for name, make, products in (
            ("target_attention", forward, 1),
            ("target_attention train", train, 4),
        )
    }
