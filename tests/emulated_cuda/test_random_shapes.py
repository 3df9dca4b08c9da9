"""Every CUDA operator on drawn shapes and inconvenient memory against its specification.

    python -m pytest -p tests.emulated_cuda.plugin tests/emulated_cuda/test_random_shapes.py

On a GPU, where there is one, by `-m gpu` as all others.
"""

import random
from functools import partial

import pytest
import torch

from benchmarks.gpu_check.operator_cases import as_numbers, expected
from benchmarks.gpu_check.smoke import to_device
from mmoe.ops import exchange_reference
from mmoe.ops.product_choice import grouped_product
from tests.emulated_cuda.random_cases import (
    DTYPES,
    KINDS,
    OPERATORS,
    PLANNING,
    WIRES,
    deep,
    drawn_calls,
    drawn_case,
    drawn_exchange,
    laid_out,
    of_gates,
    rows_cut_out,
)

pytestmark = pytest.mark.gpu
if not torch.cuda.is_available():  # one line in the report instead of a hundred
    pytest.skip("no CUDA device", allow_module_level=True)

# Of the number itself and of the largest: a wrong term in a sum of 1,000 is more
TOLERANCE = {
    torch.float32: (0.0, 4e-6),
    torch.bfloat16: (2.0**-7, 4e-3),
    torch.float64: (0.0, 1e-13),
}
PRODUCTS = ("grouped_mm", "gathered_mm", "dense_mm", "gate_mm")
REPEATED = {kind: 4 for kind in KINDS} | {"crowded": 2, "many_experts": 2, "packed": 8}
DEEP = 12


def name_of(dtype):
    return str(dtype).removeprefix("torch.")


def near(name, found, wanted, narrowest):
    """Every number by itself, as far apart as roundings of the narrowest type make it."""
    if isinstance(wanted, list | tuple):
        assert len(found) == len(wanted), name
        for number, (ours, theirs) in enumerate(zip(found, wanted, strict=True)):
            near(f"{name}[{number}]", ours, theirs, narrowest)
        return
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype), name
    found = found.cpu()
    if not wanted.is_floating_point():
        assert torch.equal(found, wanted), name
        return
    relative, of_largest = TOLERANCE[narrowest]
    finite = wanted[wanted.isfinite()]
    largest = max(1.0, float(finite.abs().max())) if finite.numel() else 1.0
    torch.testing.assert_close(
        found,
        wanted,
        rtol=relative,
        atol=of_largest * largest,
        equal_nan=True,
        msg=lambda m: name + m,
    )


def narrowest_of(*values):
    """The float type with the fewest digits among these."""
    flat = []
    for value in values:
        parts = value if isinstance(value, list | tuple) else (value,)
        flat += [getattr(part, "dtype", part) for part in parts]
    floats = {dtype for dtype in flat if isinstance(dtype, torch.dtype) and dtype in TOLERANCE}
    return min(floats, key=lambda dtype: -TOLERANCE[dtype][1], default=torch.float64)


def run(call, draw, inconvenient=True):
    """The operator on the device, with arguments that lie as is drawn."""
    name, arguments = call
    place = partial(laid_out, draw=draw) if inconvenient else to_device
    return getattr(torch.ops.mmoe, name)(*place(arguments, "cuda"))


def check(name, make_case, dtype, seed, inconvenient=True):
    """With either of two products, where there are two."""
    has_two = name in ("grouped_mm", "gathered_mm") and dtype == torch.bfloat16
    has_two = has_two and torch.cuda.get_device_capability()[0] in (9, 10)
    for product in ("own", "library") if has_two else ("auto",):
        with grouped_product(product):
            check_one(name, make_case, dtype, seed, inconvenient)


def check_one(name, make_case, dtype, seed, inconvenient):
    draw = random.Random(f"{name} {seed}")
    case = drawn_case(make_case, draw)
    for call in drawn_calls(name, case, dtype, draw):
        found = run(call, draw, inconvenient)
        near(f"{call[0]}, {case}: ", found, expected(call), narrowest_of(*call[1]))


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OPERATORS)
def test_operator_is_its_specification(name, kind, dtype):
    for seed in range(REPEATED[kind]):
        check(name, KINDS[kind], dtype, f"{kind} {dtype} {seed}", kind != "packed")


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize(
    "seed", [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, DEEP))]
)
@pytest.mark.parametrize("name", PRODUCTS)
def test_deep_product_is_its_specification(name, seed, dtype):
    check(name, deep, dtype, f"deep {seed}")


@pytest.mark.parametrize("packs", [True, False], ids=["packs", "any-width"])
@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize("gates", [1, 2, 4, 8, 16, 32, 64, 70])
@pytest.mark.parametrize("name", ["dense_combine", "gated_combine", "topk_gate", "joint_select"])
def test_any_number_of_gates_is_its_specification(name, gates, dtype, packs):
    """How many a kernel adds up at once is chosen by their number."""
    kind = partial(of_gates, gates, packs)
    check(name, kind, dtype, f"{gates} {dtype} {packs}", inconvenient=not packs)


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_rows_of_wider_tensors_are_added_up(dtype):
    for call, (name, given) in zip(rows_cut_out(dtype), rows_cut_out(dtype, "cuda"), strict=True):
        found = getattr(torch.ops.mmoe, name)(*given)
        near(f"{name}: ", found, expected(call), narrowest_of(*call[1]))


@pytest.mark.parametrize("types", WIRES, ids=lambda pair: "-".join(map(name_of, pair)))
@pytest.mark.parametrize("name", PLANNING)
def test_exchange_is_its_specification(name, types):
    rows, wire = types
    for seed in range(6):
        draw = random.Random(f"{name} {rows} {wire} {seed}")
        _, arguments = drawn_exchange(name, rows, wire, draw)
        found = run((name, arguments), draw)
        wanted = getattr(exchange_reference, name)(*arguments)
        if name == "unpack_rows_backward":  # sums in another order, and then bytes
            found, wanted = (as_numbers((name, arguments), m) for m in (found, wanted))
        near(f"{name}, seed {seed}: ", found, wanted, narrowest_of(*arguments))
