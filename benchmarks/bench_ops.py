"""Times the operators against plain PyTorch, and says what share of the limit they reach.

The limit is a plain copy of as many bytes or, for products, one product of as many operations.
Every alternative runs in turn, round after round, so that a busy machine slows all of them alike;
printed are medians in milliseconds. The last line is JSON.
"""

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.racing.harness import Clock, last_line
from mmoe.ops import (
    RoutePlan,
    dense_combine,
    dense_mm,
    exchange_reference,
    extension_status,
    gated_combine,
    gathered_mm,
    grouped_mm,
    reference,
    route_plan,
    target_attention,
)
from mmoe.ops.dispatch import permute
from mmoe.ops.gating import topk_gate
from mmoe.ops.row_sums import jagged_sum, sample_of_rows
from mmoe.parallel.experts.links import Links, Sizes, WayBack

# DIN's attention unit beside the ways to write it in plain PyTorch, for `bench_ops`

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


def attention_contests(
    dtype: torch.dtype, device: str
) -> dict[str, tuple[dict[str, Callable[[], object]], int]]:
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


# The operators of an exchange of rows between ranks, as `bench_ops` races them: without a wire

RANKS = 4
CODE_BYTES, WEIGHT_BYTES = 4, 4
Contest = tuple[dict[str, Callable[[], object]], int]


def exchange_contests(
    experts_BGK: Tensor, num_experts: int, width: int, dtype: torch.dtype, way: WayBack
) -> dict[str, Contest]:
    """Each step beside its reference, and all of them one after another.

    Returns by name: contestants, and bytes: each argument read once, each result written once.
    """
    found: dict[str, Contest] = {}
    given = given_arguments(experts_BGK, num_experts, width, dtype, way)
    indexing = _indexing(given, dtype) if way == "pairs" else {}
    for name, arguments in given.items():
        ours = partial(getattr(torch.ops.mmoe, name), *arguments)
        reference = partial(getattr(exchange_reference, name), *arguments)
        moved = _bytes(arguments) + _bytes(ours())
        if name == "decode_picks":  # of the message it reads the codes alone
            moved += CODE_BYTES * arguments[3] - _bytes(arguments[0])
        calls: dict[str, Callable[[], object]] = {"mmoe": ours, "reference": reference}
        if name in indexing:
            calls["indexing"] = indexing[name]
        found[name] = calls, moved
    whole: dict[str, Callable[[], object]] = {
        who: partial(_each, [calls[who] for calls, _ in found.values()])
        for who in ("mmoe", "reference")
    }
    found["exchange train"] = whole, sum(moved for _, moved in found.values())
    return found


