"""The dense mixture: B 4096, D 330, 8 experts 256-128, 2 linear softmax gates."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial

import torch

from benchmarks.mixture.alternatives import LoopMixture, alternative
from benchmarks.mixture.bench import Bench, Race
from benchmarks.mixture.layers import ours
from benchmarks.mixture.workloads import Workload, draw
from benchmarks.racing.onednn import onednn_is_exact, onednn_products
from benchmarks.racing.results import Result, speedup
from benchmarks.racing.times import Spread

DENSE = Workload(B=4096, D=330, hidden=(256, 128), E=8, G=2)


def fp32(bench: Bench) -> list[Result]:
    """Share of the product rate, and the plain loop."""
    work = replace(DENSE, device=bench.device)
    values = draw(work)
    contestants = {"mmoe": ours(work, values), "loop": alternative(LoopMixture, work, values)}
    if onednn_is_exact(bench.device):
        contestants["oneDNN"] = alternative(LoopMixture, work, values, outside=onednn_products)
    times = bench.compare("dense fp32", contestants, work.tolerance)
    results = [
        _rate("gemm_share_dense_fp32", work, times.seconds["mmoe"], "fp32"),
        speedup("vs_loop_dense_fp32", times, "loop"),
    ]
    if "oneDNN" in contestants:
        results.append(speedup("vs_loop_dense_fp32_onednn", times, "oneDNN"))
    return results


def bf16(bench: Bench) -> list[Result]:
    """Parameters in bf16 on both sides."""
    work = replace(DENSE, device=bench.device, dtype=torch.bfloat16)
    values = draw(work)
    contestants = {"mmoe": ours(work, values), "loop": alternative(LoopMixture, work, values)}
    times = bench.compare("dense bf16", contestants, work.tolerance)
    return [
        _rate("gemm_share_dense_bf16", work, times.seconds["mmoe"], "bf16"),
        speedup("vs_loop_dense_bf16_parameters", times, "loop", note="bf16 parameters"),
    ]


def autocast(bench: Bench) -> list[Result]:
    """fp32 parameters under bf16 autocast on both sides."""
    work = replace(DENSE, device=bench.device)
    values = draw(work)
    around: Callable[[], AbstractContextManager] = partial(
        torch.autocast, bench.device, torch.bfloat16
    )
    # The outputs are bf16, and so is the gradient that comes back.
    values = replace(values, grad_BGO=values.grad_BGO.bfloat16())
    contestants = {
        "mmoe": ours(work, values, around=around),
        "loop": alternative(LoopMixture, work, values, around=around),
    }
    times = bench.compare("dense autocast", contestants, 2e-2)
    return [speedup("vs_loop_dense_bf16", times, "loop", note="autocast on both sides")]


def _rate(key: str, work: Workload, seconds: list[float], dtype_name: str) -> Result:
    spread = Spread.of([work.dense_flops() / spent for spent in seconds])
    ours_ms = work.dense_flops() / spread.median * 1e3
    return Result(key=key, spread=spread, ours_ms=ours_ms, product_rate=dtype_name)


DENSE_RACES = (
    Race(("gemm_share_dense_fp32", "vs_loop_dense_fp32"), fp32),
    Race(("gemm_share_dense_bf16",), bf16),
    Race(("vs_loop_dense_bf16",), autocast),
)
