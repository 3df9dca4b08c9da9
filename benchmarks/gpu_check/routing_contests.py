"""Gate, plan, permute and combine beside a copy of as many bytes."""

from collections.abc import Iterator

import torch

from benchmarks.gpu_check.clock import Call, sets_needed
from benchmarks.gpu_check.contest import Contest
from mmoe.ops import RoutePlan, route_plan


def routing(B: int, E: int, width: int, dtype: torch.dtype, device: str) -> Iterator[Contest]:
    """Gate, plan, permute and combine of B rows, 4 gates of 2 picks, beside a copy."""
    G, K, size = 4, 2, dtype.itemsize
    torch.manual_seed(0)
    logits_BGE = torch.randn(B, G, E, device=device)
    visible_GE = torch.ones(G, E, dtype=torch.bool, device=device)
    experts_BGK = logits_BGE.topk(K, dim=-1).indices.int()
    whole = route_plan(experts_BGK, E)
    pairs = int(whole.offsets_E1[-1])
    plan = whole._replace(rows_P=whole.rows_P[:pairs])
    name = f"{'bf16' if size == 2 else 'fp32'} B={B} E={E} O={width}"
    ops = torch.ops.mmoe
    yield _beside_copy(
        f"topk_gate {name}",
        {
            "mmoe": lambda _: ops.topk_gate(logits_BGE, visible_GE, K, True),
            "torch.topk": lambda _: logits_BGE.topk(K, dim=-1)[0].softmax(-1),
        },
        4 * B * G * (E + 2 * K),
        device,
    )
    plans: dict[str, Call] = {"mmoe": lambda _: ops.route_plan(experts_BGK, E)}
    yield _beside_copy(f"route_plan {name}", plans, 4 * (2 * B * G * K + pairs), device)
    yield from _row_contests(plan, B, width, dtype, name, device)


def _row_contests(
    plan: RoutePlan, B: int, width: int, dtype: torch.dtype, name: str, device: str
) -> Iterator[Contest]:
    ops, (_, G, K), size = torch.ops.mmoe, plan.slots_BGK.shape, dtype.itemsize
    pairs, long_BGK = len(plan.rows_P), plan.slots_BGK.long()
    count = sets_needed(size * width * (B + pairs), device)
    x = [torch.randn(B, width, device=device).to(dtype) for _ in range(count)]
    y = [torch.randn(pairs, width, device=device).to(dtype) for _ in range(count)]
    weights_BGK = torch.rand(B, G, K, device=device)
    narrow_BGK = weights_BGK.to(dtype).unsqueeze(-1)
    grad_BGO = torch.randn(B, G, width, device=device).to(dtype)
    moved = size * width * (B + pairs)
    permute: dict[str, Call] = {
        "mmoe": lambda n: ops.permute(x[n], plan.rows_P, plan.slots_BGK),
        "index_select": lambda n: x[n].index_select(0, plan.rows_P),
    }
    yield _beside_copy(f"permute {name}", permute, moved, device, count)
    unpermute: dict[str, Call] = {
        "mmoe": lambda n: ops.unpermute(y[n], plan.rows_P, plan.slots_BGK),
        "index_add": lambda n: torch.zeros_like(x[n]).index_add_(0, plan.rows_P, y[n]),
    }
    yield _beside_copy(f"unpermute {name}", unpermute, moved, device, count)
    combine: dict[str, Call] = {
        "mmoe": lambda n: ops.gated_combine(y[n], plan.slots_BGK, weights_BGK),
        "gather": lambda n: (y[n][long_BGK] * narrow_BGK).sum(2),
    }
    moved = size * width * (pairs + B * G)
    yield _beside_copy(f"gated_combine {name}", combine, moved, device, count)
    backward: dict[str, Call] = {
        "mmoe": lambda n: ops.gated_combine_backward(grad_BGO, y[n], plan.slots_BGK, weights_BGK)
    }
    moved = size * width * (2 * pairs + B * G)
    yield _beside_copy(f"gated_combine_backward {name}", backward, moved, device, count)


def _beside_copy(
    name: str, calls: dict[str, Call], moved: int, device: str, sets: int = 1
) -> Contest:
    return Contest(name, {**calls, "copy": copy_of(moved, sets, device)}, sets, moved=moved)


def copy_of(moved: int, sets: int, device: str) -> Call:
    """A copy that reads and writes so many bytes in all."""
    half = max(moved // 2, 1)
    sources = [torch.ones(half, dtype=torch.uint8, device=device) for _ in range(sets)]
    targets = [torch.empty_like(source) for source in sources]
    return lambda n: targets[n].copy_(sources[n])
