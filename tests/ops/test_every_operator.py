"""What every operator holds, on the shared calls: its specification, its bits, its schema.

A call is an operator's name and its arguments, gradients being operators of their own; the builders
are `benchmarks.gpu_check.operator_cases`. What is special to one operator is in its own file.
"""

from dataclasses import dataclass, field

import pytest
import torch
from torch.library import opcheck

from benchmarks.gpu_check import operator_cases
from benchmarks.gpu_check.operator_cases import ACTIVATIONS, as_numbers, expected
from tests import thinning
from tests.needs_kernels import needs_kernels
from tests.ops import conftest
from tests.ops.cuda.calls import OPERATORS, Draw, calls, flat, run, same_bits, with_tensors
from tests.ops.damage import apart

FP32, BF16, FP64 = DTYPES = torch.float32, torch.bfloat16, torch.float64


@dataclass(frozen=True)
class Picked(Draw):
    """A case of one way to pick experts."""

    of: conftest.Case = field(default=conftest.CASES[0])

    def experts_BGK(self):
        return self.of.experts_BGK()


def picked(case, D):
    return Picked(case.B, case.G, case.K, case.E, D, case.O, of=case)


# The last ones: depths and widths of several blocks, and of no multiple of a register
CASES = [picked(case, 16 + n) for n, case in enumerate(conftest.CASES[:-1])]
WIDE = [Draw(713, 1, 1, 2, 70, 300), Draw(32, 2, 1, 2, 1500, 33), Draw(224, 2, 2, 8, 100, 67, True)]
# Exchanges are of as many ranks as divide the experts, and of no case without rows
EXCHANGED = [Draw(40, 3, 2, 8, 24, 24), Draw(33, 9, 2, 8, 17, 17, unused=True)]
PRODUCTS = {
    "grouped_mm", "gathered_mm", "dense_mm", "shared_mm", "dense_mlp", "mixed_towers",
}  # fmt: skip
DIFFERENTIABLE = PRODUCTS - {"dense_mlp"} | {
    "gated_combine", "dense_combine", "gate_mm", "topk_gate", "row_softmax", "target_attention",
    "permute", "unpermute",
}  # fmt: skip
# Those that neither plans nor owners' sums lead from row to row
BY_ROW = (
    "topk_gate", "joint_select", "gate_mm", "dense_mm", "shared_mm", "dense_mlp", "mixed_towers",
    "dense_combine",
)  # fmt: skip
TOLERANCES = {
    "products": {FP32: 5e-5, BF16: 2e-2, FP64: 1e-11},
    "gate_mm": {FP32: 1e-5, BF16: 8e-3, FP64: 1e-13},
    "others": {FP32: 2e-5, BF16: 1e-2, FP64: 1e-12},
}
by_name = pytest.mark.parametrize("name", OPERATORS)
# On the CPU gathered_mm has no kernel of its own: its public function permutes rows
with_kernels = pytest.mark.parametrize("name", [n for n in OPERATORS if n != "gathered_mm"])
by_type = pytest.mark.parametrize("dtype", DTYPES, ids=["fp32", "bf16", "fp64"])


def cases_of(name):
    if name in ("dense_mlp", "mixed_towers"):  # whose specifications go tile by tile
        return [*CASES[::5], WIDE[-1]]
    return EXCHANGED if name == "exchange" else [*CASES, *WIDE]


def called(name, case, dtype):
    """Their calls; a message between ranks has no place for float64."""
    if (name, dtype) == ("exchange", FP64):
        pytest.skip("messages are of float32 or bfloat16")
    return calls(name, case, dtype)


def near(name, call, found, wanted):
    """Within the rounding of the narrowest type there is, seen from the largest number."""
    steps = TOLERANCES["products" if name in PRODUCTS else name if name == "gate_mm" else "others"]
    # The kernels' normal distribution is exact to float32's rounding alone
    smooth = name in ("dense_mlp", "mixed_towers") and {"gelu", "silu"} & set(map(str, call[1]))
    narrowest = max(
        [steps.get(tensor.dtype, 0.0) for tensor in flat(call[1])] + [1e-6] * bool(smooth)
    )
    ours, theirs = flat(found), flat(wanted)
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype), call[0]
        if not other.is_floating_point():
            assert torch.equal(one, other), call[0]
        elif other.numel():
            step = narrowest * max(1.0, float(other.nan_to_num().abs().max()))
            torch.testing.assert_close(
                one, other, rtol=0, atol=step, equal_nan=True, msg=lambda said: f"{call[0]}: {said}"
            )


@pytest.mark.whole
@by_type
@with_kernels
def test_it_is_its_specification(name, dtype, monkeypatch):
    """In a short run each case has one of the activations: they are in test_activations.py too."""
    for number, case in enumerate(cases_of(name)):
        if thinning.is_short:
            monkeypatch.setattr(operator_cases, "ACTIVATIONS", (ACTIVATIONS[number % 4],))
        for call in called(name, case, dtype):
            found = getattr(torch.ops.mmoe, call[0])(*call[1])
            near(name, call, as_numbers(call, found), as_numbers(call, expected(call)))


