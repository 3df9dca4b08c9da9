"""Numbers out of range stop a kernel, though the memory that they lead to may be there."""

import random

import pytest
import torch

from mmoe.ops import exchange_reference
from tests.emulated_cuda.device import EmulatedDevice
from tests.emulated_cuda.random_cases import drawn_exchange

pytestmark = [pytest.mark.gpu, pytest.mark.of_emulation, pytest.mark.usefixtures("emulated")]
if EmulatedDevice.open_one is None:
    pytest.skip("the emulation is not loaded", allow_module_level=True)

LAYER = (torch.ones(1, 8, 8), None, "none")  # weight_EDH, bias_EH


@pytest.mark.parametrize("row", [-2, 2, 3])
def test_rows_by_number_are_held_against_those_of_x(row):
    """There are more pairs than rows, and a number of a pair is none of a row."""
    x_BD, rows_P = torch.ones(2, 8), torch.tensor([0, 1, row, 1]).int()
    plan = rows_P, torch.tensor([0, 4]).int(), torch.zeros(2, 1, 2).int()
    given = [part.cuda() if isinstance(part, torch.Tensor) else part for part in (*plan, *LAYER)]
    with pytest.raises(RuntimeError, match="rows_P: expected a row in"):
        torch.ops.mmoe.gathered_mm(x_BD.cuda(), *given)
    rows, offsets, _, weight, _, activation = given
    y_PH, z_PH = torch.ones(4, 8).cuda(), torch.ones(0).cuda()
    with pytest.raises(RuntimeError, match="rows_P: expected a row in"):
        torch.ops.mmoe.gathered_mm_backward(
            *(y_PH, x_BD.cuda(), rows, offsets, weight, y_PH, z_PH), activation, False, True, False
        )


@pytest.mark.parametrize("seed", range(4))
def test_rows_back_that_no_pick_names_have_gradient_0(seed):
    draw = random.Random(seed)
    name, arguments = drawn_exchange("mix_returns_backward", torch.float32, torch.float32, draw)
    grad_BGO, back_ZO, *others = arguments
    more_ZO = torch.cat((back_ZO, torch.ones(3, back_ZO.shape[1])))
    wanted = exchange_reference.mix_returns_backward(grad_BGO, more_ZO, *others)

    on_device = [part.cuda() for part in (grad_BGO, more_ZO, *others)]
    found = getattr(torch.ops.mmoe, name)(*on_device)

    assert torch.equal(found[0][-3:].cpu(), torch.zeros(3, back_ZO.shape[1]))
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-5, atol=1e-5)
