"""The same bits twenty times, whatever the memory that an operator is given held before."""

import pytest
import torch

from tests.ops.cuda.calls import Draw, calls, on_gpu, run, same_bits

pytestmark = pytest.mark.gpu
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

RUNS = 20
# The second has rows for several blocks, and weights' gradients from several parts of the rows:
# more than an emulation gets through
LARGE = Draw(700, 9, 2, 12, 65, 130, unused=True)
CASES = [
    pytest.param(Draw(33, 3, 2, 4, 17, 17), id="small"),
    pytest.param(LARGE, id="large", marks=pytest.mark.real_gpu),
]


def leave_in_memory(value: float, numbers: int) -> None:
    """What empty tensors of up to so many numbers are made of for a while."""
    sizes = [2**n for n in range(4, numbers.bit_length() + 1)]
    blocks = [torch.full((size,), value, device="cuda") for size in sizes]
    del blocks


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("case", CASES)
def test_the_same_bits_in_every_run(operator, case, dtype):
    numbers = case.B * case.G * case.K * max(case.D, case.H)
    for call in calls(operator, case, dtype):
        given = on_gpu(call)
        first = run(given)
        for number in range(1, RUNS):
            leave_in_memory(float("nan") if number % 2 else 3.0, numbers)
            assert same_bits(run(given), first), (call[0], number)
