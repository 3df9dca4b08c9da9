"""Products of experts and gates beside `F.grouped_mm`, loops and cuBLAS's batched product."""

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F

from benchmarks.gpu_check.clock import Call
from benchmarks.gpu_check.contest import Contest, Layer, Size, expert_of_rows, layers
from benchmarks.gpu_check.triton_product import scattermoe
from mmoe.ops.product_choice import GroupedProduct, grouped_product

# The most that `F.grouped_mm` takes
LIBRARY_EXPERTS = 1023
# Of ours: what the operator chooses, and either of its products, which need not be the chosen one
PRODUCTS: dict[str, GroupedProduct] = {
    "mmoe": "auto",
    "mmoe, own product": "own",
    "mmoe, library's product": "library",
}


def grouped(size: Size, device: str) -> Iterator[Contest]:
    """The layer of each expert on its rows: plain, with bias and ReLU, and the gradients."""
    sets = layers(size, device)
    moved = sets[0].size_in_bytes
    names = (("forward", "none"), ("forward+bias+relu", "relu"))
    for name, activation in names:
        calls = _forward_calls(sets, activation)
        left_out = {"F.grouped_mm": why} if (why := _no_library(size, device)) else {}
        for who in left_out:
            del calls[who]
        triton, missing = scattermoe(sets, fused=activation != "none")
        calls |= triton
        left_out |= missing
        yield Contest(
            f"grouped_mm {name} {size.name}", calls, len(sets), size.flops, moved, left_out
        )
    calls = _backward_calls(sets)
    left_out = {"F.grouped_mm": why} if (why := _no_library(size, device)) else {}
    for who in left_out:
        del calls[who]
    name = f"grouped_mm backward {size.name}"
    yield Contest(name, calls, len(sets), 2 * size.flops, 2 * moved, left_out)


def _no_library(size: Size, device: str) -> str:
    """Why `F.grouped_mm` is no contestant."""
    if not hasattr(F, "grouped_mm"):
        return f"torch {torch.__version__} has no F.grouped_mm"
    if device == "cuda" and size.dtype != torch.bfloat16:
        return "F.grouped_mm takes bfloat16 alone on a GPU"
    return "" if size.E <= LIBRARY_EXPERTS else f"more than {LIBRARY_EXPERTS} experts"


def _forward_calls(sets: Sequence[Layer], activation: str) -> dict[str, Call]:
    ours = torch.ops.mmoe.grouped_mm
    fused = activation != "none"
    experts = [expert_of_rows(own) for own in sets] if fused else []

    def mmoe(n: int) -> object:
        own = sets[n]
        bias_EH = own.bias_EH if fused else None
        return ours(own.x_PD, own.offsets_E1, own.weight_EDH, bias_EH, activation)

    def library(n: int) -> object:
        own = sets[n]
        y_PH = F.grouped_mm(own.x_PD, own.weight_EDH, offs=own.offsets_E1[1:])
        return (y_PH + own.bias_EH[experts[n]]).relu() if fused else y_PH

    def loop(n: int) -> object:
        own = sets[n]
        y_PH = torch.empty_like(own.grad_PH)
        for e, rows in enumerate(_slices(own)):
            if not fused:
                torch.mm(own.x_PD[rows], own.weight_EDH[e], out=y_PH[rows])
            else:
                torch.addmm(own.bias_EH[e], own.x_PD[rows], own.weight_EDH[e], out=y_PH[rows])
        return y_PH.relu_() if fused else y_PH

    others = {"F.grouped_mm": library, "loop of mm": loop, **_batched(sets)}
    return {**_both_products(mmoe, sets[0]), **others}


def _both_products(call: Call, own: Layer) -> dict[str, Call]:
    """Ours as the operator chooses and, in bf16, with each of its products: fp32 has one."""
    device, bf16 = own.x_PD.device, own.x_PD.dtype == torch.bfloat16

    def taking(product: GroupedProduct) -> Call:
        def run(n: int) -> object:
            with grouped_product(product, device):
                return call(n)

        return run

    return {who: taking(product) for who, product in PRODUCTS.items() if bf16 or who == "mmoe"}


