"""The same bits twenty times, whatever the memory that an operator is given held before."""

import pytest
import torch

from tests.ops.cuda.calls import OPERATORS, Draw, calls, on_gpu, run, same_bits

pytestmark = pytest.mark.gpu
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

RUNS = 20
# The second has rows for several blocks, and weights' gradients from several parts of the rows
CASES = {
    "small": Draw(40, 3, 2, 8, 24, 24),
    "large": Draw(700, 9, 2, 12, 65, 130, unused=True),
}


def leave_in_memory(value: float) -> None:
    """What empty tensors are made of for a while."""
    blocks = [torch.full((2**n,), value, device="cuda") for n in range(4, 22)]
    del blocks


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("name", OPERATORS)
def test_the_same_bits_in_every_run(name, case, dtype):
    for call in calls(name, case, dtype):
        given = on_gpu(call)
        first = run(given)
        for number in range(1, RUNS):
            leave_in_memory(float("nan") if number % 2 else 3.0)
            assert same_bits(run(given), first), (call[0], number)
