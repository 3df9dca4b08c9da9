"""Every operator, forward and backward, in a CUDA graph that is replayed on other numbers."""

import pytest
import torch
from torch import Tensor

from tests.ops.cuda.calls import Draw, calls, flat, on_gpu, run, same_bits

pytestmark = [pytest.mark.gpu, pytest.mark.real_gpu]
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

SIZES = {"packs": (24, 40), "odd": (33, 17)}
REPLAYS = 3


def captured(call) -> tuple[torch.cuda.CUDAGraph, list[Tensor]]:
    """A graph of it, and the tensors that each replay writes."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        run(call)  # libraries set themselves up
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = run(call)
    return graph, found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("widths", SIZES.values(), ids=SIZES)
def test_a_graph_computes_what_its_arguments_hold_by_then(operator, widths, dtype):
    draws = [
        [
            on_gpu(call)
            for call in calls(operator, Draw(130, 3, 2, 8, *widths, unused=True, draw=draw), dtype)
        ]
        for draw in range(REPLAYS + 1)
    ]
    for first, *others in zip(*draws, strict=True):
        graph, found = captured(first)
        for other in others:
            wanted = run(other)
            for target, source in zip(flat(first[1]), flat(other[1]), strict=True):
                target.copy_(source)
            graph.replay()
            torch.cuda.synchronize()
            assert same_bits(found, wanted), first[0]