def _batched(sets: Sequence[Layer]) -> dict[str, Call]:
    """CuBLAS's batched product on as many rows for each expert: what even routing would give."""
    E, D, _ = sets[0].weight_EDH.shape
    rows = len(sets[0].x_PD) // E
    if rows == 0:
        return {}
    x_END = [own.x_PD[: rows * E].view(E, rows, D) for own in sets]
    return {"bmm, even rows": lambda n: torch.bmm(x_END[n], sets[n].weight_EDH)}


def _backward_calls(sets: Sequence[Layer]) -> dict[str, Call]:
    ours = torch.ops.mmoe.grouped_mm_backward

    def mmoe(n: int) -> object:
        own = sets[n]
        layer = own.grad_PH, own.x_PD, own.offsets_E1, own.weight_EDH
        needs = True, True, False
        return ours(*layer, own.grad_PH, own.grad_PH.new_empty(0), "none", *needs)

    def library(n: int) -> object:
        own, ends_E = sets[n], sets[n].offsets_E1[1:]
        return (
            F.grouped_mm(own.grad_PH, own.weight_EDH.mT, offs=ends_E),
            F.grouped_mm(own.x_PD.t(), own.grad_PH, offs=ends_E),
        )

    def loop(n: int) -> object:
        own = sets[n]
        grad_x, grad_weight = torch.empty_like(own.x_PD), torch.empty_like(own.weight_EDH)
        for e, rows in enumerate(_slices(own)):
            torch.mm(own.grad_PH[rows], own.weight_EDH[e].t(), out=grad_x[rows])
            torch.mm(own.x_PD[rows].t(), own.grad_PH[rows], out=grad_weight[e])
        return grad_x, grad_weight

    others = {"F.grouped_mm": library, "loop of mm": loop}
    return {**_both_products(mmoe, sets[0]), **others}


def _slices(own: Layer) -> list[slice]:
    return [slice(a, b) for a, b in zip(own.bounds, own.bounds[1:], strict=False)]


def dense(size: Size, device: str) -> Iterator[Contest]:
    """Every expert's layer on all rows, with bias and ReLU."""
    count = 1 if device == "cpu" else 3
    sets = [Layer.draw(size, device, seed) for seed in range(count)]
    ours = torch.ops.mmoe.dense_mm

    def loop(n: int) -> object:
        own = sets[n]
        pairs = zip(own.weight_EDH, own.bias_EH, strict=True)
        return [torch.addmm(bias_H, own.x_PD, weight_DH).relu_() for weight_DH, bias_H in pairs]

    def batched(n: int) -> object:
        own = sets[n]
        x_EPD = own.x_PD.expand(size.E, -1, -1)
        y_EPH = torch.baddbmm(own.bias_EH.unsqueeze(1), x_EPD, own.weight_EDH).relu_()
        return y_EPH.unbind(0)

    def mmoe(n: int) -> object:
        own = sets[n]
        return ours([own.x_PD], own.weight_EDH, own.bias_EH, "relu")

    calls: dict[str, Call] = {"mmoe": mmoe, "loop of addmm": loop, "baddbmm": batched}
    yield Contest(f"dense_mm forward {size.name}", calls, count, size.E * size.flops)


def gate(size: Size, device: str) -> Iterator[Contest]:
    """The gates' product in fp32 (B rows, N = E columns of all gates)."""
    sets = [Layer.draw(size, device, seed) for seed in range(1 if device == "cpu" else 3)]
    weights = [own.weight_EDH[0].float().contiguous() for own in sets]
    calls: dict[str, Call] = {
        "mmoe": lambda n: torch.ops.mmoe.gate_mm(sets[n].x_PD, weights[n], None),
        "bf16 mm": lambda n: torch.mm(sets[n].x_PD, sets[n].weight_EDH[0]),
    }
    yield Contest(f"gate_mm forward {size.name}", calls, len(sets), size.flops)


def product_rate(dtype: torch.dtype, size: int, device: str) -> Contest:
    """One large product of random numbers: the rate that shares are taken of."""
    x, w = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    return Contest(f"mm {size}", {"mm": lambda _: torch.mm(x, w)}, 1, 2.0 * size**3)
