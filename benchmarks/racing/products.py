"""What a plain matrix product reaches on this machine: the limit that shares are taken of."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

SQUARE = 2048
# The dense mixture's own products, rows × inner × columns: two layers, their input gradients (the
# same shapes turned round) and their weight gradients.
WORKLOAD = (
    (4096, 330, 256),
    (4096, 256, 128),
    (4096, 128, 256),
    (330, 4096, 256),
    (256, 4096, 128),
)
REPEATS = 3
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass
class ProductRates:
    """The best rate seen so far, by dtype and by library, in FLOP/s.

    Measured between the races: the rate of a shared machine drifts, and the limit is the best that
    was seen anywhere in the run.
    """

    device: str
    best: dict[str, dict[str, float]] = field(default_factory=lambda: {"fp32": {}, "bf16": {}})

    def measure(self) -> None:
        """Runs every product a few times and keeps the best."""
        for dtype_name, dtype in DTYPES.items():
            if not multiplies(dtype_name, self.device):
                continue
            for rows, inner, columns in ((SQUARE,) * 3, *WORKLOAD):
                x = torch.randn(rows, inner, device=self.device).to(dtype)
                w = torch.randn(inner, columns, device=self.device).to(dtype)
                for library, product in _products(x, w).items():
                    rate = 2 * rows * inner * columns / self._best_seconds(product)
                    rates = self.best[dtype_name]
                    rates[library] = max(rate, rates.get(library, 0.0))

    def limit(self, dtype_name: str) -> float | None:
        """The best of all libraries and shapes; None: it was not measured."""
        return max(self.best[dtype_name].values(), default=None)

    def _best_seconds(self, product: Callable[[], Tensor]) -> float:
        product()
        seconds = []
        for _ in range(REPEATS):
            self._wait()
            started = time.perf_counter()
            product()
            self._wait()
            seconds.append(time.perf_counter() - started)
        return min(seconds)

    def _wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


def multiplies(dtype_name: str, device: str) -> bool:
    """Has the device products of this type?

    A processor without AVX-512 makes them of bfloat16 number by number: one of 2,048 rows takes a
    minute, and is the limit of nothing.
    """
    if dtype_name == "fp32" or device != "cpu":
        return True
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _products(x: Tensor, w: Tensor) -> Mapping[str, Callable[[], Tensor]]:
    """`torch.mm` (MKL for fp32 on the CPU) and, on the CPU, oneDNN's linear layer."""
    products: dict[str, Callable[[], Tensor]] = {"torch.mm": lambda: torch.mm(x, w)}
    if x.device.type == "cpu" and torch.backends.mkldnn.is_available():
        w_t = w.T.contiguous()
        linear = torch.ops.mkldnn._linear_pointwise
        products["oneDNN"] = lambda: linear(x, w_t, None, "none", [], "")
    return products
