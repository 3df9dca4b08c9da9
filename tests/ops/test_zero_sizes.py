"""Every operator, forward and backward, with each size 0 that its checks allow.

There is nothing to compute, and much to be wrong with: tensors without memory, launches without
blocks, sums of nothing, which are 0 and must be written.
"""

from dataclasses import replace

import pytest
import torch

from benchmarks.gpu_check.operator_cases import BUILDERS, Case
from benchmarks.gpu_check.smoke import to_device
from mmoe.ops._library import reference_of
from tests.ops.damage import flat
from tests.ops.exchange_world import STEPS, World
from tests.ops.exchange_world import Case as Ranks

USUAL = Case(9, 3, 2, 5, 16, 24)
SIZES = {
    "no samples": replace(USUAL, B=0),
    "no gates": replace(USUAL, G=0),
    "no samples, many experts": replace(USUAL, B=0, E=40),
    "no samples, no gates": replace(USUAL, B=0, G=0),
    "no input": replace(USUAL, D=0),
    "no output": replace(USUAL, H=0),
    "no input, no output": replace(USUAL, D=0, H=0),
    "no samples, no input": replace(USUAL, B=0, D=0),
    "no samples, no output": replace(USUAL, B=0, H=0),
}
RANKS = {
    "no rows": Ranks("", rows=(0, 0)),
    "no rows here": Ranks("", rows=(0, 3), ways="sums"),
    "no width": Ranks("", D=0, O=0),
    "no rows, no width": Ranks("", rows=(0, 0), D=0, O=0),
    "nothing picked": Ranks("", picks="nothing"),
    "no experts here": Ranks("", rows=(2, 3), held=((), (0, 1, 2))),
}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp64": torch.float64}


def of_layer(name, sizes, dtype):
    return list(BUILDERS[name](SIZES[sizes], dtype))


def of_exchange(sizes, dtype):
    """What each operator is given on either rank."""
    world = World(replace(RANKS[sizes], dtype=dtype))
    names = ["outbound_plan", *STEPS]
    return [(name, world.arguments(name, rank)) for name in names for rank in range(2)]


def without_picks(dtype):
    """Plans of no pairs for samples that exist: the rows' end, cut off."""
    none, slots = torch.zeros(0, dtype=torch.int32), torch.full((4, 2, 2), -1, dtype=torch.int32)
    y_PO, grad_BGO = torch.zeros(0, 24, dtype=dtype), torch.ones(4, 2, 24, dtype=dtype)
    weights = torch.ones(4, 2, 2, dtype=torch.float64 if dtype == torch.float64 else torch.float32)
    return [
        ("permute", (torch.ones(4, 24, dtype=dtype), none, slots)),
        ("unpermute", (y_PO, none, slots)),
        ("gated_combine", (y_PO, slots, weights)),
        ("gated_combine_backward", (grad_BGO, y_PO, slots, weights)),
        ("gated_combine", (y_PO, slots[..., :0], weights[..., :0])),
        ("gated_combine_backward", (grad_BGO, y_PO[:0], slots[..., :0], weights[..., :0])),
        ("gated_combine_backward", (grad_BGO, grad_BGO[:, 0], slots[..., :0], weights[..., :0])),
        ("route_plan", (slots[..., :0], 7)),
        ("route_plan", (slots, 7)),
    ]


def same(actual, expected):
    assert len(actual) == len(expected)
    for ours, theirs in zip(actual, expected, strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        if ours.is_floating_point():
            tolerance = {torch.float32: 1e-5, torch.bfloat16: 2e-2}.get(ours.dtype, 1e-12)
            torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance, equal_nan=True)
        elif ours.dtype != torch.uint8 or not ours.numel():
            assert torch.equal(ours, theirs)


def check_cpu(calls):
    for name, arguments in calls:
        found = flat(getattr(torch.ops.mmoe, name)(*arguments))
        same(found, flat(reference_of(name)(*arguments)))


def check_gpu(calls):
    for name, arguments in calls:
        operator = getattr(torch.ops.mmoe, name)
        found = [tensor.cpu() for tensor in flat(operator(*to_device(arguments, "cuda")))]
        same(found, flat(operator(*arguments)))


BOTH = pytest.mark.parametrize(
    "check", [check_cpu, pytest.param(check_gpu, marks=pytest.mark.gpu)], ids=["cpu", "gpu"]
)


@pytest.fixture(params=DTYPES)
def dtype(request):
    return DTYPES[request.param]


@BOTH
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("name", sorted(set(BUILDERS) - {"exchange"}))
def test_layers(check, name, sizes, dtype):
    check(of_layer(name, sizes, dtype))


@BOTH
@pytest.mark.parametrize("sizes", RANKS)
def test_exchanges(check, sizes, dtype):
    check(of_exchange(sizes, dtype))


@BOTH
def test_plans_of_nothing(check, dtype):
    check(without_picks(dtype))
