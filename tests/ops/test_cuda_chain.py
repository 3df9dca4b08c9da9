"""Gate, plan, permute, two grouped layers and combine on a GPU: nothing waits, all is captured."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from mmoe import ops

pytestmark = pytest.mark.gpu
if not torch.cuda.is_available():  # one line in the report instead of a thousand
    pytest.skip("no CUDA device", allow_module_level=True)


class Inputs(NamedTuple):
    """All but the visibility get gradients."""

    x_BD: Tensor
    logits_BGE: Tensor
    visibility_GE: Tensor
    first_EDH: Tensor
    bias_EH: Tensor
    second_EHO: Tensor

    def leaves(self) -> list[Tensor]:
        return [tensor for tensor in self if tensor.is_floating_point()]

    def cuda(self) -> "Inputs":
        return Inputs(*(t.detach().cuda().requires_grad_(t.requires_grad) for t in self))


def make_inputs(case, dtype, D=20, H=40, weights=None) -> Inputs:
    weights = weights or dtype
    x_BD = case.random(case.B, D, seed=1).to(dtype)
    gate_dtype = torch.float64 if dtype == torch.float64 else torch.float32
    logits_BGE = case.random(case.B, case.G, case.E, seed=2).to(gate_dtype)
    visibility_GE = case.random(case.G, case.E, seed=3) > -1
    visibility_GE[:, : case.K] = True
    first_EDH = (case.random(case.E, D, H, seed=4) / D**0.5).to(weights)
    bias_EH = case.random(case.E, H, seed=5).to(weights)
    second_EHO = (case.random(case.E, H, case.O, seed=6) / H**0.5).to(weights)
    inputs = Inputs(x_BD, logits_BGE, visibility_GE, first_EDH, bias_EH, second_EHO)
    for leaf in inputs.leaves():
        leaf.requires_grad_()
    return inputs


def layer(inputs: Inputs, k: int) -> Tensor:
    weights_BGK, experts_BGK = ops.topk_gate(inputs.logits_BGE, inputs.visibility_GE, k)
    plan = ops.route_plan(experts_BGK, len(inputs.first_EDH))
    x_PD = ops.permute(inputs.x_BD, plan)
    h_PH = ops.grouped_mm(x_PD, plan.offsets_E1, inputs.first_EDH, inputs.bias_EH, "gelu")
    y_PO = ops.grouped_mm(h_PH, plan.offsets_E1, inputs.second_EHO)
    return ops.gated_combine(y_PO, plan.slots_BGK, weights_BGK)


def step(inputs: Inputs, k: int, grad_BGO: Tensor) -> list[Tensor]:
    out_BGO = layer(inputs, k)
    return [out_BGO.detach(), *torch.autograd.grad(out_BGO, inputs.leaves(), grad_BGO)]


def near(actual: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    for ours, theirs in zip(actual, expected, strict=True):
        assert ours.dtype == theirs.dtype
        assert torch.isfinite(ours).all()
        atol = tolerance * max(1.0, float(theirs.abs().max()) if theirs.numel() else 1.0)
        torch.testing.assert_close(ours.cpu(), theirs.cpu(), rtol=0, atol=atol)


@pytest.fixture
def poisoned_memory():
    """What empty tensors are made of for a while: freed memory full of NaN."""
    blocks = [torch.full((2**n,), torch.nan, device="cuda") for n in range(4, 24)]
    del blocks


@pytest.mark.parametrize("weights", [None, torch.float32], ids=["weights-alike", "weights-fp32"])
def test_equals_cpu(case, dtype, weights, poisoned_memory):
    if weights is not None and dtype != torch.bfloat16:
        pytest.skip("only bfloat16 rows take other weights")
    inputs = make_inputs(case, dtype, weights=weights)
    grad_BGO = case.random(case.B, case.G, case.O, seed=7).to(dtype)

    actual = step(inputs.cuda(), case.K, grad_BGO.cuda())

    expected = step(inputs, case.K, grad_BGO)
    near(actual, expected, {torch.float32: 3e-5, torch.bfloat16: 3e-2, torch.float64: 1e-12}[dtype])


def test_same_bits_in_every_run(large, dtype):
    inputs = make_inputs(large, dtype).cuda()
    grad_BGO = large.random(large.B, large.G, large.O, seed=7).to(dtype).cuda()

    first = step(inputs, large.K, grad_BGO)

    for _ in range(3):
        again = step(inputs, large.K, grad_BGO)
        assert all(torch.equal(a, b) for a, b in zip(again, first, strict=True))


@pytest.mark.real_gpu
@pytest.mark.parametrize("D", [24, 21])
def test_nothing_waits_for_the_device(usual, dtype, D):
    inputs = make_inputs(usual, dtype, D=D).cuda()
    grad_BGO = torch.ones(usual.B, usual.G, usual.O, dtype=dtype, device="cuda")
    step(inputs, usual.K, grad_BGO)  # the first call may set libraries up
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step(inputs, usual.K, grad_BGO)
    finally:
        torch.cuda.set_sync_debug_mode(mode)


@pytest.mark.real_gpu
@pytest.mark.parametrize("D", [24, 21])
def test_one_graph_serves_every_routing(usual, dtype, D):
    inputs = make_inputs(usual, dtype, D=D).cuda()
    grad_BGO = torch.ones(usual.B, usual.G, usual.O, dtype=dtype, device="cuda")
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(2):
            step(inputs, usual.K, grad_BGO)
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step(inputs, usual.K, grad_BGO)

    everybody_to_one = torch.zeros_like(inputs.logits_BGE)
    everybody_to_one[..., 1] = 9
    for logits_BGE in (
        inputs.logits_BGE.flip(0),
        everybody_to_one,
        inputs.logits_BGE.detach().neg(),
    ):
        with torch.no_grad():
            inputs.logits_BGE.copy_(logits_BGE.clone())
            inputs.x_BD.mul_(-0.5)
        graph.replay()
        expected = step(inputs, usual.K, grad_BGO)
        assert all(torch.equal(a, b) for a, b in zip(captured, expected, strict=True))


@pytest.mark.real_gpu
def test_compiles_to_one_graph(usual):
    inputs = make_inputs(usual, torch.float32).cuda()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")

    out_BGO = compiled(inputs, usual.K)
    grads = torch.autograd.grad(out_BGO.sum(), inputs.leaves())

    expected = step(inputs, usual.K, torch.ones_like(out_BGO))
    near([out_BGO.detach(), *grads], expected, 1e-6)
