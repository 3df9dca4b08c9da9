"""Memory that is not there: torch.OutOfMemoryError, with the operator and what it asked for."""

import pytest
import torch

from mmoe import ops
from tests.needs_kernels import needs_kernels

pytestmark = needs_kernels  # plain PyTorch raises what PyTorch raises

SENT = "unpack_rows: out of memory: 18014398501093376 bytes for a tensor of shape "
SENT += r"\[1048576, 2147483647\] in torch.float64"
READ = "grouped_mm: out of memory: 4503599627370496 bytes for a tensor of shape "
READ += r"\[1, 1048576, 1073741824\] in torch.float32"


def unpack(device="cpu"):
    """A result of 16 PiB from arguments of 4 MiB: rows that are 0, of the greatest width."""
    rows_R = torch.full((2**20,), -1, dtype=torch.int32, device=device)
    links_WL = torch.zeros(2, 6, dtype=torch.int64, device=device)
    message = torch.zeros(0, dtype=torch.uint8, device=device)
    kind = (2**31 - 1, torch.float64, torch.float64)
    return torch.ops.mmoe.unpack_rows(message, rows_R, links_WL, *kind)


def multiply(x_PD=None, device="cpu"):
    """Weights that are one number, and 4 PiB where they are copied to lie in order."""
    x_PD = torch.zeros(1, 2**20, device=device) if x_PD is None else x_PD
    weight_EDH = torch.zeros(1, 1, 1, device=device).expand(1, 2**20, 2**30)
    return ops.grouped_mm(x_PD, torch.tensor([0, 1], device=device).int(), weight_EDH)


@pytest.mark.parametrize(
    ("call", "asked"), [(unpack, SENT), (multiply, READ)], ids=["unpack", "multiply"]
)
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_names_the_operator_and_what_was_asked_for(call, asked, mode):
    with mode(), pytest.raises(torch.OutOfMemoryError, match=asked):
        call()


def test_with_gradients():
    with pytest.raises(RuntimeError, match="out of memory") as caught:  # as PyTorch's on a CPU is
        multiply(torch.zeros(1, 2**20, requires_grad=True))
    assert isinstance(caught.value, torch.OutOfMemoryError)


def test_in_a_gradient():
    class Layer(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, *grads):
            return multiply() + grads[0]

    y = Layer.apply(torch.zeros(1, requires_grad=True))
    with pytest.raises(torch.OutOfMemoryError, match=READ):
        y.sum().backward()


def test_what_comes_after_works():
    x_PD, weight_EDH = torch.ones(3, 4), torch.ones(1, 4, 2)
    offsets_E1 = torch.tensor([0, 3], dtype=torch.int32)
    for _ in range(3):
        with pytest.raises(torch.OutOfMemoryError):
            unpack()
        assert torch.equal(ops.grouped_mm(x_PD, offsets_E1, weight_EDH), torch.full((3, 2), 4.0))
