"""Every operator works on the stream that is current: it reads what that stream has yet to write.

Here a slow kernel stands before what writes an operator's arguments. An operator, or a product of
its library, that is launched elsewhere reads what was there before, or gives its result too early.
"""

import pytest
import torch
from torch import Tensor, nn

from benchmarks.gpu_check.smoke import LAYERS, D
from tests.ops.cuda.calls import Draw, calls, flat, on_gpu, run, same_bits, with_tensors

pytestmark = [pytest.mark.gpu, pytest.mark.real_gpu]
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

SLOW = 50_000_000  # cycles: some 25 ms, in which a launch elsewhere would long be over
CASE = Draw(130, 3, 2, 8, 24, 40, unused=True)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def late(tensors: list[Tensor]) -> list[int]:
    """Which of a call's arguments are written late: what is read before holds zeros.

    Zeros in a plan would be pairs out of place, which stop a kernel; where all are integers they
    are picks, or sizes, of nothing.
    """
    floats = [n for n, tensor in enumerate(tensors) if tensor.is_floating_point()]
    return floats or list(range(len(tensors)))


@pytest.fixture(params=DTYPES.values(), ids=list(DTYPES))
def dtype(request):
    return request.param


@pytest.fixture
def side() -> torch.cuda.Stream:
    """Another stream than the default one, which nothing waits for."""
    return torch.cuda.Stream()


def test_arguments_that_the_current_stream_writes_late(operator, dtype, side):
    for call in calls(operator, CASE, dtype):
        given = on_gpu(call)
        wanted = run(given)
        sources = flat(given[1])
        chosen = late(sources)
        targets = [torch.zeros_like(t) if n in chosen else t for n, t in enumerate(sources)]
        arguments = with_tensors(given[1], iter(targets))
        torch.cuda.synchronize()

        with torch.cuda.stream(side):
            torch.cuda._sleep(SLOW)
            for n in chosen:
                targets[n].copy_(sources[n])
            found = run((call[0], arguments))
        side.synchronize()

        assert same_bits(found, wanted), call[0]


def test_arguments_that_the_current_stream_overwrites_afterwards(operator, dtype, side):
    """What comes after an operator on its stream waits until the operator has read."""
    for call in calls(operator, CASE, dtype):
        given = on_gpu(call)
        wanted = run(given)
        sources = flat(given[1])
        torch.cuda.synchronize()

        with torch.cuda.stream(side):
            torch.cuda._sleep(SLOW)
            found = run(given)
            for n in late(sources):
                sources[n].zero_()
        side.synchronize()

        assert same_bits(found, wanted), call[0]


def test_scratch_memory_belongs_to_the_stream(dtype, side):
    """What two streams allocate at the same time does not overlap."""
    given = [
        on_gpu(next(calls("grouped_mm", Draw(700, 2, 2, 8, 65, 130, draw=n), dtype)))
        for n in range(2)
    ]
    wanted = [run(call) for call in given]
    torch.cuda.synchronize()

    found: list[list[list[Tensor]]] = [[], []]
    streams = torch.cuda.current_stream(), side
    for _ in range(20):
        for n, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                found[n].append(run(given[n]))
    torch.cuda.synchronize()

    for n in range(2):
        assert all(same_bits(each, wanted[n]) for each in found[n])


def step(layer: nn.Module, x_BD: Tensor) -> list[Tensor]:
    """The output and all gradients."""
    x_BD = x_BD.requires_grad_()
    out_BGO = layer(x_BD).out_BGO
    leaves = [x_BD, *layer.parameters()]
    grads = torch.autograd.grad(out_BGO.square().mean(), leaves, allow_unused=True)
    return [out_BGO.detach(), *(grad for grad in grads if grad is not None)]


@pytest.mark.parametrize("name", LAYERS)
def test_a_whole_step_on_rows_that_come_late(name, side):
    """Autograd takes the backward pass to the stream of the forward pass."""
    torch.manual_seed(0)
    layer = LAYERS[name]().cuda()
    rows_BD = torch.randn(200, D, device="cuda")
    wanted = step(layer, rows_BD.clone())
    late_BD = torch.zeros_like(rows_BD)
    torch.cuda.synchronize()

    with torch.cuda.stream(side):
        torch.cuda._sleep(SLOW)
        late_BD.copy_(rows_BD)
        found = step(layer, late_BD)
    side.synchronize()

    assert same_bits(found, wanted)
