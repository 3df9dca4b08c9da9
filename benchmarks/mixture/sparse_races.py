"""The sparse layer: 4096 rows, d 256, hidden 512, top-2, gate included."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.mixture.alternatives import (
    GroupedMMLayer,
    IndexLayer,
    MaskLayer,
    alternative,
)
from benchmarks.mixture.bench import Bench, Race
from benchmarks.mixture.layers import contestant, leaf, our_layer, ours
from benchmarks.mixture.race import Contestant
from benchmarks.mixture.workloads import Values, Workload, draw
from benchmarks.racing.onednn import onednn_is_exact, onednn_products
from benchmarks.racing.products import DTYPES
from benchmarks.racing.results import Result, speedup
from benchmarks.racing.times import Spread
from mmoe.ops import RoutePlan, unpermute

SPARSE = Workload(B=4096, D=256, hidden=(512, 256), E=8, k=2)
EXPERTS = (8, 64, 256)


def against(
    bench: Bench,
    *,
    key: str,
    kind: Callable[[Workload, Values], nn.Module],
    num_experts: int,
    dtype: torch.dtype = torch.float32,
) -> list[Result]:
    """The sparse layer against one alternative, also through oneDNN where that applies."""
    work = replace(SPARSE, E=num_experts, dtype=dtype, device=bench.device)
    values = draw(work)
    contestants = {"mmoe": ours(work, values), "other": alternative(kind, work, values)}
    if dtype == torch.float32 and onednn_is_exact(bench.device):
        contestants["oneDNN"] = alternative(kind, work, values, outside=onednn_products)
    times = bench.compare(key, contestants, work.tolerance)
    results = [speedup(key, times, "other")]
    if "oneDNN" in contestants:
        results.append(speedup(f"{key}_onednn", times, "oneDNN"))
    return results


def planning_share(bench: Bench) -> list[Result]:
    """The whole layer, and the same layer with experts that cost nothing."""
    work = replace(SPARSE, device=bench.device)
    values = draw(work)
    whole = ours(work, values, execution="grouped")
    times = bench.clock.race(
        "planning_share", {"whole": whole.step, "rest": _without_experts(work, values).step}
    )
    spread: Spread = times.ratio("rest", "whole")
    return [
        Result(
            key="planning_share",
            spread=spread,
            ours_ms=times.median("whole") * 1e3,
            other_ms=times.median("rest") * 1e3,
            note="other: gate, plan, sums of gradients, combine alone",
        )
    ]


class FreeExperts(nn.Module):
    """Stands where the experts stand and only hands out what lies ready."""

    def __init__(self, work: Workload) -> None:
        super().__init__()
        assert work.k is not None
        pairs = work.B * work.G * work.k
        self.num_experts, self.output_dim = work.E, work.output_dim
        self.y_PO = torch.randn(pairs, work.output_dim, device=work.device).to(work.dtype)
        self.grad_PD = torch.randn(pairs, work.D, device=work.device).to(work.dtype)

    def __len__(self) -> int:
        return self.num_experts

    def gathered(self, x_BD: Tensor, plan: RoutePlan) -> Tensor:
        """No work: outputs from one buffer, and on the way back gradients from another."""
        return _Ready.apply(x_BD, plan, self.y_PO, self.grad_PD)  # type: ignore[return-value]


class _Ready(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_BD: Tensor, plan: RoutePlan, y_PO: Tensor, grad_PD: Tensor) -> Tensor:
        pairs = len(plan.rows_P)
        ctx.plan, ctx.grad_PD = plan, grad_PD[:pairs]
        return y_PO[:pairs]

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor, None, None, None]:
        # A sample's pairs are added up whatever the experts cost
        return unpermute(ctx.grad_PD, ctx.plan), None, None, None


def _without_experts(work: Workload, values: Values) -> Contestant:
    layer = our_layer(work, values, execution="grouped")
    layer.experts = FreeExperts(work)
    x_BD = leaf(values.x_BD)
    return contestant(lambda: [layer(x_BD).out_BGO], [values.grad_BGO], x_BD, [layer])


def _race(
    key: str, kind: Callable[[Workload, Values], nn.Module], num_experts: int, dtype: str = "fp32"
) -> Race:
    return Race(
        (key,),
        partial(against, key=key, kind=kind, num_experts=num_experts, dtype=DTYPES[dtype]),
    )


SPARSE_RACES = (
    *(
        _race(f"vs_grouped_mm_E{num_experts}_{dtype}", GroupedMMLayer, num_experts, dtype)
        for dtype in DTYPES
        for num_experts in EXPERTS
    ),
    _race("vs_naive_mask_E64", MaskLayer, 64),
    _race("vs_naive_index_E256", IndexLayer, 256),
    Race(("planning_share",), planning_share),
)