def given_arguments(
    experts_BGK: Tensor, E: int, width: int, dtype: torch.dtype, way: WayBack
) -> dict[str, tuple[Any, ...]]:
    """What each operator is given, by its name, in the order of a step."""
    (B, G, K), device, ops = experts_BGK.shape, experts_BGK.device, torch.ops.mmoe
    x_BD = torch.randn(B, width, device=device).to(dtype)
    weights_BGK = torch.rand(B, G, K, device=device)
    held, numbers_E = E // RANKS, torch.arange(E, dtype=torch.int32, device=device)
    homes_E3 = torch.stack((numbers_E // held, numbers_E % held, numbers_E * 0), 1)
    found: dict[str, tuple[Any, ...]] = {"outbound_plan": (experts_BGK, homes_E3, RANKS, 1)}
    rows_M, entries_Q, codes_Q, *slots, sizes_W4 = ops.outbound_plan(*found["outbound_plan"])

    sizes = [Sizes(*row) for row in sizes_W4.tolist()]
    ours, theirs = _links(sizes, way), _links(sizes[:1] * RANKS, way)
    ours_WL, theirs_WL = ours.table(device), theirs.table(device)
    lengths = _lengths(ours, width * dtype.itemsize, CODE_BYTES)
    sources = [x_BD], weights_BGK, rows_M, entries_Q, codes_Q, ours_WL
    found["pack_rows"] = *sources, dtype, sum(lengths)
    message = ops.pack_rows(*found["pack_rows"])[: lengths[0]].repeat(RANKS)

    came, counts = (message, theirs_WL), (sum(theirs.rows), sum(theirs.picks))
    found["decode_picks"] = *came, *counts, G, K, held, width, dtype, dtype
    picks_NGK, weights_NGK, places_Q = ops.decode_picks(*found["decode_picks"])
    rows_P, offsets_E1, slots_NGK = route_plan(picks_NGK, held)
    rows_R = rows_P[: sum(size.pairs for size in theirs.sizes)]
    found["unpack_rows"] = message, rows_R, theirs_WL, width, dtype, dtype

    found["return_plan"] = rows_R, offsets_E1, slots_NGK, theirs_WL
    returned = ops.return_plan(*found["return_plan"])
    y_RO = torch.randn(len(rows_R), width, device=device).to(dtype)
    sent = y_RO, weights_NGK, *returned, slots_NGK
    found["pack_returns"] = *sent, sum(theirs.back), dtype
    back_ZO = torch.randn(sum(ours.back), width, device=device).to(dtype)
    mixed = back_ZO, weights_BGK, *slots, ours_WL
    found["mix_returns"] = *mixed, dtype

    grad_BGO = torch.randn(B, G, width, device=device).to(dtype)
    found["mix_returns_backward"] = grad_BGO, *mixed
    grad_ZO = torch.randn(sum(theirs.back), width, device=device).to(dtype)
    found["pack_returns_backward"] = grad_ZO, *sent
    length = sum(_lengths(theirs, width * dtype.itemsize, 0))
    grads = y_RO, torch.rand_like(weights_NGK), slots_NGK, places_Q
    found["unpack_rows_backward"] = *grads, theirs_WL, dtype, length
    length = sum(_lengths(ours, width * dtype.itemsize, 0))
    gradients = torch.zeros(length, dtype=torch.uint8, device=device)
    sorted_rows = rows_M, slots[0], entries_Q
    found["pack_rows_backward"] = gradients, *sorted_rows, ours_WL, 1, width, dtype, dtype
    return found


def _indexing(
    given: dict[str, tuple[Any, ...]], dtype: torch.dtype
) -> dict[str, Callable[[], object]]:
    """What one writes without operators, where pairs come back; the message is cut beforehand."""
    (x_BD,), _, rows_M, _, codes_Q, *_ = given["pack_rows"]
    out_N, codes_Q = rows_M[rows_M >= 0].long(), codes_Q.view(torch.uint8)
    _, rows_R, links_WL, width, *_ = given["unpack_rows"]
    came_ND = torch.randn(int(links_WL[-1, 0]), width, device=x_BD.device).to(dtype)
    y_RO, _, back_R, _, _, num_back, _ = given["pack_returns"]
    sent_ZO, back_R, rows_R = y_RO.new_empty(num_back, width), back_R.long(), rows_R.long()
    back_ZO, weights_BGK, _, pairs_BGK, *_ = given["mix_returns"]
    pairs_BGK, weights_BGK1 = pairs_BGK.long(), weights_BGK.unsqueeze(-1).to(dtype)
    return {
        "pack_rows": lambda: torch.cat(
            [x_BD.index_select(0, out_N).view(torch.uint8).flatten(), codes_Q]
        ),
        "unpack_rows": lambda: came_ND.index_select(0, rows_R),
        "pack_returns": lambda: torch.empty_like(sent_ZO).index_copy_(0, back_R, y_RO),
        "mix_returns": lambda: (back_ZO[pairs_BGK] * weights_BGK1).sum(2),
    }


def _links(sizes: Sequence[Sizes], way: WayBack) -> Links:
    return Links(list(sizes), [way == "sums"] * RANKS)


def _lengths(links: Links, row_bytes: int, code_bytes: int) -> list[int]:
    counts = zip(links.rows, links.picks, links.weights, strict=True)
    return [rows * row_bytes + p * code_bytes + w * WEIGHT_BYTES for rows, p, w in counts]


def _bytes(values: Any) -> int:
    if isinstance(values, Tensor):
        return values.numel() * values.element_size()
    return sum(map(_bytes, values)) if isinstance(values, list | tuple) else 0


def _each(calls: Sequence[Callable[[], object]]) -> None:
    for call in calls:
        call()


# Times the operators against plain PyTorch, and says what share of the limit they reach

B, D, H, K, O = 4096, 256, 512, 2, 128  # noqa: E741
EXPERTS, GATES = (8, 64), (2, 4)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def race(calls: dict[str, Callable[[], object]], device: str, rounds: int) -> dict[str, float]:
    times = Clock(device=device, rounds=rounds, seconds=0.0).race("", calls)
    return {name: 1e3 * times.median(name) for name in calls}


def copy_of(moved: int, device: str) -> Callable[[], object]:
    """A plain copy that reads and writes `moved` bytes in all: the limit to compare with."""
    source = torch.ones(moved // 2, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def product_of(rows: int, dtype: torch.dtype, device: str) -> Callable[[], object]:
    """One product of `rows` rows with a weight of D × H: the limit of as many in parts."""
    x = torch.ones(rows, D, dtype=dtype, device=device)
    weight = torch.ones(D, H, dtype=dtype, device=device)
    has_kernel = dtype == torch.float32 or torch.ops.mkldnn._is_mkldnn_bf16_supported()
    if device == "cpu" and torch.backends.mkldnn.is_available() and has_kernel:
        turned = weight.T.contiguous()
        linear = torch.ops.mkldnn._linear_pointwise  # ahead of torch.mm in fp32
        return lambda: linear(x, turned, None, "none", [], "")
    return lambda: torch.mm(x, weight)


def torch_topk(logits_BGE: Tensor) -> tuple[Tensor, Tensor]:
    top_BGK, experts_BGK = logits_BGE.topk(K, dim=-1)
    return top_BGK.softmax(-1), experts_BGK


def unique_plan(experts_BGK: Tensor) -> tuple[Tensor, Tensor]:
    samples = torch.arange(len(experts_BGK), device=experts_BGK.device).view(-1, 1, 1)
    keys = experts_BGK.long() * len(experts_BGK) + samples
    return torch.unique(keys, return_inverse=True)


def gather_combine(y_PO: Tensor, slots_BGK: Tensor, weights_BGK: Tensor) -> Tensor:
    return (y_PO[slots_BGK] * weights_BGK.unsqueeze(-1)).sum(2)


def einsum_combine(y: list[Tensor], weights_BGE: Tensor) -> Tensor:
    return torch.einsum("ebo,bge->bgo", torch.stack(y), weights_BGE)


def addcmul_combine(y: list[Tensor], weights_BGE: Tensor) -> Tensor:
    """One gate after the other, as most MMoE implementations do."""
    gates = []
    for gate_BE in weights_BGE.unbind(1):
        out_BO = y[0] * gate_BE[:, :1]
        for e in range(1, len(y)):
            out_BO = out_BO + y[e] * gate_BE[:, e : e + 1]
        gates.append(out_BO)
    return torch.stack(gates, dim=1)


def training(function: Callable[..., Tensor], y: list[Tensor], *others: Any) -> Callable[[], None]:
    """Forward and backward, gradients for y and for the last argument."""
    leaves = [part.detach().requires_grad_() for part in y]
    rest = [*others[:-1], others[-1].detach().requires_grad_()]
    grad = torch.ones_like(function(leaves, *rest))

    def step() -> None:
        torch.autograd.grad(function(leaves, *rest), [*leaves, rest[-1]], grad, allow_unused=True)

    return step


def first(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda y, *others: function(y[0], *others)


def permuted_mm(x: list[Tensor], plan: RoutePlan, weight_EDH: Tensor) -> Tensor:
    return grouped_mm(permute(x[0], plan), plan.offsets_E1, weight_EDH)


def bench_products(E: int, dtype: torch.dtype, device: str, rounds: int) -> list[dict]:
    torch.manual_seed(0)
    plan = cut_plan(torch.rand(B, 1, E, device=device).topk(K).indices.int(), E)
    x_BD = torch.randn(B, D, device=device).to(dtype)
    x_PD, ends_E = x_BD.index_select(0, plan.rows_P), plan.offsets_E1[1:]
    weight_EDH = (torch.randn(E, D, H, device=device) / D**0.5).to(dtype)
    weights = weight_EDH.unbind(0)
    pairs = len(x_PD)
    contests = {
        "grouped_mm": ({
            "mmoe": lambda: grouped_mm(x_PD, plan.offsets_E1, weight_EDH),
            "F.grouped_mm": lambda: F.grouped_mm(x_PD, weight_EDH, offs=ends_E),
        }, pairs),
        "gathered_mm": ({
            "mmoe": lambda: gathered_mm(x_BD, plan, weight_EDH),
            "permute, grouped_mm": lambda: permuted_mm([x_BD], plan, weight_EDH),
        }, len(x_PD)),
        "gathered_mm train": ({
            "mmoe": training(first(gathered_mm), [x_BD], plan, weight_EDH),
            "permute, grouped_mm": training(permuted_mm, [x_BD], plan, weight_EDH),
        }, 3 * len(x_PD)),
        "dense_mm": ({
            "mmoe": lambda: dense_mm(x_BD, weight_EDH),
            "loop of mm": lambda: [x_BD @ weight for weight in weights],
        }, E * B),
    }  # fmt: skip
    return [
        row(name, 1, calls, device, rounds, dtype, flops=2 * rows * D * H)
        for name, (calls, rows) in contests.items()
        if device != "cpu" or not name.startswith("gathered")  # there it is the other one
    ]


def row(
    name: str,
    G: int,
    calls: dict[str, Callable[[], object]],
    device: str,
    rounds: int,
    dtype: torch.dtype = torch.float32,
    **work: int,
) -> dict[str, Any]:
    """Races calls and the limit of their work, `flops` or `bytes`.

    The limit takes turns with the others: on a shared machine the bandwidth moves as well.
    """
    rows = work.get("flops", 0) // (2 * D * H)
    limit = product_of(rows, dtype, device) if rows else copy_of(work["bytes"], device)
    return {"op": name, "G": G, **work, "ms": race({**calls, "limit": limit}, device, rounds)}


def cut_plan(experts_BGK: Tensor, num_experts: int) -> RoutePlan:
    plan = route_plan(experts_BGK, num_experts)
    return plan._replace(rows_P=plan.rows_P[: int(plan.offsets_E1[-1])])


def bench_case(E: int, G: int, dtype: torch.dtype, device: str, rounds: int) -> list[dict]:
    contests = layer_contests(E, G, dtype, device).items()
    return [row(name, G, calls, device, rounds, bytes=moved) for name, (calls, moved) in contests]


def layer_contests(E: int, G: int, dtype: torch.dtype, device: str) -> dict[str, Contest]:
    """Calls, and bytes that must be moved."""
    torch.manual_seed(0)
    experts_BGK = torch.rand(B, G, E, device=device).topk(K).indices.int()
    plan, cut = route_plan(experts_BGK, E), cut_plan(experts_BGK, E)
    pairs, P = len(cut.rows_P), plan.rows_P.numel()
    x_BO, y_PO = (torch.randn(rows, O, device=device).to(dtype) for rows in (B, P))
    logits_BGE = torch.randn(B, G, E, device=device)
    visible_GE = torch.ones(G, E, dtype=torch.bool, device=device)
    weights_BGK = torch.rand(B, G, K, device=device)
    slots_BGK, long_BGK = plan.slots_BGK, plan.slots_BGK.long()
    y = [torch.randn(B, O, device=device).to(dtype) for _ in range(E)]
    weights_BGE = torch.rand(B, G, E, device=device)
    narrow_BGK, narrow_BGE = weights_BGK.to(dtype), weights_BGE.to(dtype)
    size = y_PO.element_size()

    return {
        "topk_gate": ({
            "mmoe": lambda: topk_gate(logits_BGE, visible_GE, K),
            "reference": lambda: reference.topk_gate(logits_BGE, visible_GE, K),
            "torch.topk": lambda: torch_topk(logits_BGE),
        }, 4 * B * G * (E + 2 * K)),
        "route_plan": ({
            "mmoe": lambda: route_plan(experts_BGK, E),
            "reference": lambda: reference.route_plan(experts_BGK, E),
            "torch.unique": lambda: unique_plan(experts_BGK),
        }, 4 * (2 * B * G * K + P)),
        "permute": ({
            "mmoe": lambda: permute(x_BO, cut),
            "index_select": lambda: x_BO.index_select(0, cut.rows_P),
        }, size * O * (B + pairs)),
        "permute train": ({
            "mmoe": training(lambda x, _: permute(x[0], cut), [x_BO], weights_BGK),
            "index_select": training(
                lambda x, _: x[0].index_select(0, cut.rows_P), [x_BO], weights_BGK
            ),
        }, size * O * (2 * B + 2 * pairs)),
        "gated_combine": ({
            "mmoe": lambda: gated_combine(y_PO, slots_BGK, weights_BGK),
            "reference": lambda: reference.gated_combine(y_PO, slots_BGK, weights_BGK),
            "gather": lambda: gather_combine(y_PO, long_BGK, narrow_BGK),
        }, size * O * (pairs + B * G)),
        "gated_combine train": ({
            "mmoe": training(first(gated_combine), [y_PO], slots_BGK, weights_BGK),
            "reference": training(
                first(reference.gated_combine), [y_PO], slots_BGK, weights_BGK
            ),
            "gather": training(first(gather_combine), [y_PO], long_BGK, narrow_BGK),
        }, size * O * (2 * pairs + P + 2 * B * G)),
        "dense_combine": ({
            "mmoe": lambda: dense_combine(y, weights_BGE),
            "einsum": lambda: einsum_combine(y, narrow_BGE),
            "gate by gate": lambda: addcmul_combine(y, narrow_BGE),
        }, size * O * B * (E + G)),
        "dense_combine train": ({
            "mmoe": training(dense_combine, y, weights_BGE),
            "einsum": training(einsum_combine, y, narrow_BGE),
            "gate by gate": training(addcmul_combine, y, narrow_BGE),
        }, size * O * B * (3 * E + 2 * G)),
    }  # fmt: skip


def bench_exchange(E: int, G: int, dtype: torch.dtype, device: str, rounds: int) -> list[dict]:
    torch.manual_seed(0)
    experts_BGK = torch.rand(B, G, E, device=device).topk(K).indices.int()
    steps = exchange_contests(experts_BGK, E, O, dtype, "pairs")
    return [
        row(name, G, calls, device, rounds, bytes=moved) for name, (calls, moved) in steps.items()
    ]


def show(dtype_name: str, E: int, row: dict) -> dict:
    ours, limit = row["ms"]["mmoe"], row["ms"]["limit"]
    share = limit / ours
    rate = row["bytes"] / ours / 1e6 if "bytes" in row else row["flops"] / ours / 1e6
    unit = "GB/s" if "bytes" in row else "GF/s"
    others = "  ".join(
        f"{name} {value:.2f} ({value / ours:.1f}x)"
        for name, value in row["ms"].items()
        if name not in ("mmoe", "limit")
    )
    case = f"{row['op']:<22} {dtype_name:<5} {E:>3} {row['G']:>2}"
    print(f"{case} {ours:>8.3f} {rate:>6.1f} {unit} {share:>7.0%}  {others}")
    return {"dtype": dtype_name, "E": E, "share_of_limit": share, **row}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=15)
    groups = ("layer", "products", "exchange", "attention")
    parser.add_argument("--only", nargs="+", choices=groups, default=groups)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    device = arguments.device
    print(f"{device}, {arguments.threads} threads, torch {torch.__version__}")
    print(f"mmoe.ops: {extension_status().detail}")
    print(f"B={B} K={K} O={O}, products {D} x {H}; train = forward and backward")
    print("%limit = time of a plain copy of as many bytes, or of one product of as many")
    print("operations, / our time")
    head = f"{'op':<22} {'dtype':<5} {'E':>3} {'G':>2} {'ms':>8} {'rate':>11} {'%limit':>7}"
    print(f"{head}  others, ms")
    results = []
    for dtype_name, dtype in DTYPES.items():
        for E in EXPERTS:
            rows, setting = [], (dtype, device, arguments.rounds)
            if "layer" in arguments.only:
                rows += [row for G in GATES for row in bench_case(E, G, *setting)]
            if "products" in arguments.only:
                rows += bench_products(E, *setting)
            if "exchange" in arguments.only:
                rows += bench_exchange(E, GATES[-1], *setting)
            results += [show(dtype_name, E, row) for row in rows]
        if "attention" in arguments.only:
            attention = [
                row(name, 1, calls, device, arguments.rounds, dtype, flops=flops)
                for name, (calls, flops) in attention_contests(dtype, device).items()
            ]
            results += [show(dtype_name, 1, row) for row in attention]
    last_line({"device": device, "threads": arguments.threads, "rows": results})


if __name__ == "__main__":
    main()