@needs_kernels
@by_type
@with_kernels
def test_same_bits_in_every_run_with_any_number_of_threads_and_layout(name, dtype, threads):
    for call in called(name, Draw(700, 3, 2, 8, 65, 130, unused=True), dtype):
        threads(1)
        first = run(call)
        for count in (1, 2, 3):
            threads(count)
            assert same_bits(run(call), first), call[0]
        lying = call[0], [apart(argument) for argument in call[1]]
        assert same_bits(run(lying), first), call[0]


def some_of(value, rows, places):
    """The same of some rows alone, whatever dimension they lie in."""
    if isinstance(value, list | tuple):
        return [some_of(part, rows, places) for part in value]
    if not isinstance(value, torch.Tensor) or rows not in value.shape:
        return value
    return value.index_select(value.shape.index(rows), places)


@needs_kernels
@by_type
@pytest.mark.parametrize("name", BY_ROW)
def test_a_rows_result_depends_on_that_row_alone(name, dtype):
    B = 331
    places = torch.randperm(B), torch.arange(7, 20), torch.tensor([330])
    for operator, arguments in calls(name, Draw(B, 3, 2, 8, 65, 130, unused=True), dtype):
        if operator == "shared_sums":  # of all rows of an owner
            continue
        whole = run((operator, arguments))
        for some in places:
            found = run((operator, some_of(arguments, B, some)))
            of_rows = [n for n, tensor in enumerate(whole) if B in tensor.shape]
            assert of_rows
            expected_rows = some_of([whole[n] for n in of_rows], B, some)
            assert same_bits([found[n] for n in of_rows], expected_rows), operator


# Alone among an operator's tensors, which so may be of either type
ANY_FLOAT = {"scores_BGE", "x_RN", "logits_BGE", "x_BD of permute", "y_PD of unpermute"}
# Not read: without an activation, or where x has the rows of all (on a CPU)
NOT_READ = {"z_PH of grouped_mm_backward", "bounds of shared_mm", "order_B of shared_mm"}


def spoilt(value):
    """An argument with each of its tensors in a wrong type, and with a dimension more."""
    several = isinstance(value, list | tuple)
    tensors = list(value) if several else [value]
    for at, t in enumerate(tensors):
        if isinstance(t, torch.Tensor):
            other = torch.float64 if t.is_floating_point() else torch.float32
            for how, wrong in (
                ("no type", t.to(torch.int16)), ("type", t.to(other)), ("dim", t.unsqueeze(0)),
            ):  # fmt: skip
                yield how, [*tensors[:at], wrong, *tensors[at + 1 :]] if several else wrong


@with_kernels
def test_it_refuses_other_types_and_dimensions(name):
    refused = 0
    for operator, arguments in called(name, cases_of(name)[0], FP32):
        call = getattr(torch.ops.mmoe, operator)
        names = [argument.name for argument in call.default._schema.arguments]
        for at, value in enumerate(arguments):
            what = {names[at], f"{names[at]} of {operator}"}
            for how, wrong in spoilt(value) if not what & NOT_READ else ():
                if how == "type" and what & ANY_FLOAT:
                    continue
                with pytest.raises(ValueError, match=r"\A\w+(\[\d+\])?(, \w+)*: [^\n]+\Z"):
                    call(*arguments[:at], wrong, *arguments[at + 1 :])
                refused += 1
    assert refused


def form_of(value):
    """What an operator may tell apart: what is left out, words, switches, lists by length."""
    if isinstance(value, list | tuple):
        return tuple(map(form_of, value))
    return value if value is None or isinstance(value, str | bool) else type(value).__name__


CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor")
TRACED = "test_aot_dispatch_dynamic"  # takes 20 times what the others do together


@by_name
def test_its_schema_shapes_and_gradient_are_pytorchs(name):
    """Of a call of each activation and form of arguments; traced is the first one."""
    seen, traced = set(), set()
    for operator, arguments in called(name, cases_of(name)[0], FP32):
        kinds = {value for value in arguments if isinstance(value, str)}
        form = operator, *map(form_of, arguments)
        if form in seen or kinds - {"none", "relu", "gelu"}:
            continue
        seen.add(form)
        tensors = [tensor.nan_to_num() for tensor in flat(list(arguments))]
        if operator == name and name in DIFFERENTIABLE:
            tensors = [t.requires_grad_(t.is_floating_point()) for t in tensors]
        given = with_tensors(list(arguments), iter(tensors))
        checks = CHECKS if operator in traced else (*CHECKS, TRACED)
        traced.add(operator)
        opcheck(getattr(torch.ops.mmoe, operator).default, tuple(given), test_utils=checks)
