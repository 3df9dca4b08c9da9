"""Nine gates and more in every operator that has gates: more than a thread keeps at a time."""

import pytest
import torch

from benchmarks.gpu_check.operator_cases import as_numbers, expected
from benchmarks.gpu_check.smoke import coarsest, compare
from tests.ops.cuda.calls import Draw, calls, on_gpu

pytestmark = pytest.mark.gpu
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

GATED = (
    "topk_gate",
    "joint_select",
    "route_plan",
    "permute",
    "unpermute",
    "gate_mm",
    "gated_combine",
    "dense_combine",
    "exchange",
)
# Rows of whole packs of 16 bytes in every type, and of none
WIDTHS = {"packs": (24, 40), "odd": (33, 17)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("widths", WIDTHS.values(), ids=WIDTHS)
@pytest.mark.parametrize("G", [9, 10, 11, 12])
@pytest.mark.parametrize("name", GATED)
def test_many_gates_give_what_the_specification_says(name, G, widths, dtype):
    case = Draw(37, G, 2, 8, *widths, unused=G % 2 == 0)
    for call in calls(name, case, dtype):
        operator, arguments = on_gpu(call)
        found = getattr(torch.ops.mmoe, operator)(*arguments)
        pair = as_numbers(call, found), as_numbers(call, expected(call))
        compare(f"{operator} of {G} gates", *pair, coarsest(call[1]))


@pytest.mark.parametrize("E", [1, 3, 40])
@pytest.mark.parametrize("G", [9, 12, 17])
def test_many_gates_over_all_experts(G, E):
    """Gates are taken a few at a time: what the last of them adds must not be lost."""
    case = Draw(70, G, 1, E, 24, 40)
    for operator, arguments in calls("dense_combine", case, torch.float32):
        name, given = on_gpu((operator, arguments))
        found = getattr(torch.ops.mmoe, name)(*given)
        compare(f"{name}, {G} gates, {E} experts", found, expected((operator, arguments)), 1e-5)
