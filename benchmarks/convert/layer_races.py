"""A step of a converted layer over a Python loop over the same experts."""

import torch
from torch import Tensor, nn

from benchmarks.convert.bench import Bench
from benchmarks.mixture.layers import contestant, leaf
from benchmarks.mixture.race import Contestant, check_equal
from benchmarks.racing.onednn import onednn_is_exact, onednn_products
from benchmarks.racing.races import Race
from benchmarks.racing.results import Result, speedup
from mmoe.integrations.convert import ConvertedMoE, convert

ROWS, WIDTH, HIDDEN, NUM_EXPERTS, K = 4096, 256, 512, 16, 2
TOLERANCE = 1e-4


class Loop(nn.Module):
    """The experts of a converted layer as modules, and its gate's logits as a linear layer.

    Args:
        layer: Whose weights it copies.
    """

    def __init__(self, layer: ConvertedMoE) -> None:
        super().__init__()
        mixture = layer.mixture
        weight_ED = mixture.gate.logits.weights[0][0]
        self.k, self.gate = K, nn.Linear(weight_ED.shape[1], weight_ED.shape[0], bias=False)
        pool = mixture.experts
        self.experts = nn.ModuleList(feed_forward() for _ in range(mixture.num_experts))
        with torch.no_grad():
            self.gate.weight.copy_(weight_ED)
            for e, expert in enumerate(self.experts):
                for linear, weight_EIO, bias_EO in zip(
                    expert[::2], pool.weights, pool.biases, strict=True
                ):
                    linear.weight.copy_(weight_EIO[e].T)
                    linear.bias.copy_(bias_EO[e])

    def pick(self, x_BD: Tensor) -> tuple[Tensor, Tensor]:
        """Weights and experts, `[B, k]`."""
        top_BK, experts_BK = self.gate(x_BD).topk(self.k, dim=-1)
        return top_BK.softmax(-1), experts_BK


class IndexLoop(Loop):
    """For every expert: find its rows, gather, run, weigh, add."""

    def forward(self, x_BD: Tensor) -> Tensor:
        """`[B, D]` → `[B, D]`."""
        weights_BK, experts_BK = self.pick(x_BD)
        out_BD = torch.zeros_like(x_BD)
        for e, expert in enumerate(self.experts):
            rows, place = torch.where(experts_BK == e)
            out_BD.index_add_(0, rows, expert(x_BD[rows]) * weights_BK[rows, place, None])
        return out_BD


class MaskLoop(Loop):
    """Every expert on all rows, times its weight, which is 0 where it was not picked."""

    def forward(self, x_BD: Tensor) -> Tensor:
        """`[B, D]` → `[B, D]`."""
        weights_BK, experts_BK = self.pick(x_BD)
        out_BD = torch.zeros_like(x_BD)
        for e, expert in enumerate(self.experts):
            weight_B = (weights_BK * (experts_BK == e)).sum(-1)
            out_BD = out_BD + expert(x_BD) * weight_B[:, None]
        return out_BD


def feed_forward() -> nn.Sequential:
    """The dense layer, and what each expert is."""
    return nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH))


def against_loops(bench: Bench) -> list[Result]:
    """One race of all of them."""
    torch.manual_seed(0)
    network = convert(feed_forward(), NUM_EXPERTS, k=K, init="fresh")
    (layer,) = (module for module in network.modules() if isinstance(module, ConvertedMoE))
    with torch.no_grad():  # as spread out as a trained gate
        layer.mixture.gate.logits.weights[0].normal_(std=WIDTH**-0.5)
    x_BD, grad_BD = torch.randn(2, ROWS, WIDTH)
    loops = {"index": IndexLoop(layer), "mask": MaskLoop(layer)}
    contestants = {"mmoe": _of(network, x_BD, grad_BD)}
    contestants |= {name: _of(loop, x_BD, grad_BD) for name, loop in loops.items()}
    if onednn_is_exact(bench.clock.device):
        contestants |= {
            f"{name}_onednn": _of(loop, x_BD, grad_BD, outside=onednn_products)
            for name, loop in loops.items()
        }
    check_equal("loops", contestants, TOLERANCE)
    times = bench.clock.race("loops", {name: each.step for name, each in contestants.items()})
    return [speedup(_key(name), times, name) for name in contestants if name != "mmoe"]


def _key(name: str) -> str:
    loop, _, backend = name.partition("_")
    return f"vs_naive_{loop}_E{NUM_EXPERTS}" + (f"_{backend}" if backend else "")


def _of(module: nn.Module, x_BD: Tensor, grad_BD: Tensor, **settings) -> Contestant:
    x_BD = leaf(x_BD)
    return contestant(lambda: [module(x_BD)], [grad_BD], x_BD, [module.train()], **settings)


RACES = (Race((_key("index"), _key("mask")), against_loops),)
