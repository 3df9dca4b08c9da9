"""`dense_mm` beside itself: products straight into their results, or one batch for all experts.

`csrc/cuda/gemm/dense_choice.cu` chooses by size; what is measured here says whether rightly. Times
of captured graphs leave the host's launches out: a contest that was not captured counts them too.
"""

from collections.abc import Iterator

import torch

from benchmarks.gpu_check.clock import Call
from benchmarks.gpu_check.contest import Contest, Layer, Size
from mmoe.ops.product_choice import DenseProduct, dense_product


def dense_ways(size: Size, device: str) -> Iterator[Contest]:
    """The layer alone, and with what comes after its products."""
    count = 1 if device == "cpu" else 3
    sets = [Layer.draw(size, device, seed) for seed in range(count)]
    for activation in ("none", "relu", "gelu"):
        ways: dict[str, DenseProduct] = {
            "mmoe": "auto",
            "mmoe, straight": "straight",
            "mmoe, batched": "batched",
        }
        calls = {who: _call(sets, way, activation, device) for who, way in ways.items()}
        name = f"dense_mm ways {activation} {size.name}"
        yield Contest(name, calls, count, size.E * size.flops)


def _call(sets: list[Layer], way: DenseProduct, activation: str, device: str) -> Call:
    def call(n: int) -> object:
        own = sets[n]
        with dense_product(way, device):
            op = torch.ops.mmoe.dense_mm
            return op([own.x_PD], own.weight_EDH, own.bias_EH, activation)

    return call
